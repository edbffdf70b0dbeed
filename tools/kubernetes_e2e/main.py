"""tools/kubernetes-e2e: the steps, and its command line."""

import argparse
import os
import signal
import sys
import time

from . import release as releases
from .release import Failure, Unusable

_RELEASE = "demo"
_DESCRIPTION = """Proves that Foreshard works on the cluster that kubectl reaches: installs the chart with its own job, which needs
no data, in a namespace of its own; deletes a worker's pod, kills one and a server's, scales the workers, rolls the servers while they train; waits
until the Jobs complete; uninstalls, and looks whether anything is left. It takes some ten minutes, and needs 6 CPUs, a default storage
class and rights to create a namespace."""
_EPILOG = """Exit status: 0 all of it held; 1 something did not, and what; 2 no kubectl, helm or cluster, or a wrong argument;
130 interrupted. Whatever happens the namespace is deleted, unless --keep."""


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tools/kubernetes-e2e", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--image", required=True, help="the CPU image's name, as REGISTRY/foreshard")
    parser.add_argument("--tag", default="0.1.0", help="its tag [0.1.0]")
    parser.add_argument("--context", help="kubectl's context [the current one]")
    parser.add_argument("--namespace", default=f"foreshard-e2e-{os.getpid()}", help="which must not exist [foreshard-e2e-PID]")
    parser.add_argument("--set", action="append", default=[], metavar="VALUE=X", help="further values of the chart; may be repeated")
    parser.add_argument("--workers", type=int, default=3, help="at first; two more later [3]")
    parser.add_argument("--epochs", type=int, default=15, help="of the job: more, where it ends before all was tried [15]")
    parser.add_argument("--wait-seconds", type=int, default=300, help="how long any step may take [300]")
    parser.add_argument("--complete-seconds", type=int, default=1800, help="how long the rest of the job may take [1800]")
    parser.add_argument("--poll-seconds", type=float, default=1, help="between two questions [1]")
    parser.add_argument("--keep", action="store_true", help="leave namespace and release as they are at the end")
    parser.add_argument("--kubectl", default="kubectl", help="the program")
    parser.add_argument("--helm", default="helm", help="the program")
    options = parser.parse_args(arguments)
    if options.workers < 2:
        parser.error("--workers: at least 2, since one is killed while the others train")
    for value in ("epochs", "wait_seconds", "complete_seconds"):
        if getattr(options, value) < 1:
            parser.error(f"--{value.replace('_', '-')}: a number from 1 on")
    return options


