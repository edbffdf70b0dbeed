"""Programs that gpu-check runs: ended in time, and not left behind on the GPU."""

import json
import os
import signal
import subprocess
import threading

from local_fleet.die_with_parent import die_with_parent


def run_lines(command, seconds, log, text="", environment=None):
    """Status (None: time was up) and lines of stdout, of a child that does not outlive this; stderr
    goes to `log`, stdout beside it, both as they come. Its group is its own, to be ended with all that it
    started; where this is killed and can end nothing, the kernel ends the child."""
    parent = os.getpid()
    said = log[:-len(".log")] + ".out" if log.endswith(".log") else log + ".out"
    with open(log, "w", encoding="utf-8") as errors, open(said, "w", encoding="utf-8") as out:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=errors, text=True,
                                 env=environment, start_new_session=True, preexec_fn=lambda: die_with_parent(parent))
        late = threading.Event()

        def end():
            late.set()
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has just ended

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            child.communicate(text)
        finally:
            timer.cancel()
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    with open(said, encoding="utf-8", errors="replace") as out:
        return None if late.is_set() else child.returncode, out.read().splitlines()


def last_words(log):
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
    except OSError:
        lines = []
    return lines[-1][:300] if lines else "it said nothing"


def json_lines(lines):
    found = []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found
