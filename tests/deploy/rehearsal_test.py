"""The chart without a cluster: its rendered pods are started, with podman from the image or, where that cannot be,
as this machine's programs in namespaces; each has an address and the names Kubernetes would give, its files, its
user, a read-only root and its probes. They train, while workers and servers are killed and replaced, a node is cut
off and comes back, the fleet is scaled and the servers are rolled; the Jobs complete. Then a release with a bad job,
and one whose claim is too small.

  rehearsal_test.py --programs=build-release/bin --build=build-release [--runtime=podman|namespaces]
"""

import argparse
import contextlib
import io
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import container_image
import found_tools

HELM = found_tools.find("helm")
try:
    import yaml
except ImportError as missing:
    found_tools.skip(f"{missing}: install python3-yaml")
from rehearsal import controllers, pod_network, runtimes
from local_fleet.scrape import Metrics  # rehearsal.pod_network adds its folder

CHART = found_tools.SOURCE / "deploy/helm/foreshard"
NAMESPACE = "training"
FETCH_IMAGE = "localhost/foreshard-fetch:1"
SIDE, CLASSES, EXAMPLES, BATCH, EPOCHS = 8, 4, 1280, 16, 75
# The first workers are slow, so that there is time for all that happens; those that come later bring it to an end.
WORKERS, SCALED, STEP_SECONDS, LATER_STEP_SECONDS = 3, 6, 0.1, 0.02
JOB = f"""
name: "rehearsal" seed: 3
model {{ name: "mlp" widths: 32 }}
data {{
  format: "idx" train_images: "train-images" train_labels: "train-labels" test_images: "test-images" test_labels: "test-labels"
  classes: {CLASSES} mean: 0.5 deviation: 0.5
}}
training {{ epochs: {EPOCHS} batch_size: {BATCH} workers: {WORKERS} }}
update {{ rule: "dana_slim" momentum: 0.9 }}
schedule {{ learning_rate: 0.01 }}
compression {{ push: "one_bit" }}
"""
# Pushes of 256 KiB, which the journal keeps: a claim of SMALL is full after some fifteen.
SMALL, LARGER = "4Mi", "512Mi"
FILLING = """
name: "filling" seed: 1
model { name: "quadratic" elements: 65536 }
data { format: "synthetic" examples: 19200 }
training { epochs: 1 batch_size: 64 workers: 1 }
update { rule: "asgd" }
schedule { learning_rate: 1e-6 }
"""
# The init container's: from the node, into its folder, without a program for it.
FETCH = ("exec 3<>/dev/tcp/data/8000; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; "
         "while read -r line <&3 && [[ $line != $'\\r' ]]; do :; done; exec tar -x <&3")
TARGET_SECONDS = 10
WAIT_SECONDS = 60


def idx(values, *shape):
    return struct.pack("!HBB", 0, 8, len(shape)) + b"".join(struct.pack("!I", n) for n in shape) + bytes(values)


def data_set():
    """A tar file: images whose brighter quarter says their class, and how long a step takes."""
    chance = random.Random(1)

    def images(count):
        labels = [i % CLASSES for i in range(count)]
        pixels = []
        for label in labels:
            bright = range(label * SIDE * SIDE // CLASSES, (label + 1) * SIDE * SIDE // CLASSES)
            pixels += [chance.randrange(100, 256) if i in bright else chance.randrange(0, 156) for i in range(SIDE * SIDE)]
        return idx(pixels, count, SIDE, SIDE), idx(labels, count)

    files = dict(zip(("train-images", "train-labels"), images(EXAMPLES)))
    files.update(zip(("test-images", "test-labels"), images(200)))
    files["pace.csv"] = ("worker,step,seconds\n" + "".join(
        f"{slot},0,{STEP_SECONDS if slot < WORKERS else LATER_STEP_SECONDS}\n" for slot in range(SCALED))).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


class DataServer:
    """What the init containers fetch from."""

    def __init__(self, network):
        self._socket = network.listen(8000)
        self._content = data_set()
        self.served = 0
        network.names.set("data", pod_network.NODE)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(10)
                asked = b""
                while b"\r\n\r\n" not in asked:
                    asked += connection.recv(4096)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + self._content)
                self.served += 1

    def close(self):
        with contextlib.suppress(OSError):
            self._socket.shutdown(2)
        self._socket.close()


