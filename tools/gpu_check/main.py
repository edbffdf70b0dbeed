"""The command line of tools/gpu-check."""

import json
import os
import signal
import sys
import time

from local_fleet.command_line import BadArguments, Parser, number, whole

from . import archive, bundle, results
from .machine import Machine
from .parts import Check, NotDone, TimedOut
from .table import Table

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

EXIT_DONE, EXIT_FAILED, EXIT_BAD, EXIT_NO_GPU, EXIT_LEFT, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 130

_ABOUT = """Tests the GPU parts and measures them, on a machine that has nvcc, CMake and Python, with
PyTorch to compare with: builds kernels, layers and models (no gRPC, no network), runs all GPU tests,
also under compute-sanitizer, then each kernel against a copy's bandwidth, and layers and models
against PyTorch eager and torch.compile. What is done is kept in the results folder: run again, it
goes on with what was never begun, then with what failed, was cut off or not possible. Where the environment
variable OUT names a folder, gpu-check.tgz there has, after each part, the results folder without the build."""
_END = """exit status: 0 all done, 1 something failed, 2 bad arguments, 3 no GPU: built, nothing more, 4 the time
was up (run again), or there is no PyTorch with CUDA to compare with, 130 interrupted (what is done is kept).
Files: table.md, results.json, parts/ (a record and a log each)."""


def parse(arguments):
    parser = Parser(prog="tools/gpu-check", description=_ABOUT, epilog=_END)
    parser.add_argument("--results", metavar="DIR", default="results-gpu-check",
                        help="folder of results and build [results-gpu-check]")
    parser.add_argument("--minutes", type=number(0, 600), default=9,
                        help="time for this run, from its start; parts that do not fit or are not through by then "
                             "are left for the next [9]")
    parser.add_argument("--resume-from", metavar="FILE.tgz",
                        help="unpack a run's gpu-check.tgz into the results folder before, over what is there")
    parser.add_argument("--only", metavar="PART", action="append", default=[],
                        help="these parts alone, as 'kernels' or 'models'; again for more")
    parser.add_argument("--again", action="store_true", help="also the parts that are done")
    parser.add_argument("--jobs", type=whole(1, 1024), default=os.cpu_count() or 1,
                        help="compilers at one time [all cores]")
    parser.add_argument("--architecture", type=whole(50, 999), metavar="N",
                        help="compile for it, as 90: with `--only build` on a machine without a GPU, whose "
                             "results folder then goes to the one that has it [this GPU's]")
    parser.add_argument("--python", metavar="PROGRAM", default=sys.executable,
                        help="the Python that has PyTorch [this one]")
    parser.add_argument("--libraries", metavar="DIR",
                        help="a bundle's libraries [those beside the tree, else the system's]")
    parser.add_argument("--bundle", metavar="FILE.tar",
                        help="instead: pack the tree and the libraries it needs, for a machine without them")
    return parser.parse_args(arguments)


def say(text):
    print(text, flush=True)


