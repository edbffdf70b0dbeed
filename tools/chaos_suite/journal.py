"""Reads a server's journal by the tables of server/README.md, and by nothing else: what the
daemons' own reader finds is compared with this.

    journal = read(paths)          # of one server, any order
    for event in journal.events: ...

Checksums are XXH3-64 as the system's libxxhash computes them.
"""

import ctypes
import ctypes.util
import os
import re
import struct
from dataclasses import dataclass, field

HEADER_BYTES = 88
MARK_BYTES = 32
_FIXED_BYTES = 80  # of an event, without its payload
_MAGIC = b"FSJRNL\r\n"
_NAME = re.compile(r"journal\.([0-9]{10})")
DEALER = 0xffffffff
BUFFERED, SYNCED = 1, 2

# Kinds of events (server/event.h).
INITIALISE, JOIN, PUSH, RESEND, READ, DISCARD, SKIP, EXPIRE, LEAVE, ROUND_CLOSED = range(1, 11)
LATE, ABSENT, VIEW_CHANGE = 15, 16, 17
(DEALER_JOIN, DEALER_FETCH, DEALER_COMPLETE, DEALER_LOST, DEALER_STOP,
 DEALER_SKIP_TO) = range(64, 70)


class Damage(Exception):
    """A file is not what the format says; `path` and `offset` say where."""

    def __init__(self, path, offset, why):
        super().__init__(f"{path}, offset {offset}: {why}")
        self.path, self.offset, self.why = path, offset, why


def _library():
    for name in ("libxxhash.so.0", ctypes.util.find_library("xxhash")):
        try:
            library = ctypes.CDLL(name) if name else None
        except OSError:
            continue
        if library is not None:
            library.XXH3_64bits.restype = ctypes.c_uint64
            library.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
            return library
    raise OSError("there is no libxxhash (Debian package libxxhash0)")


_xxhash = None


def checksum(data):
    """XXH3-64, seed 0."""
    global _xxhash
    if _xxhash is None:
        _xxhash = _library()
    return _xxhash.XXH3_64bits(data, len(data))


@dataclass(frozen=True)
class Event:
    """An event without its payload; `offset` is that of its record in its file."""
    kind: int
    codec: int
    segment: int
    worker: int
    incarnation: int
    sequence: int
    ticket: int
    held_version: int
    argument: int
    number: int
    payload_bytes: int
    offset: int
    bytes: int


@dataclass
class File:
    """One file of the journal."""
    path: str
    place: int
    mode: int
    shard: int
    shards: int
    incarnation: int
    first_number: int
    events: list = field(default_factory=list)
    # Highest "so many bytes were on the disk" of its marks.
    synced_bytes: int = 0
    closed: bool = False
    # Offset of bytes at its end that are no record, as a torn append leaves them; None: none.
    torn_at: int = None


@dataclass
class Journal:
    """All files of one server by their place. `holes`: (last number before, first after)."""
    files: list
    events: list
    holes: list


def place_of(path):
    """The number in a file's name; None: it is no journal file."""
    match = _NAME.fullmatch(os.path.basename(path))
    return int(match.group(1)) if match else None


