"""tools/chaos from the command line to the exit status."""

import json
import os
import shutil
import sys
import time

from local_fleet import interrupt as interrupts, network, programs as installed
from local_fleet.command_line import EXIT_BAD, EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from local_fleet.daemons import DaemonError
from local_fleet.lines import Lines, clock

from . import arguments, compare, disk, jobs, run, schedule as schedules


def _say(text):
    print(f"chaos: {text}", file=sys.stderr, flush=True)


def _abilities(lines, kinds):
    """What can be inflicted here, of what is asked for; says what cannot."""
    able = run.Abilities()
    if any(kind.startswith("link-cut") for kind in kinds):
        able.network = network.why_impossible()
        if able.network:
            lines.note(f"links are not cut: {able.network}")
    if "disk-full" in kinds:
        able.disk = disk.why_impossible()
        if able.disk:
            lines.note(f"disks are not filled: {able.disk}")
        else:
            disk.own_mounts()
    return able


class Chaos:
    """All schedules of one call."""

    def __init__(self, settings, folder, interrupt, lines):
        self._settings = settings
        self._folder = folder
        self._interrupt = interrupt
        self._lines = lines
        self._programs = installed.Programs(settings.programs)
        self._references = {}  # variant: verdict
        self.documents = []
        self.failed = 0
        self._began = time.monotonic()

    def run(self):
        settings = self._settings
        able = _abilities(self._lines, settings.faults)
        seed = settings.seed
        while settings.schedules is None or seed < settings.seed + settings.schedules:
            if settings.minutes is not None and time.monotonic() - self._began > 60 * settings.minutes:
                break
            self._one(seed, able)
            seed += 1

    def _one(self, seed, able):
        settings = self._settings
        if settings.job:
            reference = self._reference_of_job(able)
            training = settings.training_seconds or round(reference.figures["training_seconds"], 1)
            schedule = schedules.generate(
                seed, ["job"], settings.faults, training, settings.servers, settings.workers,
                jobs.GIVEN_LEASE_SECONDS)
            job = settings.given_job()
        else:
            schedule = schedules.generate(seed, settings.variants, settings.faults,
                                          settings.training_seconds)
            reference = self._reference(schedule, able)
            job = self._quadratic(schedule.variant)
        self._progress(f"seed {seed}: {schedule.line()}")
        folder = os.path.join(self._folder, f"seed-{seed}")
        verdict = run.ScheduleRun(self._programs, job, schedule, folder, self._interrupt, able,
                                  reference, compare.compare).run()
        self._report(verdict, folder)

    def _quadratic(self, name):
        return jobs.quadratic(os.path.join(self._folder, "jobs", name), jobs.variant(name),
                              self._settings.training_seconds, self._settings.lease_seconds)

    def _reference(self, schedule, able):
        if schedule.variant not in self._references:
            self._train_reference(run.undisturbed(schedule), self._quadratic(schedule.variant), able)
        return self._references[schedule.variant]

    def _reference_of_job(self, able):
        if "job" not in self._references:
            schedule = schedules.generate(0, ["job"], [])
            self._train_reference(run.undisturbed(schedule), self._settings.given_job(), able)
        return self._references["job"]

    def _train_reference(self, schedule, job, able):
        self._progress(f"{schedule.variant} undisturbed")
        folder = os.path.join(self._folder, f"undisturbed-{schedule.variant}")
        verdict = run.ScheduleRun(self._programs, job, schedule, folder, self._interrupt, able).run()
        self._references[schedule.variant] = verdict
        if not verdict.passed:
            raise run.ScheduleFailure(
                f"{schedule.variant} fails undisturbed: {verdict.violations[0]}; see {folder}")
        figures = verdict.figures
        came_to = (f"accuracy {100 * figures['accuracy']:.2f} %" if "accuracy" in figures
                   else f"loss {figures.get('loss', float('nan')):.5g}")
        self._lines.note(f"{schedule.variant} undisturbed: {figures['acknowledged']:,} pushes, "
                         f"{came_to} ({clock(verdict.seconds)})")
        if not self._settings.keep:
            shutil.rmtree(folder, ignore_errors=True)

    def _progress(self, text):
        passed = len(self.documents) - self.failed
        head = f"{clock(time.monotonic() - self._began)}  {passed} passed, {self.failed} failed; "
        if self._lines.terminal:
            self._lines.progress((head + text)[:160])

    def _report(self, verdict, folder):
        document = verdict.document()
        schedule, figures = verdict.schedule, verdict.figures
        words = [f"seed {schedule.seed}", f"{schedule.variant} {schedule.journal}"
                 f"{' continue' if schedule.on_failure == 'continue' else ''}",
                 " ".join(f"{f.kind}:{f.target}" for f in schedule.faults) or "no faults",
                 f"{figures.get('acknowledged', 0):,} pushes"]
        if "loss_ratio" in figures:
            words.append(f"loss {figures['loss_ratio']:.3f} of undisturbed")
        if "accuracy_difference" in figures:
            words.append(f"accuracy {100 * figures['accuracy']:.2f} % "
                         f"({100 * figures['accuracy_difference']:+.2f})")
        if figures.get("bit_for_bit"):
            words.append("bit for bit")
        if figures.get("journals_not_seen"):
            words.append("judged in part")
        words.append(f"{'ok' if verdict.passed else 'FAILED'} ({verdict.seconds:.1f} s)")
        self._lines.note("  ".join(words))
        if verdict.passed:
            if not self._settings.keep:
                shutil.rmtree(folder, ignore_errors=True)
        else:
            self.failed += 1
            document["folder"] = folder
            document["command"] = self._settings.command(schedule)
            for line in verdict.violations:
                self._lines.note(f"    {line}")
            for line in verdict.notes:
                self._lines.note(f"    note: {line}")
            self._lines.note(f"    kept in {folder}; again: {document['command']}")
        self.documents.append(document)

    def summary(self):
        passed = [d for d in self.documents if d["passed"]]
        inflicted = {}
        skipped = 0
        for document in self.documents:
            for fault in document["schedule"]["faults"]:
                inflicted[fault["kind"]] = inflicted.get(fault["kind"], 0) + 1
            skipped += sum(" skipped: " in note for note in document["notes"])
        return {
            "schedules": len(self.documents), "passed": len(passed), "failed": self.failed,
            "acknowledged_pushes": sum(d["figures"].get("acknowledged", 0) for d in self.documents),
            "dealt_again": sum(d["figures"].get("dealt_again", 0) for d in self.documents),
            "bit_for_bit": sum(bool(d["figures"].get("bit_for_bit")) for d in self.documents),
            "judged_in_part": sum(bool(d["figures"].get("journals_not_seen")) for d in self.documents),
            "faults_planned": inflicted, "faults_skipped": skipped,
            "seconds": time.monotonic() - self._began}

    def write(self):
        document = {"summary": self.summary(), "settings": {
            key: value for key, value in vars(self._settings).items() if value is not None},
            "undisturbed": {name: verdict.figures for name, verdict in self._references.items()},
            "schedules": self.documents}
        path = os.path.join(self._folder, "results.json")
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
        os.replace(path + ".part", path)
        return path


