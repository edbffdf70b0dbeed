"""results.json of a study: what tools/README.md describes, field by field."""

import os
import platform
import statistics

from . import measure, rates

FORMAT = 1

# What the study is to show; the limits beside them are computed from what was measured.
BYTES_RATIO_GOAL = 30
STEP_SPEEDUP_GOAL = 10
END_TO_END_GOAL = 4
FASTER_END_TO_END_GOAL = 2
EXCHANGE_GOAL = 25
ACCURACY_POINTS_GOAL = 0.3
ACCURACY_SEEDS_GOAL = 5
# An explicit rate stands for an automatic one that it is so close to.
_RATE_TOLERANCE = 0.05
# The automatic targets: full precision's own end, a little relaxed.
_LOSS_FACTOR = 1.1
_ACCURACY_MARGIN = 0.01


def mean(values):
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def deviation(values):
    known = [value for value in values if value is not None]
    return statistics.stdev(known) if len(known) > 1 else None


def step_seconds(run):
    """Of a run's steps, each phase's at its median."""
    parts = run["phases"] or [run["total"]]
    return sum(p["steps"] * p["step_seconds"] for p in parts) / sum(p["steps"] for p in parts)


def targets(study):
    """The loss and the accuracy that runs are timed to."""
    settings, calibration = study.settings, study.calibration
    loss, accuracy = settings.target_loss, settings.target_accuracy
    if loss is None and calibration and calibration["curve"]["loss"]:
        loss = _LOSS_FACTOR * min(calibration["curve"]["loss"][-10:])
    if accuracy is None and calibration and calibration["final_accuracy"] is not None:
        accuracy = max(0.0, calibration["final_accuracy"] - _ACCURACY_MARGIN)
    return {"loss": loss, "accuracy": accuracy,
            "loss_given": settings.target_loss is not None,
            "accuracy_given": settings.target_accuracy is not None}


