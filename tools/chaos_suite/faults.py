"""What each kind of fault does. A fault is a generator: it yields seconds to wait or an
`Until`, and the run goes on with others meanwhile.

    fault = begin(fleet, schedule.faults[0], note)    # note(text): what there is to tell
    next(fault)
"""

import os
import random
import re
from dataclasses import dataclass
from typing import Callable

from . import checkpoints, journal as journals
from .fleet import READY_SECONDS, ScheduleFailure

_NOTICE_SECONDS = 20
_END_SECONDS = 45
# A write that was under way when a disk was freed has come to its end.
_END_OF_WRITES_SECONDS = 1.0
_NO_SPACE = "No space left on device"


@dataclass
class Until:
    """Wait until it is so; ScheduleFailure with `what` where it is not within so many seconds."""
    is_so: Callable
    seconds: float
    what: str


def targets(fleet, fault):
    """The processes that a fault touches, which no other may meanwhile."""
    if fault.target == "fleet":
        return set(fleet.servers) | set(fleet.workers)
    if fault.target == "servers":
        return set(fleet.servers)
    if fault.target == "workers":
        return set(fleet.workers)
    return {fault.target}


def _ready(fleet, name):
    return Until(lambda: fleet.is_ready(name), READY_SECONDS,
                 f"{name} is not up within {READY_SECONDS} s of its start")


def _again(fleet, names):
    """Starts them and waits for the servers among them."""
    for name in names:
        fleet.start(name)
    for name in names:
        if name in fleet.servers:
            yield _ready(fleet, name)


def _kill(fleet, fault, _):
    killed = [name for name in sorted(targets(fleet, fault)) if fleet.kill(name)]
    yield fault.seconds
    yield from _again(fleet, killed)


def _kill_twice(fleet, fault, note):
    yield from _dead(fleet, fault, note)
    fleet.start(fault.target)
    # From before main to beyond recovery.
    yield random.Random(fault.draw).choice((0.005, 0.05, 0.3)) * random.Random(fault.draw + 1).random()
    fleet.kill(fault.target)
    yield from _again(fleet, [fault.target])


def _stop(fleet, fault, _):
    if fleet.pause(fault.target):
        yield fault.seconds
        fleet.go_on(fault.target)


def _term(fleet, fault, _):
    if not fleet.ask_to_end(fault.target):
        return
    yield Until(lambda: fleet.has_ended(fault.target), _END_SECONDS,
                f"{fault.target} has not ended {_END_SECONDS} s after SIGTERM")
    yield fault.seconds
    yield from _again(fleet, [fault.target])


def _cut(fleet, fault, _):
    fleet.network.cut(fault.target)
    fleet.fall_silent(fault.target)
    try:
        yield fault.seconds
    finally:
        fleet.network.restore(fault.target)
        fleet.speak_again(fault.target)


def _dead(fleet, fault, _):
    """kill -9 and the time away."""
    if not fleet.kill(fault.target):
        raise ScheduleFailure(f"{fault.target} was not there to be killed")
    yield fault.seconds


def _torn_tail(fleet, fault, note):
    yield from _dead(fleet, fault, note)
    paths = journals.paths_in(fleet.state(fault.target))
    file = journals.read_file(paths[-1]) if paths else None
    if file is None or file.closed:
        note("there was no journal file to tear")
    else:
        with open(file.path, "ab") as end:
            end.write(journals.half_a_record(file))
    yield from _again(fleet, [fault.target])


def _flip(path, offset, bit):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))


def _refused(fleet, name, words):
    """Waits for the end of a start that must be refused with all these words."""
    def ended():
        if fleet.now(name).daemon.ready() is not None:
            raise ScheduleFailure(f"{name} started in spite of the damage; expected {words} in "
                                  f"{fleet.now(name).daemon.log_path}")
        return fleet.has_ended(name)
    fleet.may_end(name, {1, 2})
    yield Until(ended, _NOTICE_SECONDS, f"{name} neither starts nor refuses to")
    text = fleet.log_text(name)
    for word in words:
        if word not in text:
            raise ScheduleFailure(f"{name} was refused, but does not say '{word}': "
                                  f"{fleet.now(name).daemon.describe_end()}")


def _flip_journal(fleet, fault, note):
    yield from _dead(fleet, fault, note)
    place = _middle_of_the_journal(fleet, fault)
    if place is None:
        note("no record of the journal had anything behind it")
    else:
        path, event = place
        draw = random.Random(fault.draw + 1)
        # Not its length, which says where the next one is.
        offset, bit = event.offset + draw.randrange(4, event.bytes), draw.randrange(8)
        note(f"bit {bit} at offset {offset} of {os.path.basename(path)}, in event {event.number}")
        _flip(path, offset, bit)
        fleet.start(fault.target)
        yield from _refused(fleet, fault.target, [os.path.basename(path), str(event.offset)])
        _flip(path, offset, bit)
    yield from _again(fleet, [fault.target])


