"""How long the end of a server may take before it forces it itself: as server/main.cc has it."""

import re

import found_tools

_MAIN = found_tools.SOURCE / "server/main.cc"
# From SIGTERM until the process is really gone.
MARGIN_SECONDS = 10


def stop_seconds(state):
    """With a state directory (`state`) a last checkpoint is written."""
    constant = "kCheckpointBound" if state else "kShutdownBound"
    found = re.findall(rf"\b{constant}\{{(\d+)\}}", _MAIN.read_text())
    if len(found) != 1:
        raise AssertionError(f"server/main.cc: {constant} is not what it was: change this test")
    return int(found[0])