def render(folder, *values, job=JOB):
    spec = folder / "job.textproto"
    spec.write_text(job)
    given = (f"workers.count={WORKERS}", "servers.startupSeconds=60", "data.type=fetch", f"data.fetch.image={FETCH_IMAGE}",
             "workers.extraArgs={--pace=/data/pace.csv}", f"image.repository={container_image.NAME.rpartition(':')[0]}",
             f"image.tag={container_image.NAME.rpartition(':')[2]}", *values)
    values_file = folder / "values.yaml"
    values_file.write_text(yaml.safe_dump({"data": {"fetch": {"command": ["bash", "-c", FETCH]}}}))
    done = subprocess.run([HELM, "template", "demo", CHART, "--namespace", NAMESPACE, "--values", values_file, "--set-file",
                           f"job.spec={spec}", *[w for v in given for w in ("--set", v)]], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [o for o in yaml.safe_load_all(done.stdout) if o]


def notes(folder):
    """What helm prints after an installation, with the command line for status in it."""
    done = subprocess.run([HELM, "install", "demo", CHART, "--namespace", NAMESPACE, "--dry-run=client", "--set-file",
                           f"job.spec={folder / 'job.textproto'}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


def fetch_image(folder):
    """An image with a shell and tar, as the one that fetches data might be."""
    root, archive = folder / "fetch-root", folder / "fetch.tar"
    container_image.run(found_tools.SOURCE / "deploy/docker/make-root", root, "/usr/bin/bash", "/usr/bin/tar")
    container_image.run("tar", "-C", root, "-cf", archive, ".")
    return archive


def make_runtime(folder):
    """Podman where it can be, unless another was asked for; or says why not and skips."""
    why = container_image.why_impossible()
    if ARGUMENTS.runtime == "podman" and why:
        found_tools.skip(why)
    if ARGUMENTS.runtime != "namespaces" and why is None:
        try:
            image = container_image.build(PROGRAMS, ARGUMENTS.build.resolve() / "images").archive
        except container_image.NoBase as none:
            if ARGUMENTS.runtime == "podman":
                raise
            why = str(none)
        else:
            return runtimes.Podman([image], {FETCH_IMAGE: fetch_image(folder)})
    print(f"without podman ({why or 'as asked for'}): in namespaces", flush=True)
    why = runtimes.why_no_namespaces()
    if why:
        found_tools.skip(f"neither podman nor namespaces: {why}")
    return runtimes.Namespaces(PROGRAMS, folder / "roots")


class Rehearsal(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.started = time.monotonic()
        with contextlib.ExitStack() as stack:
            cls.folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foreshard-rehearsal-",
                                                                                     ignore_cleanup_errors=True)))
            cls.folder.chmod(0o755)
            cls.runtime = stack.enter_context(make_runtime(cls.folder))
            cls.addClassCleanup(stack.pop_all().close)
        print(f"pods by {cls.runtime.name}; image and runtime there after {time.monotonic() - cls.started:.0f} s", flush=True)

    @classmethod
    def tearDownClass(cls):
        print(f"the whole rehearsal: {time.monotonic() - cls.started:.0f} s", flush=True)

    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        place = self.folder / self._testMethodName
        place.mkdir()
        self.network = self.stack.enter_context(pod_network.PodNetwork(NAMESPACE))
        self.data = DataServer(self.network)
        self.stack.callback(self.data.close)
        self.cluster = controllers.Cluster(self.runtime, self.network, place)
        self.stack.callback(self.cluster.close)
        self.stack.callback(self.cluster.delete_all, 0)

    def say(self, text):
        print(f"  {time.monotonic() - self.started:5.1f} s  {text}", flush=True)

    def metric(self, life, name, **labels):
        """Of a pod, over the network; None: it does not answer (yet), or has none such."""
        try:
            with self.network.connect(life.pod.address.address, 9090, timeout=1) as connection:
                connection.settimeout(1)
                connection.sendall(b"GET /metrics HTTP/1.0\r\nHost: pod\r\n\r\n")
                answer = b""
                while chunk := connection.recv(1 << 16):
                    answer += chunk
        except OSError:
            return None
        return Metrics(answer.partition(b"\r\n\r\n")[2].decode("utf-8", "replace")).get(name, **labels)

    def applied(self, life):
        return self.metric(life, "pushes_total", result="applied") or 0

    def steps(self, life):
        return self.metric(life, "steps_total") or 0

    def until(self, condition, what):
        return self.cluster.run(condition, WAIT_SECONDS, what)

    def report(self, what, seconds):
        self.say(f"{what}: training again after {seconds:.1f} s (bound of the design: {TARGET_SECONDS} s)")

    def test_it_trains_while_pods_die(self):
        self.objects = render(self.folder)
        self.cluster.apply(self.objects)
        self.cluster.step()
        servers, workers, evaluator = self.cluster.stateful_set("server"), self.cluster.job("worker"), self.cluster.job("evaluator")
        self.until(servers.ready, "servers ready")
        self.say("both servers are ready, by their probes")
        self.until(lambda: all(self.applied(s) > 20 for s in servers.lives()) and len(workers.running) == WORKERS
                   and all(self.steps(w) > 2 for w in workers.running.values()), "all workers train")
        self.say(f"{WORKERS} workers train, on data that their init containers fetched")
        self.assertGreaterEqual(self.data.served, WORKERS)
        self.assertGreater(self.network.names.asked, 0)
        self.locked(servers.pods[0])

        self.a_worker_ends_early(workers, workers.evict, "evicted")
        self.a_worker_ends_early(workers, workers.delete_pod, "deleted")
        self.a_worker_crashes(workers)
        self.a_server_dies(servers)
        self.a_node_is_cut_off(workers)
        self.servers_roll(servers)
        self.they_are_more(workers)

        self.status(servers.pods[0])
        self.backup(servers.pods[1])
        took = self.cluster.run(lambda: workers.complete and evaluator.complete, 180, "the Jobs complete")
        self.say(f"the Jobs are complete, {took:.0f} s later")
        self.assertEqual(workers.succeeded, set(range(SCALED)))
        bad = "\n".join(life.log() for life in workers.over + evaluator.over if life.exit_status not in (0, 4, 137, 143))
        self.assertEqual(workers.failures, {0: 1}, f"failures that count, by index: of the crash alone\n{bad}")
        self.assertEqual(evaluator.failures, {}, bad)
        self.assertTrue(servers.ready(), "servers stay and keep the parameters")
        self.assertEqual([s.liveness_kills for s in servers.lives()], [0, 0])
        learned = self.metric(servers.pods[0], "parameter_version")
        self.assertGreater(learned, 0)
        self.assertRegex(evaluator.over[-1].log(), r"(?i)accuracy")
        self.cluster.delete_all(servers.pods[0].pod.grace_seconds)
        self.assertEqual([s.exit_status for s in servers.lives()], [0, 0], "SIGTERM, a last checkpoint, exit 0")

    def locked(self, server):
        """The security settings hold: a program in the pod can write its volumes only."""
        for folder, allowed in (("/var/lib/foreshard", True), ("/tmp", True), ("/etc/foreshard", False), ("/", False)):
            status, output = server.execute(["tar", "-cf", f"{folder}/written.tar", "-C", "/", "etc/hosts"])
            self.assertEqual(status == 0, allowed, f"{folder}: {output}")

    def a_worker_ends_early(self, workers, end, how):
        """It leaves within its grace period; its index is neither done nor failed, so that another pod has it."""
        old = end(1)
        took = self.until(lambda: old.ended and (1 in workers.succeeded or 1 in workers.failures or (
            1 in workers.running and self.steps(workers.running[1]) > 0)), "a replaced worker trains")
        self.assertEqual(old.exit_status, 128 + signal.SIGTERM, old.log())
        self.assertEqual((workers.succeeded, workers.failures), (set(), {}), "its end counts as nothing")
        self.report(f"a worker's pod {how}", took)

    def a_worker_crashes(self, workers):
        """It counts, and the Job waits before it makes it good; meanwhile the others train."""
        old = workers.running[0]
        old.crash()
        before = self.steps(workers.running[2])
        self.until(lambda: 0 not in workers.running, "the crash is noticed")
        self.until(lambda: self.steps(workers.running[2]) > before + 5, "the others go on")
        took = self.until(lambda: 0 in workers.running and self.steps(workers.running[0]) > 0, "the crashed worker is replaced")
        self.say(f"a worker crashed: its replacement trains after {took:.1f} s, of which the Job's back-off is 10 s; the others went on")

    def a_server_dies(self, servers):
        old = servers.pods[1]
        version = self.metric(old, "parameter_version")
        old.delete(time.monotonic(), grace_seconds=0)
        took = self.until(lambda: servers.pods[1] is not old and self.applied(servers.pods[1]) > 0, "a replaced server applies pushes")
        self.report("a server's pod killed and replaced, at another address", took)
        self.assertNotEqual(old.pod.address.address, servers.pods[1].pod.address.address)
        self.assertGreaterEqual(self.metric(servers.pods[1], "parameter_version"), version, "the state on its claim was gone on with")

    def a_node_is_cut_off(self, workers):
        """The pod on it goes on running; its slot is another's; back again, it is told and ends with 4."""
        before = self.steps(workers.running[2])
        self.until(lambda: self.steps(workers.running[2]) > before + 5, "the worker on that node trains")
        old = workers.node_lost(2)
        took = self.until(lambda: 2 in workers.running and self.steps(workers.running[2]) > 0, "the lost node's worker is replaced")
        self.report("a node cut off, its worker replaced elsewhere", took)
        self.assertFalse(old.ended)
        self.network.restore(old.pod.address)
        took = self.until(lambda: old.ended, "the old incarnation ends")
        self.say(f"the node is back: its pod ended {took:.1f} s later with {runtimes.describe(old.exit_status)}")
        self.assertEqual(old.exit_status, 4, old.log())
        self.assertIn("fenced", old.log())
        self.assertGreater(self.steps(workers.running[2]), 0)

    def servers_roll(self, servers):
        """A rolling update: one after the other, from the last, the next once this one is ready."""
        for ordinal in (1, 0):
            old = servers.pods[ordinal]
            now = time.monotonic()
            old.delete(now)
            took = self.until(lambda: servers.pods[ordinal] is not old and servers.pods[ordinal].ready
                              and self.applied(servers.pods[ordinal]) > 0, f"server {ordinal} is rolled")
            self.assertEqual(old.exit_status, 0, f"it drains within its grace period\n{old.log()}")
            self.report(f"server {ordinal} rolled (SIGTERM, checkpoint, another pod, ready)", took)

    def they_are_more(self, workers):
        name = workers.name
        again = render(self.folder, f"workers.count={SCALED}")
        # A helm that reaches its cluster keeps the secrets that are there.
        self.cluster.apply([o for o in again if o["kind"] != "Secret"] + [o for o in self.objects if o["kind"] == "Secret"])
        self.assertEqual(self.cluster.job("worker").name, name, "the same Job")
        self.until(lambda: len(workers.running) == SCALED and all(self.steps(w) > 0 for w in workers.running.values()),
                   "more workers train")
        self.say(f"scaled from {WORKERS} to {SCALED} workers, which all train")

    def status(self, server):
        """The command that helm's notes give."""
        text = notes(self.folder)
        line = text[text.index("exec demo-foreshard-server-0 --"):].partition("\n\n")[0].replace("\\\n", " ")
        status, output = server.execute(line.partition(" -- ")[2].split())
        self.assertEqual(status, 0, output)
        self.assertIn("rehearsal", output)

    def backup(self, server):
        """As deploy/README.md says, while training goes on; the copy is whole."""
        text = (found_tools.SOURCE / "deploy/README.md").read_text()
        commands = re.findall(r"exec run1-foreshard-server-0 -- ((?:.*\\\n)*.*)", text[text.index("## Backup"):])
        self.assertEqual(len(commands), 2)
        checkpoint, copy = (c.replace("\\\n", " ").partition(" > ")[0].split() for c in commands)
        status, output = server.execute(checkpoint)
        self.assertEqual(status, 0, output)
        self.assertIn("checkpoint.", output)
        copy[copy.index("-cf") + 1] = "/tmp/state.tar"
        status, output = server.execute(copy)
        # 1: a file grew.
        self.assertIn(status, (0, 1), output)
        place = self.folder / "backup"
        place.mkdir()
        container_image.run("tar", "-C", place, "-xf", server.pod.folder / "volumes/scratch/state.tar")
        self.assertIn("whole", container_image.run(PROGRAMS / "foreshard", "verify", place / "state"))
        self.say("a backup taken meanwhile is whole")

    def test_a_bad_job_fails_its_job_at_once(self):
        self.cluster.apply(render(self.folder, "job.set={training.epochs=0}"))
        self.cluster.step()
        workers, evaluator, servers = self.cluster.job("worker"), self.cluster.job("evaluator"), self.cluster.stateful_set("server")
        took = self.until(lambda: workers.failed_because and evaluator.failed_because and not workers.running, "the Jobs fail")
        self.say(f"a bad job: its Jobs failed after {took:.1f} s: {workers.failed_because}")
        self.assertEqual({life.exit_status for life in workers.over if life.exit_status is not None} - {128 + signal.SIGTERM}, {2})
        self.assertEqual((workers.failures, evaluator.failures), ({}, {}), "without another try")
        self.assertLessEqual(len(workers.over), WORKERS)
        self.assertTrue(any("training.epochs" in life.log() for life in workers.over))
        self.assertFalse(any(s.ready_at for s in servers.lives()), "servers that refuse the job never become ready")

    def test_a_claim_that_is_full_ends_its_server_until_there_is_room(self):
        self.cluster.apply(render(
            self.folder, "servers.shards=1", f"servers.state.size={SMALL}", "workers.count=1", "workers.extraArgs=null", "data.type=none",
            "evaluator.enabled=false", job=FILLING))
        self.cluster.step()
        workers, server = self.cluster.job("worker"), self.cluster.stateful_set("server").pods[0]
        self.until(lambda: server.restarts >= 2, "its server ends, is started again and cannot begin")
        worker = workers.running[0]
        done = self.steps(worker)
        self.say(f"a claim of {SMALL} is full after {done:.0f} steps: its server ended with {server.exit_status}, and is not ready")
        self.assertEqual(server.exit_status, 1)
        self.assertFalse(server.ready)
        self.assertIn("No space left on device", server.log())
        self.assertIn("start it again when the disk can be written", server.log())
        self.assertGreater(done, 0)
        self.assertIn("waiting for server 0", worker.log())
        self.cluster.expand(f"state-{server.name}", LARGER)
        took = self.until(lambda: self.applied(server) > 0, "with room it goes on")
        self.say(f"a claim of {LARGER}: training again after {took:.1f} s, of which the kubelet's back-off is up to 10 s")
        self.assertGreaterEqual(self.metric(server, "parameter_version"), done, "what was acknowledged is there")
        self.until(lambda: workers.complete, "the Job completes")
        self.assertEqual((workers.failures, worker.exit_status), ({}, 0), "the worker has waited")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", required=True, type=pathlib.Path)
    parser.add_argument("--build", required=True, type=pathlib.Path, help="where the image is kept: below this, in images/")
    parser.add_argument("--runtime", choices=("podman", "namespaces"))
    ARGUMENTS, rest = parser.parse_known_args()
    if HELM is None:
        found_tools.skip("no helm: tools/install-deploy-tools")
    impossible = pod_network.why_impossible()
    if impossible:
        found_tools.skip(f"no network of pods: {impossible}")
    PROGRAMS = ARGUMENTS.programs.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    unittest.main(argv=[sys.argv[0], *rest])
