"""A study: every method at every rate, run after run, in a folder it can go on in.

    DIR/runs/METHOD-RATE-SEED.json   a finished run, with a fingerprint of what determines it
    DIR/runs/trial.json              the trial that corrects the automatic rates
    DIR/logs/                        of the run under way, or of those that failed
    DIR/results.json, report.html    written anew after each run
"""

import fcntl
import hashlib
import json
import os
import shutil
import time

from local_fleet import daemons, network
from local_fleet.programs import Programs

from . import job_run, rates

_FORMAT = 1  # of a run's file
_TRIAL_STEPS = 40


class StudyError(Exception):
    """The study cannot go on; `status` is the exit status."""

    def __init__(self, message, status=1):
        super().__init__(message)
        self.status = status


class Folder:
    """The results, held by one process at a time."""

    def __init__(self, path):
        self.path = os.path.abspath(path)
        self._lock = None

    def __enter__(self):
        try:
            os.makedirs(os.path.join(self.path, "runs"), exist_ok=True)
            self._lock = os.open(os.path.join(self.path, ".lock"),
                                 os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StudyError(f"results folder {self.path} is in use by another run; wait for its "
                             "end, or give another folder with --results") from error
        except OSError as error:
            raise StudyError(f"results folder {self.path}: {error.strerror}") from error
        if os.path.exists(os.path.join(self.path, "job.textproto")):
            raise StudyError(f"{self.path} holds results of foreshard run; give another folder "
                             "with --results")
        return self

    def __exit__(self, *_):
        if self._lock is not None:
            os.close(self._lock)

    def file(self, *parts):
        return os.path.join(self.path, *parts)

    def write(self, name, text):
        """Whole or not at all."""
        part = self.file(name + ".part")
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, self.file(name))


