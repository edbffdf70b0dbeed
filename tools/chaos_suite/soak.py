"""tools/soak: memory and speed of servers and workers over a long run."""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time

from local_fleet import daemons, interrupt as interrupts, scrape
from local_fleet.command_line import (EXIT_BAD, EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, PROGRAMS,
                                      BadArguments, Parser, check_job, check_programs)
from local_fleet.lines import Lines, clock
from local_fleet.programs import Programs

from . import slope as slopes

_SAMPLE_SECONDS = 2.0
_MOST_SILENT = 5
_LINE_SECONDS = 60.0
_GRACE_SECONDS = 40
# What a process may certainly have grown by, beyond which it fails: an allocator's steps and
# tables that fill up once.
_ALLOWED_BYTES = 1 << 19
_ALLOWED_PART = 0.01
# Caches, pools and threads come in the beginning.
_SETTLING_PART = 0.25
_SERVERS, _WORKERS = 2, 3

_JOB = """\
# Written by tools/soak: more epochs than anyone will wait for.
name: "soak"
seed: 1
model { name: "synthetic" elements: 65536 }
data { format: "synthetic" examples: 100000 }
training { epochs: 100000 batch_size: 10 workers: 3 }
update { rule: "dana_slim" momentum: 0.9 }
schedule { learning_rate: 0.001 }
compression { push: "one_bit" }
servers { shards: 2 segment_elements: 8192 }
durability { checkpoint_seconds: 30 }
"""

_DESCRIPTION = """\
Trains a small job with two servers and three workers for so long, and fits a line to the
memory of each process, and shows how many exchanges a second there were: memory must not
grow, and speed must not fall.
"""

_EPILOG = """\
The first quarter of the time is left out: caches and pools fill up in it. The line is drawn by
least squares through the means of 20 stretches; ± is half the 99 % confidence interval. A process
fails where its memory has certainly grown (slope less ±) by more than 512 KiB and 1 % of it.

Exit status: 0 flat, 1 a process grows or has ended, 2 bad arguments, 130 interrupted.
"""


def _minutes(text):
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0.1 <= value <= 1e5:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of minutes from 0.1 up")
    return value


def _parse(arguments):
    parser = Parser(prog="tools/soak", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--minutes", type=_minutes, default=30.0, metavar="M",
                        help="how long [30]")
    parser.add_argument("--job", metavar="FILE", help="another job, of as many servers and workers")
    parser.add_argument("--set", dest="overrides", metavar="FIELD=VALUE", action="append",
                        default=[], help="override a field of the job; may be repeated")
    parser.add_argument("--no-state", action="store_true",
                        help="without journal and checkpoints")
    parser.add_argument("--json", metavar="FILE", help="write every sample and the lines there")
    parser.add_programs("the programs")
    given = parser.parse_args(arguments)
    if given.job:
        check_job(given.job)
    check_programs(given.programs, PROGRAMS[1:])
    return given


