"""Alerts fire by the faults they are for: real daemons, a real Prometheus, the rules of deploy/ with time shortened.

  alerts_test.py --programs=build-release/bin

Durations of the rules are a sixtieth (of rates, of groups, of the age of a checkpoint), and what has to last for a time has
to for a second; all other thresholds are those of the file.
"""

import argparse
import concurrent.futures
import contextlib
import itertools
import pathlib
import re
import resource
import signal
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import found_tools
import real_fleet

RULES = found_tools.SOURCE / "deploy/prometheus/rules.yaml"
FASTER = 60
UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000}
FILE_BYTES = 512 * 1024


def job(name, rest, rule='rule: "dana_slim" momentum: 0.9', rate="1e-6", workers=1, shards=1, elements=16384):
    return f"""
name: "{name}" seed: 1
model {{ name: "quadratic" elements: {elements} }}
data {{ format: "synthetic" examples: 6400000 }}
training {{ epochs: 100 batch_size: 64 workers: {workers} {rest.get("training", "")} }}
update {{ {rule} }}
schedule {{ learning_rate: {rate} }}
servers {{ shards: {shards} {rest.get("servers", "")} }}
""" + "\n".join(f"{part} {{ {text} }}" for part, text in rest.items() if part not in ("training", "servers"))


def shortened(text):
    """The rules with their time running faster."""
    def faster(match):
        return f"{int(match[1]) * UNITS_MS[match[2]] // FASTER}ms"

    text = re.sub(r"(?<=\[)(\d+)([smh])(?=\])", faster, text)
    text = re.sub(r"(?<=interval: )(\d+)([smh])", faster, text)
    text = re.sub(r"(?m)(?<= for: )\d+[smh]$", "1s", text)
    text, replaced = re.subn(r"(foreshard_checkpoint_age_seconds > )(\d+)", lambda m: f"{m[1]}{int(m[2]) // FASTER}", text)
    assert replaced == 1, "the alert of old checkpoints is another one: change this test"
    return text


