"""Rules that rendered objects of the chart keep: how Foreshard's pods must be set up to be safe,
restartable and reachable, and that whatever an object names is there.

    findings = lint(objects, known_flags={"foreshard-server": {"--job", ...}, ...})

A finding is "rule: object: what is wrong". `known_flags` are those that the real programs have.
"""

import re

import server_bounds

RULES = {}


def rule(function):
    RULES[function.__name__] = function
    return function


class Release:
    def __init__(self, objects, known_flags):
        self.objects = objects
        self.known_flags = known_flags

    def kind(self, *kinds):
        return [o for o in self.objects if o["kind"] in kinds]

    def named(self, kind, name):
        return any(o["metadata"]["name"] == name for o in self.kind(kind))

    def workloads(self):
        return self.kind("StatefulSet", "Job")

    def pods(self):
        """(workload, its pod's template)"""
        return [(w, w["spec"]["template"]) for w in self.workloads()]

    def containers(self):
        for workload, template in self.pods():
            for container in template["spec"].get("initContainers", []) + template["spec"]["containers"]:
                yield workload, template, container

    def main_containers(self):
        return [(w, t, c) for w, t, c in self.containers() if c["name"] == "foreshard"]


def name(thing):
    return f'{thing["kind"]}/{thing["metadata"]["name"]}'


def component(thing):
    return thing["metadata"]["labels"].get("app.kubernetes.io/component", "")


def flags(container):
    """A flag's values, in order, of a container's arguments."""
    found = {}
    for argument in container.get("args", []):
        flag, _, value = argument.partition("=")
        found.setdefault(flag, []).append(value)
    return found


def matches(selector, labels):
    return all(labels.get(k) == v for k, v in selector.items())


@rule
def non_root(release):
    for workload, template in release.pods():
        security = template["spec"].get("securityContext", {})
        if security.get("runAsNonRoot") is not True or not security.get("runAsUser") or not security.get("runAsGroup"):
            yield workload, "pods must run as a numeric user and group that are not root"


@rule
def seccomp(release):
    for workload, template in release.pods():
        if template["spec"].get("securityContext", {}).get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield workload, "seccompProfile must be RuntimeDefault"


@rule
def fs_group(release):
    for workload, template in release.pods():
        security = template["spec"].get("securityContext", {})
        if not security.get("fsGroup") or security.get("fsGroupChangePolicy") != "OnRootMismatch":
            yield workload, "fsGroup with fsGroupChangePolicy OnRootMismatch: secrets are for the group"


@rule
def locked_container(release):
    for workload, _, container in release.containers():
        security = container.get("securityContext", {})
        if (security.get("allowPrivilegeEscalation") is not False or security.get("readOnlyRootFilesystem") is not True
                or security.get("capabilities", {}).get("drop") != ["ALL"] or security.get("privileged")):
            yield workload, f'{container["name"]}: read-only root, no escalation, all capabilities dropped'


@rule
def no_service_account_token(release):
    for workload, template in release.pods():
        if template["spec"].get("automountServiceAccountToken") is not False:
            yield workload, "automountServiceAccountToken must be false"