def resident_bytes(pid):
    """Memory of a process; None: it has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("VmRSS:"):
                    return 1024 * int(line.split()[1])
    except OSError:
        pass
    return None


def grows(line):
    """Whether a slope is a growth that fails."""
    return line.growth > max(_ALLOWED_BYTES, _ALLOWED_PART * line.mean)


class _Soak:
    def __init__(self, given, folder, interrupt, lines):
        self._given, self._folder = given, folder
        self._interrupt, self._lines = interrupt, lines
        self._daemons = []
        self.memory = {}  # name: [(seconds, bytes)]
        self.exchanges = []  # (seconds, pushes so far)
        self._silent = 0  # times in a row that metrics did not come

    def _start(self, name, program, arguments):
        base = os.path.join(self._folder, name)
        daemon = daemons.start(
            name, [Programs(self._given.programs).path(program), *self._job, *arguments],
            f"{base}.log", ready_path=f"{base}.ready.json")
        self._daemons.append(daemon)
        self.memory[name] = []
        return daemon

    def run(self):
        """Samples until the time is over. Nothing runs any more when it returns or raises."""
        path = self._given.job
        if path is None:
            path = os.path.join(self._folder, "job.textproto")
            with open(path, "w", encoding="ascii") as file:
                file.write(_JOB)
        self._job = [f"--job={path}", *(f"--set={s}" for s in self._given.overrides)]
        try:
            self._train()
            daemons.end(self._daemons, _GRACE_SECONDS)
            for daemon in self._daemons:
                if not daemon.ended_as_told:
                    raise daemons.DaemonError(daemon.describe_end())
        finally:
            daemons.end(self._daemons, 0)

    def _train(self):
        servers = []
        for shard in range(_SERVERS):
            state = [] if self._given.no_state else [
                f"--state-directory={os.path.join(self._folder, f'shard-{shard}')}"]
            servers.append(self._start(
                f"server-{shard}", "foreshard-server",
                [f"--shard={shard}", "--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", *state]))
        daemons.await_ready(servers, 60, self._interrupt)
        ready = [server.ready()[0] for server in servers]
        addresses = ",".join(said["address"] for said in ready)
        self._metrics = [said["metrics_address"] for said in ready]
        workers = [self._start(f"worker-{i}", "foreshard-worker",
                               [f"--servers={addresses}", "--role=worker", f"--name=worker-{i}",
                                "--device=cpu"]) for i in range(_WORKERS)]
        daemons.await_ready(workers, 60, self._interrupt, servers)
        began = time.monotonic()
        next_line = _LINE_SECONDS
        while (at := time.monotonic() - began) < 60 * self._given.minutes:
            self._sample(at)
            if at >= next_line:
                next_line += _LINE_SECONDS
                self._lines.note(self._line(at))
            self._interrupt.sleep(_SAMPLE_SECONDS)

    def _sample(self, at):
        for daemon in self._daemons:
            memory = resident_bytes(daemon.process.pid) if daemon.running else None
            if memory is None:
                raise daemons.DaemonError(daemon.describe_end())
            self.memory[daemon.name].append((at, memory))
        pushes = 0
        for address in self._metrics:
            try:
                pushes += scrape.fetch(address).get("pushes_total", 0, result="applied")
            except OSError as error:
                # A busy machine may not come to answer in time.
                self._silent += 1
                if self._silent >= _MOST_SILENT:
                    raise daemons.DaemonError(f"no metrics from {address}, {_MOST_SILENT} times: {error}") from error
                return
        self._silent = 0
        self.exchanges.append((at, pushes))

    def rate(self, since, until):
        """Exchanges a second between two moments."""
        inside = [sample for sample in self.exchanges if since <= sample[0] <= until]
        if len(inside) < 2:
            return float("nan")
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

    def _line(self, at):
        memory = "  ".join(f"{name} {samples[-1][1] / 2**20:.1f}" for name, samples in self.memory.items())
        return f"{clock(at)}  {self.rate(at - _LINE_SECONDS, at):,.0f} exchanges/s  MiB: {memory}"

    def judge(self):
        """({name: Slope}, names of those that grow), of the settled part."""
        found, growing = {}, []
        for name, samples in self.memory.items():
            settled = [s for s in samples if s[0] >= _SETTLING_PART * samples[-1][0]]
            found[name] = slopes.slope(settled)
            if grows(found[name]):
                growing.append(name)
        return found, growing


def _report(soak, lines, path):
    found, growing = soak.judge()
    end = soak.exchanges[-1][0]
    half = (_SETTLING_PART * end + end) / 2
    first, second = soak.rate(_SETTLING_PART * end, half), soak.rate(half, end)
    for name, line in found.items():
        lines.note(f"{name:<10} {line.mean / 2**20:8.1f} MiB  {3600 * line.per_second / 1024:+9.1f} ± "
                   f"{3600 * line.uncertainty / 1024:.1f} KiB an hour"
                   f"{'  GROWS' if name in growing else ''}")
    lines.note(f"{soak.exchanges[-1][1]:,.0f} exchanges in {clock(end)}; {first:,.0f} a second in the first half of the "
               f"settled time, {second:,.0f} in the second ({100 * (second / first - 1):+.1f} %)")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"seconds": end, "growing": growing,
                       "slopes": {name: vars(line) for name, line in found.items()},
                       "rates": [first, second], "memory": soak.memory,
                       "exchanges": soak.exchanges}, file)
    return EXIT_FAILED if growing else EXIT_DONE


def main(command_line):
    """The exit status."""
    def say(text):
        print(f"soak: {text}", file=sys.stderr, flush=True)
    try:
        given = _parse(command_line)
    except BadArguments as error:
        say(f"{error}\n(tools/soak --help says more)")
        return EXIT_BAD
    lines = Lines()
    folder = tempfile.mkdtemp(prefix="foreshard-soak.")
    status = EXIT_FAILED
    try:
        with interrupts.Interrupt() as interrupt:
            soak = _Soak(given, folder, interrupt, lines)
            soak.run()
            status = _report(soak, lines, given.json)
    except interrupts.Interrupted as stop:
        say(f"interrupted ({stop})")
        status = EXIT_INTERRUPTED
    except (daemons.DaemonError, OSError, ValueError) as error:
        say(f"{error}; kept in {folder}")
        return EXIT_FAILED
    shutil.rmtree(folder, ignore_errors=True)
    return status
