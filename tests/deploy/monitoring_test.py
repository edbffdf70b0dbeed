"""Rules, alerts and dashboards: by promtool where it is there; against what real daemons export; and with a
real Prometheus that scrapes them, every panel's query returns series and every alert's is evaluated.

  monitoring_test.py --programs=build-release/bin
"""

import argparse
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import found_tools

try:
    import yaml
except ImportError as missing:
    found_tools.skip(f"{missing}: install python3-yaml")

DEPLOY = found_tools.SOURCE / "deploy"
RULES = DEPLOY / "prometheus/rules.yaml"
PROMTOOL = found_tools.find("promtool")
PROMETHEUS = found_tools.find("prometheus")
JOB = """
name: "monitored" seed: 1
model { name: "quadratic" elements: 65536 }
data { format: "synthetic" examples: 6400000 }
training { epochs: 100 batch_size: 64 workers: 2 }
update { rule: "dana_slim" momentum: 0.9 }
schedule { learning_rate: 0.001 }
compression { push: "one_bit" }
servers { shards: 2 }
"""
# Where the job, by its rule, has nothing to show.
SYNCHRONOUS_ONLY = {"rounds of shard {{shard}}", "absences in shard {{shard}}"}


def alerts():
    return [r for g in yaml.safe_load(RULES.read_text())["groups"] for r in g["rules"]]