def fingerprint(settings, method, rate, seed):
    """Of all that determines a run, but for the programs and the machine."""
    with open(settings.job, "rb") as file:
        job = file.read().decode("utf-8", "replace")
    content = json.dumps([_FORMAT, job, settings.overrides, list(method.overrides),
                          settings.servers, settings.workers, rate, seed])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def programs_digest(programs):
    """Of the three programs, to say where runs of one study come from different builds."""
    digest = hashlib.sha256()
    for name in ("foreshard", "foreshard-server", "foreshard-worker"):
        with open(programs.path(name), "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()[:16]


class Study:
    """`settings`: see arguments.py. `display`: see progress.py. `written` is called with
    the study after each run, to write results."""

    def __init__(self, settings, folder, interrupt, display, written):
        self.settings = settings
        self.folder = folder
        self.programs = Programs(settings.programs)
        self.records = {}  # (method, rate, seed): record
        self.trial = None  # record
        self.failed = {}  # the same: why
        self.rates = None if settings.rates == "auto" else list(settings.rates)
        self._interrupt = interrupt
        self._display = display
        self._written = written
        self._digest = programs_digest(self.programs)

    # What there is to do.

    @property
    def reference(self):
        return self.settings.methods[0]

    @property
    def calibration(self):
        """The run without limits that the automatic rates and the targets come from."""
        return self.records.get((self.reference.name, None, self.settings.seeds[0]))

    def plan(self):
        """(method, rate, seed) of every run known so far, in order: without limits first,
        then rate by rate from the fastest, then the further seeds of the accuracies."""
        settings = self.settings
        order = [(method, None, settings.seeds[0]) for method in settings.methods]
        for rate in self.rates or []:
            order += [(method, rate, seed)
                      for seed in settings.seeds for method in settings.methods]
        order += [(method, None, seed) for seed in settings.accuracy_seeds
                  for method in settings.methods if seed != settings.seeds[0]]
        return order

    def job(self, method, seed):
        settings = self.settings
        return job_run.Job(
            settings.job,
            [f"servers.shards={settings.servers}", f"training.workers={settings.workers}",
             *settings.overrides, *method.overrides, f"seed={seed}"],
            settings.servers, settings.workers, method.two_phases)

    def check(self):
        """Shows every job to a real server, before any training; StudyError (status 2)
        names the methods that are refused."""
        refused = []
        for method in self.settings.methods:
            said = job_run.check(self.programs, self.job(method, self.settings.seeds[0]),
                                 self.folder.file("logs", "check"), self._interrupt)
            if said is not None:
                refused.append(f"method {method.name} ({' '.join(method.overrides)}) is refused:\n"
                               + "\n".join(f"    {line}" for line in said.splitlines()))
        if refused:
            raise StudyError("\n".join(refused), status=2)

    # Doing it.

    def run(self):
        """Every run that is not done yet. Failed ones are named in `failed`, and the others
        go on; without the calibration there is nothing to go on with."""
        self._load()
        self._derive_rates()
        todo = self._todo()
        self._display.begin(len(self.records), len(todo), self.rates is None)
        while todo:
            method, rate, seed = todo[0]
            self._one(method, rate, seed)
            if self.calibration is None:
                raise StudyError("without this run there are no rates and no targets; the study "
                                 "ends")
            self._derive_rates()
            self._written(self)
            todo = self._todo()
        self._written(self)

    def _todo(self):
        return [(method, rate, seed) for method, rate, seed in self.plan()
                if (method.name, rate, seed) not in self.records
                and (method.name, rate, seed) not in self.failed]

    def _derive_rates(self):
        """The automatic ones: by arithmetic, then corrected by a short trial."""
        if self.rates is not None or self.calibration is None:
            return
        total = self.calibration["total"]
        first = rates.rate_for_share(total["step_seconds"], total["busiest_link_bytes_per_step"])
        key = [fingerprint(self.settings, self.reference, first, self.settings.seeds[0]),
               self.calibration["fingerprint"]]
        path = self.folder.file("runs", "trial.json")
        trial = self._read(path)
        if trial is None or trial.get("fingerprint") != key:
            self._display.note(f"a trial of {_TRIAL_STEPS} steps at {rates.format_rate(first)}")
            measured = self._train(self.reference, first, self.settings.seeds[0], "trial",
                                   lambda *_: None, _TRIAL_STEPS)
            trial = {"fingerprint": key, "rate_bits_per_second": first, "total": measured}
            self.folder.write(os.path.join("runs", "trial.json"),
                              json.dumps(trial, indent=1) + "\n")
        slow = rates.corrected_rate(first, trial["total"]["step_seconds"], total["step_seconds"])
        self._display.note(f"at {rates.format_rate(first)} a trial took "
                           f"{1000 * trial['total']['step_seconds']:.1f} ms a step: "
                           f"{rates.WIRE_SHARE:.0%} are on the wire at {rates.format_rate(slow)}")
        self.trial = trial
        self.rates = rates.automatic_rates(slow)
        self._load()

    def _train(self, method, rate, seed, name, progress, only_steps=None):
        """Through a real run; its logs stay where it fails."""
        logs = self.folder.file("logs", name)
        shutil.rmtree(logs, ignore_errors=True)
        try:
            record = job_run.Run(self.programs, self.job(method, seed), rate, logs,
                                 self._interrupt, progress, only_steps).run()
        except (job_run.RunError, daemons.DaemonError, network.NetworkError) as error:
            raise StudyError(str(error)) from error
        shutil.rmtree(logs, ignore_errors=True)
        return record

    def _path(self, method, rate, seed):
        return self.folder.file("runs", f"{method.name}-{rates.format_rate(rate)}-{seed}.json")

    def _load(self):
        """Runs that are there and still fit."""
        for method, rate, seed in self.plan():
            record = self._read(self._path(method, rate, seed))
            if record is None:
                continue
            if record.get("fingerprint") == fingerprint(self.settings, method, rate, seed):
                self.records[(method.name, rate, seed)] = record

    def _read(self, path):
        """None: it is not there, or damaged."""
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
            return content if isinstance(content, dict) else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            self._display.note(f"{path} cannot be read, so that run is made again")
            return None

    def _one(self, method, rate, seed):
        key = (method.name, rate, seed)
        name = f"{method.name}-{rates.format_rate(rate)}-{seed}"
        self._display.begin_run(method, rate, seed)

        def progress(seconds, batches, total, loss):
            self._display.step(seconds, batches / self.settings.workers,
                               total / self.settings.workers, loss,
                               self._seconds_left(key, seconds, batches, total))

        try:
            record = self._train(method, rate, seed, name, progress)
        except StudyError as error:
            self.failed[key] = str(error)
            self._display.failed(str(error))
            return
        record = {"method": method.name, "rate": rates.format_rate(rate),
                  "rate_bits_per_second": rate, "seed": seed,
                  "fingerprint": fingerprint(self.settings, method, rate, seed),
                  "programs": self._digest, "overrides": list(method.overrides), **record}
        self.folder.write(os.path.join("runs", f"{name}.json"),
                          json.dumps(record, indent=1) + "\n")
        self.records[key] = record
        self._display.finished(record)

    # How long it will take.

    def _seconds_left(self, current, seconds, batches, total):
        """(of the run under way, of the whole study); None where it cannot be said. A run
        under way goes by its own speed more and more, the others by what their method took
        without limits and moves a step."""
        if total <= 0 or batches <= 0:
            return None, None
        share = batches / total
        own = seconds * (1 - share) / share
        if (expected := self.expected_seconds(*current)) is not None:
            own = (1 - share) * ((1 - share) * expected) + share * own
        if self.rates is None:
            return own, None
        others = [self.expected_seconds(method.name, rate, seed)
                  for method, rate, seed in self._todo() if (method.name, rate, seed) != current]
        return own, None if None in others else own + sum(others)

    def expected_seconds(self, name, rate, seed):
        """Of a run, from its method's run without limits, or the reference's."""
        known = self.records.get((name, None, self.settings.seeds[0])) or self.calibration
        if known is None:
            return None
        overhead = 3.0  # start, last evaluation, end
        wire = sum(part["steps"] * rates.wire_seconds(part["busiest_link_bytes_per_step"], rate)
                   for part in known["phases"])
        return overhead + known["seconds"] + wire
