#!/usr/bin/python3
"""The parts of tools/bandwidth-study that need no network: arithmetic, parsing, plans."""

import json
import math
import os
import re
import sys
import tempfile
import unittest
from types import SimpleNamespace

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))

from bandwidth_study import (arguments, job_run, measure, methods, page, progress, quick, rates,
                             results, study, svg)
from local_fleet import interrupt, lines, network, scrape


class Rates(unittest.TestCase):
    def test_reads_what_tc_reads(self):
        for text, rate in (("10mbit", 10e6), ("1.5gbit", 1.5e9), (" 500KBIT ", 5e5)):
            self.assertEqual(rates.parse_rate(text), rate)
        self.assertEqual(rates.parse_rates("10mbit,1gbit,100mbit"), [1e9, 1e8, 1e7])
        self.assertEqual(rates.parse_rates("auto"), "auto")

    def test_refuses_what_is_no_rate_and_says_so(self):
        for text, words in (("10", "write it as"), ("tenmbit", "write it as"), ("", "write it as"),
                            ("-1mbit", "write it as"), ("10mbps", "write it as"),
                            ("1kbit", "between"), ("1000gbit", "between"),
                            ("10mbit,10000kbit", "twice"), ("10mbit,", "write it as")):
            with self.assertRaisesRegex(ValueError, words, msg=text):
                rates.parse_rates(text)

    def test_names_read_back(self):
        for rate in (100_000, 62_100_000, 1_500_000_000, 581_000_000):
            self.assertEqual(rates.parse_rate(rates.format_rate(rate)), rate)
        self.assertEqual(rates.format_rate(None), "unlimited")

    def test_the_automatic_rate_makes_the_wire_24_times_the_rest(self):
        rate = rates.rate_for_share(0.04, 6.75e6)
        self.assertAlmostEqual(rates.wire_seconds(6.75e6, rate) / 0.04, 24, delta=0.2)
        self.assertEqual(rates.automatic_rates(rate), [10 * rate, rate])

    def test_a_trial_corrects_the_rate_by_what_the_wire_took(self):
        # Half of what the arithmetic counts was hidden: half the rate is right.
        self.assertEqual(rates.corrected_rate(56_000_000, 0.04 + 0.48, 0.04), 28_000_000)
        with self.assertRaisesRegex(ValueError, "no longer than without"):
            rates.corrected_rate(56_000_000, 0.04, 0.04)

    def test_limits_are_those_of_the_goals(self):
        step = rates.step_limit(0.96, 30)
        self.assertAlmostEqual(step, 13.9, delta=0.02)
        self.assertAlmostEqual(rates.end_to_end_limit(step, 0.15), 4.7, delta=0.05)
        # At ten times the rate the wire takes 2.4 of 3.4.
        self.assertAlmostEqual(rates.step_limit(2.4 / 3.4, 30), 3.15, delta=0.01)
        self.assertAlmostEqual(rates.wire_share(0.5, 0.02), 0.96)


