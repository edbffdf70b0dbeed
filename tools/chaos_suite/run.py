"""One schedule, from its folder to its verdict: starts the fleet, inflicts what is due, waits
for the end of the job, and looks at what is left."""

import contextlib
import json
import math
import os
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass, field

from local_fleet import daemons, network as networks

from . import checkpoints, disk, faults, invariants, jobs, journal, schedule as schedules
from .fleet import Fleet, ScheduleFailure, crash_lines

_TICK_SECONDS = 0.01
_LINKS_SECONDS = 0.05
_EVALUATOR_SECONDS = 300
_STATUS_SECONDS = 10
# A server that is away for longer must have been waited for aloud (worker/patience.h says so
# after 0.2 s).
_SILENT_SECONDS = 1.5
_TOOL_SECONDS = 120
# For the first run of a given job.
_UNKNOWN_SECONDS = 4 * 3600


@dataclass
class Verdict:
    """What came of a schedule. `violations`: lines, none where all is well."""
    schedule: object
    violations: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    figures: dict = field(default_factory=dict)
    seconds: float = 0.0
    values: object = None  # final parameters
    contributions: dict = None  # of rounds

    @property
    def passed(self):
        return not self.violations

    def document(self):
        return {"seed": self.schedule.seed, "passed": self.passed, "seconds": self.seconds,
                "violations": self.violations, "notes": self.notes, "figures": self.figures,
                "schedule": json.loads(self.schedule.to_json())}


@dataclass
class Abilities:
    """What can be done here; each None where it can, else why not."""
    network: str = None
    disk: str = None

    def why_not(self, kind):
        if kind.startswith("link-cut"):
            return self.network
        return self.disk if kind == "disk-full" else None


class _Running:
    """A fault that was begun, and what it waits for."""

    def __init__(self, fault, generator, names):
        self.fault, self.generator, self.names = fault, generator, names
        self.wake = 0.0
        self.until = None

    def step(self, now):
        """False once it is over."""
        if self.until is not None:
            if not self.until.is_so():
                if now > self.wake:
                    raise ScheduleFailure(f"{self.fault.kind} of {self.fault.target}: "
                                          f"{self.until.what}")
                return True
            self.until = None
        elif now < self.wake:
            return True
        try:
            asked = next(self.generator)
        except StopIteration:
            return False
        self.until = asked if isinstance(asked, faults.Until) else None
        self.wake = now + (asked.seconds if self.until is not None else asked)
        return True


def overlaps(absence, others):
    """Whether another server was away at some moment of it."""
    return any(other is not absence and other.began < absence.ended and
               (other.ended is None or other.ended > absence.began) for other in others)


