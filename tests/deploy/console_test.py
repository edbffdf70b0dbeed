"""The console template of deploy/prometheus/ as headless Chromium shows it, from a real Prometheus that scrapes real daemons.

  console_test.py --programs=build-release/bin [--screenshots=DIR]
"""

import argparse
import json
import pathlib
import re
import sys
import tempfile
import time
import unittest
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import browser
import found_tools
import real_fleet

JOB = """
name: "shown" seed: 1
model { name: "quadratic" elements: 65536 }
data { format: "synthetic" examples: 6400000 }
training { epochs: 100 batch_size: 64 workers: 3 }
update { rule: "dana_slim" momentum: 0.9 }
schedule { learning_rate: 0.0001 }
compression { push: "one_bit" }
servers { shards: 2 }
"""
# Graphs that have nothing to show in this job: no rounds, no evaluator, nothing lost.
LEGENDS = "[...document.querySelectorAll('section')].map((s) => [s.querySelector('h3').textContent, " \
          "[...s.querySelectorAll('.rickshaw_legend .label')].map((l) => l.textContent), s.querySelectorAll('svg path').length])"
SCALES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "B/s": 1, "kiB/s": 1024, "MiB/s": 1024**2}


def number(text):
    found = re.fullmatch(r"(-?[\d.]+(?:e[+-]?\d+)?)\s*([a-zA-Z/]*)", text.strip())
    return float(found[1]) * SCALES[found[2]]


class Console(unittest.TestCase):
    def test_it_shows_the_numbers_that_prometheus_has_and_draws_every_graph(self):
        with real_fleet.Fleet(PROGRAMS, JOB, shards=2, workers=3, pace=[0.02, 0.02, 0.05], state=True) as fleet, \
             real_fleet.Prometheus(fleet.metrics.values(), rules=found_tools.SOURCE / "deploy/prometheus/rules.yaml",
                                   interval="1s") as prometheus:
            # Rates over a minute want a few scrapes.
            real_fleet.wait_until(lambda: [float(s["value"][1]) >= 8 for s in prometheus.series("count_over_time(up[1m])")] == [True] * 5,
                                  "eight scrapes", 60)
            with browser.Browser() as chromium:
                self.check(prometheus, chromium)

    def check(self, prometheus, chromium):
        began = time.time()
        hash_ = json.dumps({"duration": 60, "endTime": int(time.time())})
        page = chromium.page(f"{prometheus.base}/consoles/foreshard.html?job=shown#pctc{urllib.parse.quote(hash_)}", width=1400)
        page.wait("document.querySelector('#overview tbody tr') !== null")
        row = page.value("Object.fromEntries([...document.querySelectorAll('#overview td')].map((c) => [c.dataset.field, c.textContent]))")
        self.assertEqual(page.value("document.querySelector('#overview tbody th').textContent"), "shown")
        self.assertEqual(row["training"], "3")
        self.assertEqual(row["alerts"], "0")
        self.assertEqual(row["accuracy"], "-")
        # Against what Prometheus says of the time in which the page was made, up to rounding; a scrape is up to a second late.
        rows = [
            ("examples", "sum(rate(foreshard_examples_total[1m]))"),
            ("updates", "avg(rate(foreshard_parameter_version[1m]))"),
            ("staleness", "sum(rate(foreshard_push_staleness_updates_sum[1m])) / sum(rate(foreshard_push_staleness_updates_count[1m]))"),
            ("compression", "sum(rate(foreshard_push_uncompressed_bytes_total[1m])) / sum(rate(foreshard_push_bytes_total[1m]))"),
            ("pushed", 'sum(rate(foreshard_push_bytes_total{shard!=""}[1m]))'),
            ("loss", "avg(foreshard_loss and foreshard_steps_total > 0)")]
        made = time.time()
        for field, expression in rows:
            least, most = prometheus.between(expression, began - 3, made + 3)
            self.assertGreater(least, 0, field)
            self.assertGreaterEqual(number(row[field]), least * 0.95, field)
            self.assertLessEqual(number(row[field]), most * 1.05, field)
        shown = "[...document.querySelectorAll('.prom_graph, section')].length > 0 && " + LEGENDS + ".filter(([, , paths]) => paths > 0).length >= 28"
        page.wait(shown, 60)
        graphs = {title: (legend, paths) for title, legend, paths in page.value(LEGENDS)}
        self.assertEqual(set(graphs["Updates"][0]), {"shard 0", "shard 1"})
        self.assertEqual(len(graphs["Steps by worker"][0]), 3)
        self.assertEqual(set(graphs["Workers"][0]), {"training", "left", "expired"})
        # Debian's Prometheus lacks one script that its own library asks for.
        self.assertEqual([text for text in page.complaints() if "PromConsole" in text], [])
        page.screenshot(SCREENSHOTS / "console.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", required=True, type=pathlib.Path)
    parser.add_argument("--screenshots", type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    PROGRAMS = arguments.programs.resolve()
    for there, what in ((browser.find(), "chromium: apt-get install chromium"),
                        (found_tools.find("prometheus"), "prometheus: tools/install-deploy-tools"),
                        (real_fleet.CONSOLE_LIBRARIES.exists(), f"console libraries of Prometheus in {real_fleet.CONSOLE_LIBRARIES}: "
                         "apt-get install prometheus"),
                        (pathlib.Path("/usr/share/prometheus/web").exists(), "scripts of Prometheus' consoles: apt-get install prometheus")):
        if not there:
            found_tools.skip(f"no {what}")
    with tempfile.TemporaryDirectory(prefix="foreshard-console-") as scratch:
        SCREENSHOTS = arguments.screenshots or pathlib.Path(scratch)
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        program = unittest.main(argv=[sys.argv[0], *rest], exit=False)
    sys.exit(not program.result.wasSuccessful())
