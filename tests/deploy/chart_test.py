"""The chart: really rendered, over a matrix of values; every object against Kubernetes' own schemas
and our own rules, each of which is shown to fail on what it is for; values that contradict are
refused; the rendered command lines taken by the real programs.

  chart_test.py --programs=build-release/bin
"""

import argparse
import base64
import copy
import functools
import json
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import custom_schemas
import fake_api_server
import found_tools
import server_bounds

CHART = found_tools.SOURCE / "deploy/helm/foreshard"
HELM = found_tools.find("helm")
try:
    import jsonschema
    import yaml
except ImportError as missing:
    found_tools.skip(f"{missing}: install python3-yaml and python3-jsonschema")
import lint_chart

# The one in C, where it is there.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MATRIX = {
    "default": [],
    "one shard": ["servers.shards=1"],
    "sixteen shards": ["servers.shards=16", "workers.count=64", "job.set={training.max_workers=64}"],
    "cert-manager": ["tls.mode=certManager", "tls.certManager.issuerRef.name=issuer"],
    "given secrets": ["tls.mode=secret", "tls.secret.server=servers", "tls.secret.worker=workers", "token.secretName=token"],
    "plain": ["tls.mode=none", "token.generate=false"],
    "gpu": ["workers.gpus=1", "workers.runtimeClassName=nvidia", "workers.tolerations[0].key=nvidia.com/gpu",
            "workers.tolerations[0].operator=Exists", "workers.image.repository=foreshard-cuda"],
    "monitored": ["monitoring.podMonitor.enabled=true", "monitoring.prometheusRule.enabled=true",
                  "monitoring.dashboards.enabled=true", "monitoring.podMonitor.labels.release=prometheus"],
    "data from a claim": ["data.type=claim", "data.claim.name=fashion-mnist"],
    "data of the host": ["data.type=hostPath", "data.hostPath.path=/srv/data"],
    "data fetched": ["data.type=fetch", "data.fetch.image=curl:8.5.0", "data.fetch.command={curl,-O,http://x/y}"],
    "no state": ["servers.state.enabled=false", "evaluator.enabled=false"],
    "a given job": ["job.existingConfigMap=job", "job.set={training.epochs=3,update.rule=dana_zero}"],
    "a digest": ["image.digest=sha256:" + "a" * 64, "image.pullSecrets={registry}"],
    "no workers": ["workers.enabled=false"],
    "more egress": ["networkPolicy.workerEgress[0].ports[0].port=443", "networkPolicy.workerEgress[0].ports[0].protocol=TCP"],
}
MORE_EGRESS = {"more egress": [{"ports": [{"port": 443, "protocol": "TCP"}]}]}
GIVEN = {"servers", "workers", "token", "job"}

# Making certificates takes most of the time.
PLAIN = ["tls.mode=none"]
REFUSED = {
    "servers.shards=0": "shards", "workers.count=0": "count", "workers.gpus=8": "gpus", "tls.mode=sometimes": "mode",
    "tls.mode=certManager": "issuerRef", "tls.mode=secret": "secret", "data.type=claim": "claim", "data.type=hostPath": "hostPath",
    "data.type=fetch": "fetch", "job.spec=": "job", "job.set={training.epochs}": "set", "servers.terminationGracePeriodSeconds=5":
    "terminationGracePeriodSeconds", "security.runAsUser=0": "runAsUser", "servers.replicas=3": "replicas", "image.digest=abc": "digest",
    "servers.state.size=plenty": "size", "workers.count=9": "training.max_workers", "workers.count=-1": "count", "tls.mode=generated,tls.days=0": "days",
    "job.set={training.max_workers=2}": "2 slots", "checkReferences=perhaps": "checkReferences", "workers.extraArgs={device}": "extraArgs", "data.mountPath=data": "mountPath",
    "job.set={training.epochs=3,servers.shards=4}": "say servers.shards instead",
    "data.type=hostPath,data.hostPath.path=/srv,job.set={data.directory=/srv}": "say data.directory instead",
    "workers.extraArgs={--set=training.epochs=3}": "say job.set instead", "workers.extraArgs={--slot=1}": "gives --slot itself",
    "servers.state.size=0": "size", "servers.state.size=0Gi": "size", "servers.state.size=0.0Gi": "size", "servers.state.size=5m": "size",
    "workers.shmSize=0": "shmSize", "data.fetch.sizeLimit=0Mi": "sizeLimit", "workers.resources.limits.memory=0": "memory",
    "workers.resources.requests.memory=5Gi": "requests.memory is 5Gi, more than limits.memory, 4Gi",
    "servers.resources.requests.memory=2049Mi": "servers.resources: requests.memory", "evaluator.resources.limits.memory=2047Mi": "evaluator.resources",
    "servers.resources.limits.cpu=999m": "requests.cpu is 1, more than limits.cpu, 999m",
    "tls.mode=certManager,tls.certManager.issuerRef.name=i,tls.certManager.renewBefore=2160h": "renew within the duration",
    "tls.mode=certManager,tls.certManager.issuerRef.name=i,tls.certManager.duration=43200m": "renew within the duration",
    "tls.mode=certManager,tls.certManager.issuerRef.name=i,tls.certManager.duration=30m,tls.certManager.renewBefore=10m": "an hour or more",
    "fullnameOverride=1run": "no Service can be called", "fullnameOverride=run.1": "no Service", "nameOverride=a.b": "no Service",
    "servers.podAnnotations.foreshard/configuration=x": "servers.podAnnotations", "workers.podAnnotations.foreshard/configuration=x": "workers.podAnnotations",
    "workers.jobLabels.app\\.kubernetes\\.io/name=x": "workers.jobLabels", "monitoring.podMonitor.labels.helm\\.sh/chart=x": "podMonitor.labels",
    "networkPolicy.adminLabel.key=app.kubernetes.io/component": "adminLabel.key", "workers.retries=0": "retries", "evaluator.retries=0": "retries",
}
# As long as they are said with units of their own.
TAKEN = ["servers.resources.requests.cpu=500m", "servers.resources.limits.memory=2048Mi", "servers.resources.limits.cpu=1000m", "servers.state.size=0.5Ti",
         "tls.mode=certManager,tls.certManager.issuerRef.name=i,tls.certManager.duration=2h,tls.certManager.renewBefore=119m",
         "workers.resources.requests.memory=2147483648", "data.type=none,job.set={data.directory=/srv}"]


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60)


