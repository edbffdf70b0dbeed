"""The command line of tools/chaos."""

import argparse
import os
import re
import shlex
from dataclasses import dataclass

from local_fleet.command_line import BadArguments, Parser, check_job, check_programs, number, whole

from . import jobs, schedule

_DESCRIPTION = """\
Trains small jobs with real daemons on this machine while servers and workers are killed,
paused, cut off and started again, disks fill up and bits flip, by seeded schedules; and looks
after each whether anything acknowledged was lost, anything applied twice, or anything left
running.
"""

_EPILOG = """\
faults: {faults}
rules:  {rules}

Schedule k has the seed --seed + k; a seed gives the same schedule every time, though not the
same interleaving. Faults that need root (a full disk, cut links) are skipped without it, and
said to be. Each rule is trained undisturbed once, to compare with. One line a schedule, then a
summary; RESULTS/RUN/results.json has all of it. A schedule that fails keeps its folder with
schedule, logs, state and verdict, and the command that runs it again is printed.

Exit status: 0 all is well, 1 a schedule failed or could not be run, 2 bad arguments, 130
interrupted.
"""


@dataclass
class Settings:
    """As the command line gave it."""
    minutes: float  # None: no limit
    seed: int
    schedules: int  # None: as many as the minutes take
    variants: list
    faults: list
    training_seconds: float  # None: of a given job, as long as it takes undisturbed
    lease_seconds: float
    job: str
    overrides: list
    servers: int
    workers: int
    results: str
    programs: str
    keep: bool

    def command(self, schedule):
        """What runs exactly that schedule again."""
        words = ["tools/chaos", f"--seed={schedule.seed}", "--schedules=1",
                 f"--seconds={schedule.training_seconds!r}", f"--lease={self.lease_seconds:g}"]
        if self.job:
            words += [f"--job={self.job}", f"--servers={self.servers}", f"--workers={self.workers}"]
            words += [f"--set={override}" for override in self.overrides]
        else:
            words += [f"--rules={','.join(self.variants)}"]
        words += [f"--faults={','.join(self.faults)}", f"--programs={self.programs}"]
        return shlex.join(words)

    def given_job(self):
        """The job of --job."""
        with open(self.job, encoding="utf-8") as file:
            text = re.sub(r"#.*", "", file.read()) + "\n".join(self.overrides)
        synchronous = re.search(r"rule[:=]\s*\"?(ssgd|apmsqueeze)|synchronous[:=]\s*true", text)
        return jobs.Job(
            "job", self.job,
            [*self.overrides, f"servers.shards={self.servers}",
             f"training.workers={self.workers}", "training.max_workers=16",
             f"timeouts.lease_seconds={self.lease_seconds:g}",
             f"timeouts.connect_seconds={jobs.CONNECT_SECONDS}"],
            self.servers, self.workers, synchronous is not None, evaluates=True,
            bounded=re.search(r"staleness_bound|ramp_epochs|local_steps|easgd|eamsgd", text) is not None)


def _names(known, what):
    def convert(text):
        names = [name.strip() for name in text.split(",") if name.strip()]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is no {what}; choose of {', '.join(known)}")
        return names
    return convert


def parse(arguments):
    """Settings of a command line; BadArguments. --help prints and raises SystemExit."""
    variants = [v.name for v in jobs.VARIANTS]
    kinds = list(schedule.WEIGHTS)
    parser = Parser(prog="tools/chaos", description=_DESCRIPTION,
                    epilog=_EPILOG.format(faults=", ".join(kinds), rules=", ".join(variants)))
    parser.add_argument("--minutes", type=number(0, 1e5), metavar="M",
                        help="begin schedules for so long [10; without a limit with --schedules]")
    parser.add_argument("--seed", type=whole(0, 2**62), default=1, metavar="S",
                        help="the first schedule's [1]")
    parser.add_argument("--schedules", type=whole(1, 10**6), metavar="N",
                        help="at most so many schedules")
    parser.add_argument("--faults", type=_names(kinds, "fault"), default=kinds, metavar="LIST",
                        help="which faults, with commas; '' for none [all]")
    parser.add_argument("--rules", type=_names(variants, "rule"), default=variants, metavar="LIST",
                        help="which rules the quadratic is trained by, in turn [all]")
    parser.add_argument("--seconds", type=number(0.5, 3600), metavar="X",
                        help="how long training is taken to last, were nothing to happen [6; with "
                             "--job what it takes]")
    parser.add_argument("--lease", type=number(0.5, 3600), metavar="X",
                        help="seconds after which a silent worker's place is another's "
                             f"[{jobs.LEASE_SECONDS:g}; with --job {jobs.GIVEN_LEASE_SECONDS:g}]; "
                             "faults last as long as if it were that")
    parser.add_argument("--job", metavar="FILE",
                        help="train this job instead, with an evaluator, and compare accuracies")
    parser.add_argument("--set", dest="overrides", metavar="FIELD=VALUE", action="append",
                        default=[], help="override a field of --job; may be repeated")
    parser.add_argument("--servers", type=whole(1, 16), default=2, metavar="N",
                        help="servers of --job [2]")
    parser.add_argument("--workers", type=whole(1, 16), default=3, metavar="N",
                        help="workers of --job [3]")
    parser.add_argument("--results", metavar="DIR", default=os.path.join("results", "chaos"),
                        help="where a folder for this run is made [results/chaos]")
    parser.add_programs()
    parser.add_argument("--keep", action="store_true",
                        help="keep the folders of schedules that passed, too")
    given = parser.parse_args(arguments)
    if not given.rules:
        raise BadArguments("argument --rules: name at least one")
    if given.overrides and not given.job:
        raise BadArguments("argument --set: that is for --job")
    if given.job:
        check_job(given.job)
    check_programs(given.programs)
    minutes = given.minutes
    if minutes is None and given.schedules is None:
        minutes = 10.0
    return Settings(
        minutes=minutes, seed=given.seed, schedules=given.schedules, variants=given.rules,
        faults=given.faults, training_seconds=given.seconds or (None if given.job else 6.0),
        lease_seconds=given.lease or (jobs.GIVEN_LEASE_SECONDS if given.job else jobs.LEASE_SECONDS),
        job=os.path.abspath(given.job) if given.job else None, overrides=given.overrides,
        servers=given.servers, workers=given.workers, results=os.path.abspath(given.results),
        programs=os.path.abspath(given.programs), keep=given.keep)