class ScheduleRun:
    """`abilities`: which faults can be inflicted. `reference`: Verdict of the undisturbed run
    of this job, with `tolerance` a part of its loss; None: this is it."""

    def __init__(self, programs, job, schedule, folder, interrupt, abilities, reference=None,
                 compare=None):
        self._programs = programs
        self._job = job
        self._schedule = schedule
        self._folder = folder
        self._interrupt = interrupt
        self._abilities = abilities
        self._reference = reference
        self._compare = compare
        self._verdict = Verdict(schedule)
        self._running = []
        self._said = None
        self._over_at = None  # when the last worker left

    def run(self):
        """The verdict; Interrupted. Nothing runs any more when it returns or raises."""
        began = time.monotonic()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.makedirs(self._folder)
        with open(os.path.join(self._folder, "schedule.json"), "w", encoding="utf-8") as file:
            file.write(self._schedule.to_json())
        todo = self._possible()
        with contextlib.ExitStack() as stack:
            network = None
            if any(fault.kind.startswith("link-cut") for fault in todo):
                network = stack.enter_context(networks.Network(
                    [f"server-{i}" for i in range(self._job.servers)],
                    [f"worker-{i}" for i in range(self._job.workers)], None))
            fleet = Fleet(self._programs, self._job, self._schedule, self._folder, network)
            for name in sorted({f.target for f in todo if f.kind == "disk-full"}):
                fleet.disks[name] = stack.enter_context(disk.SmallDisk(fleet.disk_folder(name)))
            try:
                self._train(fleet, todo)
                self._judge(fleet)
            except (ScheduleFailure, daemons.DaemonError, journal.Damage,
                    checkpoints.BadCheckpoint) as failure:
                self._verdict.violations.append(str(failure))
                status = self._last_words(fleet)
                if status:
                    self._verdict.notes.append(status)
            finally:
                for running in self._running:
                    running.generator.close()
                fleet.end_all()
            if strays := fleet.strays():
                self._verdict.violations.append(f"processes are left: {strays}")
            self._look_at_logs(fleet)
            if not self._verdict.passed:
                self._save_disks(fleet)
        self._verdict.seconds = time.monotonic() - began
        with open(os.path.join(self._folder, "verdict.json"), "w", encoding="utf-8") as file:
            json.dump(self._verdict.document(), file, indent=1)
        return self._verdict

    def _note(self, text):
        self._verdict.notes.append(text)

    def _possible(self):
        todo = []
        for fault in self._schedule.faults:
            if (why := self._abilities.why_not(fault.kind)) is not None:
                self._note(f"{fault.kind} skipped: {why}")
            else:
                todo.append(fault)
        return todo

    # Training.

    def _train(self, fleet, todo):
        for name in fleet.servers:
            fleet.start(name)
        daemons.await_ready([fleet.now(name).daemon for name in fleet.servers], 60, self._interrupt)
        for name in (*fleet.workers, *fleet.evaluators):
            fleet.start(name)
        began = time.monotonic()
        length = self._schedule.training_seconds + 3 * sum(f.seconds for f in todo)
        deadline = began + 120 + 5 * length
        if self._reference is None and self._job.elements is None:
            deadline = began + _UNKNOWN_SECONDS
        todo = list(todo)
        next_links = 0.0
        while True:
            self._interrupt.check()
            now = time.monotonic()
            if now >= next_links:
                fleet.keep_journals()
                next_links = now + _LINKS_SECONDS
            self._advance(now)
            fleet.look_after()
            over = fleet.trained()
            if over and self._over_at is None:
                self._over_at = now
            if over and not self._running:
                break
            if not over:
                self._begin_due(fleet, todo, now - began)
            if now > deadline:
                raise ScheduleFailure(f"the job has not come to its end within {now - began:.0f} s")
            time.sleep(_TICK_SECONDS)
        if todo:
            self._note("over before " + ", ".join(f"{f.kind} of {f.target}" for f in todo))
        self._verdict.figures["training_seconds"] = time.monotonic() - began
        self._await(lambda: all(fleet.has_ended(name) for name in fleet.evaluators),
                    _EVALUATOR_SECONDS, "the evaluator has not ended after the job", fleet)
        self._await(lambda: self._ask(fleet), _STATUS_SECONDS, "the servers do not answer", fleet)
        fleet.keep_journals()
        fleet.end_servers()

    def _ask(self, fleet):
        self._said = fleet.status()
        return self._said is not None

    def _await(self, is_so, seconds, what, fleet):
        deadline = time.monotonic() + seconds
        while not is_so():
            self._interrupt.check()
            fleet.look_after()
            if time.monotonic() > deadline:
                raise ScheduleFailure(f"{what}, {seconds} s on")
            time.sleep(_TICK_SECONDS)

    def _advance(self, now):
        for running in list(self._running):
            if not running.step(now):
                self._running.remove(running)

    def _begin_due(self, fleet, todo, elapsed):
        """Those whose time has come and whose targets no other fault has; the first of them
        holds up those behind it, so that their order is the schedule's."""
        while todo and todo[0].at <= elapsed:
            names = faults.targets(fleet, todo[0])
            if any(names & running.names for running in self._running):
                return
            fault = todo.pop(0)
            label = f"{fault.kind} of {fault.target} at {elapsed:.2f} s"
            generator = faults.begin(fleet, fault, lambda text, label=label: self._note(f"{label}: {text}"))
            self._running.append(_Running(fault, generator, names))

    # Judging.

    def _judge(self, fleet):
        verdict = self._verdict
        evidence = self._evidence(fleet)
        violations, figures = invariants.check(evidence)
        verdict.violations += violations
        verdict.figures.update(figures)
        if self._job.synchronous:
            verdict.contributions = invariants.contributions(evidence.journals)
        directories = [fleet.state(name) for name in fleet.servers]
        verdict.values, _ = checkpoints.newest_parameters(directories)
        bad = sum(not math.isfinite(value) for value in verdict.values)
        if bad:
            verdict.violations.append(f"{bad} of {len(verdict.values)} parameters are not finite")
        elif self._job.elements is not None:
            if len(verdict.values) != self._job.elements:
                verdict.violations.append(f"{len(verdict.values)} parameters, not {self._job.elements}")
            verdict.figures["loss"] = jobs.loss(verdict.values)
        lead = self._lead()
        final = [e for e in lead.get("evaluations", []) if e.get("final") and e.get("parameters") == "master"]
        if final:
            verdict.figures["accuracy"] = final[-1].get("accuracy", 0.0)
        elif fleet.evaluators and self._job.elements is None:
            verdict.violations.append("there is no evaluation of the last parameters")
        if self._reference is not None and self._compare is not None and not bad:
            verdict.violations += self._compare(verdict, self._reference)
        self._look_at_waits(fleet)
        self._ask_the_tools(fleet)

    def _lead(self):
        return next((server for server in self._said if server.get("lead")), {})

    def _evidence(self, fleet):
        segments, versions = {}, {}
        for server in self._said:
            shard = server.get("shard", 0)
            for segment in server.get("segments", []):
                if not segment.get("statistic"):
                    segments[segment.get("segment", 0)] = shard
                    versions[segment.get("segment", 0)] = segment.get("version", 0)
        states = {}
        for shard, name in enumerate(fleet.servers):
            newest = fleet.newest_checkpoint(name)
            if newest is None:
                raise ScheduleFailure(f"{name} ended after SIGTERM without a checkpoint")
            for state in checkpoints.check(newest)["states"]:
                states[(shard, state["segment"])] = state["number"]
        answers = []
        for path in fleet.acknowledged_paths():
            answers += invariants.read_acknowledged(path)
        unseen = self._not_kept(fleet)
        lead = self._lead()
        examples, batch = lead.get("train_examples", 0), lead.get("batch_size", 1)
        per_epoch = -(-examples // batch)
        return invariants.Evidence(
            journals=[journal.read(fleet.journal_paths(name), shard in fleet.unjournaled)
                      for shard, name in enumerate(fleet.servers)],
            acknowledged=[a for a in answers if a.segment in segments],
            segments=segments, versions=versions, states=states,
            synchronous=self._job.synchronous, workers=self._job.workers,
            batches=per_epoch * lead.get("epochs", 0), batches_per_epoch=per_epoch, said=lead,
            unjournaled=fleet.unjournaled | unseen, bounded=self._job.bounded)

    def _not_kept(self, fleet):
        """Shards that removed files of their journal before this program could keep them, as on a
        busy machine: what was in them cannot be told, but for how many events they had."""
        unseen = set()
        for shard, name in enumerate(fleet.servers):
            if missing := journal.missing_places(fleet.journal_paths(name)):
                self._note(f"{name}: files {', '.join(map(str, missing))} of its journal were removed before "
                           "they could be kept; what was in them is not judged")
                unseen.add(shard)
        self._verdict.figures["journals_not_seen"] = len(unseen)
        return unseen

    def _look_at_waits(self, fleet):
        texts = []
        for path in fleet.logs():
            if os.path.basename(path).startswith("worker-"):
                with open(path, encoding="utf-8", errors="replace") as file:
                    texts.append(file.read())
        for absence in fleet.absences:
            if absence.ended is None or absence.ended - absence.began < _SILENT_SECONDS:
                continue
            # Nobody waits where all workers were away as well, or had nothing left to do.
            if absence.ended > self._over_at:
                continue
            if any(f.target in ("fleet", "workers") for f in self._schedule.faults):
                continue
            # Who waits for one server may not have come to the other.
            if overlaps(absence, (*fleet.absences, *fleet.silences)):
                continue
            if not any(faults.waited_for(fleet, absence.server, text) for text in texts):
                self._verdict.violations.append(
                    f"server {absence.server} was away for {absence.ended - absence.began:.1f} s, "
                    "and no worker's log says that it waits")

    def _look_at_logs(self, fleet):
        for path in fleet.logs():
            for line in crash_lines(path):
                self._verdict.violations.append(f"{os.path.basename(path)}: {line}")

    def _ask_the_tools(self, fleet):
        """`foreshard verify` and `replay`, where the program has them, find nothing."""
        for name in fleet.servers:
            state = fleet.state(name)
            self._ask_tool("verify", [state])
            # Replay begins at the first event, so all of the journal must be there.
            whole = self._schedule.keep_journal and fleet.servers.index(name) not in fleet.unjournaled
            if whole:
                self._ask_tool("replay", [state, "--compare"])

    def _ask_tool(self, command, arguments):
        program = self._programs.path("foreshard")
        if command not in _commands(program):
            return
        done = subprocess.run([program, command, *arguments], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False, start_new_session=True, timeout=_TOOL_SECONDS)
        if done.returncode != 0:
            lines = " / ".join(line for line in done.stdout.splitlines()[-4:] if line.strip())
            self._verdict.violations.append(
                f"foreshard {command} {' '.join(arguments)} ended with {done.returncode}: {lines}")

    def _last_words(self, fleet):
        """What the servers wait for, where they can still say so."""
        said = fleet.status() if all(fleet.running(name) for name in fleet.servers) else None
        if said is None:
            return None
        return "; ".join(f"server {s.get('shard', 0)}: {s.get('state')}, waiting for "
                         f"'{s.get('waiting_for', '')}'" for s in said)

    def _save_disks(self, fleet):
        """What lies on disks that go with this process."""
        for name in fleet.disks:
            with contextlib.suppress(OSError):
                fleet.disks[name].free()
                shutil.copytree(fleet.disk_folder(name),
                                os.path.join(self._folder, f"state-of-{name}"))


_known_commands = {}


def _commands(program):
    """The subcommands that the program's help names."""
    if program not in _known_commands:
        done = subprocess.run([program, "--help"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=False)
        _known_commands[program] = {line.split()[0] for line in done.stdout.splitlines()
                                    if line.startswith("  ") and line.split()}
    return _known_commands[program]


def undisturbed(schedule):
    """The schedule without what happens in it."""
    fields = asdict(schedule)
    fields.update(seed=0, faults=(), evaluator=False, journal="buffered", keep_journal=True,
                  on_failure="stop", checkpoint_seconds=2.0, keep_checkpoints=2)
    return schedules.Schedule(**fields)