def panels():
    """(file, panel) of all dashboards."""
    for path in sorted((DEPLOY / "grafana").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            yield path.name, panel


def metric_names(expression):
    return set(re.findall(r"\bforeshard_[a-z0-9_]+", expression))


class Fleet:
    """Two servers and two workers on loopback, slow enough to leave the machine to others."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="foreshard-monitoring-")
        root = pathlib.Path(self.folder.name)
        (root / "job.textproto").write_text(JOB)
        self.processes, self.addresses, self.metrics = [], [], []
        help_text = subprocess.run([PROGRAMS / "foreshard-server", "--help"], capture_output=True, text=True).stdout
        try:
            for shard in (0, 1):
                state = [f"--state-directory={root}/state-{shard}"] if "--state-directory" in help_text else []
                ready = self.start(f"server-{shard}", ["foreshard-server", f"--shard={shard}", "--listen=127.0.0.1:0",
                                                       "--metrics-listen=127.0.0.1:0", *state])
                self.addresses.append(ready["address"])
                self.metrics.append(ready["metrics_address"])
            for worker in (0, 1):
                ready = self.start(f"worker-{worker}", ["foreshard-worker", f"--servers={','.join(self.addresses)}", "--slowdown=20",
                                                        "--metrics-listen=127.0.0.1:0"])
                self.metrics.append(ready["metrics_address"])
        except BaseException:
            self.stop()
            raise

    def start(self, title, command):
        root = pathlib.Path(self.folder.name)
        ready, log = root / f"{title}.ready", root / f"{title}.log"
        with open(log, "w") as output:
            process = subprocess.Popen([PROGRAMS / command[0], f"--job={root}/job.textproto", f"--ready-file={ready}", *command[1:]],
                                       stdout=output, stderr=subprocess.STDOUT)
        self.processes.append(process)
        end = time.monotonic() + 30
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{title} did not start: {log.read_text()}")
            time.sleep(0.05)
        return json.loads(ready.read_text())

    def scrape(self):
        text = ""
        for address in self.metrics:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
                text += reply.read().decode()
        return text

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.folder.cleanup()


class Files(unittest.TestCase):
    def test_rules_are_what_promtool_takes_and_alerts_fire_by_what_they_are_for(self):
        if PROMTOOL is None:
            self.skipTest("no promtool: tools/install-deploy-tools")
        with tempfile.TemporaryDirectory() as folder:
            cases = pathlib.Path(folder) / "cases.yaml"
            text = (found_tools.SOURCE / "tests/deploy/rules_test.yaml").read_text()
            cases.write_text(text.replace("[RULES]", f"[{RULES}]"))
            for command in (["check", "rules", RULES], ["check", "config", DEPLOY / "prometheus/prometheus.yml"],
                            ["test", "rules", cases]):
                done = subprocess.run([PROMTOOL, *command], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_alert_has_its_case_severity_summary_and_runbook(self):
        cases = (found_tools.SOURCE / "tests/deploy/rules_test.yaml").read_text()
        runbook = (DEPLOY / "prometheus/runbook.md").read_text()
        for alert in [a for a in alerts() if "alert" in a]:
            title = alert["alert"]
            self.assertIn(alert["labels"]["severity"], ("warning", "critical"), title)
            self.assertTrue(alert["annotations"]["summary"], title)
            self.assertEqual(alert["annotations"]["runbook"], f"deploy/prometheus/runbook.md#{title.lower()}")
            self.assertIn(f"\n## {title}\n", runbook)
            self.assertIn(title, cases, "no case fires it")
        for title in re.findall(r"^## (\w+)$", runbook, re.M):
            self.assertIn(title, [a.get("alert") for a in alerts()], "the runbook has an alert that is not there")

    def test_dashboards_are_what_the_list_makes(self):
        done = subprocess.run([found_tools.SOURCE / "tools/make-dashboards", "--check"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_every_panel_has_unit_description_and_a_place_of_its_own(self):
        places = set()
        for file, panel in panels():
            where = f'{file}: {panel["title"]}'
            self.assertTrue(panel["description"], where)
            self.assertTrue(panel["fieldConfig"]["defaults"]["unit"], where)
            place = (file, panel["gridPos"]["x"], panel["gridPos"]["y"])
            self.assertNotIn(place, places, where)
            places.add(place)
            for target in panel["targets"]:
                self.assertIn("$job", target["expr"], where)
                self.assertNotIn("RATE", target["expr"], where)


class Daemons(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fleet = Fleet()

    @classmethod
    def tearDownClass(cls):
        cls.fleet.stop()

    def test_every_metric_that_is_named_is_there(self):
        text = self.fleet.scrape()
        have = set(re.findall(r"^(foreshard_[a-z0-9_]+)", text, re.M))
        console = (DEPLOY / "prometheus/consoles/foreshard.html").read_text()
        named = {"the console": metric_names(console)}
        for rule in alerts():
            named[rule.get("alert") or rule["record"]] = metric_names(rule["expr"])
        for file, panel in panels():
            named[f'{file}: {panel["title"]}'] = set().union(*(metric_names(t["expr"]) for t in panel["targets"]))
        missing = {where: sorted(names - have) for where, names in named.items() if names - have}
        self.assertEqual(missing, {}, "metrics that no daemon exports")
        self.assertGreater(len(have), 40)

    def test_a_scrape_is_small(self):
        for address in self.fleet.metrics:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
                series = [line for line in reply.read().decode().splitlines() if line and not line.startswith("#")]
            self.assertLessEqual(len(series), 300, address)

    def test_every_panel_and_rule_shows_something_in_a_real_prometheus(self):
        if PROMETHEUS is None:
            self.skipTest("no prometheus: tools/install-deploy-tools")
        with tempfile.TemporaryDirectory(prefix="foreshard-prometheus-") as folder, socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            probe.close()
            root = pathlib.Path(folder)
            (root / "prometheus.yml").write_text(json.dumps({
                "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"}, "rule_files": [str(RULES)],
                "scrape_configs": [{"job_name": "foreshard", "static_configs": [{"targets": self.fleet.metrics}]}]}))
            libraries = pathlib.Path("/usr/share/doc/prometheus/examples/console_libraries")
            with open(root / "log", "w") as output:
                prometheus = subprocess.Popen(
                    [PROMETHEUS, f"--config.file={root}/prometheus.yml", f"--storage.tsdb.path={root}/data", "--log.level=warn",
                     f"--web.listen-address=127.0.0.1:{port}", f"--web.console.templates={DEPLOY}/prometheus/consoles",
                     f"--web.console.libraries={libraries}"], stdout=output, stderr=subprocess.STDOUT)
            try:
                self.check_prometheus(f"http://127.0.0.1:{port}", libraries.exists())
            finally:
                prometheus.terminate()
                prometheus.wait(timeout=30)

    def ask(self, base, path, **parameters):
        with urllib.request.urlopen(f"{base}{path}?{urllib.parse.urlencode(parameters)}", timeout=10) as reply:
            return reply.read().decode()

    def check_prometheus(self, base, libraries):
        def series(expression):
            return json.loads(self.ask(base, "/api/v1/query", query=expression))["data"]["result"]

        def shown(target):
            text = target["expr"].replace("$job", ".+").replace("$instance", ".+").replace("$__rate_interval", "5s")
            return bool(series(text))

        wanted = [(f'{file}: {panel["title"]}: {target["legendFormat"]}', target) for file, panel in panels()
                  for target in panel["targets"] if target["legendFormat"] not in SYNCHRONOUS_ONLY]
        end = time.monotonic() + 40
        while True:
            try:
                empty = [where for where, target in wanted if not shown(target)]
            except (urllib.error.URLError, ConnectionError):
                empty = ["Prometheus does not answer"]
            if not empty or time.monotonic() > end:
                break
            time.sleep(1)
        self.assertEqual(empty, [], "panels without a series")
        groups = json.loads(self.ask(base, "/api/v1/rules"))["data"]["groups"]
        self.assertEqual([(r["name"], r.get("lastError")) for g in groups for r in g["rules"] if r["health"] == "err"], [])
        self.assertEqual(sum(len(g["rules"]) for g in groups), len(alerts()))
        if libraries:
            page = self.ask(base, "/consoles/foreshard.html", job="monitored")
            self.assertNotIn("error executing template", page)
            self.assertIn("PromConsole.Graph", page)
            for text in re.findall(r'expr: \[(.*?)\], name', page):
                for expression in json.loads(f"[{text}]"):
                    self.assertIn("status", json.loads(self.ask(base, "/api/v1/query", query=expression)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", required=True, type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    PROGRAMS = arguments.programs.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