class Figures:
    """What follows from a study's records."""

    def __init__(self, study):
        self._study = study
        self.targets = targets(study)

    def runs(self, method, rate):
        return [record for (name, at, _), record in sorted(
                    self._study.records.items(), key=lambda item: item[0][2])
                if name == method.name and at == rate]

    def summary(self, method, rate):
        """Means over the seeds of one method at one rate; None: no run is done."""
        runs = self.runs(method, rate)
        if not runs:
            return None
        phases = []
        for phase in sorted({part["phase"] for run in runs for part in run["phases"]},
                            key=lambda p: p or 0):
            parts = [part for run in runs for part in run["phases"] if part["phase"] == phase]
            phases.append({"phase": phase, **{key: mean(part[key] for part in parts) for key in (
                "steps", "step_seconds", "compute_seconds", "push_bytes_per_step",
                "pull_bytes_per_step", "bytes_ratio", "bytes_ratio_median",
                "busiest_link_bytes_per_step")}})
        accuracies = [run["final_accuracy"] for run in runs]
        to_loss = [measure.time_to_loss(run["curve"], self.targets["loss"])
                   if self.targets["loss"] is not None else None for run in runs]
        to_accuracy = [measure.time_to_accuracy(run["evaluations"], self.targets["accuracy"])
                       if self.targets["accuracy"] is not None else None for run in runs]
        reference = self.runs(self._study.reference, rate)
        unlimited = self.runs(method, None)
        step = mean(step_seconds(run) for run in runs)
        summary = {
            "method": method.name, "rate": rates.format_rate(rate),
            "rate_bits_per_second": rate,
            "seeds": [run["seed"] for run in runs],
            "step_seconds": step,
            "expected_step_seconds": self._expected_step(unlimited, rate),
            "wire_share": rates.wire_share(
                step, mean(step_seconds(run) for run in unlimited))
                          if unlimited and rate is not None else None,
            "phases": phases,
            "links": self._links(runs),
            "seconds": mean(run["seconds"] for run in runs),
            # Only where every seed got there.
            "seconds_to_loss": None if None in to_loss else mean(to_loss),
            "seconds_to_accuracy": None if None in to_accuracy else mean(to_accuracy),
            "final_accuracy": mean(accuracies),
            "final_accuracy_deviation": deviation(accuracies),
            "final_loss": mean(run["final_loss"] for run in runs),
            "step_speedup": None, "end_to_end_speedup": None,
        }
        if reference:
            reference_step = mean(step_seconds(run) for run in reference)
            summary["step_speedup"] = reference_step / step
            summary["end_to_end_speedup"] = self._paired_speedup(reference, runs)
            for phase in phases:
                phase["step_speedup"] = reference_step / phase["step_seconds"]
        return summary

    @staticmethod
    def _expected_step(unlimited, rate):
        """By arithmetic: what a step takes without limits, and its bytes on the wire."""
        if not unlimited or rate is None:
            return None
        steps = sum(part["steps"] for part in unlimited[0]["phases"])
        return sum(part["steps"] * (part["step_seconds"] + rates.wire_seconds(
                       part["busiest_link_bytes_per_step"], rate))
                   for part in unlimited[0]["phases"]) / steps if steps else None

    @staticmethod
    def _links(runs):
        """Per link, bytes a step over the whole run, as the interfaces counted them."""
        nodes = runs[0]["total"]["link_bytes_per_step"]
        return {node: {way: mean(run["total"]["link_bytes_per_step"][node][way] for run in runs)
                       for way in ("received", "sent")} for node in nodes}

    @staticmethod
    def _paired_speedup(reference, runs):
        """Over the seeds that both have, their times together."""
        by_seed = {run["seed"]: run for run in reference}
        pairs = [(by_seed[run["seed"]]["seconds"], run["seconds"])
                 for run in runs if run["seed"] in by_seed]
        return sum(a for a, _ in pairs) / sum(b for _, b in pairs) if pairs else None

    def paired_points(self, method):
        """Accuracy against the reference's of the same seed, in points, over the runs
        without limits."""
        by_seed = {run["seed"]: run["final_accuracy"]
                   for run in self.runs(self._study.reference, None)}
        return [100 * (run["final_accuracy"] - by_seed[run["seed"]])
                for run in self.runs(method, None)
                if run["final_accuracy"] is not None and by_seed.get(run["seed"]) is not None]

    def automatic(self):
        """The two automatic rates, fastest first; none before the calibration. Without a
        trial they are those of the arithmetic."""
        calibration = self._study.calibration
        if calibration is None:
            return []
        if self._study.trial is not None:
            return self._study.rates
        return rates.automatic_rates(rates.rate_for_share(
            calibration["total"]["step_seconds"],
            calibration["total"]["busiest_link_bytes_per_step"]))

    def _rate_near(self, wanted):
        for rate in self._study.rates or []:
            if abs(rate - wanted) <= _RATE_TOLERANCE * wanted:
                return rate
        return None

    def goals(self):
        """[{"goal", "wanted", "limit", "measured", "met", "note"}]; met is null where
        nothing was measured."""
        found = []

        def add(goal, wanted, measured, limit=None, note="", below=False):
            met = None
            if measured is not None:
                met = measured <= wanted if below else measured >= wanted
            found.append({"goal": goal, "wanted": wanted, "limit": limit, "measured": measured,
                          "met": met, "note": note})

        squeezed = next((m for m in self._study.settings.methods if m.two_phases), None)
        if squeezed is not None:
            self._squeezed_goals(squeezed, add)
        automatic = self.automatic()
        rate = self._rate_near(automatic[-1]) if automatic else None
        for method in self._study.settings.methods:
            if not method.one_bit_both_ways:
                continue
            mine, full = (self.summary(m, rate) if rate else None
                          for m in (method, self._study.reference))
            measured = None
            if mine and full:
                measured = (full["phases"][0]["busiest_link_bytes_per_step"] /
                            mine["phases"][0]["busiest_link_bytes_per_step"])
            add(f"{method.name} at {self._name(rate, -1)}: bytes on the busiest link, times fewer "
                "than in full precision", EXCHANGE_GOAL, measured, None,
                "as the interface counts them; full, it bears so many times the exchanges"
                if measured else "no run at this rate")
        return found

    def _name(self, rate, part):
        automatic = self.automatic()
        return rates.format_rate(rate or automatic[part]) if automatic else "the automatic rate"

    def _squeezed_goals(self, squeezed, add):
        def phase_two(summary):
            parts = summary["phases"] if summary else []
            return next((part for part in parts if part["phase"] == 2), None)

        unlimited = phase_two(self.summary(squeezed, None))
        ratio = unlimited["bytes_ratio_median"] if unlimited else None
        add(f"{squeezed.name}: bytes of a compressed step, both ways, times fewer than fp32",
            BYTES_RATIO_GOAL, ratio, None,
            f"{unlimited['bytes_ratio']:.1f} with the rounds in full precision that phase 2 has"
            if unlimited and unlimited["bytes_ratio"] else "")
        for name, part, end_to_end_goal in (
                ("slow", -1, END_TO_END_GOAL), ("fast", 0, FASTER_END_TO_END_GOAL)):
            automatic = self.automatic()
            rate = self._rate_near(automatic[part]) if automatic else None
            at = self._name(rate, part)
            summary = self.summary(squeezed, rate) if rate else None
            reference = self.summary(self._study.reference, rate) if rate else None
            share = reference["wire_share"] if reference else None
            note = (f"{self._study.reference.name} spends {100 * share:.1f} % of a step on the wire"
                    if share is not None else f"no run at {at}")
            two = phase_two(summary)
            step_limit = rates.step_limit(share, ratio) if share and ratio else None
            if name == "slow":
                add(f"{squeezed.name} at {at}: times faster steps in phase 2", STEP_SPEEDUP_GOAL,
                    two.get("step_speedup") if two else None, step_limit,
                    note + self._computing(two, reference))
            warm_up = self._warm_up(squeezed, rate) if rate else None
            limit = (rates.end_to_end_limit(step_limit, warm_up)
                     if step_limit and warm_up is not None else None)
            if warm_up is not None:
                note += f", {100 * warm_up:.0f} % of the steps are phase 1"
            add(f"{squeezed.name} at {at}: times faster end to end", end_to_end_goal,
                summary["end_to_end_speedup"] if summary else None, limit, note)
        points = self.paired_points(squeezed)
        spread = deviation(points)
        note = f"{len(points)} paired seeds of {ACCURACY_SEEDS_GOAL}"
        if points:
            note += f", mean difference {mean(points):+.2f}"
        if spread is not None:
            note += f" ± {spread:.2f}"
        add(f"{squeezed.name}: points of accuracy away from {self._study.reference.name}",
            ACCURACY_POINTS_GOAL, abs(mean(points)) if points else None, None, note, below=True)

    @staticmethod
    def _computing(part, reference):
        """The limit supposes that computing takes as long without limits, in full precision
        and compressed; it does not where others use the machine."""
        if not part or not reference or part["compute_seconds"] is None:
            return ""
        full = reference["phases"][0]["compute_seconds"]
        return (f"; computing took {1e3 * part['compute_seconds']:.1f} ms a step, and "
                f"{1e3 * full:.1f} in full precision" if full is not None else "")

    def _warm_up(self, method, rate):
        parts = [part for run in self.runs(method, rate) for part in run["phases"]]
        steps = sum(part["steps"] for part in parts)
        return sum(p["steps"] for p in parts if p["phase"] == 1) / steps if steps else None