class Reading(unittest.TestCase):
    def test_metrics_are_summed_by_their_labels(self):
        page_text = ('# HELP foreshard_x_total text\n'
                     'foreshard_x_total{job_name="a,b",result="applied"} 5\n'
                     'foreshard_x_total{job_name="a,b",result="st\\"ale"} 2\n'
                     'foreshard_y 1.5e3\n\nforeshard_z{le="+Inf"} Nan\nbroken\n')
        metrics = scrape.Metrics(page_text)
        self.assertEqual(metrics.get("x_total"), 7)
        self.assertEqual(metrics.get("x_total", result="applied"), 5)
        self.assertEqual(metrics.get("y"), 1500)
        self.assertTrue(math.isnan(metrics.get("z")))
        self.assertIsNone(metrics.get("w"))
        self.assertEqual(metrics.get("w", 0), 0)

    def test_counters_of_an_interface(self):
        text = ("Inter-|   Receive                            |  Transmit\n"
                " face |bytes packets errs drop fifo frame compressed multicast|bytes packets\n"
                "    lo: 1 2 3 4 5 6 7 8 9 10 0 0 0 0 0 0\n"
                "  eth0:111 2 0 0 0 0 0 0 222 4 0 0 0 0 0 0\n")
        self.assertEqual(network.parse_counters(text, "eth0"), (111, 222))
        with self.assertRaisesRegex(network.NetworkError, "eth1"):
            network.parse_counters(text, "eth1")

    def test_a_bucket_holds_packets_and_little_time(self):
        self.assertEqual(network.token_bucket(1_000_000),
                         "tbf rate 1000000bit burst 4000 limit 262144")
        self.assertEqual(network.token_bucket(1_000_000_000),
                         "tbf rate 1000000000bit burst 62500 limit 6250000")

    def test_owners_are_told_by_number_and_start(self):
        self.assertRegex(network.owner(), rf"^fsnet-{os.getpid()}-[0-9]+-$")
        self.assertIsNotNone(network.process_start(os.getpid()))
        self.assertIsNone(network.process_start(2**22 + 1))
        gone = os.fork()
        if gone == 0:
            os._exit(0)
        os.waitid(os.P_PID, gone, os.WEXITED | os.WNOWAIT)
        self.assertIsNone(network.process_start(gone), "a zombie holds nothing")
        os.waitpid(gone, 0)


