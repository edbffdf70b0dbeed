#!/usr/bin/python3
"""tools/chaos and tools/soak with real daemons: a few fixed schedules, that a fault which loses
something is found, and that nothing is left running.

    tests/end_to_end/chaos_test.py [--programs=FOLDER] [TEST...]
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))

from chaos_suite import invariants, journal, schedule

PROGRAMS = os.path.join(ROOT, "build-release", "bin")
BOUND_SECONDS = 240
SECONDS = "2.5"


def processes_of(folder):
    """Processes with that folder among their arguments, but for this one's tools."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    arguments = file.read()
            except OSError:
                continue
            if folder.encode() in arguments and b"foreshard-" in arguments:
                found.append(int(entry))
    return found


class Chaos(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="chaos_test.")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def command(self, *arguments):
        return [os.path.join(ROOT, "tools", "chaos"), "--programs", PROGRAMS, "--seconds", SECONDS,
                "--results", self.folder, *arguments]

    def finish(self, *arguments):
        """(status, output, results.json) of a whole call."""
        done = subprocess.run(self.command(*arguments), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False, timeout=BOUND_SECONDS)
        self.assertEqual(processes_of(self.folder), [], done.stdout)
        runs = sorted(name for name in os.listdir(self.folder))
        if not runs:
            return done.returncode, done.stdout, None
        with open(os.path.join(self.folder, runs[-1], "results.json"), encoding="utf-8") as file:
            return done.returncode, done.stdout, json.load(file)

    def assert_passed(self, status, output, results, schedules):
        self.assertEqual(status, 0, output)
        self.assertEqual(results["summary"]["schedules"], schedules, output)
        self.assertEqual(results["summary"]["failed"], 0, output)
        for one in results["schedules"]:
            # Both servers' segments of every batch.
            self.assertGreater(one["figures"]["acknowledged"], 1000, output)

    def test_mixed_faults_lose_nothing(self):
        self.assert_passed(*self.finish("--rules", "dana_zero,dana_slim_1bit,ssgd,apmsqueeze",
                                        "--seed", "4", "--schedules", "4"), 4)

    def test_who_was_away_beyond_its_lease_comes_back(self):
        status, output, results = self.finish(
            "--rules", "ssgd,apmsqueeze", "--faults", "worker-stop-long,servers-kill,server-stop-long",
            "--seed", "1", "--schedules", "4")
        self.assert_passed(status, output, results, 4)

    def test_damaged_files_are_never_silently_wrong(self):
        status, output, results = self.finish(
            "--rules", "dana_slim_1bit", "--faults", "torn-tail,flip-journal,flip-checkpoint",
            "--seed", "1", "--schedules", "2")
        self.assert_passed(status, output, results, 2)
        kinds = {f["kind"] for one in results["schedules"] for f in one["schedule"]["faults"]}
        self.assertEqual(len(kinds), 3, kinds)

    def test_rounds_go_on_bit_for_bit_behind_killed_servers(self):
        # A worker that a busy machine kept from running for longer than its lease leaves its rounds.
        status, output, results = self.finish("--rules", "ssgd", "--lease", "20", "--faults",
                                              "server-kill,server-kill-twice,torn-tail",
                                              "--seed", "1", "--schedules", "2")
        self.assert_passed(status, output, results, 2)
        kills = sum(len(one["schedule"]["faults"]) for one in results["schedules"])
        self.assertGreaterEqual(kills, 5)
        self.assertEqual(results["summary"]["bit_for_bit"], 2, output)

    def test_a_push_taken_out_of_a_journal_is_missed(self):
        """The evidence of a real run, with one acknowledged push taken out of it."""
        status, output, results = self.finish("--rules", "dana_slim_1bit", "--faults", "",
                                              "--schedules", "1", "--keep")
        self.assert_passed(status, output, results, 1)
        run, = os.listdir(self.folder)
        kept = os.path.join(self.folder, run, "seed-1")
        answers = []
        for name in sorted(os.listdir(kept)):
            if name.endswith(".acknowledged.csv"):
                answers += invariants.read_acknowledged(os.path.join(kept, name))
        journals = [journal.read(journal.paths_in(
            os.path.join(kept, "state", f"server-{k}", f"shard-{k}"))) for k in (0, 1)]
        segments = {event.segment: shard for shard in (0, 1) for event in journals[shard].events
                    if event.kind == journal.PUSH}
        pushed = {(e.segment, e.incarnation, e.sequence) for j in journals for e in j.events
                  if e.kind == journal.PUSH}
        self.assertEqual(pushed, {(a.segment, a.incarnation, a.sequence) for a in answers})
        evidence = invariants.Evidence(
            journals=journals, acknowledged=answers, segments=segments, versions={}, states={},
            synchronous=False, workers=3, batches=0, batches_per_epoch=1, said={})
        losses = [line for line in invariants.check(evidence)[0] if "is lost" in line]
        self.assertEqual(losses, [])
        taken = next(e for e in journals[1].events if e.kind == journal.PUSH)
        journals[1].events.remove(taken)
        losses = [line for line in invariants.check(evidence)[0] if "is lost" in line]
        self.assertEqual(len(losses), 1)
        self.assertIn(f"segment {taken.segment}, incarnation {taken.incarnation}, push {taken.sequence}",
                      losses[0])

    def test_an_interrupt_leaves_nothing(self):
        with open(os.path.join(self.folder, "output"), "wb") as output:
            process = subprocess.Popen(self.command("--minutes", "5", "--faults", "server-kill"),
                                       stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + BOUND_SECONDS
            while len(processes_of(self.folder)) < 5:
                self.assertLess(time.monotonic(), deadline, "no daemons")
                self.assertIsNone(process.poll())
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(BOUND_SECONDS), 130)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.assertEqual(processes_of(self.folder), [])
        with open(os.path.join(self.folder, "output"), encoding="utf-8") as output:
            self.assertIn("interrupted (SIGINT)", output.read())

    def test_bad_arguments_and_help(self):
        status, output, results = self.finish("--faults", "earthquake")
        self.assertEqual((status, results), (2, None), output)
        self.assertIn("'earthquake' is no fault", output)
        status, output, _ = self.finish("--help")
        self.assertEqual(status, 0, output)
        for words in ("server-kill-twice", "dana_zero_1bit_both", "130"):
            self.assertIn(words, output)


class Soak(unittest.TestCase):
    def test_a_short_one_measures(self):
        with tempfile.TemporaryDirectory(prefix="chaos_test.") as folder:
            path = os.path.join(folder, "soak.json")
            done = subprocess.run([os.path.join(ROOT, "tools", "soak"), "--programs", PROGRAMS,
                                   "--minutes", "0.2", "--json", path], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  check=False, timeout=BOUND_SECONDS)
            # Twelve seconds are too few to say that nothing grows: caches still fill up.
            self.assertIn(done.returncode, (0, 1), done.stdout)
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
        self.assertEqual(set(document["slopes"]),
                         {"server-0", "server-1", "worker-0", "worker-1", "worker-2"})
        self.assertEqual(done.returncode, 1 if document["growing"] else 0)
        self.assertGreater(document["exchanges"][-1][1], 1000)
        for line in document["slopes"].values():
            self.assertGreater(line["mean"], 1 << 20)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].startswith("--programs="):
        PROGRAMS = os.path.abspath(sys.argv.pop(1).partition("=")[2])
    unittest.main(verbosity=2)