def document(study):
    """The content of results.json."""
    settings, figures = study.settings, Figures(study)
    calibration, trial = study.calibration, study.trial
    wanted = study.plan()
    summaries = [figures.summary(method, rate)
                 for rate in (None, *(study.rates or [])) for method in settings.methods]
    return {
        "format": FORMAT,
        "complete": study.rates is not None and all(
            (method.name, rate, seed) in study.records for method, rate, seed in wanted),
        "job": os.path.basename(settings.job),
        "overrides": settings.overrides,
        "servers": settings.servers,
        "workers": settings.workers,
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(),
                    "architecture": platform.machine()},
        "one_build": len({record["programs"] for record in study.records.values()}) <= 1,
        "reference": study.reference.name,
        "methods": [{"name": method.name, "title": method.title,
                     "overrides": list(method.overrides)} for method in settings.methods],
        "calibration": None if calibration is None else {
            "step_seconds": calibration["total"]["step_seconds"],
            "compute_seconds": calibration["total"]["compute_seconds"],
            "busiest_link_bytes_per_step": calibration["total"]["busiest_link_bytes_per_step"],
            "wire_share": rates.WIRE_SHARE,
            "trial": None if trial is None else {
                "rate_bits_per_second": trial["rate_bits_per_second"],
                "step_seconds": trial["total"]["step_seconds"]},
            "rate_bits_per_second": figures.automatic()[-1],
            "faster_rate_bits_per_second": figures.automatic()[0]},
        "rates": [{"rate": rates.format_rate(rate), "bits_per_second": rate}
                  for rate in study.rates or []],
        "targets": figures.targets,
        "goals": figures.goals(),
        "summary": [summary for summary in summaries if summary is not None],
        "failed": [{"method": name, "rate": rates.format_rate(rate), "seed": seed, "why": why}
                   for (name, rate, seed), why in study.failed.items()],
        "runs": [study.records[(method.name, rate, seed)] for method, rate, seed in wanted
                 if (method.name, rate, seed) in study.records],
    }