def samples(batches_a_second, seconds=60, rounds=True, **more):
    """Two workers seen four times a second."""
    found = []
    for k in range(4 * seconds + 1):
        at = k / 4
        batches = math.floor(batches_a_second * at)
        found.append(measure.Sample(
            seconds=at, batches=batches, loss=2 / (1 + at), push_bytes=1000 * batches,
            pull_bytes=2000 * batches, push_plain_bytes=4000 * batches,
            pull_plain_bytes=4000 * batches, rounds=batches // 2 if rounds else None,
            round_seconds=(batches // 2) * 2 / batches_a_second if rounds else None,
            links={"server-0": (1100 * batches, 2100 * batches), "worker-0": (0, 550 * batches)},
            **more))
    return found


class Measuring(unittest.TestCase):
    def test_rounds_are_timed_by_the_servers(self):
        part = measure.stretch(samples(7.3), 2)
        self.assertAlmostEqual(part["step_seconds"], 2 / 7.3, delta=1e-9)

    def test_batches_are_counted_without_rounds(self):
        part = measure.stretch(samples(7.3, rounds=False), 2)
        self.assertAlmostEqual(part["step_seconds"], 2 / 7.3, delta=0.01 * 2 / 7.3)

    def test_a_pause_does_not_move_the_median(self):
        seen = samples(40, rounds=False)
        for sample in seen[100:]:
            sample.seconds += 30
        part = measure.stretch(seen, 2)
        self.assertAlmostEqual(part["step_seconds"], 0.05, delta=0.002)
        self.assertGreater(part["step_seconds_mean"], 0.07)

    def test_bytes_are_those_of_all_workers_a_step(self):
        part = measure.stretch(samples(8), 2)
        self.assertEqual(part["push_bytes_per_step"], 2000)
        self.assertEqual(part["pull_bytes_per_step"], 4000)
        self.assertAlmostEqual(part["bytes_ratio"], 8 / 3)
        self.assertAlmostEqual(part["bytes_ratio_median"], 8 / 3)
        self.assertEqual(part["link_bytes_per_step"]["server-0"],
                         {"received": 2200, "sent": 4200})
        self.assertEqual(part["busiest_link_bytes_per_step"], 6400)
        self.assertEqual(part["busiest_way_bytes_per_step"], 4200)

    def test_a_run_without_a_whole_step_has_no_figures(self):
        self.assertIsNone(measure.stretch(samples(0.01, seconds=10), 2))
        self.assertIsNone(measure.stretch(samples(8)[:1], 2))

    def test_a_run_shorter_than_a_window_is_timed_from_its_first_known_round(self):
        seen = samples(80, seconds=1)
        seen[0].rounds = seen[0].round_seconds = None  # open since nobody knows when
        for sample in seen[1:]:
            sample.round_seconds += 5
        self.assertAlmostEqual(measure.stretch(seen, 2)["step_seconds"], 0.025)

    def test_phases_are_measured_apart(self):
        slow, fast = samples(2, phase=1), samples(20, phase=2)
        for sample in fast:
            sample.seconds += 61
            for name in ("batches", "rounds", "round_seconds", "push_bytes"):
                setattr(sample, name, getattr(sample, name) + getattr(slow[-1], name))
        first, second = measure.stretches(slow + fast, 2)
        self.assertEqual((first["phase"], second["phase"]), (1, 2))
        self.assertAlmostEqual(first["step_seconds"], 1)
        self.assertAlmostEqual(second["step_seconds"], 0.1)
        self.assertEqual(second["from_step"], 60)

    def test_times_to_targets(self):
        curve = measure.curve(samples(8), 2)
        self.assertLessEqual(len(curve["loss"]), 401)
        self.assertEqual(curve["seconds"][-1], 60)
        self.assertEqual(measure.time_to_loss(curve, 0.5), 3)
        self.assertIsNone(measure.time_to_loss(curve, 0.001))
        evaluations = [{"parameters": "lookahead", "seconds": 1, "accuracy": 0.95},
                       {"parameters": "master", "seconds": 9, "accuracy": 0.91},
                       {"parameters": "master", "seconds": 5, "accuracy": 0.9},
                       {"parameters": "master", "seconds": 2, "accuracy": 0.8}]
        self.assertEqual(measure.time_to_accuracy(evaluations, 0.9), 5)
        self.assertIsNone(measure.time_to_accuracy(evaluations, 0.99))

    def test_quantiles(self):
        self.assertEqual(measure.quantile([3, 1, 2], 0.5), 2)
        self.assertAlmostEqual(measure.quantile([0, 10], 0.9), 9)
        self.assertEqual(measure.quantile([4], 0.1), 4)


class CommandLine(unittest.TestCase):
    def setUp(self):
        self.programs = tempfile.TemporaryDirectory()
        for name in ("foreshard", "foreshard-server", "foreshard-worker"):
            path = os.path.join(self.programs.name, name)
            with open(path, "w", encoding="ascii") as file:
                file.write("#!/bin/sh\n")
            os.chmod(path, 0o755)

    def tearDown(self):
        self.programs.cleanup()

    def parse(self, *line):
        return arguments.parse([f"--programs={self.programs.name}", *line])

    def test_defaults(self):
        settings = self.parse()
        self.assertEqual([method.name for method in settings.methods],
                         ["adam", "adam_fp16", "apmsqueeze", "dana"])
        self.assertEqual((settings.rates, settings.seeds, settings.servers, settings.workers),
                         ("auto", [1], 1, 2))
        self.assertTrue(os.path.isfile(settings.job))
        self.assertEqual(self.parse("--quick").rates, rates.parse_rates(quick.RATES))

    def test_methods_are_chosen_and_added(self):
        settings = self.parse("--method", "half: update.rule=ssgd compression.push=fp16",
                              "--methods", "half,dana")
        self.assertEqual(settings.methods[0].overrides,
                         ("update.rule=ssgd", "compression.push=fp16"))
        self.assertEqual(settings.methods[1].name, "dana")

    def test_bad_input_is_refused_with_its_name(self):
        for line, words in (
                (["--rates", "10"], "--rates: '10' is no rate"),
                (["--rates", "10mbit,10mbit"], "twice"),
                (["--servers", "0"], "--servers: '0' is no whole number from 1"),
                (["--workers", "many"], "--workers: 'many'"),
                (["--seeds", "1,1"], "--seeds: '1,1' names a seed twice"),
                (["--seeds", "-1"], "--seeds"),
                (["--accuracy-seeds", "x"], "--accuracy-seeds: 'x'"),
                (["--set", "seed=3"], "that is --seeds here"),
                (["--set", "training.workers=3"], "that is --workers here"),
                (["--set", "epochs"], "not FIELD=VALUE"),
                (["--methods", "adam,adamm"], "'adamm' is no method"),
                (["--methods", "adam,adam"], "twice"),
                (["--method", "half update.rule=ssgd"], "NAME: FIELD=VALUE"),
                (["--method", "half:"], "NAME: FIELD=VALUE"),
                (["--method", "adam: update.rule=ssgd"], "there already"),
                (["--target-accuracy", "90"], "--target-accuracy: '90'"),
                (["--target-loss", "nan"], "--target-loss: 'nan'"),
                (["--job", "/nonexistent.textproto"], "no file /nonexistent"),
                (["--quick", "--job", "x"], "leave out --job"),
                (["--rate", "10mbit"], "--rate"),
                (["extra"], "extra")):
            with self.assertRaises(arguments.BadArguments, msg=line) as caught:
                self.parse(*line)
            self.assertIn(words, str(caught.exception), line)
        with self.assertRaisesRegex(arguments.BadArguments, "foreshard-worker.*build it"):
            os.unlink(os.path.join(self.programs.name, "foreshard-worker"))
            self.parse()


def record(method, rate, seed, step_ms, seconds, phases=((None, 100, 1.0),), accuracy=0.9,
           compute_ms=10.0):
    """A finished run; `phases`: (phase, steps, times fewer bytes), step time by hand."""
    parts = []
    for phase, steps, ratio in phases:
        ms = step_ms[phase] if isinstance(step_ms, dict) else step_ms
        parts.append({"phase": phase, "steps": steps, "step_seconds": ms / 1e3,
                      "compute_seconds": compute_ms / 1e3, "push_bytes_per_step": 4e6 / ratio,
                      "pull_bytes_per_step": 4e6 / ratio, "bytes_ratio": 0.9 * ratio,
                      "bytes_ratio_median": ratio,
                      "busiest_link_bytes_per_step": 8e6 / ratio,
                      "link_bytes_per_step": {"server-0": {"received": 4e6 / ratio,
                                                           "sent": 4e6 / ratio}}})
    steps = sum(part["steps"] for part in parts)
    total = {**parts[-1], "steps": steps,
             "step_seconds": sum(p["steps"] * p["step_seconds"] for p in parts) / steps}
    return {"method": method, "rate": rates.format_rate(rate), "rate_bits_per_second": rate,
            "seed": seed, "programs": "p", "fingerprint": "f", "seconds": seconds, "steps": steps,
            "total": total, "phases": parts, "final_accuracy": accuracy, "final_loss": 0.3,
            "evaluations": [{"parameters": "master", "epoch": 1, "seconds": seconds,
                             "accuracy": accuracy, "loss": 0.3, "examples": 10, "final": True}],
            "curve": {"seconds": [seconds / 2, seconds], "step": [50, 100], "loss": [1.0, 0.5]}}


def made_up_study():
    """Adam and APMSqueeze at the automatic rates, 40 ms a step without limits."""
    adam, squeeze = methods.METHODS[0], methods.METHODS[2]
    slow, fast = 66_700_000, 667_000_000
    records = {}

    def add(method, rate, seed, *figures, **more):
        records[(method.name, rate, seed)] = record(method.name, rate, seed, *figures, **more)

    two = ((1, 15, 1.0), (2, 85, 31.0))
    for seed, accuracies in ((1, (0.9, 0.902)), (2, (0.91, 0.904))):
        add(adam, None, seed, 40, 4, accuracy=accuracies[0])
        add(squeeze, None, seed, {1: 40, 2: 42}, 4.1, two, accuracy=accuracies[1])
    add(adam, slow, 1, 1000, 100)
    add(squeeze, slow, 1, {1: 1000, 2: 80}, 21.8, two)
    add(adam, fast, 1, 136, 13.6)
    add(squeeze, fast, 1, {1: 136, 2: 60}, 7.14, two)
    settings = SimpleNamespace(
        job="deploy/jobs/x.textproto", overrides=["training.epochs=2"], servers=1, workers=2,
        methods=[adam, squeeze], seeds=[1], accuracy_seeds=[2], target_loss=None,
        target_accuracy=None)
    made = SimpleNamespace(
        settings=settings, records=records, failed={}, rates=[fast, slow], reference=adam,
        calibration=records[(adam.name, None, 1)],
        trial={"rate_bits_per_second": 70_000_000, "total": {"step_seconds": 0.95}})
    made.plan = lambda: [(m, r, s) for m in settings.methods for r in (None, fast, slow)
                         for s in ((1, 2) if r is None else (1,))]
    return made


class Results(unittest.TestCase):
    def test_goals_are_judged_by_what_was_measured(self):
        goals = results.document(made_up_study())["goals"]
        fewer, steps, end_to_end, faster, accuracy = goals
        self.assertEqual((fewer["measured"], fewer["met"]), (31.0, True))
        self.assertIn("27.9 with the rounds in full precision", fewer["note"])
        self.assertAlmostEqual(steps["measured"], 12.5)
        self.assertTrue(steps["met"])
        self.assertAlmostEqual(steps["limit"], rates.step_limit(0.96, 31))
        self.assertIn("96.0 % of a step", steps["note"])
        self.assertAlmostEqual(end_to_end["measured"], 100 / 21.8)
        self.assertAlmostEqual(end_to_end["limit"],
                               rates.end_to_end_limit(rates.step_limit(0.96, 31), 0.15))
        self.assertAlmostEqual(faster["measured"], 13.6 / 7.14)
        self.assertFalse(faster["met"], "1.9 is not 2")
        # +0.2 and -0.6 points.
        self.assertAlmostEqual(accuracy["measured"], 0.2)
        self.assertTrue(accuracy["met"])
        self.assertIn("2 paired seeds of 5, mean difference -0.20 ± 0.57", accuracy["note"])

    def test_one_bit_both_ways_is_judged_by_the_busiest_link(self):
        made = made_up_study()
        dana = methods.METHODS[3]
        made.settings.methods = [made.reference, dana]
        for rate in (None, made.rates[1]):
            made.records[(dana.name, rate, 1)] = record(dana.name, rate, 1, 70, 7,
                                                        ((None, 100, 24.0),))
        goal, = results.document(made)["goals"]
        self.assertAlmostEqual(goal["measured"], 24)
        self.assertFalse(goal["met"])

    def test_what_was_not_measured_is_neither_met_nor_missed(self):
        made = made_up_study()
        made.rates, made.trial = [10_000_000], None
        goals = results.document(made)["goals"]
        self.assertEqual([goal["met"] for goal in goals[1:4]], [None, None, None])
        self.assertIn("no run at", goals[1]["note"])

    def test_a_study_without_two_phases_has_no_such_goals(self):
        made = made_up_study()
        made.settings.methods = made.settings.methods[:1]
        self.assertEqual(results.document(made)["goals"], [])

    def test_targets_follow_the_reference_or_the_user(self):
        made = made_up_study()
        targets = results.document(made)["targets"]
        self.assertAlmostEqual(targets["loss"], 0.55)
        self.assertAlmostEqual(targets["accuracy"], 0.89)
        made.settings.target_loss, made.settings.target_accuracy = 0.7, 0.95
        document = results.document(made)
        self.assertEqual(document["targets"]["loss"], 0.7)
        entry = next(e for e in document["summary"] if e["rate"] == "66.7mbit")
        self.assertEqual(entry["seconds_to_loss"], 100)
        self.assertIsNone(entry["seconds_to_accuracy"])

    def test_summaries_have_speed_ups_and_arithmetic(self):
        document = results.document(made_up_study())
        adam = next(e for e in document["summary"]
                    if e["method"] == "adam" and e["rate"] == "66.7mbit")
        self.assertAlmostEqual(adam["expected_step_seconds"], 1.0, delta=0.001)
        self.assertEqual(adam["step_speedup"], 1)
        unlimited = next(e for e in document["summary"] if e["rate"] == "unlimited")
        self.assertEqual(unlimited["seeds"], [1, 2])
        self.assertAlmostEqual(unlimited["final_accuracy"], 0.905)
        self.assertIsNone(unlimited["wire_share"])
        self.assertTrue(document["complete"])
        json.dumps(document, allow_nan=False)

    def test_the_page_stands_alone_and_escapes(self):
        made = made_up_study()
        made.failed[("adam", None, 3)] = "worker-1 <died> & left"
        text = page.html(results.document(made))
        for words in ("Goals", "Time per step", "Training loss over time, at 66.7mbit",
                      "apmsqueeze, phase 2", "Bytes on the links", "prefers-color-scheme: dark",
                      "worker-1 &lt;died&gt; &amp; left", '<td class="missed">missed</td>'):
            self.assertIn(words, text)
        self.assertIsNone(re.search(r"https?://|<script|src=|<link", text))
        identities = re.findall(r' id="([^"]+)"', text)
        self.assertEqual(len(identities), len(set(identities)))

    def test_the_page_of_a_study_that_has_just_begun(self):
        made = made_up_study()
        made.records, made.calibration, made.rates, made.trial = {}, None, None, None
        document = results.document(made)
        self.assertFalse(document["complete"])
        self.assertIn("Not complete", page.html(document))


class Plans(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.job = os.path.join(self.folder.name, "job")
        with open(self.job, "w", encoding="ascii") as file:
            file.write('name: "x"\n')
        for name in ("foreshard", "foreshard-server", "foreshard-worker"):
            with open(os.path.join(self.folder.name, name), "w", encoding="ascii") as file:
                file.write(name)
        self.settings = SimpleNamespace(
            job=self.job, overrides=[], servers=2, workers=3, methods=list(methods.METHODS[:2]),
            rates=[10**7], seeds=[1, 2], accuracy_seeds=[2, 5], programs=self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def make(self, folder):
        self.shown = []
        display = SimpleNamespace(note=self.shown.append, begin=lambda *_: None)
        return study.Study(self.settings, folder, interrupt.Interrupt(), display, lambda _: None)

    def test_without_limits_first_then_rates_then_further_seeds(self):
        with study.Folder(os.path.join(self.folder.name, "results")) as folder:
            plan = [(m.name, r, s) for m, r, s in self.make(folder).plan()]
        self.assertEqual(plan[:2], [("adam", None, 1), ("adam_fp16", None, 1)])
        self.assertEqual(plan[2:6], [("adam", 10**7, 1), ("adam_fp16", 10**7, 1),
                                     ("adam", 10**7, 2), ("adam_fp16", 10**7, 2)])
        self.assertEqual(plan[6:], [("adam", None, 2), ("adam_fp16", None, 2),
                                    ("adam", None, 5), ("adam_fp16", None, 5)])
        self.assertEqual(len(plan), len(set(plan)))

    def test_the_job_is_the_base_with_the_methods_words_last(self):
        with study.Folder(os.path.join(self.folder.name, "results")) as folder:
            job = self.make(folder).job(methods.METHODS[1], 7)
        words = job.arguments()
        self.assertEqual(words[0], f"--job={self.job}")
        self.assertIn("--set=servers.shards=2", words)
        self.assertIn("--set=training.workers=3", words)
        self.assertIn("--set=compression.push=fp16", words)
        self.assertEqual(words[-1], "--set=seed=7")

    def test_only_runs_that_still_fit_are_kept(self):
        adam = methods.METHODS[0]
        with study.Folder(os.path.join(self.folder.name, "results")) as folder:
            for seed, rate in ((1, None), (1, 10**7), (2, 10**7)):
                kept = record("adam", rate, seed, 40, 4)
                kept["fingerprint"] = study.fingerprint(self.settings, adam, rate, seed)
                folder.write(f"runs/adam-{rates.format_rate(rate)}-{seed}.json", json.dumps(kept))
            folder.write("runs/adam-10mbit-2.json", "{")
            made = self.make(folder)
            made._load()
            self.assertEqual(set(made.records), {("adam", None, 1), ("adam", 10**7, 1)})
            self.assertIn("cannot be read", self.shown[0])
            self.settings.overrides = ["training.epochs=9"]
            made = self.make(folder)
            made._load()
            self.assertEqual(made.records, {})

    def test_a_folder_is_one_studys_at_a_time(self):
        path = os.path.join(self.folder.name, "results")
        with study.Folder(path):
            with self.assertRaisesRegex(study.StudyError, "in use by another run"):
                with study.Folder(path):
                    pass
        with open(os.path.join(path, "job.textproto"), "w", encoding="ascii"):
            pass
        with self.assertRaisesRegex(study.StudyError, "foreshard run"):
            with study.Folder(path):
                pass

    def test_time_left_counts_the_bytes_at_each_rate(self):
        with study.Folder(os.path.join(self.folder.name, "results")) as folder:
            made = self.make(folder)
            self.assertIsNone(made.expected_seconds("adam", None, 1))
            made.records[("adam", None, 1)] = record("adam", None, 1, 40, 4)
            # 100 steps of 8 MB at 10 Mbit/s, and what a run takes around it.
            self.assertAlmostEqual(made.expected_seconds("adam_fp16", 10**7, 2),
                                   4 + 3 + 100 * 6.4)


class Drawing(unittest.TestCase):
    def test_ticks_are_round(self):
        self.assertEqual(svg.ticks(0, 10, 5), [0, 2, 4, 6, 8, 10])
        self.assertEqual([round(t, 6) for t in svg.log_ticks(1, 1000)],
                         [1, 3, 10, 30, 100, 300, 1000])
        self.assertEqual([svg.label(v) for v in (62.1e6, 0.05, 1500, 0)],
                         ["62.1M", "0.05", "1.5k", "0"])

    def test_points_that_have_no_place_are_left_out(self):
        chart = svg.line_chart("c", "T", "D", "x", "y", [
            {"name": "a", "look": 0, "points": [(0, 1), (1, 0), (10, 5), (100, None)]}],
            x_log=True, y_log=True)
        self.assertEqual(chart.count("<circle"), 1)
        self.assertIn("nothing measured", svg.line_chart("c", "T", "D", "x", "y", []))

    def test_clock(self):
        self.assertEqual([lines.clock(s) for s in (5, 65, 3725)], ["0:05", "1:05", "1:02:05"])

    def test_figures(self):
        self.assertEqual([page.figure3(v) for v in (1234.5, 12.345, 0.0012345, None, 0)],
                         ["1,234", "12.3", "0.00123", "–", "0"])


class QuickJob(unittest.TestCase):
    def test_data_is_idx_and_always_the_same(self):
        with tempfile.TemporaryDirectory() as folder:
            quick.write_job(folder)
            with open(os.path.join(folder, "train-images"), "rb") as file:
                first = file.read()
            quick.write_job(folder)
            with open(os.path.join(folder, "train-images"), "rb") as file:
                self.assertEqual(file.read(), first)
        self.assertEqual(first[:4], b"\0\0\x08\x03")
        self.assertEqual(len(first), 16 + int.from_bytes(first[4:8], "big") * 256)


class JobArguments(unittest.TestCase):
    def test_overrides_become_flags(self):
        job = job_run.Job("j", ["a=1", "b=2"], 1, 2)
        self.assertEqual(job.arguments(), ["--job=j", "--set=a=1", "--set=b=2"])


if __name__ == "__main__":
    unittest.main()
