#!/usr/bin/python3
"""tools/bandwidth-study with real daemons in real namespaces: what it measures, and that it
leaves nothing behind. Ends with status 77 and a message where no namespaces can be made.

    tests/end_to_end/bandwidth_study_test.py [--programs=FOLDER] [TEST...]
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))

from bandwidth_study import quick, rates
from local_fleet import network

PROGRAMS = os.path.join(ROOT, "build-release", "bin")
WORKERS = 2
SLOW, FAST = (rates.parse_rate(rate) for rate in ("30mbit", "300mbit"))
METHODS = ["adam", "adam_fp16", "apmsqueeze", "dana"]
# Elements of the quick job's mlp: 256 x 64 weights, batch norm's 2 x 64, 64 x 4 weights, 4.
ELEMENTS = 256 * 64 + 2 * 64 + 64 * 4 + 4
BOUND_SECONDS = 240


def command(results, methods, *more):
    line = [os.path.join(ROOT, "tools", "bandwidth-study"), "--quick", "--programs", PROGRAMS,
            "--results", results, "--workers", str(WORKERS), "--methods", ",".join(methods)]
    return [*line, *more]


def namespaces(pid=None):
    """Those of the study of that process."""
    prefix = "fsnet-" if pid is None else f"fsnet-{pid}-"
    return [name for name in network.namespaces() if name.startswith(prefix)]


def alive(pid):
    return network.process_start(pid) is not None


class Begun:
    """A study under way, its output in a file."""

    def __init__(self, folder, *line):
        self.path = os.path.join(folder, f"output-{time.monotonic_ns()}")
        with open(self.path, "wb") as file:
            self.process = subprocess.Popen(line, stdout=file, stderr=file,
                                            stdin=subprocess.DEVNULL)
        self.pid = self.process.pid

    def output(self):
        with open(self.path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def wait(self):
        return self.process.wait(BOUND_SECONDS)

    def await_output(self, words):
        deadline = time.monotonic() + BOUND_SECONDS
        while words not in self.output():
            if self.process.poll() is not None or time.monotonic() >= deadline:
                raise AssertionError(f"the study does not say '{words}':\n{self.output()}")
            time.sleep(0.02)

    def await_daemons(self):
        """Until server and workers run in their namespaces; {namespace: processes} of all."""
        deadline = time.monotonic() + BOUND_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the study has ended:\n{self.output()}")
            inside = {name: network.processes_inside(name) for name in namespaces(self.pid)}
            # They are looked at one after the other: the server may have come meanwhile.
            if all(any(name.endswith(daemon) and pids for name, pids in inside.items())
                   for daemon in ("-server-0", "-worker-0", "-worker-1")):
                return inside
            time.sleep(0.02)
        raise AssertionError(f"no daemons:\n{self.output()}")

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def finish(folder, *line):
    begun = Begun(folder, *line)
    try:
        return begun.wait(), begun.output(), begun.pid
    finally:
        begun.end()


class BandwidthStudy(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="bandwidth_study_test.")
        self.results = os.path.join(self.folder.name, "results")
        self.begun = []

    def tearDown(self):
        for study in self.begun:
            study.end()
        self.folder.cleanup()
        network.remove_leftovers()

    def begin(self, *line):
        study = Begun(self.folder.name, *line)
        self.begun.append(study)
        return study

    def assert_nothing_left(self, pid, daemons=()):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and (
                any(alive(daemon) for daemon in daemons) or namespaces(pid)):
            time.sleep(0.02)
        self.assertEqual([daemon for daemon in daemons if alive(daemon)], [])
        self.assertEqual(namespaces(pid), [])

    def test_rates_are_felt_and_results_are_whole(self):
        line = command(self.results, METHODS, "--rates", "30mbit,300mbit")
        status, output, pid = finish(self.folder.name, *line)
        self.assertEqual(status, 0, output)
        self.assert_nothing_left(pid)
        with open(os.path.join(self.results, "results.json"), encoding="utf-8") as file:
            document = json.load(file)
        self.assertTrue(document["complete"])
        self.assertTrue(document["one_build"])
        self.assertEqual(document["reference"], "adam")
        self.assertEqual([rate["bits_per_second"] for rate in document["rates"]], [FAST, SLOW])
        self.assertEqual(len(document["runs"]), 12)
        self.assertEqual(len(document["summary"]), 12)
        self.assertEqual(document["failed"], [])
        runs = {(run["method"], run["rate_bits_per_second"]): run for run in document["runs"]}

        for (method, rate), run in runs.items():
            with self.subTest(method=method, rate=rate):
                self.assertEqual(run["batches"], 200)
                self.assertGreater(run["final_accuracy"], 0.9)
                self.assertGreater(run["seconds"], 0)
                self.assertEqual([e["final"] for e in run["evaluations"]][-1], True)
                self.assertEqual(len(run["curve"]["seconds"]), len(run["curve"]["loss"]))
                links = run["total"]["link_bytes_per_step"]
                self.assertEqual(set(links), {"server-0", "worker-0", "worker-1"})
                if rate == SLOW:
                    # What the interfaces counted holds what the servers did, and not much more.
                    for way, payload in (("received", "push"), ("sent", "pull")):
                        counted = links["server-0"][way]
                        moved = run["total"][f"{payload}_bytes_per_step"]
                        # A run of a hundred steps: workers and links are not read at one
                        # moment.
                        self.assertGreater(counted, 0.8 * moved)
                        self.assertLess(counted, 1.5 * moved + 20_000)

        full = runs[("adam", SLOW)]["total"]
        plain = 4 * ELEMENTS * WORKERS
        self.assertAlmostEqual(full["push_bytes_per_step"], plain, delta=0.01 * plain)
        self.assertAlmostEqual(full["pull_bytes_per_step"], plain, delta=0.01 * plain)
        self.assertAlmostEqual(runs[("adam_fp16", SLOW)]["total"]["bytes_ratio"], 2, delta=0.05)
        # A worker's first reply is in full precision, one of its hundred.
        bits = runs[("dana", SLOW)]["total"]
        self.assertLess(bits["push_bytes_per_step"], plain / 25)
        self.assertLess(bits["pull_bytes_per_step"], plain / 25 + 0.02 * plain)
        phases = runs[("apmsqueeze", SLOW)]["phases"]
        self.assertEqual([part["phase"] for part in phases], [1, 2])
        self.assertLess(phases[1]["step_seconds"], phases[0]["step_seconds"] / 4)
        # A round is no shorter than one worker's reply and then every worker's push at the
        # server's link, but for what the buckets let through at once.
        for rate in (SLOW, FAST):
            wire = 8 * 4 * ELEMENTS * (WORKERS + 1) / rate
            self.assertGreater(runs[("adam", rate)]["total"]["step_seconds"], 0.8 * wire)
        self.assertGreater(full["step_seconds"],
                           1.5 * runs[("adam_fp16", SLOW)]["total"]["step_seconds"])

        with open(os.path.join(self.results, "report.html"), encoding="utf-8") as file:
            page = file.read()
        self.assertIn("Time per step", page)
        self.assertNotIn("http://", page)

        # Again: nothing is left to do, and nothing is done.
        before = {name: os.stat(os.path.join(self.results, "runs", name)).st_mtime_ns
                  for name in os.listdir(os.path.join(self.results, "runs"))}
        status, output, pid = finish(self.folder.name, *line)
        self.assertEqual(status, 0, output)
        self.assertIn("0 runs to make, 12 done already", output)
        self.assertEqual(before, {
            name: os.stat(os.path.join(self.results, "runs", name)).st_mtime_ns
            for name in os.listdir(os.path.join(self.results, "runs"))})

    def test_automatic_rates_come_from_a_calibration_and_a_trial(self):
        line = command(self.results, ["adam"], "--rates", "auto")
        status, output, pid = finish(self.folder.name, *line)
        self.assertEqual(status, 0, output)
        self.assert_nothing_left(pid)
        with open(os.path.join(self.results, "results.json"), encoding="utf-8") as file:
            document = json.load(file)
        calibration = document["calibration"]
        fast, slow = (rate["bits_per_second"] for rate in document["rates"])
        self.assertEqual((fast, slow), (calibration["faster_rate_bits_per_second"],
                                        calibration["rate_bits_per_second"]))
        self.assertAlmostEqual(fast / slow, 10, delta=0.05)
        trial = calibration["trial"]
        self.assertEqual(slow, rates.corrected_rate(
            trial["rate_bits_per_second"], trial["step_seconds"], calibration["step_seconds"]))

    def test_an_interrupt_ends_and_restores_and_goes_on_later(self):
        line = command(self.results, ["adam", "dana"], "--rates", "30mbit")
        study = self.begin(*line)
        study.await_output("adam at 30mbit")  # which takes seconds
        inside = study.await_daemons()
        study.process.send_signal(signal.SIGINT)
        self.assertEqual(study.wait(), 130, study.output())
        self.assertIn("interrupted (SIGINT)", study.output())
        self.assert_nothing_left(study.pid, sum(inside.values(), []))
        self.assertEqual(sorted(os.listdir(os.path.join(self.results, "runs"))),
                         ["adam-unlimited-1.json", "dana-unlimited-1.json"])
        status, output, _ = finish(self.folder.name, *line)
        self.assertEqual(status, 0, output)
        self.assertIn("2 runs to make, 2 done already", output)

    def test_what_a_killed_study_leaves_is_removed_by_the_next(self):
        study = self.begin(*command(self.results, ["adam"], "--rates", "30mbit"))
        inside = study.await_daemons()
        study.process.kill()
        study.wait()
        left = namespaces(study.pid)
        self.assertEqual(len(left), 5, "a hub, an observer, a server and two workers")
        # A living study's are nobody else's to remove.
        other = self.begin(*command(self.results + "-other", ["adam"], "--rates", "30mbit"))
        other.await_daemons()
        status, output, pid = finish(
            self.folder.name, os.path.join(ROOT, "tools", "bandwidth-study"), "--clean")
        self.assertEqual(status, 0, output)
        # The other one found them first.
        self.assertIn("left behind by a study that was killed", output + other.output())
        self.assert_nothing_left(study.pid, sum(inside.values(), []))
        self.assertEqual(len(namespaces(other.pid)), 5)
        other.process.send_signal(signal.SIGTERM)
        self.assertEqual(other.wait(), 130, other.output())
        self.assert_nothing_left(other.pid)

    def test_a_daemon_that_dies_fails_its_run_alone(self):
        study = self.begin(*command(self.results, ["adam", "adam_fp16"], "--rates", "30mbit"))
        study.await_output("adam at 30mbit")
        inside = study.await_daemons()
        server = next(pids for name, pids in inside.items() if name.endswith("-server-0"))
        os.kill(server[0], signal.SIGKILL)
        self.assertEqual(study.wait(), 1, study.output())
        self.assertIn("FAILED: server-0 was killed by SIGKILL", study.output())
        self.assert_nothing_left(study.pid)
        with open(os.path.join(self.results, "results.json"), encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual([(run["method"], run["rate"]) for run in document["failed"]],
                         [("adam", "30mbit")])
        self.assertIn(("adam_fp16", "30mbit"),
                      [(run["method"], run["rate"]) for run in document["runs"]])
        self.assertFalse(document["complete"])

    def test_a_method_that_the_programs_refuse_starts_nothing(self):
        line = command(self.results, ["adam", "odd"], "--method", "odd: update.rule=none_such")
        status, output, pid = finish(self.folder.name, *line)
        self.assertEqual(status, 2, output)
        self.assertIn("method odd (update.rule=none_such) is refused", output)
        self.assertIn("update.rule: 'none_such': choose one of", output)
        self.assertNotIn("method adam", output)
        self.assertEqual(os.listdir(os.path.join(self.results, "runs")), [])
        self.assert_nothing_left(pid)

    def test_bad_arguments_end_with_two(self):
        status, output, _ = finish(self.folder.name, *command(self.results, METHODS, "--rates=5"))
        self.assertEqual(status, 2, output)
        self.assertIn("--rates: '5' is no rate", output)
        status, output, _ = finish(
            self.folder.name, os.path.join(ROOT, "tools", "bandwidth-study"), "--help")
        self.assertEqual(status, 0, output)
        for words in ("--rates", quick.RATES, "77 no network namespaces"):
            self.assertIn(words, output)

    def test_without_the_right_to_it_is_skipped_with_a_message(self):
        libc = ctypes.CDLL(None)

        def lose_rights():
            capability_net_admin, capability_sys_admin, drop = 12, 21, 24
            for capability in (capability_net_admin, capability_sys_admin):
                libc.prctl(drop, capability, 0, 0, 0)

        done = subprocess.run(command(self.results, METHODS), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False,
                              preexec_fn=lose_rights)
        self.assertEqual(done.returncode, 77, done.stdout)
        self.assertIn("skipped: no network namespaces with rate limits can be made here",
                      done.stdout)
        self.assertFalse(os.path.exists(self.results))


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("--programs="):
        PROGRAMS = os.path.abspath(sys.argv.pop(1).partition("=")[2])
    if (why := network.why_impossible()) is not None:
        print(f"skipped: no network namespaces with rate limits can be made here: {why}")
        sys.exit(77)
    unittest.main(verbosity=2)