def survive_full_disk():
    """Of the process that begins: where its files cannot grow, it is told so and not killed."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def fill_disk(process=0):
    """Its files end at FILE_BYTES, as on a disk that is full."""
    resource.prlimit(process, resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))


def full_disk():
    survive_full_disk()
    fill_disk()


FLEETS = {
    "steady": dict(job=job("steady", {"timeouts": "lease_seconds: 5 connect_seconds: 120"}, workers=3, shards=2), shards=2, workers=3),
    # Four workers are three updates behind on the mean; two are allowed.
    "late": dict(job=job("late", {}, rule='rule: "asgd" delay_threshold: 2', workers=4), workers=4),
    # Two elements of each 4096 are sent, the rest is kept back.
    "kept": dict(job=job("kept", {"compression": 'push: "top_k" fraction: 0.0005'}), workers=1),
    "diverged": dict(job=job("diverged", {}, rule='rule: "asgd"', rate="1e30"), workers=1),
    "full": dict(job=job("full", {"durability": 'checkpoint_seconds: 2 on_failure: "continue"'}, elements=262144), workers=1,
                 pace=0.1, state=True, prepare=full_disk),
    # Room for the messages of one worker, and there are six, which pause so little that they meet also where the machine is quick.
    "crowded": dict(job=job("crowded", {"servers": "segment_elements: 262144 inflight_bytes: 3200000"}, rule='rule: "asgd"', workers=6,
                            elements=262144), workers=6, pace=0.01),
    # A disk that is full later, and a server that then ends.
    "ended": dict(job=job("ended", {"durability": "checkpoint_seconds: 3600"}), workers=1, state=True, prepare=survive_full_disk),
    "left": dict(job=job("left", {}), workers=1, pace=0.05),
    "twice": dict(job=job("twice", {}), workers=1, pace=0.05),
    "rounds": dict(job=job("rounds", {"training": "straggler_seconds: 0.5"}, rule='rule: "ssgd"', workers=3), workers=3),
}


class Contended:
    """Two supervisors that each keep a worker in the same slot: whoever comes fences the other."""

    def __init__(self, fleet):
        self.fleet = fleet
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        command, _ = self.fleet.commands["worker-0"]
        for number in itertools.count(1):
            if self.over.wait(0.5):
                return
            self.fleet.start(f"again-{number}", command)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


class Alerts(unittest.TestCase):
    def setUp(self):
        self.ended = contextlib.ExitStack()
        self.addCleanup(self.ended.close)
        with concurrent.futures.ThreadPoolExecutor(len(FLEETS)) as pool:
            starting = {name: pool.submit(real_fleet.Fleet, PROGRAMS, **{"pace": 0.03, **how}) for name, how in FLEETS.items()}
        self.fleets = {}
        failed = []
        for name, fleet in starting.items():
            if fleet.exception() is None:
                self.fleets[name] = self.ended.enter_context(fleet.result())
            else:
                failed.append(fleet.exception())
        if failed:
            raise failed[0]
        folder = self.ended.enter_context(tempfile.TemporaryDirectory(prefix="foreshard-rules-"))
        rules = pathlib.Path(folder) / "rules.yaml"
        rules.write_text(shortened(RULES.read_text()))
        targets = [address for fleet in self.fleets.values() for address in fleet.metrics.values()]
        self.prometheus = self.ended.enter_context(real_fleet.Prometheus(targets, rules=rules, interval="1s"))

    def firing(self):
        """{(alert, job)}."""
        return {(alert["metric"]["alertname"], alert["metric"]["job_name"])
                for alert in self.prometheus.series('ALERTS{alertstate="firing"}')}

    def expect(self, alert, of_job):
        real_fleet.wait_until(lambda: (alert, of_job) in self.firing(), f"{alert} of {of_job}; at first there were "
                              f"{sorted(self.firing())}", 80, pause=0.3)

    def test_each_is_made_to_fire_by_its_fault_and_by_nothing_else(self):
        steady, rounds = self.fleets["steady"], self.fleets["rounds"]
        with Contended(self.fleets["twice"]):
            self.expect("ForeshardPushesRejected", "twice")
        self.fleets["left"].send("worker-0", signal.SIGTERM)
        self.expect("ForeshardStalePushes", "late")
        self.expect("ForeshardErrorFeedbackDiverged", "kept")
        self.expect("ForeshardGradientsNotFinite", "diverged")
        self.expect("ForeshardJournalFailed", "full")
        self.expect("ForeshardCheckpointFailed", "full")
        self.expect("ForeshardByteBudget", "crowded")
        # Meanwhile the jobs without a fault have none, though their rates are there; a machine that is busy for a
        # moment may make one that passes.
        real_fleet.wait_until(lambda: self.prometheus.series('foreshard:worker_steps:rate5m{job_name="steady"}'), "rates are there")
        real_fleet.wait_until(lambda: not {of_job for _, of_job in self.firing()} & {"steady", "rounds"},
                              "no alert of the jobs without a fault")
        with real_fleet.Throttled(steady.processes["worker-2"], running=0.02, stopped=0.3), \
             real_fleet.Throttled(rounds.processes["worker-1"], running=0.05, stopped=2):
            self.expect("ForeshardStraggler", "steady")
            self.expect("ForeshardRoundsWithoutMembers", "rounds")
            steady.send("worker-1", signal.SIGSTOP)
            self.expect("ForeshardWorkersExpired", "steady")
            self.assertNotIn(("ForeshardServerGone", "steady"), self.firing())
            steady.send("server-1", signal.SIGKILL)
            self.expect("ForeshardServerGone", "steady")
            self.expect("ForeshardDealingStopped", "steady")
        self.expect("ForeshardNoWorkers", "left")
        ended = self.fleets["ended"]
        fill_disk(ended.processes["server-0"].pid)
        self.expect("ForeshardServerGone", "ended")
        self.assertEqual(ended.processes["server-0"].wait(timeout=30), 1, ended.log("server-0"))
        self.assertIn("start it again when the disk can be written", ended.log("server-0"))
        self.expect("ForeshardCheckpointOld", "full")
        allowed = {"late": {"ForeshardStalePushes"}, "ended": {"ForeshardServerGone"}, "left": {"ForeshardNoWorkers"}, "kept": {"ForeshardErrorFeedbackDiverged"},
                   "diverged": {"ForeshardGradientsNotFinite", "ForeshardDealingStopped"},  # it skips all of them
                   "full": {"ForeshardJournalFailed", "ForeshardCheckpointFailed", "ForeshardCheckpointOld"}}

        def others():
            return {(alert, of_job) for alert, of_job in self.firing() if alert not in allowed.get(of_job, {alert})}

        real_fleet.wait_until(lambda: not others(), f"no other alert: {others()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", required=True, type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    PROGRAMS = arguments.programs.resolve()
    if found_tools.find("prometheus") is None:
        found_tools.skip("no prometheus: tools/install-deploy-tools")
    unittest.main(argv=[sys.argv[0], *rest])
