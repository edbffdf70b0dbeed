"""kubectl and helm of a cluster that only pretends, for the test of tools/kubernetes-e2e. Each call lets a little
time pass: pods come up, versions grow, a Job ends.

    cluster = FakeCluster(faults={"state-lost"})
    status, output, errors = cluster.call(["kubectl", "version"])
"""

import json
import os

NAME = "demo-foreshard"
INSTANCE = {"app.kubernetes.io/instance": "demo"}
JOB_CALLS = 140


def pod(state, component, index):
    state["made"] += 1
    return {"component": component, "index": index, "uid": f"uid-{state['made']}", "age": 0,
            "name": f"{NAME}-server-{index}" if component == "server" else f"{NAME}-workers-0123-{index}-p{state['made']}"}


def passes(state):
    """A moment."""
    if not state["installed"]:
        return
    state["calls"] += 1
    for servant in state["pods"]:
        servant["age"] += 1
    if state["rolling"]:
        ordinal = state["rolling"][-1]
        mine = next(p for p in state["pods"] if p["component"] == "server" and p["index"] == ordinal)
        if mine["uid"] in state["old"]:
            replace(state, mine)
        elif mine["age"] > 2:
            state["rolling"].pop()
    if not ("stands-still" in state["faults"] and state["killed"]):
        for ordinal in range(2):
            state["versions"][ordinal] += 3
    have = {p["index"] for p in state["pods"] if p["component"] == "worker"}
    for index in range(state["count"]):
        stays_away = "worker-stays-away" in state["faults"] and state["killed"] and index == 1
        if index not in have | state["done"] and not stays_away:
            state["pods"].append(pod(state, "worker", index))
    if "job-fails" in state["faults"] and state["killed"]:
        state["job"] = "Failed"
    elif not {"worker-stays-away", "goes-on"} & state["faults"] and state["calls"] > (25 if "ends-early" in state["faults"] else JOB_CALLS):
        state["job"] = "Complete"
        state["pods"] = [p for p in state["pods"] if p["component"] == "server"]
        state["count"] = 0


def replace(state, old):
    state["pods"].remove(old)
    if old["component"] == "server":
        state["pods"].append(pod(state, "server", old["index"]))
        if "state-lost" in state["faults"] and state["killed"]:
            state["versions"][old["index"]] = 0


def described(servant):
    labels = dict(INSTANCE)
    if servant["component"] == "worker":
        labels["batch.kubernetes.io/job-completion-index"] = str(servant["index"])
    up = servant["age"] > 2
    return {"metadata": {"name": servant["name"], "uid": servant["uid"], "labels": labels},
            "status": {"phase": "Running" if up else "Pending", "conditions": [{"type": "Ready", "status": str(up)}]}}


def component_of(arguments):
    selector = arguments[arguments.index("--selector") + 1]
    return selector.rpartition("component=")[2] if "component=" in selector else None


