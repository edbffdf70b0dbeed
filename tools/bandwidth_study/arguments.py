"""The command line."""

import argparse
import os
from dataclasses import dataclass

from local_fleet.command_line import (ROOT, BadArguments, Parser, check_job, check_programs,
                                      number, whole)

from . import methods as method_table, quick, rates as rate_arithmetic

_MOST_NODES = 64

_DESCRIPTION = """\
Compares methods of training on networks of limited rates: servers and workers run in
network namespaces of this machine, joined by links with a rate limit in each direction.
Needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN), ip and tc; removes whatever it made, also
after a signal or a failure, and what an earlier study that was killed has left behind.

Each method first runs without limits; then at each rate. `--rates auto` takes the rate at
which full precision would spend 96 % of a step on the wire, by what its run without limits
measured, and ten times that rate.
"""

_EPILOG = """\
The first method is full precision, which the others are measured against. Results:
DIR/results.json and DIR/report.html (fields: tools/README.md), written after each run.
DIR/runs/ keeps finished runs, which are not made again: a study that was interrupted goes
on, and one that gets another rate, seed or method runs only that.

Exit status: 0 done, 1 a run failed or the folder is in use, 2 bad arguments or a method
that the programs refuse, 77 no network namespaces can be made here, 130 interrupted.
"""


@dataclass
class Settings:
    """A study as the command line gave it."""
    job: str
    overrides: list
    servers: int
    workers: int
    methods: list
    rates: object  # "auto" or bit/s, fastest first
    seeds: list
    accuracy_seeds: list
    target_loss: float
    target_accuracy: float
    results: str
    programs: str
    quick: bool
    clean: bool


def _checked(parse):
    """argparse hides the words of a ValueError."""
    def convert(text):
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    return convert


def _seeds(text):
    seeds = [whole(0, 2**63 - 1)(part.strip()) for part in text.split(",")]
    if len(set(seeds)) != len(seeds):
        raise argparse.ArgumentTypeError(f"'{text}' names a seed twice")
    return seeds


def _override(text):
    name, equals, _ = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"'{text}' is not FIELD=VALUE")
    for field, flag in (("seed", "--seeds"), ("servers.shards", "--servers"),
                        ("training.workers", "--workers")):
        if name.strip() == field:
            raise argparse.ArgumentTypeError(f"'{text}': that is {flag} here")
    return text


def parse(arguments):
    """Settings of a command line; BadArguments. --help prints and raises SystemExit."""
    parser = Parser(prog="tools/bandwidth-study", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--job", metavar="FILE",
                        help="the job under all methods [deploy/jobs/bandwidth_study.textproto]")
    parser.add_argument("--set", dest="overrides", metavar="FIELD=VALUE", action="append",
                        default=[], type=_override,
                        help="override a field of the job for all methods; may be repeated")
    parser.add_argument("--servers", type=whole(1, _MOST_NODES), default=1,
                        metavar="N", help="servers, one a shard [1]")
    parser.add_argument("--workers", type=whole(1, _MOST_NODES), default=2,
                        metavar="N", help="workers [2]; each computes with one core")
    parser.add_argument("--methods", metavar="NAME,...",
                        help="which methods, the reference first; of "
                             f"{', '.join(m.name for m in method_table.METHODS)} and those of "
                             "--method [all]")
    parser.add_argument("--method", dest="extra", metavar="'NAME: FIELD=VALUE ...'",
                        action="append", default=[], type=_checked(method_table.parse_method),
                        help="a further method, by what it overrides in the job; may be repeated")
    parser.add_argument("--rates", metavar="RATE,...",
                        type=_checked(rate_arithmetic.parse_rates),
                        help="rate of every link in each direction, as in 10mbit,1gbit, or auto "
                             f"[auto; with --quick {quick.RATES}]")
    parser.add_argument("--seeds", metavar="N,...", type=_seeds, default=[1],
                        help="a run for each at every rate [1]")
    parser.add_argument("--accuracy-seeds", metavar="N,...", type=_seeds, default=[],
                        help="further seeds for runs without limits, whose accuracies are "
                             "compared in pairs [none]; a rate changes no accuracy in rounds")
    parser.add_argument("--target-loss", type=number(0, 1e9), metavar="X",
                        help="time runs to this training loss [1.1 times the reference's at "
                             "its end]")
    parser.add_argument("--target-accuracy", type=number(0, 1), metavar="X",
                        help="time runs to this test accuracy, as in 0.9 [the reference's "
                             "less 0.01]")
    parser.add_argument("--results", metavar="DIR",
                        help="folder of the results [results/bandwidth; with --quick "
                             "results/bandwidth-quick]")
    parser.add_programs("foreshard, foreshard-server and foreshard-worker")
    parser.add_argument("--quick", action="store_true",
                        help="a tiny job on made-up data at two rates, in less than a minute: a "
                             "trial of the study itself, not of the methods")
    parser.add_argument("--clean", action="store_true",
                        help="only remove what studies that were killed have left behind")
    given = parser.parse_args(arguments)

    if given.quick and given.job:
        raise BadArguments("--quick has a job of its own; leave out --job")
    names = [name.strip() for name in given.methods.split(",")] if given.methods else None
    try:
        methods = method_table.choose(names, given.extra)
    except ValueError as error:
        raise BadArguments(f"argument --methods: {error}") from error
    job = given.job or os.path.join(ROOT, "deploy", "jobs", "bandwidth_study.textproto")
    if not given.quick:
        check_job(job)
    if not given.clean:
        check_programs(given.programs)
    rates = given.rates
    if rates is None:
        rates = rate_arithmetic.parse_rates(quick.RATES) if given.quick else "auto"
    results = given.results or os.path.join(
        "results", "bandwidth-quick" if given.quick else "bandwidth")
    return Settings(
        job=job, overrides=given.overrides, servers=given.servers, workers=given.workers,
        methods=methods, rates=rates, seeds=given.seeds, accuracy_seeds=given.accuracy_seeds,
        target_loss=given.target_loss, target_accuracy=given.target_accuracy, results=results,
        programs=os.path.abspath(given.programs), quick=given.quick, clean=given.clean)
