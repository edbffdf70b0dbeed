"""One release of the chart in a namespace of its own, asked and changed through kubectl and helm.

    release = Release(Programs("kubectl", "helm", context=None), "foreshard-e2e-12", "demo")
    release.servers()[0].ready
"""

import dataclasses
import json
import os
import shutil
import subprocess

_CALL_SECONDS = 120
_INDEX = "batch.kubernetes.io/job-completion-index"
_TRUST = ("--tls-certificate=", "--tls-key=", "--tls-ca=", "--token-file=")


class Unusable(Exception):
    """A program or the cluster is missing: nothing was tried."""


class Failure(Exception):
    """Something did not happen as it should, and what."""


class Programs:
    def __init__(self, kubectl, helm, context):
        for program, name in ((kubectl, "kubectl"), (helm, "helm")):
            if shutil.which(program) is None:
                raise Unusable(f"there is no program '{program}': install {name} (tools/install-deploy-tools gets one, into "
                               f".deploy-tools/bin), or say where it is with --{name}")
        self._kubectl = [kubectl] + (["--context", context] if context else [])
        self._helm = [helm] + (["--kube-context", context] if context else [])

    def _run(self, command, seconds):
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return 124, "", f"no answer within {seconds} s"
        return done.returncode, done.stdout, done.stderr

    def kubectl(self, *arguments, seconds=_CALL_SECONDS):
        return self._run([*self._kubectl, *arguments], seconds)

    def helm(self, *arguments, seconds=_CALL_SECONDS):
        return self._run([*self._helm, *arguments], seconds)

    def need_cluster(self):
        """Its version's minor number."""
        status, output, errors = self.kubectl("version", "--output=json", seconds=30)
        server = json.loads(output).get("serverVersion") if status == 0 and output.strip() else None
        if server is None:
            words = " ".join(errors.split()) or f"kubectl version ended with {status}"
            raise Unusable(f"no cluster is reached: {words}\nSay which with --context or KUBECONFIG; `kubectl config get-contexts` "
                           "lists them")
        minor = int(server["minor"].rstrip("+"))
        if (int(server["major"]), minor) < (1, 31):
            raise Unusable(f"the cluster has Kubernetes {server['major']}.{minor}; the chart needs 1.31 or newer")
        return minor


@dataclasses.dataclass(frozen=True)
class Pod:
    name: str
    uid: str
    phase: str
    ready: bool
    index: int  # a worker's, or a server's ordinal

    @property
    def runs(self):
        return self.phase == "Running"


class Release:
    def __init__(self, programs, namespace, name):
        self._programs = programs
        self.namespace = namespace
        self.name = name
        self.full_name = name if "foreshard" in name else f"{name}-foreshard"
        self._trust = None

    def _checked(self, what, done):
        status, output, errors = done
        if status != 0:
            raise Failure(f"{what}: {' '.join(errors.split()) or f'status {status}'}")
        return output

    def kubectl(self, *arguments, **others):
        return self._checked(f"kubectl {' '.join(arguments[:3])}", self._programs.kubectl("--namespace", self.namespace, *arguments, **others))

    def helm(self, *arguments, **others):
        return self._checked(f"helm {arguments[0]}", self._programs.helm(*arguments, "--namespace", self.namespace, **others))

    def try_kubectl(self, *arguments):
        """Its output, or what it said; for diagnosis."""
        _, output, errors = self._programs.kubectl("--namespace", self.namespace, *arguments)
        return output or errors

    def create_namespace(self):
        status, _, _ = self._programs.kubectl("get", "namespace", self.namespace)
        if status == 0:
            raise Unusable(f"the namespace {self.namespace} is there already, and would be deleted at the end: name another one")
        self._checked("kubectl create namespace", self._programs.kubectl("create", "namespace", self.namespace))

    def delete_namespace(self, seconds):
        self._checked("kubectl delete namespace", self._programs.kubectl(
            "delete", "namespace", self.namespace, f"--timeout={seconds}s", seconds=seconds + 30))

    def labels(self, component=None):
        return f"app.kubernetes.io/instance={self.name}" + (f",app.kubernetes.io/component={component}" if component else "")

    def _items(self, kinds, component=None):
        return json.loads(self.kubectl("get", kinds, "--selector", self.labels(component), "--output=json"))["items"]

    def _pods(self, component):
        for item in self._items("pods", component):
            if item["metadata"].get("deletionTimestamp"):
                continue
            labels = item["metadata"]["labels"]
            index = labels.get(_INDEX, item["metadata"]["name"].rpartition("-")[2])
            conditions = {c["type"]: c["status"] for c in item["status"].get("conditions", [])}
            yield Pod(item["metadata"]["name"], item["metadata"]["uid"], item["status"].get("phase", ""),
                      conditions.get("Ready") == "True", int(index) if index.isdigit() else -1)

    def servers(self):
        """By their ordinals."""
        return sorted(self._pods("server"), key=lambda p: p.index)

    def workers(self):
        """By index, those that are pending or run."""
        return {p.index: p for p in self._pods("worker") if p.phase in ("Pending", "Running")}

    def delete_pod(self, pod):
        """As a node that is drained does: it has its grace period."""
        self.kubectl("delete", "pod", pod.name, "--wait=false")

    def kill_pod(self, pod):
        """As if its node were gone: no time to end well."""
        self.kubectl("delete", "pod", pod.name, "--grace-period=0", "--force", "--wait=false")

    def done_indexes(self):
        """Of the workers' Job: those it counts as done. A pod that was deleted is gone, whatever it ended with."""
        done = set()
        for item in self._items("jobs", "worker"):
            for part in filter(None, item.get("status", {}).get("completedIndexes", "").split(",")):
                first, _, last = part.partition("-")
                done |= set(range(int(first), int(last or first) + 1))
        return done

    def status_of(self, server):
        """What `foreshard status --json` says, asked in the server's own pod; None: it does not answer (yet)."""
        if self._trust is None:
            workload = json.loads(self.kubectl("get", "statefulset", f"{self.full_name}-server", "--output=json"))
            arguments = workload["spec"]["template"]["spec"]["containers"][0]["args"]
            self._trust = [a for a in arguments if a.startswith(_TRUST)]
        status, output, _ = self._programs.kubectl(
            "--namespace", self.namespace, "exec", server.name, "--container=foreshard", "--", "foreshard", "status", "--json",
            "--servers=localhost:50051", *self._trust, seconds=30)
        if status != 0:
            return None
        return json.loads(output)["servers"][0]

    def jobs(self):
        """{name: "Complete", "Failed" or "" while it runs}, and the failures' messages."""
        states, messages = {}, []
        for item in self._items("jobs"):
            name = item["metadata"]["name"]
            states[name] = ""
            for condition in item.get("status", {}).get("conditions", []):
                if condition["status"] == "True" and condition["type"] in ("Complete", "Failed"):
                    states[name] = condition["type"]
                    if condition["type"] == "Failed":
                        messages.append(f"{name}: {condition.get('message', condition.get('reason', ''))}")
        return states, messages

    def left(self):
        """What of the release is still there, by name."""
        kinds = "pods,jobs,statefulsets,services,secrets,configmaps,networkpolicies,poddisruptionbudgets,persistentvolumeclaims"
        return self.kubectl("get", kinds, "--selector", self.labels(), "--output=name").split()


def chart():
    return os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))), "deploy/helm/foreshard")