def kubectl(state, arguments):
    if arguments[0] == "--namespace":
        arguments = arguments[2:]
    verb = arguments[0]
    if verb == "version":
        if "no-cluster" in state["faults"]:
            return 1, "{}", "The connection to the server localhost:8080 was refused"
        return 0, json.dumps({"serverVersion": {"major": "1", "minor": "29+" if "old-cluster" in state["faults"] else "35"}}), ""
    if arguments[:2] == ["get", "namespace"]:
        return (0, "", "") if arguments[2] in state["namespaces"] else (1, "", "not found")
    if arguments[:2] == ["create", "namespace"]:
        state["namespaces"].append(arguments[2])
        return 0, "", ""
    if arguments[:2] == ["delete", "namespace"]:
        if "namespace-stays" in state["faults"]:
            return 1, "", "timed out waiting for the condition"
        state["namespaces"].remove(arguments[2])
        return 0, "", ""
    if arguments[:2] == ["get", "pods"] and "--selector" in arguments:
        wanted = component_of(arguments)
        items = [described(p) for p in state["pods"] if p["component"] == wanted]
        for leaving in (described(p) for p in state["leaving"] if p["component"] == wanted):
            items.append({**leaving, "metadata": {**leaving["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
        return 0, json.dumps({"items": items}), ""
    if arguments[:2] == ["get", "jobs"]:
        status = {"conditions": [{"type": state["job"], "status": "True", "message": "Pod ended with 2"}] if state["job"] else []}
        if state["done"]:
            status["completedIndexes"] = state["done_text"]
        return 0, json.dumps({"items": [{"metadata": {"name": f"{NAME}-workers-0123"}, "status": status}]}), ""
    if arguments[:2] == ["get", "statefulset"]:
        spec = {"template": {"spec": {"containers": [{"args": ["--shard=ordinal", "--tls-key=/etc/foreshard/tls/tls.key"]}]}}}
        return 0, json.dumps({"spec": spec}), ""
    if verb == "get" and "--output=name" in arguments:
        left = ["persistentvolumeclaim/state-0"] * state["claims"] + ["secret/left"] * ("left-behind" in state["faults"])
        return 0, "\n".join(left), ""
    if verb == "exec":
        if "--tls-key=/etc/foreshard/tls/tls.key" not in arguments:
            return 1, "", "UNAUTHENTICATED"
        server = next(p for p in state["pods"] if p["name"] == arguments[1])
        workers = [{"name": p["name"], "state": "expired" if "not-training" in state["faults"] else "training", "pushes": p["age"]} for p in state["pods"]
                   if p["component"] == "worker" and p["age"] > 3]
        return 0, json.dumps({"servers": [{"segments": [{"version": state["versions"][server["index"]]}], "workers": workers}]}), ""
    if arguments[:2] == ["delete", "pod"]:
        mine = next(p for p in state["pods"] if p["name"] == arguments[2])
        if f'{mine["component"]}-lives-on' not in state["faults"]:
            forced = "--force" in arguments
            state["ended"].append((mine["component"], forced))
            state["killed"] = state["killed"] or forced
            replace(state, mine)
            if mine["component"] == "worker" and ("forced-ends-well" if forced else "deleted-ends-well") in state["faults"]:
                state.update(done={0, 1, 2}, done_text="0-2")
            if "node-gone" in state["faults"]:
                state["leaving"].append(mine)
        return 0, "", ""
    if arguments[:2] == ["rollout", "restart"]:
        state["old"] = [p["uid"] for p in state["pods"] if p["component"] == "server"]
        state["rolling"] = [] if "not-rolled" in state["faults"] else [0, 1]
        return 0, "", ""
    if arguments[:2] == ["delete", "persistentvolumeclaims"]:
        state["claims"] = 0
        return 0, "", ""
    if verb in ("get", "logs"):
        return 0, f"diagnosis of {verb}\n", ""
    return 1, "", f"the fake kubectl knows no {arguments}"


def helm(state, arguments):
    if arguments[0] == "install":
        if "install-refused" in state["faults"]:
            return 1, "", "Error: values don't meet the specifications of the schema"
        state.update(installed=True, claims=2, installed_with=arguments)
        state["count"] = int(next(a for a in arguments if a.startswith("workers.count=")).partition("=")[2])
        state["pods"] = [pod(state, "server", 0), pod(state, "server", 1)]
        return 0, "", ""
    if arguments[0] == "upgrade" and "not-scaled" in state["faults"]:
        return 0, "", ""
    if arguments[0] == "upgrade":
        state["count"] = int(next(a for a in arguments if a.startswith("workers.count=")).partition("=")[2])
        return 0, "", ""
    if arguments[0] == "uninstall":
        state.update(installed=False, pods=[])
        return 0, "", ""
    return 1, "", f"the fake helm knows no {arguments}"


class FakeCluster:
    def __init__(self, faults=()):
        self.state = {"installed": False, "namespaces": ["default"], "pods": [], "versions": [5, 5], "made": 0, "calls": 0, "count": 0,
                      "killed": False, "leaving": [], "rolling": [], "old": [], "claims": 0, "job": "", "ended": [], "done": set(), "done_text": "",
                      "faults": set(faults)}

    def call(self, command):
        passes(self.state)
        tool = kubectl if os.path.basename(command[0]) == "kubectl" else helm
        return tool(self.state, command[1:])