def helm(*arguments, values=()):
    return run(HELM, *arguments, *[w for v in values for w in ("--set", v)])


@functools.cache
def rendered(values):
    done = helm("template", "demo", CHART, "--namespace", "training", values=values)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [d for d in yaml.load_all(done.stdout, LOADER) if d]


def render(values=()):
    """The caller's own, to be changed."""
    return copy.deepcopy(rendered(tuple(values)))


@functools.cache
def schema_of(file):
    schema = json.loads(file.read_text())
    schema.pop("$id", None)
    return schema


def schema_validator(folder, thing):
    """Of an object's kind, by the schemas of one version of Kubernetes, in which no other fields are allowed."""
    base = "https://kubernetes.io/api/"  # as they call themselves; nothing is fetched
    if folder not in DEFINITIONS:
        DEFINITIONS[folder] = jsonschema.RefResolver(base, {}, store={base + "_definitions.json": schema_of(folder / "_definitions.json")})
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", thing["apiVersion"])
    return jsonschema.Draft7Validator(schema_of(folder / f'{thing["kind"].lower()}-{group}.json'), resolver=DEFINITIONS[folder])


DEFINITIONS = {}


def problems_of(thing, validator):
    return [f'{"/".join(map(str, e.path))}: {e.message[:200]}' for e in validator.iter_errors(thing)]


def flags_of(programs):
    found = {}
    for program in ("foreshard-server", "foreshard-worker"):
        text = run(programs / program, "--help").stdout
        found[program] = set(re.findall(r"(--[a-z][a-z-]*)", text))
    return found


class Matrix(unittest.TestCase):
    def test_lint_is_strict_and_clean(self):
        for title, values in MATRIX.items():
            with self.subTest(title):
                done = helm("lint", "--strict", CHART, values=values)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_object_keeps_every_rule(self):
        for title, values in MATRIX.items():
            with self.subTest(title):
                self.assertEqual(lint_chart.lint(render(values), FLAGS, GIVEN, more_egress=MORE_EGRESS.get(title, ())), [])

    def test_every_object_is_what_kubernetes_takes(self):
        folder = found_tools.schemas()
        if folder is None:
            self.skipTest("no schemas: tools/install-deploy-tools")
        checked = 0
        for version in ("1.31.0", "1.35.0"):
            for title, values in MATRIX.items():
                for thing in render(values):
                    if thing["kind"] in custom_schemas.SCHEMAS:
                        continue
                    problems = problems_of(thing, schema_validator(folder / version, thing))
                    self.assertEqual(problems, [], f"{title}, Kubernetes {version}: {lint_chart.name(thing)}")
                    checked += 1
        self.assertGreater(checked, 100)

    def test_every_object_of_others_kinds_has_what_those_take(self):
        seen = set()
        for title, values in MATRIX.items():
            for thing in render(values):
                if thing["kind"] in custom_schemas.SCHEMAS:
                    seen.add(thing["kind"])
                    validator = jsonschema.Draft7Validator(custom_schemas.SCHEMAS[thing["kind"]])
                    self.assertEqual(problems_of(thing, validator), [], f"{title}: {lint_chart.name(thing)}")
                    thing["spec"]["unknown"] = 1
                    self.assertNotEqual(problems_of(thing, validator), [])
        self.assertEqual(seen, set(custom_schemas.SCHEMAS))

    def test_the_strict_schemas_refuse_a_field_that_is_not_there(self):
        folder = found_tools.schemas()
        if folder is None:
            self.skipTest("no schemas: tools/install-deploy-tools")
        thing = next(o for o in render() if o["kind"] == "StatefulSet")
        thing["spec"]["template"]["spec"]["containers"][0]["readyProbe"] = {}
        self.assertTrue(list(schema_validator(folder / "1.35.0", thing).iter_errors(thing)))

    def test_other_names_stay_within_bounds(self):
        for thing in render(["fullnameOverride=" + "a" * 60, "servers.shards=16"]):
            self.assertLessEqual(len(thing["metadata"]["name"]), 63)


