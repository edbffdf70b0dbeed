"""Real daemons on loopback, and a real Prometheus that scrapes them, for the tests of deploy/.

    with real_fleet.Fleet(programs, JOB, workers=2, pace=0.02) as fleet:
        with real_fleet.Prometheus(fleet.metrics.values()) as prometheus:
            prometheus.series("foreshard_steps_total")
"""

import json
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import found_tools

CONSOLE_LIBRARIES = pathlib.Path("/usr/share/doc/prometheus/examples/console_libraries")


def fetch(address, path="/metrics", timeout=10):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=timeout) as reply:
        return reply.read().decode()


def wait_until(condition, what, seconds=30, pause=0.1):
    """What `condition` returns, once it is true; it may raise while daemons are away."""
    end = time.monotonic() + seconds
    while True:
        try:
            found, why = condition(), ""
        except (OSError, urllib.error.URLError) as error:
            found, why = None, f" ({error})"
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}{why}")
        time.sleep(pause)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end(processes):
    processes = list(processes)
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
    for process in processes:
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Fleet:
    """The servers and workers of one job. `pace`: seconds that each step takes at least, of all workers or a list.
    `token`: the job's secret. `prepare` runs in each server before it begins. Names of daemons are server-0..,
    worker-0..; of each there are `processes`, `metrics` (its address) and `commands`."""

    def __init__(self, programs, job, shards=1, workers=2, pace=None, state=False, token=None, worker_flags=(), prepare=None):
        self.programs = programs
        self.folder = tempfile.TemporaryDirectory(prefix="foreshard-fleet-")
        self.root = pathlib.Path(self.folder.name)
        self.processes, self.metrics, self.addresses, self.commands = {}, {}, [], {}
        (self.root / "job.textproto").write_text(job)
        self.trust = []
        if token is not None:
            (self.root / "token").write_text(token + "\n")
            (self.root / "token").chmod(0o600)
            self.trust = [f"--token-file={self.root}/token"]
        try:
            for shard in range(shards):
                kept = [f"--state-directory={self.root}/state-{shard}"] if state else []
                self.start(f"server-{shard}", ["foreshard-server", f"--shard={shard}", "--listen=127.0.0.1:0",
                                               "--metrics-listen=127.0.0.1:0", *kept, *self.trust], prepare)
                self.addresses.append(self.ready(f"server-{shard}")["address"])
            paced = []
            if pace is not None:
                paces = pace if isinstance(pace, list) else [pace] * workers
                trace = "worker,step,seconds\n" + "".join(f"{slot},0,{seconds}\n" for slot, seconds in enumerate(paces))
                (self.root / "pace.csv").write_text(trace)
                paced = [f"--pace={self.root}/pace.csv"]
            for worker in range(workers):
                self.start(f"worker-{worker}", ["foreshard-worker", f"--servers={','.join(self.addresses)}", f"--name=worker-{worker}",
                                                "--metrics-listen=127.0.0.1:0", f"--slot={worker}", *self.trust, *paced, *worker_flags])
            for worker in range(workers):
                self.ready(f"worker-{worker}")
        except BaseException:
            self.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self, title, command, prepare=None):
        self.commands[title] = (command, prepare)
        (self.root / f"{title}.ready").unlink(missing_ok=True)
        with open(self.root / f"{title}.log", "a") as output:
            self.processes[title] = subprocess.Popen(
                [self.programs / command[0], f"--job={self.root}/job.textproto", f"--ready-file={self.root}/{title}.ready", *command[1:]],
                stdout=output, stderr=subprocess.STDOUT, preexec_fn=prepare)

    def log(self, title):
        return (self.root / f"{title}.log").read_text()

    def ready(self, title):
        file = self.root / f"{title}.ready"

        def there():
            if self.processes[title].poll() is not None:
                raise AssertionError(f"{title} has ended: {self.log(title)}")
            return file.exists()

        wait_until(there, f"{title} is ready", pause=0.05)
        found = json.loads(file.read_text())
        self.metrics[title] = found["metrics_address"]
        return found

    def restart(self, title, flags=()):
        """Again, where it was, after it has ended."""
        command, prepare = self.commands[title]
        moved = [word for word in command if not word.startswith(("--listen=", "--metrics-listen="))]
        if title.startswith("server-"):
            moved.append(f"--listen={self.addresses[int(title.rpartition('-')[2])]}")
        self.start(title, [*moved, f"--metrics-listen={self.metrics[title]}", *flags], prepare)
        self.ready(title)

    def send(self, title, number):
        self.processes[title].send_signal(number)

    def scrape(self):
        return "".join(fetch(address) for address in self.metrics.values())

    def stop(self):
        end(reversed(self.processes.values()))
        self.folder.cleanup()


class Throttled:
    """A process that runs only part of the time, as on a machine that others use: stopped and continued."""

    def __init__(self, process, running=0.05, stopped=0.4):
        self.process, self.running, self.stopped = process, running, stopped
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.over.is_set() and self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)
            self.over.wait(self.stopped)
            self.process.send_signal(signal.SIGCONT)
            self.over.wait(self.running)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


class Prometheus:
    """Scrapes `targets` with the given rules; consoles are those of deploy/."""

    def __init__(self, targets, rules=None, interval="500ms"):
        self.folder = tempfile.TemporaryDirectory(prefix="foreshard-prometheus-")
        root = pathlib.Path(self.folder.name)
        self.base = f"http://127.0.0.1:{free_port()}"
        (root / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "rule_files": [str(rules)] if rules else [],
            "scrape_configs": [{"job_name": "foreshard", "static_configs": [{"targets": list(targets)}]}]}))
        with open(root / "log", "w") as output:
            self.process = subprocess.Popen(
                [found_tools.find("prometheus"), f"--config.file={root}/prometheus.yml", f"--storage.tsdb.path={root}/data",
                 "--log.level=warn", f"--web.listen-address={self.base.removeprefix('http://')}",
                 f"--web.console.templates={found_tools.SOURCE}/deploy/prometheus/consoles",
                 f"--web.console.libraries={CONSOLE_LIBRARIES}"], stdout=output, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: self.ask("/-/ready"), f"Prometheus is ready: {(root / 'log').read_text()}")
        except BaseException:
            self.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def ask(self, path, **parameters):
        with urllib.request.urlopen(f"{self.base}{path}?{urllib.parse.urlencode(parameters)}", timeout=10) as reply:
            return reply.read().decode()

    def series(self, expression):
        return json.loads(self.ask("/api/v1/query", query=expression))["data"]["result"]

    def between(self, expression, start, end):
        """The least and the largest value at a second of that time, of an expression of one series."""
        found = json.loads(self.ask("/api/v1/query_range", query=expression, start=start, end=end, step=1))["data"]["result"]
        values = [float(value) for _, value in found[0]["values"]]
        return min(values), max(values)

    def rules(self):
        return [rule for group in json.loads(self.ask("/api/v1/rules"))["data"]["groups"] for rule in group["rules"]]

    def stop(self):
        end([self.process])
        self.folder.cleanup()