def paths_in(folder):
    """The journal's files in a state directory, in their order."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [os.path.join(folder, name) for name in sorted(names) if _NAME.fullmatch(name)]


def missing_places(paths):
    """Numbers of files that the run had before the last of these and that are not among them."""
    places = {place_of(path) for path in paths}
    return sorted(set(range(1, max(places, default=0))) - places)


def _event_at(data, offset):
    """The event whose record begins there; None: none does."""
    if len(data) - offset < _FIXED_BYTES:
        return None
    (length, form, kind, codec, _, segment, worker, incarnation, sequence, ticket, held, argument,
     number, payload) = struct.unpack_from("<IBBBBIIQQQQQQQ", data, offset)
    end = offset + 4 + length
    if form != 1 or payload > len(data) or length != 76 + payload or end > len(data):
        return None
    if checksum(data[offset + 4:end - 8]) != struct.unpack_from("<Q", data, end - 8)[0]:
        return None
    return Event(kind, codec, segment, worker, incarnation, sequence, ticket, held, argument,
                 number, payload, offset, 4 + length)


def _mark_at(data, offset, place):
    """(closed, synced bytes) of a mark that begins there; None: none does."""
    if len(data) - offset < MARK_BYTES:
        return None
    length, flags, sequence, synced, check = struct.unpack_from("<IIQQQ", data, offset)
    if length != 28 or flags not in (1, 3) or sequence != place:
        return None
    return (flags == 3, synced) if checksum(data[offset + 4:offset + 24]) == check else None


def _something_follows(data, offset, place):
    """Whether a whole record or mark begins anywhere behind `offset`."""
    return any(_event_at(data, at) is not None or _mark_at(data, at, place) is not None
               for at in range(offset + 1, len(data) - MARK_BYTES + 1)
               # Cheap first: a mark's length, or the format behind an event's.
               if data[at] == 28 or (at + 4 < len(data) and data[at + 4] == 1))


def read_file(path):
    """One file; None where its header is not whole, as of a file that was just begun."""
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < HEADER_BYTES:
        return None
    (magic, form, mode, records, _, shard, shards, _, _, _, incarnation, place, first, zero,
     check) = struct.unpack_from("<8sHBBIIIQQQQQQQQ", data, 0)
    if magic != _MAGIC or checksum(data[:80]) != check:
        raise Damage(path, 0, "the header is damaged")
    if (form, records) != (1, 1) or mode not in (BUFFERED, SYNCED) or zero != 0:
        raise Damage(path, 8, f"format {form}, mode {mode}, records {records}")
    if place != place_of(path):
        raise Damage(path, 56, f"it says that it is file {place}")
    file = File(path, place, mode, shard, shards, incarnation, first)
    at = HEADER_BYTES
    while at < len(data):
        if file.closed:
            raise Damage(path, at, "something lies behind the mark that ends the file")
        if (event := _event_at(data, at)) is not None:
            expected = file.events[-1].number + 1 if file.events else first
            if event.number != expected:
                raise Damage(path, at, f"event {event.number} where {expected} belongs")
            file.events.append(event)
            at += event.bytes
        elif (mark := _mark_at(data, at, place)) is not None:
            file.closed, file.synced_bytes = mark[0], max(file.synced_bytes, mark[1])
            at += MARK_BYTES
        else:
            if file.synced_bytes > at or _something_follows(data, at, place):
                raise Damage(path, at, "no record, and something whole behind it")
            file.torn_at = at
            break
    return file


def read(paths, failed=False):
    """The journal that these files are; Damage. Only the last may be torn, or lack a header; with
    `failed`, of a server that went on where a write had failed, any may."""
    paths = sorted(paths, key=place_of)
    files, holes = [], []
    last = 0
    for k, path in enumerate(paths):
        file = read_file(path)
        if file is None:
            if k + 1 < len(paths) and not failed:
                raise Damage(path, 0, "the header of a file in the middle is not whole")
            continue
        if file.torn_at is not None and k + 1 < len(paths) and not failed:
            raise Damage(path, file.torn_at, "a torn end in the middle of the journal")
        if file.first_number <= last:
            raise Damage(path, 64, f"it begins with event {file.first_number}, and {last} was there")
        if file.first_number != last + 1:
            holes.append((last, file.first_number))
        last = file.events[-1].number if file.events else file.first_number - 1
        files.append(file)
    return Journal(files, [event for file in files for event in file.events], holes)


def half_a_record(file):
    """What a server that dies in the middle of an append leaves behind: the first half of a
    record that would follow the file's last one. `file`: as read."""
    if not file.events:
        return struct.pack("<IBBBB", 4096, 1, PUSH, 0, 0)
    last = file.events[-1]
    with open(file.path, "rb") as data:
        data.seek(last.offset)
        record = bytearray(data.read(last.bytes))
    struct.pack_into("<Q", record, 56, last.number + 1)
    return bytes(record[:len(record) // 2])