def _middle_of_the_journal(fleet, fault):
    """(path, event) that the next start must read, and that cannot be taken for a torn end."""
    needed = stood_alone = 0
    for folder in reversed(checkpoints.folders_in(fleet.state(fault.target))):
        try:
            manifest = checkpoints.check(folder)
            needed = manifest["journal_file"]
            # One without a journal needs nothing from before it.
            if needed == 0:
                stood_alone = max(state["number"] for state in manifest["states"])
            break
        except checkpoints.BadCheckpoint:
            continue
    found = []
    for path in journals.paths_in(fleet.state(fault.target)):
        file = journals.read_file(path)
        if file is None or file.place < needed or file.first_number <= stood_alone:
            continue
        events = file.events[:-1]
        if file.mode == journals.SYNCED:
            events = [e for e in file.events if e.offset + e.bytes <= file.synced_bytes]
        found += [(path, event) for event in events]
    return random.Random(fault.draw).choice(found) if found else None


def _flip_checkpoint(fleet, fault, note):
    yield from _dead(fleet, fault, note)
    folder = fleet.newest_checkpoint(fault.target)
    if folder is None:
        note("there was no checkpoint")
        yield from _again(fleet, [fault.target])
        return
    draw = random.Random(fault.draw)
    path = os.path.join(folder, draw.choice(sorted(os.listdir(folder))))
    offset, bit = draw.randrange(os.path.getsize(path)), draw.randrange(8)
    name = os.path.basename(folder)
    note(f"bit {bit} at offset {offset} of {name}/{os.path.basename(path)}")
    _flip(path, offset, bit)
    fleet.start(fault.target)
    fleet.may_end(fault.target, {1, 2})
    daemon = fleet.now(fault.target).daemon
    yield Until(lambda: daemon.ready() is not None or fleet.has_ended(fault.target),
                _NOTICE_SECONDS, f"{fault.target} neither starts nor refuses to")
    if name not in fleet.log_text(fault.target):
        raise ScheduleFailure(f"a flipped bit in {path} was not noticed: "
                              f"{fleet.now(fault.target).daemon.log_path} does not name it")
    # So that it is good for what comes later, had it been kept.
    if os.path.exists(path):
        _flip(path, offset, bit)
    if daemon.ready() is not None:
        fleet.may_end(fault.target, ())
        yield _ready(fleet, fault.target)
        note("an older checkpoint was taken")
    else:
        note("refused")
        yield from _again(fleet, [fault.target])


def _disk_full(fleet, fault, note):
    disk = fleet.disks[fault.target]
    stops = fleet.schedule.on_failure == "stop"
    if stops:
        fleet.may_end(fault.target, {1})

    def noticed():
        return (fleet.has_ended(fault.target) if stops
                else _NO_SPACE in fleet.log_text(fault.target))

    def noticed_or_over():
        disk.fill()
        return noticed() or fleet.trained()

    disk.fill()
    try:
        yield Until(noticed_or_over, _NOTICE_SECONDS + fleet.schedule.checkpoint_seconds,
                    f"{fault.target} does not notice that its disk is full")
        if not noticed():
            disk.free()
            yield _END_OF_WRITES_SECONDS
        if not noticed():
            note("the job was over before there was anything to write")
            fleet.may_end(fault.target, ())
            return
        if _NO_SPACE not in fleet.log_text(fault.target):
            raise ScheduleFailure(f"{fault.target} does not say '{_NO_SPACE}': "
                                  f"{fleet.now(fault.target).daemon.describe_end()}")
        yield fault.seconds
    finally:
        disk.free()
    if stops:
        yield from _again(fleet, [fault.target])
        return
    fleet.unjournaled.add(fleet.servers.index(fault.target))
    note("went on without a journal")
    # SIGTERM writes a checkpoint that stands alone, with status 0, and the next start has a
    # journal again.
    fleet.ask_to_end(fault.target)
    yield Until(lambda: fleet.has_ended(fault.target), _END_SECONDS,
                f"{fault.target} has not ended {_END_SECONDS} s after SIGTERM")
    yield fault.seconds
    yield from _again(fleet, [fault.target])


_ACTIONS = {
    "server-kill": _kill, "servers-kill": _kill, "fleet-kill": _kill, "worker-kill": _kill,
    "workers-kill": _kill, "evaluator-kill": _kill, "server-kill-twice": _kill_twice,
    "server-stop-short": _stop, "server-stop-long": _stop, "worker-stop-short": _stop,
    "worker-stop-long": _stop, "server-term": _term, "worker-term": _term,
    "link-cut-short": _cut, "link-cut-long": _cut, "disk-full": _disk_full,
    "torn-tail": _torn_tail, "flip-checkpoint": _flip_checkpoint, "flip-journal": _flip_journal,
}


def begin(fleet, fault, note):
    """The fault's generator, not yet advanced."""
    return _ACTIONS[fault.kind](fleet, fault, note)


def waited_for(fleet, server, text):
    """Whether a worker's log tells that it waits for that server."""
    address = re.escape(fleet.addresses[server])
    return re.search(rf"waiting for server {server} at {address}", text) is not None