class Values(unittest.TestCase):
    def test_contradictions_are_refused_by_name(self):
        for value, said in REFUSED.items():
            with self.subTest(value):
                done = helm("template", "demo", CHART, values=[*PLAIN, value])
                self.assertNotEqual(done.returncode, 0, value)
                self.assertIn(said, done.stderr)
        for value in TAKEN:
            with self.subTest(value):
                done = helm("template", "demo", CHART, values=[*PLAIN, value])
                self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no Service", helm("template", "1run", CHART).stderr, "the release's own name")

    def test_the_least_grace_period_is_what_a_server_gives_itself(self):
        for state in (True, False):
            least = server_bounds.stop_seconds(state) + server_bounds.MARGIN_SECONDS
            for seconds, taken in ((least, True), (least - 1, False)):
                done = helm("template", "demo", CHART, values=[*PLAIN, f"servers.state.enabled={str(state).lower()}",
                                                               f"servers.terminationGracePeriodSeconds={seconds}"])
                self.assertEqual(done.returncode == 0, taken, f"state {state}, {seconds} s: {done.stderr}")

    def test_workers_are_counted_as_the_programs_count_slots(self):
        for spec, most in (("training { workers: 3 }", 8), ("training { workers: 10 }", 20), ("training { workers: 10 max_workers: 12 }", 12),
                           ("# max_workers: 99\ntraining { workers : 10\n max_workers: 11 # not 50\n}", 11),
                           ('name: "run # 5" training { workers: 10 max_workers: 12 }', 12),
                           ('name: "a \\" # b" training { workers: 10 max_workers: 12 }', 12),
                           ("name: 'it # \"' training { workers: 10 max_workers: 12 } # \"", 12),
                           ('name: "max_workers: 99" training { workers: 10 }', 20), ("training { workers: 10 } # it's max_workers: 99", 20)):
            for count, taken in ((most, True), (most + 1, False)):
                with self.subTest(f"{spec}: {count}"):
                    done = helm("template", "demo", CHART, "--set-json", f"job.spec={json.dumps(spec)}", values=[*PLAIN, f"workers.count={count}"])
                    self.assertEqual(done.returncode == 0, taken, done.stderr)
        for values in (["workers.count=30", "job.existingConfigMap=job"], ["workers.count=30", "workers.enabled=false"]):
            self.assertTrue(render(values), "where the chart cannot know")

    def test_what_values_name_must_be_there(self):
        """On a cluster that helm reaches: here one that only pretends."""
        pem = {"tls.crt": "", "tls.key": "", "ca.crt": ""}
        values = ["tls.mode=secret", "tls.secret.server=servers", "tls.secret.worker=workers", "token.secretName=token",
                  "job.existingConfigMap=job", "data.type=claim", "data.claim.name=images"]
        whole = {("configmaps", "kube-root-ca.crt"): {}, ("secrets", "servers"): pem, ("secrets", "workers"): pem,
                 ("secrets", "token"): {"token": ""}, ("configmaps", "job"): {"job.textproto": ""}, ("persistentvolumeclaims", "images"): {}}

        def installed(objects, *more):
            with fake_api_server.FakeApiServer(objects) as address:
                return helm("template", "demo", CHART, "--namespace", "training", "--dry-run=server", "--disable-openapi-validation", f"--kube-apiserver={address}",
                            values=[*values, *more])

        done = installed(whole)
        self.assertEqual(done.returncode, 0, done.stderr)
        for missing, said in (("servers", "tls.secret.server"), ("workers", "tls.secret.worker"), ("token", "token.secretName"),
                              ("job", "job.existingConfigMap"), ("images", "data.claim.name")):
            with self.subTest(missing):
                done = installed({key: data for key, data in whole.items() if key[1] != missing})
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(f'{said}: namespace training has no', done.stderr)
                self.assertIn(f'"{missing}": create it first', done.stderr)
        done = installed({**whole, ("secrets", "servers"): {"tls.crt": "", "tls.key": ""}})
        self.assertIn('has no key "ca.crt"', done.stderr)
        self.assertEqual(installed({("configmaps", "kube-root-ca.crt"): {}}, "checkReferences=false").returncode, 0)
        self.assertEqual(installed({}).returncode, 0, "a namespace that is not there yet")

    def test_the_readme_has_every_value(self):
        readme = (CHART / "README.md").read_text()
        documented = set(re.findall(r"^\| `([\w.]+)`", readme, re.M))
        values = yaml.safe_load((CHART / "values.yaml").read_text())

        def leaves(node, path=()):
            if isinstance(node, dict) and node and ".".join(path) not in documented:
                for key, child in node.items():
                    yield from leaves(child, path + (key,))
            else:
                yield ".".join(path)

        wanted = set(leaves(values))
        self.assertEqual(wanted - documented, set(), "values that README.md does not explain")
        self.assertEqual(documented - wanted, set(), "README.md explains values that are not there")

    def test_scaling_changes_the_job_that_runs_and_other_pods_are_another(self):
        def jobs(*values):
            return {o["metadata"]["name"]: o["spec"] for o in render(["tls.mode=none", *values])
                    if o["kind"] == "Job" and lint_chart.component(o) == "worker"}
        few, many, other = jobs(), jobs("workers.count=8"), jobs("job.set={training.epochs=2}")
        self.assertEqual(set(few), set(many))
        self.assertEqual(next(iter(many.values()))["completions"], 8)
        self.assertNotEqual(set(few), set(other))
        self.assertNotEqual(set(few), set(jobs("workers.retries=5")), "backoffLimitPerIndex cannot be changed either")

    def test_another_failure_policy_is_another_job(self):
        def names(chart):
            done = helm("template", "demo", chart, values=["tls.mode=none"])
            return {o["metadata"]["name"] for o in yaml.load_all(done.stdout, LOADER) if o and o["kind"] == "Job"}

        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder) / "foreshard"
            shutil.copytree(CHART, other)
            helpers = other / "templates/_helpers.tpl"
            helpers.write_text(helpers.read_text().replace("values: [4, 143]", "values: [4]"))
            self.assertFalse(names(CHART) & names(other))

    def test_an_image_of_the_workers_own_has_not_the_other_s_digest(self):
        def images(*values):
            objects = render(["image.digest=sha256:" + "a" * 64, *values])
            return main_container(objects, "server")["image"], main_container(objects, "worker")["image"]

        given, other = "foreshard@sha256:" + "a" * 64, "sha256:" + "b" * 64
        self.assertEqual(images(), (given, given))
        self.assertEqual(images("workers.image.tag=0.0.9"), (given, "foreshard:0.0.9"))
        self.assertEqual(images("workers.image.repository=cuda"), (given, "cuda:0.1.0"))
        self.assertEqual(images("workers.image.tag=0.0.9", f"workers.image.digest={other}"), (given, f"foreshard@{other}"))

    def test_servers_that_are_there_keep_their_number_and_claims(self):
        """On a cluster that helm reaches: here one that only pretends."""
        held = find(render(["tls.mode=none"]), "StatefulSet")["spec"]

        def upgraded(*values, spec=held):
            ours = {"labels": {"app.kubernetes.io/managed-by": "Helm"},
                    "annotations": {"meta.helm.sh/release-name": "demo", "meta.helm.sh/release-namespace": "training"}}
            with fake_api_server.FakeApiServer({("statefulsets", "demo-foreshard-server"): {"metadata": ours, "spec": spec}}) as address:
                return helm("template", "demo", CHART, "--namespace", "training", "--dry-run=server", "--disable-openapi-validation",
                            f"--kube-apiserver={address}", values=["tls.mode=none", *values])

        for same in ("workers.count=8", "servers.state.size=20480Mi"):
            self.assertEqual(upgraded(same).returncode, 0, upgraded(same).stderr)
        for value, said in (("servers.shards=3", "servers.shards: there are 2 servers"), ("servers.state.enabled=false", "servers.state.enabled"),
                            ("servers.state.size=30Gi", "servers.state.size: the servers' claims are made for 20Gi"),
                            ("servers.state.storageClass=fast", "servers.state.storageClass"),
                            ("servers.state.accessMode=ReadWriteOncePod", "servers.state.accessMode")):
            done = upgraded(value)
            self.assertNotEqual(done.returncode, 0, value)
            self.assertIn(said, done.stderr)
        stateless = find(render(["tls.mode=none", "servers.state.enabled=false"]), "StatefulSet")["spec"]
        self.assertEqual(upgraded("servers.state.enabled=false", "servers.shards=3", spec=stateless).returncode, 0)
        self.assertIn("servers.state.enabled", upgraded(spec=stateless).stderr)

    def test_dashboards_and_rules_are_in_the_chart_as_they_are(self):
        objects = render(MATRIX["monitored"])
        boards = [o for o in objects if o["kind"] == "ConfigMap" and "dashboard" in o["metadata"]["name"]]
        for board in boards:
            for file, text in board["data"].items():
                self.assertEqual(json.loads(text), json.loads((found_tools.SOURCE / "deploy/grafana" / file).read_text()))
        self.assertEqual(len(boards), len(list((found_tools.SOURCE / "deploy/grafana").glob("*.json"))))
        rules = next(o for o in objects if o["kind"] == "PrometheusRule")
        self.assertEqual(rules["spec"], yaml.safe_load((found_tools.SOURCE / "deploy/prometheus/rules.yaml").read_text()))

    def test_notes_warn_of_what_is_open(self):
        notes = helm("install", "demo", CHART, "--dry-run=client", "--namespace", "training",
                     values=["tls.mode=none", "token.generate=false", "servers.state.enabled=false"]).stdout
        for said in ("tls.mode is none", "port 50051 can change", "without a token", "begins anew", "demo-foreshard-server-0"):
            self.assertIn(said, notes)

    def test_notes_name_only_what_there_is(self):
        def notes(*values):
            return helm("install", "demo", CHART, "--dry-run=client", "--namespace", "training", values=values).stdout.partition("NOTES:")[2]

        whole, less = notes("tls.mode=none"), notes("tls.mode=none", "workers.enabled=false", "evaluator.enabled=false")
        for said in ("component=evaluator", "--set workers.count="):
            self.assertIn(said, whole)
            self.assertNotIn(said, less)
        self.assertIn("port 50051 with the token can change", whole)
        for text in (whole, less):
            self.assertNotRegex(text, r"\n\n\n|[ \t]\n", "empty lines, or spaces at the end of one")

    def test_the_guides_name_pods_that_are_there(self):
        done = helm("template", "run1", CHART, "--namespace", "training", values=["servers.shards=4"])
        objects = [d for d in yaml.load_all(done.stdout, LOADER) if d]
        names = {o["metadata"]["name"] for o in objects}
        pods = {f"{find(objects, 'StatefulSet')['metadata']['name']}-{ordinal}" for ordinal in range(4)}
        names |= pods | {f"state-{pod}" for pod in pods}
        for guide in (found_tools.SOURCE / "deploy/README.md", CHART / "README.md", found_tools.SOURCE / "deploy/prometheus/runbook.md"):
            for said in re.findall(r"(?:state-)?\brun1-[\w-]+", guide.read_text()):
                self.assertIn(said, names, guide)


