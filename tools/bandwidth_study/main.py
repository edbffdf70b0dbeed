"""tools/bandwidth-study from the command line to the exit status."""

import json
import sys

from local_fleet import interrupt as interrupts, network
from local_fleet.command_line import EXIT_BAD, EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_SKIPPED

from . import arguments, page, progress, quick, results, study


def _say(text):
    print(f"bandwidth-study: {text}", file=sys.stderr, flush=True)


def _write(done):
    document = results.document(done)
    done.folder.write("results.json", json.dumps(document, indent=1) + "\n")
    done.folder.write("report.html", page.html(document))


def _summary(document):
    """What was found, as lines for a terminal."""
    lines = []
    for entry in document["summary"]:
        for phase in entry["phases"]:
            name = entry["method"] + (f" phase {phase['phase']}" if phase["phase"] else "")
            speedup = phase.get("step_speedup")
            faster = f"  {speedup:6.2f} times faster" if speedup else ""
            lines.append(f"  {entry['rate']:>12}  {name:<22} "
                         f"{1000 * phase['step_seconds']:9.2f} ms a step{faster}")
    for goal in document["goals"]:
        measured = "not measured" if goal["measured"] is None else f"{goal['measured']:.2f}"
        limit = f", limit {goal['limit']:.1f}" if goal["limit"] is not None else ""
        verdict = {True: "met", False: "MISSED", None: "-"}[goal["met"]]
        note = f"; {goal['note']}" if goal["note"] else ""
        lines.append(f"  {verdict:<7} {goal['goal']}: {measured} "
                     f"(goal {goal['wanted']:g}{limit}{note})")
    return lines


def _run(settings, interrupt):
    with study.Folder(settings.results) as folder:
        if settings.quick:
            settings.job = quick.write_job(folder.file("quick"))
        display = progress.Display()
        whole = study.Study(settings, folder, interrupt, display, _write)
        whole.check()
        try:
            whole.run()
        finally:
            if whole.records:
                _write(whole)
        document = results.document(whole)
        print("\n".join(_summary(document)))
        print(f"results in {folder.file('results.json')}, {folder.file('report.html')}")
        return EXIT_FAILED if whole.failed else EXIT_DONE


def main(command_line):
    """The exit status."""
    try:
        settings = arguments.parse(command_line)
    except arguments.BadArguments as error:
        _say(f"{error}\n(tools/bandwidth-study --help says more)")
        return EXIT_BAD
    with interrupts.Interrupt() as interrupt:
        try:
            if (why := network.why_impossible()) is not None:
                _say(f"skipped: no network namespaces with rate limits can be made here: {why}")
                return EXIT_SKIPPED
            for name in network.remove_leftovers():
                _say(f"removed {name}, left behind by a study that was killed")
            if settings.clean:
                return EXIT_DONE
            return _run(settings, interrupt)
        except interrupts.Interrupted as stop:
            _say(f"interrupted ({stop}); what is done is kept, and the same command goes on there")
            return EXIT_INTERRUPTED
        except study.StudyError as error:
            _say(str(error))
            return error.status
        except (network.NetworkError, OSError) as error:
            _say(str(error))
            return EXIT_FAILED
        finally:
            network.remove_own()
