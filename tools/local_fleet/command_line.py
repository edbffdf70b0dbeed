"""What the command lines of tools that start real daemons have in common."""

import argparse
import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
PROGRAMS = ("foreshard", "foreshard-server", "foreshard-worker")

# Statuses that they end with.
EXIT_DONE, EXIT_FAILED, EXIT_BAD, EXIT_SKIPPED, EXIT_INTERRUPTED = 0, 1, 2, 77, 130


class BadArguments(Exception):
    """Said to the user, with status 2."""


class Parser(argparse.ArgumentParser):
    """Raises BadArguments where argparse would end the process."""

    def __init__(self, **options):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
                         **options)

    def error(self, message):
        raise BadArguments(message)

    def add_programs(self, what="the three programs"):
        """--programs, whose value check_programs looks at."""
        self.add_argument("--programs", metavar="DIR",
                          default=os.path.join(ROOT, "build-release", "bin"),
                          help=f"folder of {what} [build-release/bin]")


def whole(low, high):
    """A type of argument: a whole number from low to high."""
    def convert(text):
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"'{text}' is no whole number from {low} to {high}")
        return value
    return convert


def number(low, high):
    """A type of argument: a number above low and at most high."""
    def convert(text):
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low < value <= high:
            raise argparse.ArgumentTypeError(f"'{text}' is no number above {low:g} and at most {high:g}")
        return value
    return convert


def check_programs(folder, names=PROGRAMS):
    """BadArguments names the first program that is not there."""
    for name in names:
        path = os.path.join(folder, name)
        if not os.access(path, os.X_OK):
            raise BadArguments(f"argument --programs: there is no program {path}; build it: "
                               f"tools/build release {' '.join(PROGRAMS)}")


def check_job(path):
    """BadArguments where --job names no file."""
    if not os.path.isfile(path):
        raise BadArguments(f"argument --job: there is no file {path}")