class Run:
    def __init__(self, options, programs):
        self._options = options
        self._release = releases.Release(programs, options.namespace, _RELEASE)
        self._start = time.monotonic()

    def _say(self, text):
        print(f"{time.monotonic() - self._start:6.1f} s  {text}", flush=True)

    def _until(self, what, condition, seconds=None, may_end=False):
        """What `condition` returns once it is neither None nor False; and how long that took."""
        seconds = seconds or self._options.wait_seconds
        start = time.monotonic()
        while True:
            answer = condition()
            took = time.monotonic() - start
            if answer is not None and answer is not False:
                return answer, took
            states, failures = self._release.jobs()
            if failures:
                raise Failure(f"{what}: a Job failed: {'; '.join(failures)}")
            if not may_end and states and all(state == "Complete" for state in states.values()):
                raise Failure(f"{what}: the job is over already; give it more --epochs than {self._options.epochs}")
            if took > seconds:
                raise Failure(f"{what}: not within {seconds} s")
            time.sleep(self._options.poll_seconds)

    def _values(self, workers):
        values = [f"image.repository={self._options.image}", f"image.tag={self._options.tag}", f"workers.count={workers}",
                  f"job.set={{training.epochs={self._options.epochs}}}", "workers.extraArgs={--slowdown=50}", *self._options.set]
        return [word for value in values for word in ("--set", value)]

    def _version(self, ordinal):
        """Updates that a server has applied; None: it does not say."""
        servers = self._release.servers()
        status = self._release.status_of(servers[ordinal]) if ordinal < len(servers) and servers[ordinal].ready else None
        return None if status is None else max((s["version"] for s in status["segments"]), default=0)

    def _goes_on(self, what, ordinal):
        """Waits until a server applies updates, anew."""
        before, _ = self._until(what, lambda: self._version(ordinal))

        def more():
            version = self._version(ordinal)
            return version is not None and version > before

        self._until(what, more)

    def _trains(self, names):
        servers = self._release.servers()
        status = self._release.status_of(servers[0]) if servers and servers[0].ready else None
        if status is None:
            return False
        training = {w["name"] for w in status["workers"] if w["state"] == "training" and w["pushes"] > 0}
        return bool(names) and set(names) <= training

    def install(self):
        self._release.create_namespace()
        self._say(f"namespace {self._options.namespace}")
        self._release.helm("install", _RELEASE, releases.chart(), *self._values(self._options.workers))
        self._until("servers ready", lambda: (servers := self._release.servers()) and all(s.ready for s in servers))
        count = len(self._release.servers())
        self._say(f"{count} servers are ready")
        self._until("workers train", lambda: len(workers := self._release.workers()) == self._options.workers
                    and self._trains([w.name for w in workers.values()]))
        for ordinal in range(count):
            self._goes_on(f"server {ordinal} applies updates", ordinal)
        self._say(f"{self._options.workers} workers train")

    def _end_worker(self, end, how):
        old, _ = self._until("worker 1 trains", lambda: (pod := self._release.workers().get(1)) and self._trains([pod.name]) and pod)
        end(old)

        def replaced():
            new = self._release.workers().get(1)
            if new is None and 1 in self._release.done_indexes():
                raise Failure(f"a {how} worker is replaced: its pod ended with 0 before the job was over, so that its Job counts index 1 "
                              "as done")
            return new is not None and new.uid != old.uid and new.runs and self._trains([new.name])

        _, took = self._until(f"a {how} worker is replaced", replaced)
        self._say(f"a worker's pod {how}: its slot trains again after {took:.1f} s")

    def delete_worker(self):
        self._end_worker(self._release.delete_pod, "deleted")

    def kill_worker(self):
        self._end_worker(self._release.kill_pod, "killed")

    def kill_server(self):
        old = self._release.servers()[-1]
        before = self._version(old.index)
        self._release.kill_pod(old)
        start = time.monotonic()
        self._until("a killed server is replaced", lambda: any(
            s.name == old.name and s.uid != old.uid and s.ready for s in self._release.servers()))
        self._goes_on("a replaced server applies updates", old.index)
        took = time.monotonic() - start
        after = self._version(old.index)
        if before is not None and after is not None and after < before:
            raise Failure(f"{old.name} had applied {before} updates, and goes on from {after}: its volume did not keep its state")
        self._say(f"a server's pod killed: it applies updates again after {took:.1f} s, from what its volume keeps")

    def scale(self):
        more = self._options.workers + 2
        self._release.helm("upgrade", _RELEASE, releases.chart(), "--reuse-values", "--set", f"workers.count={more}")
        self._until("more workers train", lambda: len(workers := self._release.workers()) == more
                    and self._trains([w.name for w in workers.values()]))
        self._say(f"scaled from {self._options.workers} to {more} workers, which all train")

    def roll(self):
        name = f"statefulset/{self._release.full_name}-server"
        old = {s.uid for s in self._release.servers()}
        self._release.kubectl("rollout", "restart", name)
        self._until("the servers are rolled", lambda: (servers := self._release.servers()) and len(servers) == len(old)
                    and all(s.ready and s.uid not in old for s in servers))
        for ordinal in range(len(old)):
            self._goes_on(f"server {ordinal} applies updates after the roll", ordinal)
        self._say("the servers were rolled one by one, and training went on")

    def complete(self):
        def over():
            states, _ = self._release.jobs()
            return bool(states) and all(state == "Complete" for state in states.values())

        _, took = self._until("the Jobs complete", over, self._options.complete_seconds, may_end=True)
        self._say(f"the Jobs are complete, {took:.0f} s later")

    def uninstall(self):
        self._release.helm("uninstall", _RELEASE, "--wait", f"--timeout={self._options.wait_seconds}s",
                           seconds=self._options.wait_seconds + 30)

        def left():
            return [name for name in self._release.left() if not name.startswith("persistentvolumeclaim/")]

        # Pods go after what made them: servers write a last checkpoint.
        end = time.monotonic() + self._options.wait_seconds
        while left() and time.monotonic() < end:
            time.sleep(self._options.poll_seconds)
        if left():
            raise Failure(f"helm uninstall left {', '.join(left())}")
        self._release.kubectl("delete", "persistentvolumeclaims", "--selector", self._release.labels(),
                              f"--timeout={self._options.wait_seconds}s", seconds=self._options.wait_seconds + 30)
        left = self._release.left()
        if left:
            raise Failure(f"still there: {', '.join(left)}")
        self._say("uninstalled; nothing is left")

    def describe(self):
        for arguments in (("get", "pods", "--output=wide"), ("get", "events", "--sort-by=.lastTimestamp"),
                          ("logs", "--selector", self._release.labels(), "--tail=15", "--prefix", "--all-containers")):
            print(f"--- kubectl {' '.join(arguments)}\n{self._release.try_kubectl(*arguments)[-6000:]}", file=sys.stderr)

    def all(self):
        for step in (self.install, self.delete_worker, self.kill_worker, self.kill_server, self.scale, self.roll, self.complete, self.uninstall):
            step()

    def clean(self):
        self._release.delete_namespace(self._options.wait_seconds)
        self._say(f"namespace {self._options.namespace} is gone")


def main(arguments, programs=releases.Programs):
    options = parse(arguments)
    # As Ctrl-C, so that the namespace goes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        reached = programs(options.kubectl, options.helm, options.context)
        reached.need_cluster()
        run = Run(options, reached)
    except Unusable as unusable:
        print(f"tools/kubernetes-e2e: {unusable}", file=sys.stderr)
        return 2
    status = 0
    try:
        run.all()
    except Unusable as unusable:
        # Nothing of ours is there.
        print(f"tools/kubernetes-e2e: {unusable}", file=sys.stderr)
        return 2
    except Failure as failure:
        print(f"tools/kubernetes-e2e: {failure}", file=sys.stderr)
        run.describe()
        status = 1
    except KeyboardInterrupt:
        print("tools/kubernetes-e2e: interrupted", file=sys.stderr)
        status = 130
    if options.keep:
        print(f"Kept: namespace {options.namespace}. To remove it: kubectl delete namespace {options.namespace}")
        return status
    try:
        run.clean()
    except Failure as failure:
        print(f"tools/kubernetes-e2e: {failure}: remove the namespace {options.namespace} by hand", file=sys.stderr)
        status = status or 1
    if status == 0:
        print("All of it held.")
    return status