class Run:
    """One run over the parts, until `end` of the monotonic clock."""

    def __init__(self, settings, machine, check, kept, end):
        self.settings, self.machine, self.check, self.results, self.end = settings, machine, check, kept, end
        self.parts = check.parts()
        self.records = {part.name: record for part in self.parts if (record := kept.read(part.name))}
        self.begun = []  # names, in the order in which they were
        self.short = False  # of time for something

    def wanted(self, part):
        only = self.settings.only
        return not only or part.name == "build" or any(part.name == name or part.name.startswith(name + "/") for name in only)

    def all(self):
        for name in self.settings.only:
            if not any(p.name == name or p.name.startswith(name + "/") for p in self.parts):
                raise BadArguments(f"argument --only: there is no part '{name}': {', '.join(p.name for p in self.parts)}")
        for part in self.in_order():
            record = self.records.get(part.name)
            done = record and record["status"] == results.DONE
            if self.wanted(part) and not (done and not self.settings.again and self.stands(part, record)):
                self.one(part, record)
            elif done:
                say(f"{part.name}: done before, {record['date']}")
            if part.name == "build" and not self.built():
                return
        for part in self.parts:
            if self.overtaken(part):
                self.one(part, self.records[part.name])

    def in_order(self):
        """The build, then what was never begun: what failed or was cut off before may do so again, and
        take its time."""
        return sorted(self.parts, key=lambda part: part.name != "build" and (1 + results.begun(self.records.get(part.name))))

    def built(self):
        record = self.records.get("build")
        programs = os.path.join(self.check.build_folder, "kernels_gpu_tests")
        return record is not None and record["status"] == results.DONE and os.access(programs, os.X_OK)

    def stands(self, part, record):
        """What was built may have been cleared away since, or be another's under an unpacked record; and
        there may be more to compare by now."""
        if part.name == "build":
            return self.built() and self.check.built() is not None
        return not self.check.lacks(part, record)

    def overtaken(self, part):
        """Whether something that it compares was begun only behind it, and has given figures."""
        behind = self.begun[self.begun.index(part.name) + 1:] if part.name in self.begun else []
        return any(name in behind for name in part.reads) and self.check.lacks(part, self.records[part.name])

    def one(self, part, before):
        """Does it, or leaves it where there is no time, and says so."""
        begin = time.monotonic()
        left, seconds = self.end - begin, 0
        status, words, data = results.LEFT, "the time was up; run again", None
        if left >= max(part.least_seconds, 1):
            self.begun.append(part.name)
            status, words, data = self.outcome(part, left)
            seconds = max(0.1, time.monotonic() - begin)
        self.short = self.short or status == results.LEFT
        record = self.records[part.name] = self.results.write(part.name, status, seconds, data, words)
        if record == before:
            say(f"{part.name}: the time was up; {record['status']} before, {record['date']}")
        else:
            say(f"{part.name}: {record['status']}{': ' + record['words'] if record['words'] else ''} "
                f"({record['seconds']:.0f} s)")
        if seconds:
            self.keep()  # there even if this is ended from outside

    @staticmethod
    def outcome(part, left):
        try:
            return results.DONE, "", part.run(min(part.most_seconds, left))
        except NotDone as why:
            if isinstance(why, TimedOut) and left < part.most_seconds:
                return results.LEFT, f"the time was up, run again: {why}", why.data
            return why.status, str(why), why.data

    def keep(self):
        """Writes the table and all records; gives the title, the table and where the records are."""
        self.records = {part.name: self.records[part.name] for part in self.parts if part.name in self.records}
        gpu = self.machine.gpu
        date = time.strftime("%Y-%m-%d", time.gmtime())
        about = f"{gpu['name']}, driver {gpu['driver']}" if gpu else self.machine.no_gpu
        torch = self.machine.torch
        title = (f"GPU check, {date}: {about}; CUDA {self.machine.toolkit}; "
                 f"PyTorch {torch['version'] if torch else 'none'}")
        table = Table(self.records)
        self.results.write_file("table.md", table.markdown(title))
        path = self.results.write_file("results.json", json.dumps(
            {"format": results.FORMAT, "title": title, "machine": self.machine.facts(),
             "identity": self.results.identity, "parts": self.records}, indent=1))
        self.pack()
        return title, table, path

    def pack(self):
        """For whoever brings back one file from a machine that may be gone before the end."""
        folder = os.environ.get("OUT", "")
        if os.path.isdir(folder):
            try:
                archive.write(self.results.folder, os.path.join(folder, archive.NAME))
            except OSError as error:  # the results folder has it all
                print(f"tools/gpu-check: {archive.NAME}: {error}", file=sys.stderr)

    def report(self):
        title, table, path = self.keep()
        say("\n" + title + "\n\n" + table.text())
        for note in table.notes():
            say(note)
        if self.uncompared():
            say(f"nothing was compared with PyTorch: {self.machine.no_cuda_in_torch()}")
        say(f"\n{path}")

    def uncompared(self):
        """Whether figures were to be compared with PyTorch's, and there is none for this GPU."""
        return (self.machine.gpu is not None and self.machine.no_cuda_in_torch() is not None
                and any(part.reads and self.wanted(part) for part in self.parts))

    def status(self):
        states = {record["status"] for record in self.records.values()}
        if results.FAILED in states:
            return EXIT_FAILED
        if results.LEFT in states or self.short:
            return EXIT_LEFT
        if self.machine.gpu is None:
            return EXIT_NO_GPU
        return EXIT_LEFT if self.uncompared() else EXIT_DONE


def resume(path, folder):
    try:
        archive.unpack(path, folder)
    except archive.NoArchive as why:
        raise BadArguments(f"argument --resume-from: {path} is no archive of gpu-check's: {why}") from why


def check(settings, begin):
    if settings.resume_from:
        resume(settings.resume_from, os.path.abspath(settings.results))
    machine = Machine(settings.python)
    libraries = settings.libraries
    if libraries is None and os.path.isdir(os.path.join(ROOT, bundle.LIBRARIES)):
        libraries = os.path.join(ROOT, bundle.LIBRARIES)
    if libraries is not None and not os.path.isdir(os.path.join(libraries, "lib")):
        raise BadArguments(f"argument --libraries: there is no folder {libraries}/lib")
    identity = {"tree": results.tree_checksum(ROOT), "gpu": machine.gpu and machine.gpu["name"],
                "pytorch": machine.torch and machine.torch["version"]}
    kept = results.Results(os.path.abspath(settings.results), identity)
    say(f"{machine.gpu['name'] if machine.gpu else machine.no_gpu}; "
        f"CUDA {machine.toolkit or 'none'}; "
        f"{'PyTorch ' + machine.torch['version'] if machine.torch else machine.no_torch}; "
        f"libraries: {libraries or 'the system' + chr(39) + 's'}")
    architecture = str(settings.architecture) if settings.architecture else None
    run = Run(settings, machine, Check(ROOT, machine, kept, libraries and os.path.abspath(libraries),
                                       settings.jobs, architecture), kept, begin + 60 * settings.minutes)
    if settings.resume_from:
        say(f"{settings.resume_from}: {len(run.records)} parts of this tree, GPU and PyTorch")
    run.all()
    run.report()
    return run.status()


def main(arguments):
    begin = time.monotonic()  # looking at the machine takes a while, and counts
    try:
        settings = parse(arguments)
        # A limit from outside: children end, and what is done is in the table.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if settings.bundle:
            say(bundle.write(ROOT, os.path.abspath(settings.bundle)))
            return EXIT_DONE
        return check(settings, begin)
    except KeyboardInterrupt:
        print("tools/gpu-check: interrupted; run again, it goes on where it was", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (BadArguments, bundle.CannotBundle) as error:
        print(f"tools/gpu-check: {error}", file=sys.stderr)
        return EXIT_BAD if isinstance(error, BadArguments) else EXIT_FAILED
    except OSError as error:
        print(f"tools/gpu-check: {error}", file=sys.stderr)
        return EXIT_FAILED
