"""Kubernetes' controllers of a release, in small: a StatefulSet keeps its pods, with names, claims and DNS
names that stay; a Job has its indexes done, under its podFailurePolicy.

    cluster = Cluster(runtime, network, folder)
    cluster.apply(objects)                       # again: changes what is there
    cluster.run(until=lambda: cluster.job("worker").complete, seconds=60)
    cluster.expand("state-demo-server-0", "1Gi")  # a claim
"""

import random
import subprocess
import time

from . import kubelet, pods

_STEP_SECONDS = 0.05
_INDEX = "batch.kubernetes.io/job-completion-index"
# A Job's back-off after a failure that counts; ignored ones are made good at once.
_BACK_OFF_SECONDS = 10
# Smaller claims are disks of just that size; larger ones a folder of this machine's.
_LEAST_SHARED_BYTES = 1 << 30


class NotInTime(Exception):
    """What was waited for did not come; the pods' states are in it."""


class Cluster:
    def __init__(self, runtime, network, folder):
        self.runtime = runtime
        self.network = network
        self.folder = folder
        self._controllers = {}
        self._pods = 0
        self._disks = {}

    def close(self):
        for place in self._disks.values():
            subprocess.run(["umount", "--lazy", place], check=True)

    def claim(self, name, size):
        place = self.folder / f"claim-{name}"
        place.mkdir(exist_ok=True)
        if name not in self._disks and pods.size_bytes(size) < _LEAST_SHARED_BYTES:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={pods.size_bytes(size)}", "tmpfs", place], check=True)
            self._disks[name] = place
        return place

    def expand(self, claim, size):
        """As a storage class does that allows it, while the pod is there."""
        subprocess.run(["mount", "-o", f"remount,size={pods.size_bytes(size)}", self._disks[claim]], check=True)

    def apply(self, objects):
        for thing in objects:
            key = thing["kind"], thing["metadata"]["name"]
            made = {"StatefulSet": StatefulSet, "Job": Job}.get(thing["kind"])
            if made is None:
                continue
            if key not in self._controllers:
                self._controllers[key] = made(self, thing)
            self._controllers[key].change(thing, objects)

    def make(self, name, template, objects, claims):
        self._pods += 1
        folder = self.folder / f"pod-{self._pods}"
        folder.mkdir()
        pod = pods.Pod(name, template, objects, claims, folder, self.network.add(name))
        pod.resolver = self.network.write_resolver(folder, pod.address)
        return kubelet.PodLife(pod, self.runtime, self.network, folder)

    def _of(self, kind, component):
        return next(c for (k, _), c in self._controllers.items() if k == kind and c.component == component)

    def stateful_set(self, component):
        return self._of("StatefulSet", component)

    def job(self, component):
        return self._of("Job", component)

    def step(self):
        now = time.monotonic()
        for controller in self._controllers.values():
            controller.step(now)

    def run(self, until, seconds, what):
        """Time passes until it is so; how long that took."""
        start = time.monotonic()
        while not until():
            if time.monotonic() - start > seconds:
                raise NotInTime(f"{what}: not within {seconds} s\n{self.describe()}")
            self.step()
            time.sleep(_STEP_SECONDS)
        return time.monotonic() - start

    def lives(self):
        return [life for controller in self._controllers.values() for life in controller.lives()]

    def describe(self):
        return "\n".join(f"{life.name}: {life.phase}, ready {life.ready}, restarts {life.restarts}, last status {life.exit_status}\n"
                         f"{life.log()[-1500:]}" for life in self.lives())

    def delete_all(self, grace_seconds):
        """The release is gone, so nothing is made anew; returns once all have ended."""
        for life in self.lives():
            life.delete(time.monotonic(), grace_seconds)
        deadline = time.monotonic() + grace_seconds + 30
        while any(not life.ended for life in self.lives()) and time.monotonic() < deadline:
            for life in self.lives():
                life.step(time.monotonic())
            time.sleep(_STEP_SECONDS)


class _Controller:
    def __init__(self, cluster, thing):
        self._cluster = cluster
        self.name = thing["metadata"]["name"]
        self.component = thing["metadata"]["labels"]["app.kubernetes.io/component"]
        self._spec = None
        self._objects = None

    def change(self, thing, objects):
        self._spec, self._objects = thing["spec"], objects