def pod(objects, component):
    return next(o for o in objects if o["kind"] in ("StatefulSet", "Job") and lint_chart.component(o) == component)["spec"]["template"]


def main_container(objects, component):
    return next(c for c in pod(objects, component)["spec"]["containers"] if c["name"] == "foreshard")


def find(objects, kind, ending=""):
    return next(o for o in objects if o["kind"] == kind and o["metadata"]["name"].endswith(ending))


def job(objects, component):
    return next(o for o in objects if o["kind"] == "Job" and lint_chart.component(o) == component)["spec"]


def replace_argument(container, flag, new):
    container["args"] = [a for a in container["args"] if a.partition("=")[0] != flag] + ([new] if new else [])


# Of each rule: what to break so that it, at least, finds it.
BREAK = {
    "non_root": lambda o: pod(o, "server")["spec"]["securityContext"].update(runAsNonRoot=False),
    "seccomp": lambda o: pod(o, "worker")["spec"]["securityContext"].pop("seccompProfile"),
    "fs_group": lambda o: pod(o, "server")["spec"]["securityContext"].pop("fsGroupChangePolicy"),
    "locked_container": lambda o: main_container(o, "server")["securityContext"].update(readOnlyRootFilesystem=False),
    "no_service_account_token": lambda o: pod(o, "worker")["spec"].pop("automountServiceAccountToken"),
    "no_host": lambda o: pod(o, "worker")["spec"].update(hostNetwork=True),
    "resources": lambda o: main_container(o, "evaluator")["resources"]["limits"].pop("memory"),
    "pinned_image": lambda o: main_container(o, "worker").update(image="registry:5000/foreshard"),
    "standard_labels": lambda o: find(o, "Service")["metadata"]["labels"].pop("app.kubernetes.io/version"),
    "stable_selectors": lambda o: find(o, "StatefulSet")["spec"]["selector"]["matchLabels"].update({"app.kubernetes.io/version": "1"}),
    "selector_finds_pods": lambda o: find(o, "Service")["spec"]["selector"].update(other="x"),
    "template_matches_selector": lambda o: pod(o, "server")["metadata"]["labels"].pop("app.kubernetes.io/component"),
    "servers_are_stateful": lambda o: find(o, "StatefulSet")["spec"].update(podManagementPolicy="OrderedReady"),
    "replicas_are_shards": lambda o: find(o, "StatefulSet")["spec"].update(replicas=3),
    "headless_service": lambda o: find(o, "Service")["spec"].update(publishNotReadyAddresses=False),
    "servers_names_resolve": lambda o: find(o, "StatefulSet")["spec"].update(serviceName="other"),
    "ports_exist": [
        lambda o: find(o, "Service")["spec"]["ports"][0].update(targetPort="other"),
        lambda o: find(o, "PodMonitor")["spec"]["podMetricsEndpoints"][0].update(port="other"),
        lambda o: find(o, "PodMonitor")["spec"]["selector"]["matchLabels"].update({"app.kubernetes.io/component": "server"})],
    "ports_are_listened_on": [
        lambda o: replace_argument(main_container(o, "server"), "--listen", "--listen=0.0.0.0:50052"),
        lambda o: replace_argument(main_container(o, "server"), "--health-listen", "--health-listen=127.0.0.1:8086"),
        lambda o: replace_argument(main_container(o, "worker"), "--metrics-listen", "--metrics-listen=localhost:9090")],
    "server_probes": [
        lambda o: main_container(o, "server")["readinessProbe"]["grpc"].update(port=50051),
        lambda o: main_container(o, "server")["readinessProbe"]["grpc"].update(service="liveness"),
        lambda o: main_container(o, "server")["livenessProbe"]["grpc"].pop("service"),
        lambda o: main_container(o, "server").update(livenessProbe={"tcpSocket": {"port": 8086}})],
    "probes_have_bounds": [
        lambda o: main_container(o, "server")["startupProbe"].update(failureThreshold=1),
        lambda o: main_container(o, "server")["readinessProbe"].update(failureThreshold=10),
        lambda o: main_container(o, "server")["livenessProbe"].update(failureThreshold=1),
        lambda o: main_container(o, "server")["livenessProbe"].update(failureThreshold=100),
        lambda o: main_container(o, "server")["livenessProbe"].pop("timeoutSeconds"),
        lambda o: main_container(o, "server")["readinessProbe"].update(timeoutSeconds=6),
        lambda o: main_container(o, "server")["livenessProbe"].update(initialDelaySeconds=600)],
    "time_to_drain": lambda o: pod(o, "server")["spec"].update(terminationGracePeriodSeconds=server_bounds.stop_seconds(state=True)),
    "disruption_budget": lambda o: find(o, "PodDisruptionBudget")["spec"].update(maxUnavailable=2),
    "spread": [
        lambda o: pod(o, "server")["spec"].pop("topologySpreadConstraints"),
        lambda o: pod(o, "server")["spec"]["topologySpreadConstraints"][0].update(labelSelector={"matchLabels": {"app": "other"}}),
        lambda o: pod(o, "server")["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"].pop("app.kubernetes.io/instance"),
        lambda o: pod(o, "server")["spec"]["topologySpreadConstraints"][0].update(maxSkew=5),
        lambda o: pod(o, "server")["spec"]["topologySpreadConstraints"][0].update(whenUnsatisfiable="DoNotSchedule")],
    "update_strategy": [
        lambda o: find(o, "StatefulSet")["spec"].update(updateStrategy={"type": "OnDelete"}),
        lambda o: find(o, "StatefulSet")["spec"].pop("updateStrategy"),
        lambda o: find(o, "StatefulSet")["spec"]["updateStrategy"].update(rollingUpdate={"partition": 1})],
    "worker_jobs": [
        lambda o: find(o, "Job")["spec"].update(podReplacementPolicy="TerminatingOrFailed"),
        lambda o: job(o, "worker").update(backoffLimitPerIndex=0),
        lambda o: job(o, "worker").update(maxFailedIndexes=0),
        lambda o: job(o, "worker").update(maxFailedIndexes=1),
        lambda o: job(o, "evaluator").update(backoffLimit=0)],
    "failure_policy": [
        lambda o: find(o, "Job")["spec"]["podFailurePolicy"]["rules"].pop(0),
        lambda o: job(o, "worker")["podFailurePolicy"]["rules"].reverse(),
        lambda o: job(o, "worker")["podFailurePolicy"]["rules"][0]["onExitCodes"].update(operator="NotIn"),
        lambda o: job(o, "worker")["podFailurePolicy"]["rules"][1]["onExitCodes"].update(values=[4]),
        lambda o: job(o, "evaluator")["podFailurePolicy"]["rules"][1]["onExitCodes"].update(values=[4, 143, 137]),
        lambda o: job(o, "evaluator")["podFailurePolicy"]["rules"][2]["onPodConditions"][0].update(status="False"),
        lambda o: job(o, "evaluator")["podFailurePolicy"]["rules"][2].update(action="Count")],
    "worker_slot": lambda o: replace_argument(main_container(o, "worker"), "--slot", "--slot=0"),
    "roles": [
        lambda o: replace_argument(main_container(o, "evaluator"), "--role", None),
        lambda o: replace_argument(main_container(o, "evaluator"), "--role", "--role=worker"),
        lambda o: main_container(o, "worker")["args"].append("--role=evaluator")],
    "environment_exists": lambda o: main_container(o, "worker").update(env=[]),
    "shared_memory": lambda o: next(v for v in pod(o, "worker")["spec"]["volumes"] if v["name"] == "shm").update(emptyDir={}),
    "gpu_is_used": lambda o: replace_argument(main_container(o, "worker"), "--device", "--device=cuda"),
    "mounts_have_volumes": lambda o: main_container(o, "server")["volumeMounts"][0].update(subPath="job.textproto"),
    "volumes_are_mounted": lambda o: pod(o, "server")["spec"]["volumes"].append({"name": "unused", "emptyDir": {}}),
    "files_are_mounted": lambda o: replace_argument(main_container(o, "worker"), "--token-file", "--token-file=/run/token"),
    "secrets_exist": lambda o: o.remove(find(o, "Secret", "-token")),
    "secrets_are_private": lambda o: next(v for v in pod(o, "server")["spec"]["volumes"] if "secret" in v)["secret"].update(defaultMode=0o444),
    "trust": lambda o: replace_argument(main_container(o, "worker"), "--tls-ca", None),
    "network_policies": [
        lambda o: find(o, "NetworkPolicy", "-server")["spec"]["ingress"].pop(0),
        lambda o: find(o, "NetworkPolicy", "-server")["spec"]["ingress"].append({}),
        lambda o: find(o, "NetworkPolicy", "-server")["spec"]["ingress"][0].pop("from"),
        lambda o: find(o, "NetworkPolicy", "-server")["spec"]["ingress"][0]["from"].append({"podSelector": {}}),
        lambda o: find(o, "NetworkPolicy", "-server")["spec"]["ingress"][0]["from"][2]["podSelector"].pop("matchLabels"),
        lambda o: find(o, "NetworkPolicy", "-server")["spec"]["ingress"][0].pop("ports"),
        lambda o: find(o, "NetworkPolicy", "-server")["spec"]["ingress"][1].pop("ports"),
        lambda o: find(o, "NetworkPolicy", "-server")["spec"]["ingress"][1]["from"][0].update(namespaceSelector={}),
        lambda o: find(o, "NetworkPolicy", "-server")["spec"]["egress"].append({}),
        lambda o: find(o, "NetworkPolicy", "-server")["spec"]["policyTypes"].remove("Egress"),
        lambda o: find(o, "NetworkPolicy", "-server")["spec"].update(podSelector={}),
        lambda o: find(o, "NetworkPolicy", "-worker")["spec"]["egress"].append({}),
        lambda o: find(o, "NetworkPolicy", "-worker")["spec"]["egress"][0]["ports"][0].update(port=1),
        lambda o: find(o, "NetworkPolicy", "-worker")["spec"]["egress"][1]["ports"].pop(),
        lambda o: find(o, "NetworkPolicy", "-worker")["spec"]["egress"][1]["ports"][0].update(protocol="TCP"),
        lambda o: find(o, "NetworkPolicy", "-evaluator")["spec"]["ingress"].insert(0, {"from": [{"podSelector": {}}]}),
        lambda o: o.remove(find(o, "NetworkPolicy", "-evaluator"))],
    "state_is_kept": [
        lambda o: find(o, "StatefulSet")["spec"].pop("volumeClaimTemplates"),
        lambda o: replace_argument(main_container(o, "server"), "--state-directory", "--state-directory=/tmp/state"),
        lambda o: next(m for m in main_container(o, "server")["volumeMounts"] if m["name"] == "state").update(name="scratch"),
        lambda o: find(o, "StatefulSet")["spec"].pop("persistentVolumeClaimRetentionPolicy"),
        lambda o: find(o, "StatefulSet")["spec"]["persistentVolumeClaimRetentionPolicy"].update(whenScaled="Delete"),
        lambda o: find(o, "StatefulSet")["spec"]["persistentVolumeClaimRetentionPolicy"].update(whenDeleted="Delete")],
    "configuration_checksum": lambda o: pod(o, "server")["metadata"].pop("annotations"),
    "known_flags": lambda o: main_container(o, "server")["args"].append("--fast"),
}