def _made_folder(results):
    """A new folder for this run."""
    name = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder = os.path.join(results, f"{name}-{os.getpid()}")
    os.makedirs(folder)
    return folder


def main(command_line):
    """The exit status."""
    try:
        settings = arguments.parse(command_line)
    except arguments.BadArguments as error:
        _say(f"{error}\n(tools/chaos --help says more)")
        return EXIT_BAD
    lines = Lines()
    status = EXIT_DONE
    chaos = None
    with interrupts.Interrupt() as interrupt:
        try:
            for name in network.remove_leftovers():
                _say(f"removed {name}, left behind by a run that was killed")
            chaos = Chaos(settings, _made_folder(settings.results), interrupt, lines)
            chaos.run()
        except interrupts.Interrupted as stop:
            _say(f"interrupted ({stop})")
            status = EXIT_INTERRUPTED
        except (run.ScheduleFailure, DaemonError, network.NetworkError, disk.DiskError, OSError) as error:
            _say(str(error))
            status = EXIT_FAILED
    if chaos is not None:
        path = chaos.write()
        summary = chaos.summary()
        lines.note(f"{summary['schedules']} schedules, {summary['failed']} failed; "
                   f"{summary['acknowledged_pushes']:,} acknowledged pushes, "
                   f"{summary['dealt_again']:,} batches dealt again, {summary['bit_for_bit']} runs "
                   f"bit for bit as undisturbed, {summary['judged_in_part']} judged in part; {clock(summary['seconds'])}; {path}")
        if chaos.failed and status == EXIT_DONE:
            status = EXIT_FAILED
    return status