class StatefulSet(_Controller):
    def __init__(self, cluster, thing):
        super().__init__(cluster, thing)
        self.pods = {}

    def lives(self):
        return list(self.pods.values())

    def _dns(self, name):
        return f"{name}.{self._spec['serviceName']}"

    def step(self, now):
        for ordinal in range(self._spec["replicas"]):
            life = self.pods.get(ordinal)
            if life is not None and life.ended:
                self._cluster.network.names.remove(self._dns(life.name), life.pod.address.address)
                life = None
            if life is None:
                name = f"{self.name}-{ordinal}"
                claims = {}
                for claim in self._spec.get("volumeClaimTemplates", []):
                    kind = claim["metadata"]["name"]
                    claims[kind] = self._cluster.claim(f"{kind}-{name}", claim["spec"]["resources"]["requests"]["storage"])
                life = self.pods[ordinal] = self._cluster.make(name, self._spec["template"], self._objects, claims)
                # Also while it is not ready (publishNotReadyAddresses, which the chart's lint asks for).
                self._cluster.network.names.set(self._dns(name), life.pod.address.address)
            life.step(now)

    def ready(self):
        return len(self.pods) == self._spec["replicas"] and all(life.ready for life in self.pods.values())


def _fits(rule, life):
    """Whether a pod's end is what a rule of a podFailurePolicy is for."""
    if "onExitCodes" in rule:
        wanted = rule["onExitCodes"]
        # Of a container that has run, and failed.
        if not life.exit_status:
            return False
        return {"In": True, "NotIn": False}[wanted["operator"]] == (life.exit_status in wanted["values"])
    have = {"DisruptionTarget": "True"} if life.disrupted else {}
    return any(have.get(c["type"]) == c.get("status", "True") for c in rule["onPodConditions"])


class Job(_Controller):
    def __init__(self, cluster, thing):
        super().__init__(cluster, thing)
        self._random = random.Random(self.name)
        self.running = {}     # index: PodLife
        self.lost = []        # on nodes that nobody hears of, and so replaced
        self.over = []        # pods that have ended
        self.succeeded = set()
        self.failures = {}    # index: how many counted
        self.ignored = []     # exit statuses of those that did not
        self._not_before = {}
        self.failed_because = None

    @property
    def complete(self):
        return self.failed_because is None and len(self.succeeded) == self._spec["completions"]

    def lives(self):
        return [*self.running.values(), *self.lost, *self.over]

    def step(self, now):
        for life in [*self.running.values(), *self.lost]:
            life.step(now)
        for life in [p for p in self.lost if p.ended]:
            self.lost.remove(life)
            self.over.append(life)
        for index, life in list(self.running.items()):
            if life.ended:
                del self.running[index]
                self.over.append(life)
                self._judge(index, life, now)
        if self.failed_because is not None:
            for life in self.running.values():
                life.delete(now)
            return
        for index in range(self._spec["completions"]):
            if index in self.succeeded or index in self.running or now < self._not_before.get(index, 0):
                continue
            if len(self.running) < self._spec["parallelism"]:
                self.running[index] = self._make(index)

    def _make(self, index):
        suffix = "".join(self._random.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(5))
        template = self._spec["template"]
        name = f"{self.name}-{suffix}"
        if self._spec.get("completionMode") == "Indexed":
            name = f"{self.name}-{index}-{suffix}"
            template = {**template, "metadata": {**template["metadata"], "labels": {**template["metadata"]["labels"], _INDEX: str(index)}}}
        return self._cluster.make(name, template, self._objects, {})

    def _judge(self, index, life, now):
        if life.phase == "Succeeded":
            self.succeeded.add(index)
            return
        rule = next((r for r in self._spec["podFailurePolicy"]["rules"] if _fits(r, life)), {"action": "Count"})
        if rule["action"] == "FailJob":
            self.failed_because = f"{life.name} ended with {life.exit_status}"
            return
        if rule["action"] == "Ignore":
            self.ignored.append(life.exit_status)
            return
        if rule["action"] != "Count":
            raise ValueError(f"the rehearsal knows nothing of the action {rule['action']}")
        self.failures[index] = self.failures.get(index, 0) + 1
        self._not_before[index] = now + _BACK_OFF_SECONDS * 2 ** (self.failures[index] - 1)
        most = self._spec.get("backoffLimitPerIndex", self._spec.get("backoffLimit"))
        if self.failures[index] > most:
            self.failed_because = f"index {index} failed {self.failures[index]} times"

    def node_lost(self, index):
        """Nobody hears of the pod's node any more, and it is declared out of service: the pod is replaced, though it
        may go on running. That is a disruption, which the policy ignores."""
        life = self.running.pop(index)
        self._cluster.network.cut(life.pod.address)
        self.lost.append(life)
        return life

    def delete_pod(self, index):
        """As kubectl delete pod: it has its grace period, and once it has ended the Job judges how."""
        life = self.running[index]
        life.delete(time.monotonic())
        return life

    def evict(self, index):
        """As the eviction API, which a node that is drained uses: deleted, and marked as disrupted."""
        life = self.delete_pod(index)
        life.disrupted = True
        return life