class Rules(unittest.TestCase):
    def test_each_rule_finds_what_it_is_for(self):
        self.assertEqual(set(BREAK), set(lint_chart.RULES), "a rule without its fixture")
        whole = render(MATRIX["monitored"])
        for title, damages in BREAK.items():
            for number, damage in enumerate(damages if isinstance(damages, list) else [damages]):
                with self.subTest(f"{title}, {number}"):
                    objects = copy.deepcopy(whole)
                    damage(objects)
                    self.assertNotEqual(lint_chart.lint(objects, FLAGS, only={title}), [], f"{title} found nothing")

    def test_certificates_must_have_the_names_that_are_called(self):
        objects = render(MATRIX["cert-manager"])
        find(objects, "Certificate", "-server-tls")["spec"]["dnsNames"].pop()
        self.assertTrue(lint_chart.lint(objects, FLAGS, only={"trust"}))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Programs(unittest.TestCase):
    """The rendered pods' containers as processes: their files where the chart mounts them, but in a
    folder; their addresses on loopback; nothing else of a command line is changed."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="foreshard-chart-")
        self.processes = []

    def tearDown(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.folder.cleanup()

    def place(self, objects, component, ordinal):
        """The pod's files; the container's command line with their places."""
        template = pod(objects, component)
        container = main_container(objects, component)
        root = pathlib.Path(self.folder.name) / f"{component}-{ordinal}"
        made = {o["metadata"]["name"]: o for o in objects if o["kind"] in ("Secret", "ConfigMap")}
        volumes = {v["name"]: v for v in template["spec"]["volumes"]}
        for mount in container["volumeMounts"]:
            place = root / mount["mountPath"].lstrip("/")
            place.mkdir(parents=True, exist_ok=True)
            volume = volumes.get(mount["name"], {})
            source = volume.get("secret", {}).get("secretName") or volume.get("configMap", {}).get("name")
            for key, value in made[source]["data"].items() if source else ():
                file = place / key
                if "secret" in volume:
                    file.write_bytes(base64.b64decode(value))
                    file.chmod(0o440)
                else:
                    file.write_text(value)
        command = []
        for argument in container["command"][1:] + container["args"]:
            flag, _, value = argument.partition("=")
            if any(value == m["mountPath"] or value.startswith(m["mountPath"] + "/") for m in container["volumeMounts"]):
                argument = f"{flag}={root}{value}"
            command.append(argument)
        return [str(PROGRAMS / container["command"][0])] + command

    def start(self, command, log):
        with open(log, "w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        self.processes.append(process)
        return process

    def test_they_train_with_the_rendered_command_lines(self):
        objects = render(["workers.count=2", "job.set={training.epochs=1,data.examples=6400}"])
        names = main_container(objects, "worker")["args"]
        called = next(a for a in names if a.startswith("--servers=")).partition("=")[2].split(",")
        ports = {address: free_port() for address in called}
        folder = pathlib.Path(self.folder.name)
        servers = []
        for shard, address in enumerate(called):
            command = []
            for argument in self.place(objects, "server", shard):
                command.append({"--shard=ordinal": f"--shard={shard}", "--listen=0.0.0.0:50051": f"--listen=127.0.0.1:{ports[address]}",
                                "--health-listen=0.0.0.0:8086": "--health-listen=127.0.0.1:0",
                                "--metrics-listen=0.0.0.0:9090": "--metrics-listen=127.0.0.1:0"}.get(argument, argument))
            ready = folder / f"server-{shard}.ready"
            servers.append((self.start(command + [f"--ready-file={ready}"], folder / f"server-{shard}.log"), ready, folder / f"server-{shard}.log"))
        for process, ready, log in servers:
            end = time.monotonic() + 30
            while not ready.exists() and process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            self.assertTrue(ready.exists(), log.read_text())
        workers = []
        for component, index in (("worker", 0), ("worker", 1), ("evaluator", 0)):
            command = []
            for argument in self.place(objects, component, index):
                argument = argument.replace("$(JOB_COMPLETION_INDEX)", str(index)).replace("$(POD_NAME)", f"{component}-{index}")
                # The certificates' names on loopback; that they have the services' names, a rule proves.
                for address, port in ports.items():
                    argument = argument.replace(address, f"localhost:{port}")
                command.append(argument.replace("--metrics-listen=0.0.0.0:9090", "--metrics-listen=127.0.0.1:0"))
            log = folder / f"{component}-{index}.log"
            workers.append((self.start(command, log), log))
        for process, log in workers:
            self.assertEqual(process.wait(timeout=90), 0, log.read_text())
        for process, _, log in servers:
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=30), 0, log.read_text())

    def test_a_bad_job_ends_with_two_and_so_the_job_at_once(self):
        objects = render(["job.set={training.epochs=-1}"])
        log = pathlib.Path(self.folder.name) / "log"
        command = [a.replace("$(JOB_COMPLETION_INDEX)", "0") for a in self.place(objects, "worker", 0)]
        self.assertEqual(self.start(command, log).wait(timeout=30), 2, log.read_text())
        self.assertIn("training.epochs", log.read_text())


    def test_more_shards_than_there_is_to_cut_end_with_two(self):
        objects = render(["job.set={model.elements=16}", "servers.shards=17"])
        log = pathlib.Path(self.folder.name) / "log"
        command = [a.replace("$(JOB_COMPLETION_INDEX)", "0") for a in self.place(objects, "worker", 0)]
        self.assertEqual(self.start(command, log).wait(timeout=30), 2, log.read_text())
        self.assertIn("17 shards for 16", log.read_text())


class Examples(unittest.TestCase):
    def test_they_use_the_chart_s_names_and_flags(self):
        objects = render()
        called = next(a for a in main_container(objects, "worker")["args"] if a.startswith("--servers="))
        seen = set()
        for path in sorted((CHART / "examples").glob("*.yaml")):
            for thing in filter(None, yaml.safe_load_all(path.read_text())):
                seen.add(thing["kind"])
                for container in containers_of(thing):
                    self.assertIn(called, container["args"], f"{path.name}: another list of servers than the chart's")
                    for argument in container["args"]:
                        self.assertIn(argument.partition("=")[0], FLAGS[container["command"][0]], path.name)
        self.assertLessEqual({"JobSet", "LocalQueue"}, seen)
        self.assertTrue(any("volcano" in (p.read_text()) for p in (CHART / "examples").glob("*.yaml")))

    def test_their_workers_are_the_chart_s(self):
        """But for what each needs to number them, and helm's own labels."""
        whole = next(o for o in render() if o["kind"] == "Job" and lint_chart.component(o) == "worker")["spec"]
        jobset, volcano = ([t for t in yaml.safe_load_all((CHART / f"examples/{name}.yaml").read_text())][0]["spec"] for name in ("jobset", "volcano"))
        inner = jobset["replicatedJobs"][0]["template"]["spec"]
        task = volcano["tasks"][0]
        self.assertEqual(inner, {**whole, "template": inner["template"]})
        self.assertEqual(task["replicas"], whole["completions"])
        self.assertIn("env", volcano["plugins"], "which sets VC_TASK_INDEX")
        # One pod's end is made good by one pod; but for a bad configuration, which comes before whatever else its end is.
        self.assertEqual([(p.get("exitCode") or p["event"], p["action"]) for p in task["policies"]], [
            (2, "AbortJob"), ("PodFailed", "RestartPod"), ("PodEvicted", "RestartPod"), ("TaskCompleted", "CompleteJob")])
        self.assertNotIn("policies", volcano)
        for template in (inner["template"], task["template"]):
            labels, own = whole["template"]["metadata"]["labels"], template["metadata"]["labels"]
            self.assertEqual({k: v for k, v in labels.items() if not k.endswith(("/version", "/managed-by", "/chart"))}, own)
            self.assertEqual(template["metadata"]["annotations"], whole["template"]["metadata"]["annotations"])
            container = template["spec"]["containers"][0]
            if template is task["template"]:
                number = container["args"].index("--slot=$(VC_TASK_INDEX)")
                container["args"][number] = "--slot=$(JOB_COMPLETION_INDEX)"
                container["env"].append(whole["template"]["spec"]["containers"][0]["env"][1])
            self.assertEqual(template["spec"], whole["template"]["spec"])

    def test_kueue_s_command_renders(self):
        """As the example has it."""
        text = (CHART / "examples/kueue.yaml").read_text()
        command = re.search(r"^#   (helm install (?:.*\\\n#)*.*)$", text, re.M)[1].replace("\\\n#", " ")
        done = run(HELM, "template", *shlex.split(command.replace("deploy/helm/foreshard", str(CHART)))[2:])
        self.assertEqual(done.returncode, 0, done.stderr)
        job = next(o for o in yaml.load_all(done.stdout, LOADER) if o and o["kind"] == "Job" and lint_chart.component(o) == "worker")
        self.assertEqual(job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "training")
        self.assertEqual(job["metadata"]["annotations"], {"kueue.x-k8s.io/job-min-parallelism": "1",
                                                          "kueue.x-k8s.io/job-completions-equal-parallelism": "true"})
        # Fewer completions than the least that it names would be refused.
        self.assertNotIn("maxFailedIndexes", job["spec"])


def containers_of(node):
    if isinstance(node, dict):
        for container in node.get("containers", []):
            yield container
        for child in node.values():
            yield from containers_of(child)
    elif isinstance(node, list):
        for child in node:
            yield from containers_of(child)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", required=True, type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    if HELM is None:
        found_tools.skip("no helm: tools/install-deploy-tools")
    PROGRAMS = arguments.programs.resolve()
    FLAGS = flags_of(PROGRAMS)
    unittest.main(argv=[sys.argv[0], *rest])