@rule
def no_host(release):
    for workload, template in release.pods():
        if any(template["spec"].get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
            yield workload, "pods must not share the host's namespaces"


@rule
def resources(release):
    for workload, _, container in release.containers():
        have = container.get("resources", {})
        if not {"cpu", "memory"} <= set(have.get("requests", {})) or "memory" not in have.get("limits", {}):
            yield workload, f'{container["name"]}: requests of cpu and memory, and a limit of memory'


@rule
def pinned_image(release):
    for workload, _, container in release.containers():
        image = container["image"]
        if "@sha256:" not in image and (":" not in image.rpartition("/")[2] or image.endswith(":latest")):
            yield workload, f"image {image} names no version"


@rule
def standard_labels(release):
    for thing in release.objects:
        wanted = {f"app.kubernetes.io/{k}" for k in ("name", "instance", "component", "version", "part-of", "managed-by")}
        missing = wanted - set(thing["metadata"].get("labels", {}))
        if missing:
            yield thing, f"labels missing: {', '.join(sorted(missing))}"


@rule
def stable_selectors(release):
    for workload in release.kind("StatefulSet"):
        chosen = workload["spec"]["selector"]["matchLabels"]
        if any("version" in k or "chart" in k for k in chosen):
            yield workload, "versions in a selector make it unchangeable by an upgrade"


@rule
def selector_finds_pods(release):
    pods = [t["metadata"]["labels"] for _, t in release.pods()]
    for thing in release.objects:
        spec = thing.get("spec", {})
        chosen = {"StatefulSet": lambda: spec["selector"]["matchLabels"], "Service": lambda: spec["selector"],
                  "PodDisruptionBudget": lambda: spec["selector"]["matchLabels"], "PodMonitor": lambda: spec["selector"]["matchLabels"],
                  "NetworkPolicy": lambda: spec["podSelector"]["matchLabels"]}.get(thing["kind"])
        if chosen is None or (thing["kind"] == "NetworkPolicy" and not any(component(thing) == p["app.kubernetes.io/component"] for p in pods)):
            continue
        if not any(matches(chosen(), labels) for labels in pods):
            yield thing, "its selector finds no pod of the release"


@rule
def template_matches_selector(release):
    for workload in release.kind("StatefulSet"):
        if not matches(workload["spec"]["selector"]["matchLabels"], workload["spec"]["template"]["metadata"]["labels"]):
            yield workload, "its own pods do not match its selector"


@rule
def servers_are_stateful(release):
    for workload, _, container in release.main_containers():
        if container["command"] != ["foreshard-server"]:
            continue
        spec = workload["spec"]
        if workload["kind"] != "StatefulSet" or spec.get("podManagementPolicy") != "Parallel" or flags(container).get("--shard") != ["ordinal"]:
            yield workload, "servers: a StatefulSet, started in parallel, the shard from the ordinal"


@rule
def replicas_are_shards(release):
    shards = {w["metadata"]["name"]: w["spec"]["replicas"] for w in release.kind("StatefulSet")}
    for workload, _, container in release.main_containers():
        said = [v.partition("=")[2] for v in flags(container).get("--set", []) if v.startswith("servers.shards=")]
        servers = flags(container).get("--servers", [""])[0].split(",")
        count = next(iter(shards.values()), None)
        if said != [str(count)] or (component(workload) != "server" and len(servers) != count):
            yield workload, f"servers.shards, --servers and the {count} replicas must agree"


@rule
def headless_service(release):
    services = {s["metadata"]["name"]: s["spec"] for s in release.kind("Service")}
    for workload in release.kind("StatefulSet"):
        spec = services.get(workload["spec"]["serviceName"])
        if spec is None or spec.get("clusterIP") != "None" or spec.get("publishNotReadyAddresses") is not True:
            yield workload, "its service must be headless and publish addresses that are not ready"


@rule
def servers_names_resolve(release):
    for workload, _, container in release.main_containers():
        for address in filter(None, flags(container).get("--servers", [""])[0].split(",")):
            host, _, port = address.rpartition(":")
            parts = host.split(".")
            pod = re.fullmatch(r"(.+)-(\d+)", parts[0])
            found = pod and any(s["metadata"]["name"] == pod[1] and s["spec"]["serviceName"] == parts[1] and int(pod[2]) < s["spec"]["replicas"]
                                for s in release.kind("StatefulSet"))
            listens = any(p["containerPort"] == int(port) for w, _, c in release.main_containers()
                          if component(w) == "server" for p in c["ports"])
            if not found or not listens or parts[3:4] != ["svc"]:
                yield workload, f"--servers names {address}, which no server answers to"


@rule
def ports_exist(release):
    for thing in release.kind("Service"):
        have = {p["name"] for _, t, c in release.main_containers() if matches(thing["spec"]["selector"], t["metadata"]["labels"])
                for p in c["ports"]}
        for port in thing["spec"]["ports"]:
            if port["targetPort"] not in have:
                yield thing, f'port {port["targetPort"]} is none of its pods'
    for thing in release.kind("PodMonitor"):
        for workload, template in release.pods():
            if not matches(thing["spec"]["selector"]["matchLabels"], template["metadata"]["labels"]):
                yield thing, f"does not choose the pods of {name(workload)}"
        for endpoint in thing["spec"]["podMetricsEndpoints"]:
            for workload, template, container in release.main_containers():
                if matches(thing["spec"]["selector"]["matchLabels"], template["metadata"]["labels"]) and \
                        endpoint["port"] not in {p["name"] for p in container["ports"]}:
                    yield thing, f'port {endpoint["port"]} is not one of {name(workload)}'


@rule
def ports_are_listened_on(release):
    for workload, _, container in release.main_containers():
        said = flags(container)
        listened = {v.rpartition(":")[2] for f in ("--listen", "--health-listen", "--metrics-listen") for v in said.get(f, [])}
        declared = {str(p["containerPort"]) for p in container["ports"]}
        if listened != declared:
            yield workload, f"listens on {sorted(listened)}, declares {sorted(declared)}"
        for flag in ("--listen", "--health-listen", "--metrics-listen"):
            for address in said.get(flag, []):
                if address.rpartition(":")[0] != "0.0.0.0":
                    yield workload, f"{flag}={address}: nobody outside the pod reaches it"


@rule
def server_probes(release):
    for workload, _, container in release.main_containers():
        if component(workload) != "server":
            continue
        health = flags(container).get("--health-listen", [":none"])[0].rpartition(":")[2]
        # Of the server as a whole: whether it serves.
        for probe in ("startupProbe", "readinessProbe"):
            asked = container.get(probe, {}).get("grpc", {})
            if str(asked.get("port")) != health or asked.get("service"):
                yield workload, f"{probe}: a gRPC probe of the health port"
        asked = container.get("livenessProbe", {}).get("grpc", {})
        if str(asked.get("port")) != health or asked.get("service") != "liveness":
            yield workload, "livenessProbe: of the service liveness, or a server that drains is killed, or one that hangs is not"


@rule
def probes_have_bounds(release):
    """How long each goes on failing before it has an effect: a start may be long, a server that is not ready is known soon, and
    none is killed for a moment's pause."""
    for workload, _, container in release.main_containers():
        for probe, least, most in (("startupProbe", 60, 86400), ("readinessProbe", 5, 30), ("livenessProbe", 60, 300)):
            if probe not in container:
                continue
            said = container[probe]
            period, timeout = said.get("periodSeconds", 10), said.get("timeoutSeconds", 1)
            if not least <= period * said.get("failureThreshold", 3) <= most:
                yield workload, f"{probe}: takes effect after {period * said.get('failureThreshold', 3)} s, not {least} to {most}"
            if timeout > period or (probe != "startupProbe" and timeout < 2):
                yield workload, f"{probe}: a timeout of {timeout} s, every {period} s"
            if "initialDelaySeconds" in said:
                yield workload, f"{probe}: the start-up probe is what waits"


@rule
def time_to_drain(release):
    for workload, template, container in release.main_containers():
        least = 10
        if component(workload) == "server":
            least = server_bounds.stop_seconds("--state-directory" in flags(container)) + server_bounds.MARGIN_SECONDS
        if template["spec"].get("terminationGracePeriodSeconds", 30) < least:
            yield workload, f"terminationGracePeriodSeconds below {least}: killed while it drains or writes its last checkpoint"


@rule
def disruption_budget(release):
    budgets = [b["spec"] for b in release.kind("PodDisruptionBudget")]
    for budget in release.kind("PodDisruptionBudget"):
        if budget["spec"].get("maxUnavailable") != 1 or budget["spec"].get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            yield budget, "maxUnavailable 1, and unhealthy pods may always be evicted"
    for workload in release.kind("StatefulSet"):
        if not any(matches(b["selector"]["matchLabels"], workload["spec"]["template"]["metadata"]["labels"]) for b in budgets):
            yield workload, "no PodDisruptionBudget covers it"


@rule
def spread(release):
    for workload in release.kind("StatefulSet"):
        said = workload["spec"]["template"]["spec"].get("topologySpreadConstraints", [])
        if not said:
            yield workload, "servers must spread over hosts"
        for constraint in said:
            if constraint.get("labelSelector") != workload["spec"]["selector"] or constraint.get("maxSkew") != 1:
                yield workload, "its spread must count its own pods, and them alone"
            # Too few hosts are no reason not to train.
            if constraint.get("whenUnsatisfiable") != "ScheduleAnyway":
                yield workload, "with fewer hosts than shards, some would never start"


@rule
def update_strategy(release):
    for workload in release.kind("StatefulSet"):
        if workload["spec"].get("updateStrategy") != {"type": "RollingUpdate"}:
            yield workload, "an upgrade must replace all servers, one by one"


@rule
def worker_jobs(release):
    for workload in release.kind("Job"):
        spec = workload["spec"]
        if spec["template"]["spec"].get("restartPolicy") != "Never" or spec.get("podReplacementPolicy") != "Failed":
            yield workload, "restartPolicy Never and podReplacementPolicy Failed: two pods of one slot fence each other"
        if component(workload) == "worker":
            if spec.get("completionMode") != "Indexed" or spec.get("backoffLimitPerIndex", 0) < 1 or spec["completions"] != spec["parallelism"]:
                yield workload, "workers: indexed, failures counted by index and made good, all at once"
            # Without it there is no bound, and Kueue may admit fewer.
            if "maxFailedIndexes" in spec:
                yield workload, "maxFailedIndexes: a worker that stays away ends the others"
        elif spec.get("backoffLimit", 6) < 1:
            yield workload, "backoffLimit: an evaluator that fails once never comes again"


@rule
def failure_policy(release):
    """In this order, since the first rule that fits decides."""
    wanted = [{"action": "FailJob", "onExitCodes": {"containerName": "foreshard", "operator": "In", "values": [2]}},
              {"action": "Ignore", "onExitCodes": {"containerName": "foreshard", "operator": "In", "values": [4, 143]}},
              {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    for workload in release.kind("Job"):
        if workload["spec"].get("podFailurePolicy", {}).get("rules") != wanted:
            yield workload, "exit 2 must fail the Job; 4, 143 and disruptions must not count"
        if "foreshard" not in {c["name"] for c in workload["spec"]["template"]["spec"]["containers"]}:
            yield workload, "podFailurePolicy names a container that is not there"


@rule
def worker_slot(release):
    for workload, _, container in release.main_containers():
        if component(workload) == "worker" and flags(container).get("--slot") != ["$(JOB_COMPLETION_INDEX)"]:
            yield workload, "a worker's slot must be its pod's index, so that a replacement fences what it replaces"


@rule
def roles(release):
    for workload, _, container in release.main_containers():
        wanted = ["evaluator"] if component(workload) == "evaluator" else None
        if flags(container).get("--role") != wanted:
            yield workload, f"--role: {wanted or 'none'}"


@rule
def environment_exists(release):
    for workload, _, container in release.containers():
        have = {e["name"] for e in container.get("env", [])}
        for argument in container.get("args", []):
            for variable in re.findall(r"\$\((\w+)\)", argument):
                if variable not in have:
                    yield workload, f"{argument}: the variable {variable} is not set"


@rule
def shared_memory(release):
    for workload, template, container in release.main_containers():
        if component(workload) == "server":
            continue
        shm = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == "/dev/shm"]
        if not any(v["name"] in shm and v.get("emptyDir", {}).get("medium") == "Memory" for v in template["spec"]["volumes"]):
            yield workload, "/dev/shm must be memory"


@rule
def gpu_is_used(release):
    for workload, _, container in release.main_containers():
        has = "nvidia.com/gpu" in container["resources"]["limits"]
        if component(workload) == "worker" and has != (flags(container).get("--device") == ["cuda"]):
            yield workload, "--device=cuda and a limit of nvidia.com/gpu go together"


@rule
def mounts_have_volumes(release):
    for workload, template, container in release.containers():
        have = {v["name"] for v in template["spec"].get("volumes", [])}
        have |= {c["metadata"]["name"] for c in workload["spec"].get("volumeClaimTemplates", [])}
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in have:
                yield workload, f'{container["name"]}: no volume {mount["name"]}'
            if "subPath" in mount:
                yield workload, f'{container["name"]}: subPath mounts are never updated, so renewed certificates never arrive'


@rule
def volumes_are_mounted(release):
    for workload, template in release.pods():
        used = {m["name"] for w, _, c in release.containers() if w is workload for m in c.get("volumeMounts", [])}
        for volume in template["spec"].get("volumes", []):
            if volume["name"] not in used:
                yield workload, f'volume {volume["name"]} is mounted nowhere'


@rule
def files_are_mounted(release):
    for workload, _, container in release.main_containers():
        places = [m["mountPath"] for m in container["volumeMounts"]]
        for flag in ("--job", "--tls-certificate", "--tls-key", "--tls-ca", "--token-file", "--state-directory", "--data-directory"):
            for path in flags(container).get(flag, []):
                if not any(path == p or path.startswith(p + "/") for p in places):
                    yield workload, f"{flag}={path} lies on no volume"


@rule
def secrets_exist(release):
    made = {s["metadata"]["name"]: set(s.get("data", {})) for s in release.kind("Secret", "ConfigMap")}
    made.update({c["spec"]["secretName"]: {"tls.crt", "tls.key", "ca.crt"} for c in release.kind("Certificate")})
    for workload, template in release.pods():
        for volume in template["spec"].get("volumes", []):
            source = volume.get("secret", {}).get("secretName") or volume.get("configMap", {}).get("name")
            if source is None or source in release.given:
                continue
            if source not in made:
                yield workload, f"{source} is neither made by the chart nor given in values"
                continue
            for item in (volume.get("secret") or volume.get("configMap")).get("items", []):
                if item["key"] not in made[source]:
                    yield workload, f'{source} has no key {item["key"]}'


@rule
def secrets_are_private(release):
    for workload, template, container in release.containers():
        for volume in template["spec"].get("volumes", []):
            if "secret" in volume and volume["secret"].get("defaultMode", 0o644) & 0o007:
                yield workload, f'{volume["name"]}: everybody could read it, which programs refuse'
        for variable in container.get("env", []):
            if "secretKeyRef" in variable.get("valueFrom", {}):
                yield workload, f'{variable["name"]}: secrets belong into files'


@rule
def trust(release):
    """Either all of TLS, with certificates for the names that are called, or plain text said aloud."""
    for workload, _, container in release.main_containers():
        said = flags(container)
        pem = [f in said for f in ("--tls-certificate", "--tls-key", "--tls-ca")]
        if any(pem) and not all(pem):
            yield workload, "a part of --tls-certificate, --tls-key and --tls-ca"
        if "--insecure" not in said:
            yield workload, "metrics on other addresses than loopback take --insecure"
    called = {a.rpartition(":")[0] for _, _, c in release.main_containers() for a in flags(c).get("--servers", [""])[0].split(",") if a}
    for certificate in release.kind("Certificate"):
        if "server auth" in certificate["spec"]["usages"] and called - set(certificate["spec"]["dnsNames"]):
            yield certificate, f'has not the names {sorted(called - set(certificate["spec"]["dnsNames"]))}'


@rule
def network_policies(release):
    """Just what they have to allow: servers are called by workers, evaluator and whoever has the admin's label, and call nobody;
    workers call servers and DNS; metrics are for one namespace."""
    def selector(of):
        wanted = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component")
        labels = next((t["metadata"]["labels"] for w, t in release.pods() if component(w) == of), None)
        if labels is None:  # not among the pods: whoever else starts workers uses the same labels
            labels = {**next(t["metadata"]["labels"] for _, t in release.pods()), "app.kubernetes.io/component": of}
        return {"podSelector": {"matchLabels": {key: labels[key] for key in wanted}}}

    def tcp(port):
        return [{"protocol": "TCP", "port": port}]

    policies = {}
    for policy in release.kind("NetworkPolicy"):
        of = policy["spec"]["podSelector"].get("matchLabels", {}).get("app.kubernetes.io/component")
        if of in policies or {"podSelector": policy["spec"]["podSelector"]} != selector(of):
            yield policy, "it is for others than one component's pods"
        policies[of] = policy
    ports = {p["name"]: p["containerPort"] for w, _, c in release.main_containers() if component(w) == "server" for p in c["ports"]}
    admin, scraper = None, None
    for workload, template in release.pods():
        policy = policies.get(component(workload))
        if policy is None or set(policy["spec"].get("policyTypes", [])) != {"Ingress", "Egress"}:
            yield workload, "no NetworkPolicy covers both directions"
            continue
        ingress, egress = policy["spec"].get("ingress", []), policy["spec"].get("egress", [])
        scrape = ingress[-1] if ingress else {}
        scraper = scraper or scrape.get("from")
        namespace = [peer.get("namespaceSelector", {}).get("matchLabels", {}) for peer in scrape.get("from", [])]
        if scrape != {"from": scraper, "ports": tcp(ports["metrics"])} or [set(n) for n in namespace] != [{"kubernetes.io/metadata.name"}] \
                or set(scrape["from"][0]) != {"namespaceSelector"}:
            yield policy, "metrics: of one namespace, on their port alone"
        if component(workload) == "server":
            calls = ingress[0] if len(ingress) == 2 else {}
            admin = calls.get("from", [{}])[-1]
            if calls != {"from": [selector("worker"), selector("evaluator"), admin], "ports": tcp(ports["grpc"])} \
                    or set(admin) != {"podSelector"} or len(admin["podSelector"].get("matchLabels", {})) != 1:
                yield policy, "servers are for workers, evaluator and admins, on the port of their calls alone"
            if egress:
                yield policy, "servers call nobody"
        else:
            dns = {"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}],
                   "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
            if len(ingress) != 1 or egress != [{"to": [selector("server")], "ports": tcp(ports["grpc"])}, dns, *release.more_egress]:
                yield policy, "it calls servers and DNS, and nobody calls it but for metrics"


@rule
def state_is_kept(release):
    for workload, _, container in release.main_containers():
        for path in flags(container).get("--state-directory", []):
            claims = {c["metadata"]["name"] for c in workload["spec"].get("volumeClaimTemplates", [])}
            under = [m for m in container["volumeMounts"] if path == m["mountPath"] or path.startswith(m["mountPath"] + "/")]
            nearest = max(under, key=lambda m: len(m["mountPath"]), default={"name": None})
            if nearest["name"] not in claims or path.startswith("/tmp"):
                yield workload, f"--state-directory={path} must lie on a claim"
    for workload in release.kind("StatefulSet"):
        kept = workload["spec"].get("persistentVolumeClaimRetentionPolicy")
        if workload["spec"].get("volumeClaimTemplates") and kept != {"whenDeleted": "Retain", "whenScaled": "Retain"}:
            yield workload, "its claims must stay when it goes, or has fewer pods"


@rule
def configuration_checksum(release):
    for workload, template in release.pods():
        if not template["metadata"].get("annotations", {}).get("foreshard/configuration"):
            yield workload, "without a checksum of the job a changed one starts no new pods"


@rule
def known_flags(release):
    for workload, _, container in release.main_containers():
        program = container["command"][0]
        if program not in release.known_flags:
            yield workload, f"no program {program}"
            continue
        for flag in flags(container):
            if flag not in release.known_flags[program]:
                yield workload, f"{program} has no flag {flag}"


def lint(objects, known_flags, given=(), only=None, more_egress=()):
    """given: names of secrets and config maps that values name and the chart does not make; more_egress: rules of
    networkPolicy.workerEgress."""
    release = Release(objects, known_flags)
    release.given = set(given)
    release.more_egress = list(more_egress)
    found = []
    for title, check in RULES.items():
        if only is not None and title not in only:
            continue
        found += [f"{title}: {name(thing)}: {text}" for thing, text in check(release)]
    return found
