"""Rules, alerts and dashboards: by promtool where it is there; against what real daemons export; and with a
real Prometheus that scrapes them, every panel's query returns series and every alert's is evaluated.

  monitoring_test.py --programs=build-release/bin
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import alert_bounds
import found_tools
import real_fleet

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

    def test_alerts_fire_beyond_their_thresholds_and_not_before_their_time(self):
        self.assertEqual(set(alert_bounds.BOUNDS), {a["alert"] for a in alerts() if "alert" in a})
        if PROMTOOL is None:
            self.skipTest("no promtool: tools/install-deploy-tools")
        self.assertEqual(self.promtool_of(RULES.read_text()), "")

    def test_another_threshold_or_time_is_found(self):
        """In rules that are damaged: each alert a step too late, a step too early, with a threshold that is higher."""
        if PROMTOOL is None:
            self.skipTest("no promtool: tools/install-deploy-tools")
        every = {a["alert"] for a in alerts() if "alert" in a}
        at_once = {"ForeshardCheckpointFailed", "ForeshardJournalFailed"}
        by_presence = {"ForeshardServerGone", "ForeshardDealingStopped", "ForeshardNoWorkers"}
        text = RULES.read_text()
        for damaged, found in (
                (re.sub(r"for: (\d+)m\b", lambda m: f"for: {int(m[1]) * 60 + 15}s", text).replace("for: 0s", "for: 15s"), every),
                (re.sub(r"for: (\d+)m\b", lambda m: f"for: {int(m[1]) * 60 - 15}s", text), every - at_once),
                (re.sub(r"> (0\.\d+|25|1800)\b", lambda m: f"> {float(m[1]) * 1.3}", text).replace("group_left 0.4", "group_left 0.3")
                 .replace('expired"}) > 0', 'expired"}) > 1').replace("journal_failed == 1", "journal_failed == 2")
                 .replace("[30m]) > 0", "[30m]) > 2"), every - by_presence)):
            self.assertEqual(set(re.findall(r'alertname=\\"(\w+)', self.promtool_of(damaged))), found)

    def promtool_of(self, rules):
        """What promtool finds wrong in rules at the bounds of each alert."""
        with tempfile.TemporaryDirectory() as folder:
            file, cases = pathlib.Path(folder) / "rules.yaml", pathlib.Path(folder) / "cases.yaml"
            file.write_text(rules)
            cases.write_text(yaml.safe_dump(alert_bounds.promtool_cases(file)))
            done = subprocess.run([PROMTOOL, "test", "rules", cases], capture_output=True, text=True)
            return "" if done.returncode == 0 else done.stdout + done.stderr

    def test_every_alert_has_its_case_severity_summary_and_runbook(self):
        cases = (found_tools.SOURCE / "tests/deploy/rules_test.yaml").read_text()
        runbook = (DEPLOY / "prometheus/runbook.md").read_text()
        for alert in [a for a in alerts() if "alert" in a]:
            title = alert["alert"]
            self.assertIn(alert["labels"]["severity"], ("warning", "critical"), title)
            self.assertRegex(alert.get("for", ""), r"^\d+[smh]$", title)
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
                self.assertIn('namespace=~"$namespace",job_name=~"$job"', target["expr"], where)
                self.assertNotIn("RATE", target["expr"], where)


class Daemons(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fleet = real_fleet.Fleet(PROGRAMS, JOB, shards=2, pace=0.01, state=True)

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
        for title, address in self.fleet.metrics.items():
            series = [line for line in real_fleet.fetch(address).splitlines() if line and not line.startswith("#")]
            self.assertLessEqual(len(series), 300, title)
            self.assertEqual(len(series), len({line.rpartition(" ")[0] for line in series}), f"{title} has a series twice")

    def test_every_panel_and_rule_shows_something_in_a_real_prometheus(self):
        if PROMETHEUS is None:
            self.skipTest("no prometheus: tools/install-deploy-tools")
        with real_fleet.Prometheus(self.fleet.metrics.values(), rules=RULES) as prometheus:
            self.check_prometheus(prometheus)

    def check_prometheus(self, prometheus):
        def shown(target):
            text = target["expr"].replace("$namespace", ".*").replace("$job", ".+").replace("$instance", ".+").replace("$__rate_interval", "5s")
            return bool(prometheus.series(text))

        wanted = [(f'{file}: {panel["title"]}: {target["legendFormat"]}', target) for file, panel in panels()
                  for target in panel["targets"] if target["legendFormat"] not in SYNCHRONOUS_ONLY]
        end = time.monotonic() + 40
        while True:
            empty = [where for where, target in wanted if not shown(target)]
            if not empty or time.monotonic() > end:
                break
            time.sleep(1)
        self.assertEqual(empty, [], "panels without a series")
        rules = prometheus.rules()
        self.assertEqual([(r["name"], r.get("lastError")) for r in rules if r["health"] == "err"], [])
        self.assertEqual(len(rules), len(alerts()))
        if real_fleet.CONSOLE_LIBRARIES.exists():
            page = prometheus.ask("/consoles/foreshard.html", job="monitored")
            self.assertNotIn("error executing template", page)
            self.assertIn("PromConsole.Graph", page)
            for text in re.findall(r'expr: \[(.*?)\], name', page):
                for expression in json.loads(f"[{text}]"):
                    prometheus.series(expression)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", required=True, type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    PROGRAMS = arguments.programs.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
