#!/usr/bin/python3
"""The parts of tools/chaos and tools/soak that need no daemons: the readers of journals and
checkpoints, schedules, what is found in planted violations, slopes."""

import dataclasses
import io
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))

from chaos_suite import (arguments, checkpoints, compare, faults, fleet, invariants, jobs, journal, run,
                         schedule, slope, soak)
from local_fleet import daemons, network
from local_fleet.command_line import PROGRAMS
from local_fleet.lines import Lines


def record(number, kind=journal.PUSH, segment=0, worker=0, incarnation=100, sequence=1, ticket=0,
           argument=0, payload=b"12345678"):
    """An event's record by the table in server/README.md."""
    body = struct.pack("<BBBBIIQQQQQQQ", 1, kind, 0, 0, segment, worker, incarnation, sequence,
                       ticket, 0, argument, number, len(payload)) + payload
    return (struct.pack("<I", len(body) + 8) + body +
            struct.pack("<Q", journal.checksum(body)))


def mark(place, synced, closed=False):
    body = struct.pack("<IQQ", 3 if closed else 1, place, synced)
    return struct.pack("<I", 28) + body + struct.pack("<Q", journal.checksum(body))


def header(place, first, mode=journal.BUFFERED):
    head = struct.pack("<8sHBBIIIQQQQQQQ", b"FSJRNL\r\n", 1, mode, 1, 1, 0, 2, 1, 2, 3, 55, place,
                       first, 0)
    return head + struct.pack("<Q", journal.checksum(head))


class Files(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name

    def write(self, place, data):
        path = os.path.join(self.folder, f"journal.{place:010d}")
        with open(path, "wb") as file:
            file.write(data)
        return path

    def read(self):
        return journal.read(journal.paths_in(self.folder))


class Journals(Files):
    def test_the_checksum_is_xxh3(self):
        # The published value of XXH3-64 of no bytes, seed 0.
        self.assertEqual(journal.checksum(b""), 0x2D06800538D394C2)

    def test_files_are_read_in_their_order(self):
        self.write(2, header(2, 3) + record(3, kind=journal.SKIP, worker=7, sequence=9, ticket=40))
        self.write(1, header(1, 1) + record(1) + record(2, segment=5, payload=b"") +
                   mark(1, 0, closed=True))
        self.write(10, header(10, 4))
        open(os.path.join(self.folder, "journal.1"), "w", encoding="ascii").close()
        read = self.read()
        self.assertEqual([event.number for event in read.events], [1, 2, 3])
        self.assertEqual([file.closed for file in read.files], [True, False, False])
        last = read.events[-1]
        self.assertEqual((last.kind, last.worker, last.sequence, last.ticket, last.offset),
                         (journal.SKIP, 7, 9, 40, 88))
        self.assertEqual(read.events[1].segment, 5)
        self.assertEqual((read.holes, read.files[0].shards), ([], 2))

    def test_a_torn_end_is_told_at_every_byte(self):
        whole = header(1, 1) + record(1)
        second = record(2)
        for length in range(len(second)):
            self.write(1, whole + second[:length])
            file = self.read().files[0]
            self.assertEqual(len(file.events), 1)
            self.assertEqual(file.torn_at, len(whole) if length else None)

    def test_files_that_are_gone_are_told(self):
        def named(places):
            return [f"/state/journal.{place:010}" for place in places]
        self.assertEqual(journal.missing_places(named((3, 1, 2))), [])
        self.assertEqual(journal.missing_places(named((6, 2, 5))), [1, 3, 4])
        self.assertEqual(journal.missing_places([]), [])

    def test_half_a_record_is_a_torn_end(self):
        path = self.write(1, header(1, 1) + record(1) + record(2, payload=bytes(5000)))
        file = journal.read_file(path)
        with open(path, "ab") as end:
            end.write(journal.half_a_record(file))
        self.assertEqual(self.read().files[0].torn_at, 88 + 2 * 80 + 8 + 5000)
        path = self.write(1, header(1, 1))
        with open(path, "ab") as end:
            end.write(journal.half_a_record(journal.read_file(path)))
        self.assertEqual(self.read().files[0].torn_at, 88)

    def test_damage_names_file_and_offset(self):
        first, second = record(1), record(2)
        data = header(1, 1) + first + second
        for at in (*range(88, 88 + len(first)),):
            flipped = bytearray(data)
            flipped[at] ^= 4
            path = self.write(1, bytes(flipped))
            with self.assertRaises(journal.Damage, msg=at) as caught:
                self.read()
            self.assertEqual((caught.exception.path, caught.exception.offset), (path, 88), at)
        # The last record's own bits look like a torn end.
        flipped = bytearray(data)
        flipped[-1] ^= 1
        self.write(1, bytes(flipped))
        self.assertEqual(self.read().files[0].torn_at, 88 + len(first))
        # Not where a mark says that they were on the disk.
        self.write(1, bytes(flipped) + mark(1, len(data)))
        with self.assertRaisesRegex(journal.Damage, f"offset {88 + len(first)}"):
            self.read()

    def test_wrong_files_are_refused(self):
        for data, words in ((b"x" * 88, "header is damaged"),
                            (header(2, 1), "it is file 2"),
                            (header(1, 5) + record(6), "event 6 where 5 belongs"),
                            (header(1, 1) + record(1) + record(1), "event 1 where 2 belongs"),
                            (header(1, 1) + mark(1, 88, True) + record(1), "behind the mark")):
            self.write(1, data)
            with self.assertRaisesRegex(journal.Damage, words):
                self.read()

    def test_between_files(self):
        self.write(1, header(1, 1) + record(1) + record(2)[:20])
        self.write(2, header(2, 2))
        with self.assertRaisesRegex(journal.Damage, "torn end in the middle"):
            self.read()
        self.write(1, header(1, 1) + record(1) + record(2))
        with self.assertRaisesRegex(journal.Damage, "begins with event 2, and 2 was there"):
            self.read()
        self.write(2, header(2, 7) + record(7))
        self.assertEqual(self.read().holes, [(2, 7)])
        # A file that was just begun may be the last one only.
        self.write(3, header(3, 8)[:50])
        self.assertEqual(len(self.read().files), 2)
        self.write(4, header(4, 8))
        with self.assertRaisesRegex(journal.Damage, "middle is not whole"):
            self.read()


class Checkpoints(Files):
    def make(self, shard, shards, values, number=12):
        folder = os.path.join(self.folder, f"shard-{shard}", f"checkpoint.{number:010d}")
        os.makedirs(folder)
        name = f"parameters-{shard + 1:05d}-of-{shards:05d}.safetensors"
        half = len(values) // 2
        head = json.dumps({"__metadata__": {"format": "pt"},
                           # Not in the order in which they lie.
                           "b": {"dtype": "F32", "shape": [len(values) - half],
                                 "data_offsets": [4 * half, 4 * len(values)]},
                           "a[0:3]": {"dtype": "F32", "shape": [half],
                                      "data_offsets": [0, 4 * half]}}).encode()
        data = struct.pack("<Q", len(head)) + head + struct.pack(f"<{len(values)}f", *values)
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)
        text = json.dumps({"checkpoint": number, "shard": shard, "shards": shards,
                           "journal_file": 3, "states": [{"segment": "dealer", "number": 40}],
                           "files": [{"name": name, "bytes": len(data),
                                      "xxh3": f"{journal.checksum(data):016x}"}]})[:-1]
        with open(os.path.join(folder, "manifest.json"), "w", encoding="ascii") as file:
            file.write(f'{text},\n "xxh3": "{journal.checksum(text.encode()):016x}"\n}}\n')
        return folder

    def test_parameters_of_all_shards_in_their_order(self):
        self.make(0, 2, [9.0, 9.0, 9.0, 9.0], number=11)
        self.make(0, 2, [1.0, 2.0, 3.0, 4.5])
        self.make(1, 2, [5.0, 6.0])
        os.makedirs(os.path.join(self.folder, "shard-1", "checkpoint.0000000013.part"))
        directories = [os.path.join(self.folder, f"shard-{k}") for k in (0, 1)]
        values, manifests = checkpoints.newest_parameters(directories)
        self.assertEqual(list(values), [1, 2, 3, 4.5, 5, 6])
        self.assertEqual([m["checkpoint"] for m in manifests], [12, 12])

    def test_every_flipped_bit_is_found(self):
        folder = self.make(0, 1, [1.0, 2.0])
        checkpoints.check(folder)
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                data = file.read()
            # What lies behind a manifest's checksum is white space.
            end = len(data) - (4 if name == "manifest.json" else 0)
            for at in range(0, end, 3):
                flipped = bytearray(data)
                flipped[at] ^= 1
                with open(path, "wb") as file:
                    file.write(flipped)
                with self.assertRaises(checkpoints.BadCheckpoint, msg=(name, at)):
                    checkpoints.check(folder)
            with open(path, "wb") as file:
                file.write(data)

    def test_what_is_not_there_is_named(self):
        with self.assertRaisesRegex(checkpoints.BadCheckpoint, "shard-0: there is no checkpoint"):
            checkpoints.newest_parameters([os.path.join(self.folder, "shard-0")])


class Schedules(unittest.TestCase):
    def test_a_seed_gives_the_same_schedule(self):
        for seed in range(50):
            self.assertEqual(schedule.generate(seed), schedule.generate(seed))
        self.assertEqual(len({schedule.generate(seed).to_json() for seed in range(50)}), 50)

    def test_survives_writing(self):
        for seed in range(20):
            made = schedule.generate(seed)
            self.assertEqual(schedule.Schedule.from_json(made.to_json()), made)

    def test_every_kind_rule_and_mode_comes(self):
        made = [schedule.generate(seed) for seed in range(200)]
        kinds = {fault.kind for one in made for fault in one.faults}
        self.assertEqual(kinds, set(schedule.WEIGHTS))
        self.assertEqual([one.variant for one in made[:6]], [v.name for v in jobs.VARIANTS])
        for choose in (lambda s: s.journal, lambda s: s.on_failure, lambda s: s.keep_journal,
                       lambda s: s.evaluator):
            self.assertEqual(len({choose(one) for one in made}), 2)

    def test_faults_are_in_time_and_have_fitting_targets(self):
        for seed in range(200):
            made = schedule.generate(seed, training_seconds=10, servers=2, workers=3, lease=2)
            times = [fault.at for fault in made.faults]
            self.assertEqual(times, sorted(times))
            self.assertTrue(all(0 < at <= 8 for at in times))
            for fault in made.faults:
                if fault.kind.endswith("-short"):
                    self.assertLess(fault.seconds, 2)
                if fault.kind.endswith("-long"):
                    self.assertGreater(fault.seconds, 2)
                place, _, number = fault.target.partition("-")
                self.assertLess(int(number or 0), {"server": 2, "worker": 3}.get(place, 1))
                if fault.kind in schedule.ON_SERVERS:
                    self.assertEqual(place, "server", fault)
                if fault.kind == "evaluator-kill":
                    self.assertTrue(made.evaluator)

    def test_only_what_was_asked_for(self):
        made = [schedule.generate(seed, ["ssgd"], ["server-kill"]) for seed in range(20)]
        self.assertEqual({one.variant for one in made}, {"ssgd"})
        self.assertEqual({fault.kind for one in made for fault in one.faults}, {"server-kill"})
        self.assertEqual(schedule.generate(1, ["ssgd"], []).faults, ())


class Planted:
    """A run of two servers with two segments each, three workers, without a flaw: journals
    as event lists, to be spoilt by tests."""

    SEGMENTS = {0: 0, 1: 0, 2: 1, 3: 1}
    WORKERS = 3

    def __init__(self, synchronous, batches=12):
        self.synchronous = synchronous
        self.batches = batches
        self.events = [[], []]
        self.answers = []
        self._sequence = dict.fromkeys(range(self.WORKERS), 0)
        for worker in range(self.WORKERS):
            self.dealer(journal.DEALER_JOIN, worker)
        for ticket in range(batches):
            worker = ticket % self.WORKERS
            self.dealer(journal.DEALER_FETCH, worker, 1)
            self.push(worker, ticket)
            self.dealer(journal.DEALER_COMPLETE, worker, ticket)
            if synchronous and worker == self.WORKERS - 1:
                for segment, shard in self.SEGMENTS.items():
                    self.add(shard, journal.ROUND_CLOSED, segment, argument=ticket // self.WORKERS)

    def add(self, shard, kind, segment, worker=0, incarnation=0, sequence=0, ticket=0, argument=0):
        number = self.events[shard][-1].number + 1 if self.events[shard] else 1
        self.events[shard].append(journal.Event(kind, 0, segment, worker, incarnation, sequence,
                                                ticket, 0, argument, number, 0, 0, 80))

    def dealer(self, kind, worker, argument=0):
        self.add(0, kind, journal.DEALER, worker, argument=argument)

    def push(self, worker, ticket, segments=None, acknowledged=True):
        self._sequence[worker] += 1
        for segment, shard in self.SEGMENTS.items():
            if segments is not None and segment not in segments:
                continue
            self.add(shard, journal.PUSH, segment, worker, 100 + worker, self._sequence[worker],
                     ticket, ticket // self.WORKERS if self.synchronous else 0)
            if acknowledged:
                self.answers.append(invariants.Answer(
                    segment, 100 + worker, self._sequence[worker], ticket, ticket + 1,
                    "pending" if self.synchronous else "applied"))

    def evidence(self):
        journals = [journal.Journal([], list(events), []) for events in self.events]
        states, versions = {}, dict.fromkeys(self.SEGMENTS, 0)
        for shard, events in enumerate(self.events):
            for event in events:
                place = "dealer" if event.segment == journal.DEALER else event.segment
                states[(shard, place)] = event.number
                counts = journal.ROUND_CLOSED if self.synchronous else journal.PUSH
                if event.kind == counts:
                    versions[event.segment] += 1
        said = {"finished": True, "completed_tickets": self.batches, "total_tickets": self.batches}
        return invariants.Evidence(
            journals=journals, acknowledged=list(self.answers), segments=dict(self.SEGMENTS),
            versions=versions, states=states, synchronous=self.synchronous, workers=self.WORKERS,
            batches=self.batches, batches_per_epoch=6, said=said)


def without(evidence, shard, wanted):
    """The event that `wanted` picks is taken out; those behind it stay as they are."""
    events = evidence.journals[shard].events
    events.remove(next(event for event in events if wanted(event)))


class Invariants(unittest.TestCase):
    def assert_found(self, evidence, *words):
        lines, _ = invariants.check(evidence)
        for word in words:
            self.assertTrue(any(word in line for line in lines), (word, lines))

    def test_a_run_without_a_flaw(self):
        for synchronous in (False, True):
            evidence = Planted(synchronous).evidence()
            self.assertEqual(invariants.check(evidence)[0], [])
            self.assertEqual(invariants.check(evidence)[1]["acknowledged"], 48)

    def test_a_lost_push_is_found(self):
        for synchronous in (False, True):
            evidence = Planted(synchronous).evidence()
            without(evidence, 1, lambda e: e.kind == journal.PUSH and e.segment == 2 and e.ticket == 7)
            self.assert_found(evidence, "an acknowledged push is lost: segment 2", "ticket 7")
            self.assert_found(evidence, "a batch was not applied: ticket 7, segment 2")
            if not synchronous:
                self.assert_found(evidence, "segment 2 is at version 12; its journal has 11")

    def test_a_doubled_push_is_found(self):
        for synchronous in (False, True):
            evidence = Planted(synchronous).evidence()
            events = evidence.journals[0].events
            twice = next(e for e in events if e.kind == journal.PUSH and e.segment == 1)
            events.append(dataclasses.replace(twice, number=events[-1].number + 1))
            self.assert_found(evidence, "a push was applied twice: segment 1, worker 0",
                              "applied more often than it was dealt: ticket 0, segment 1")
            if synchronous:
                self.assert_found(evidence, "contributed twice to one round: round 0")

    def test_a_push_applied_twice_in_memory_is_found(self):
        evidence = Planted(False).evidence()
        evidence.versions[3] += 1
        self.assert_found(evidence, "segment 3 is at version 13; its journal has 12 updates")
        evidence = Planted(True).evidence()
        evidence.versions[3] -= 1
        self.assert_found(evidence, "segment 3 is at version 3; its journal has 4 updates")

    def test_resends_and_readers_are_no_pushes(self):
        planted = Planted(False)
        planted.add(0, journal.RESEND, 0, 0, 100, 1, 0)
        planted.add(1, journal.READ, 2, 0, 100)
        self.assertEqual(invariants.check(planted.evidence())[0], [])

    def test_another_ticket_or_kind_than_acknowledged(self):
        evidence = Planted(False).evidence()
        evidence.acknowledged[0] = dataclasses.replace(evidence.acknowledged[0], ticket=5)
        self.assert_found(evidence, "otherwise than it was acknowledged: segment 0")
        evidence = Planted(False).evidence()
        evidence.acknowledged[0] = dataclasses.replace(evidence.acknowledged[0], result="skipped")
        self.assert_found(evidence, "acknowledged as skipped")
        evidence.acknowledged[0] = dataclasses.replace(evidence.acknowledged[0], result="duplicate")
        self.assertEqual(invariants.check(evidence)[0], [])

    def test_a_batch_of_a_lost_worker_may_be_applied_again(self):
        # Worker 2 dies with half of batch 12 pushed; worker 0 gets it once more.
        planted = Planted(False, batches=12)
        planted.batches = 13
        planted.dealer(journal.DEALER_FETCH, 2, 1)
        planted.push(2, 12, segments=(0, 2), acknowledged=False)
        planted.dealer(journal.DEALER_LOST, 2)
        planted.dealer(journal.DEALER_FETCH, 0, 1)
        planted.push(0, 12)
        planted.dealer(journal.DEALER_COMPLETE, 0, 12)
        lines, figures = invariants.check(planted.evidence())
        self.assertEqual((lines, figures["dealt_again"]), ([], 1))
        # Without the loss it is one time too many.
        evidence = planted.evidence()
        without(evidence, 0, lambda e: e.kind == journal.DEALER_LOST)
        self.assert_found(evidence, "applied more often than it was dealt")

    def test_a_batch_that_is_not_completed(self):
        evidence = Planted(False).evidence()
        without(evidence, 0, lambda e: e.kind == journal.DEALER_COMPLETE and e.argument == 4)
        self.assert_found(evidence, "a batch is not completed once: ticket 4 0 times")
        evidence = Planted(True).evidence()
        without(evidence, 0, lambda e: e.kind == journal.DEALER_COMPLETE and e.argument == 4)
        self.assert_found(evidence, "batches of an epoch are missing: 1 of epoch 0")
        evidence.said["completed_tickets"] = 11
        self.assert_found(evidence, "the lead has not all batches: 11 of 12")

    def test_a_late_push_is_no_lost_one(self):
        planted = Planted(True)
        evidence = planted.evidence()
        for shard in (0, 1):
            events = evidence.journals[shard].events
            for k, event in enumerate(events):
                if event.kind == journal.PUSH and event.ticket == 11 and event.segment == 3:
                    # Said twice, late twice.
                    events[k] = dataclasses.replace(event, kind=journal.LATE)
                    events.append(dataclasses.replace(events[k], number=events[-1].number + 1))
                    evidence.states[(shard, 3)] = events[-1].number
        evidence.acknowledged = [
            dataclasses.replace(a, result="late") if (a.segment, a.ticket) == (3, 11) else a
            for a in evidence.acknowledged]
        lines, figures = invariants.check(evidence)
        self.assertEqual((lines, figures["late"]), ([], 1))

    def test_where_a_journal_failed_there_is_room_for_what_it_lacks(self):
        evidence = Planted(False).evidence()
        events = evidence.journals[1].events
        lacking = [e for e in events if e.ticket in (5, 6)]
        self.assertEqual(len(lacking), 4)
        evidence.journals[1].events = [e for e in events if e not in lacking]
        self.assert_found(evidence, "an acknowledged push is lost")
        evidence.unjournaled = {1}
        evidence.journals[1].holes = [(10, 15)]
        lines, figures = invariants.check(evidence)
        self.assertEqual((lines, figures["unjournaled"]), ([], 4))
        evidence.journals[1].holes = [(10, 14)]
        self.assert_found(evidence, "without a journal for 3 events, and lacks 4 pushes")

    def test_a_checkpoint_at_the_end_has_everything(self):
        evidence = Planted(False).evidence()
        evidence.states[(1, 2)] -= 1
        self.assert_found(evidence, "the last checkpoint lacks events: shard 1, 2")
        del evidence.states[(0, "dealer")]
        self.assert_found(evidence, "shard 0, dealer: it has None")

    def test_many_violations_are_counted(self):
        evidence = Planted(False).evidence()
        evidence.journals[1].events.clear()
        lines, _ = invariants.check(evidence)
        self.assertIn("an acknowledged push is lost: 24 in all", lines)

    def test_contributions_tell_whether_rounds_were_alike(self):
        one, other = Planted(True), Planted(True)
        alike = [invariants.contributions(p.evidence().journals) for p in (one, other)]
        self.assertEqual(alike[0], alike[1])
        self.assertEqual(alike[0][(2, 1)], ((0, 3), (1, 4), (2, 5)))
        evidence = other.evidence()
        without(evidence, 1, lambda e: e.kind == journal.PUSH and e.ticket == 4)
        self.assertNotEqual(alike[0], invariants.contributions(evidence.journals))

    def test_answers_are_read_but_for_a_torn_line(self):
        with tempfile.NamedTemporaryFile("w+", encoding="ascii") as file:
            file.write("segment,incarnation,sequence,ticket,version,result\n"
                       "3,1700000000000001,7,40,12,applied\n0,1700000000000001,8,4")
            file.flush()
            self.assertEqual(invariants.read_acknowledged(file.name),
                             [invariants.Answer(3, 1700000000000001, 7, 40, 12, "applied")])
            file.seek(0)
            file.write("other")
            file.flush()
            with self.assertRaisesRegex(ValueError, "it begins with"):
                invariants.read_acknowledged(file.name)


class FullDisks(unittest.TestCase):
    """The fault whose server may have nothing left to write: `over` once it is waited for."""

    class Disk:
        full = False

        def fill(self):
            self.full = True

        def free(self):
            self.full = False

    def begun(self, on_failure, over, notices):
        disk, said, ends = self.Disk(), [], []
        made = unittest.mock.Mock(
            servers=["server-0"], disks={"server-0": disk}, unjournaled=set(),
            schedule=unittest.mock.Mock(on_failure=on_failure, checkpoint_seconds=1.0))
        made.trained = lambda: over
        made.log_text = lambda _: faults._NO_SPACE if notices else ""
        made.has_ended = lambda _: notices
        made.may_end = lambda _, statuses: ends.append(set(statuses))
        fault = schedule.Fault("disk-full", 0.0, "server-0", 0.5, 1)
        return faults.begin(made, fault, said.append), disk, said, ends, made

    def test_a_job_that_is_over_writes_nothing_more(self):
        for on_failure in ("stop", "continue"):
            action, disk, said, ends, _ = self.begun(on_failure, over=True, notices=False)
            self.assertTrue(next(action).is_so())
            self.assertTrue(disk.full)
            self.assertEqual(next(action), faults._END_OF_WRITES_SECONDS)
            self.assertFalse(disk.full)
            self.assertRaises(StopIteration, next, action)
            self.assertEqual(said, ["the job was over before there was anything to write"])
            self.assertEqual(ends[-1], set())

    def test_one_that_is_not_must_notice(self):
        action, _, _, _, _ = self.begun("continue", over=False, notices=False)
        self.assertFalse(next(action).is_so())
        action, disk, said, _, made = self.begun("continue", over=True, notices=True)
        self.assertTrue(next(action).is_so())
        self.assertEqual(next(action), 0.5)
        self.assertTrue(disk.full)
        next(action)
        self.assertFalse(disk.full)
        self.assertEqual((said, made.unjournaled), (["went on without a journal"], {0}))


class Comparing(unittest.TestCase):
    def verdict(self, **figures):
        made = run.Verdict(schedule.generate(1), figures=figures)
        made.values = b"1234"
        return made

    def test_losses_near_each_other(self):
        reference = self.verdict(loss=0.5)
        self.assertEqual(compare.compare(self.verdict(loss=0.52), reference), [])
        self.assertEqual(len(compare.compare(self.verdict(loss=0.9), reference)), 1)
        self.assertEqual(len(compare.compare(self.verdict(loss=0.3), reference)), 1)
        # Rounds with fewer members are more rounds.
        rounds = self.verdict(loss=0.3)
        rounds.contributions = {}
        self.assertEqual(compare.compare(rounds, reference), [])
        rounds.figures["loss"] = 0.9
        self.assertEqual(len(compare.compare(rounds, reference)), 1)

    def test_a_variance_that_was_measured_with_fewer_members_gets_less_far(self):
        def squeezed(loss, early, late):
            made = self.verdict(loss=loss)
            made.schedule = dataclasses.replace(made.schedule, variant="apmsqueeze")
            made.contributions = {(0, number): tuple((slot, 0) for slot in range(
                early if number == 2 else late if number == 90 else 3)) for number in range(100)}
            return made
        reference = squeezed(1.0, 3, 3)
        self.assertEqual(compare.compare(squeezed(2.5, 1, 3), reference), [])
        self.assertEqual(len(compare.compare(squeezed(4.5, 1, 3), reference)), 1)
        self.assertEqual(len(compare.compare(squeezed(2.5, 3, 1), reference)), 1)

    def test_accuracies_near_each_other(self):
        reference = self.verdict(accuracy=0.91)
        self.assertEqual(compare.compare(self.verdict(accuracy=0.905), reference), [])
        self.assertIn("88.00 %", compare.compare(self.verdict(accuracy=0.88), reference)[0])

    def test_rounds_alike_must_give_the_same_bits(self):
        one, other = self.verdict(loss=0.5), self.verdict(loss=0.5)
        one.contributions = other.contributions = {(0, 0): ((0, 1),)}
        self.assertEqual(compare.compare(one, other), [])
        self.assertTrue(one.figures["bit_for_bit"])
        one.values = b"1235"
        self.assertIn("parameters are others", compare.compare(one, other)[0])
        one.contributions = {}
        self.assertEqual(compare.compare(one, other), [])

    def test_the_loss_is_the_quadratics(self):
        # Curvatures run from 1 down to 1/1000, and begin again after 256 elements.
        values = [0.0] * 512
        values[0], values[255], values[256] = 2.0, 10.0, 1.0
        self.assertAlmostEqual(jobs.loss(values), 0.5 * (4 + 0.1 + 1))


class Logs(unittest.TestCase):
    def test_crashes_are_told_from_other_lines(self):
        with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:
            file.write("I 2026-01-01T00:00:00.000001Z server main.cc:1] Fine, no SIGTERM here\n"
                       "W 2026-01-01T00:00:00.000001Z server x.cc:2] waiting\n")
            file.flush()
            self.assertEqual(fleet.crash_lines(file.name), [])
            file.write("F 2026-01-01T00:00:00.000001Z server x.cc:3] Check failed: a\n"
                       "*** SIGSEGV (@0x0) received\n==1==ERROR: AddressSanitizer: x\n")
            file.flush()
            self.assertEqual(len(fleet.crash_lines(file.name)), 3)


class Slopes(unittest.TestCase):
    def test_a_line_is_found_exactly(self):
        found = slope.slope([(at, 5e6 + 100 * at) for at in range(0, 1000, 2)])
        self.assertAlmostEqual(found.per_second, 100)
        self.assertLess(found.uncertainty, 1e-6)
        self.assertAlmostEqual(found.growth, 100 * 998, delta=1)

    def test_noise_is_no_growth(self):
        source = random.Random(1)
        failed = 0
        for _ in range(100):
            found = slope.slope([(at, 5e7 + source.gauss(0, 1e5)) for at in range(0, 1800, 2)])
            failed += found.growth > 0
            self.assertFalse(soak.grows(found))
        # One side of a 99 % interval.
        self.assertLessEqual(failed, 4)

    def test_a_leak_under_noise_is_found(self):
        source = random.Random(2)
        samples = [(at, 5e7 + 1000 * at + source.gauss(0, 1e5)) for at in range(0, 1800, 2)]
        self.assertTrue(soak.grows(slope.slope(samples)))

    def test_few_samples(self):
        with self.assertRaises(ValueError):
            slope.slope([(0, 1), (1, 2)])

    def test_memory_of_this_process(self):
        self.assertGreater(soak.resident_bytes(os.getpid()), 1 << 20)
        self.assertIsNone(soak.resident_bytes(2**22 + 1))


class Arguments(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        for name in PROGRAMS:
            with open(os.path.join(self.folder, name), "w", encoding="ascii"):
                pass
            os.chmod(os.path.join(self.folder, name), 0o755)

    def parse(self, *line):
        return arguments.parse(["--programs", self.folder, *line])

    def test_defaults(self):
        given = self.parse()
        self.assertEqual((given.minutes, given.schedules, given.seed), (10, None, 1))
        self.assertIsNone(self.parse("--schedules", "3").minutes)
        self.assertEqual(given.faults, list(schedule.WEIGHTS))

    def test_what_is_wrong_is_said(self):
        for line, words in ((["--minutes", "0"], "--minutes: '0'"),
                            (["--faults", "server-kil"], "'server-kil' is no fault"),
                            (["--rules", "sgd"], "'sgd' is no rule"),
                            (["--rules", ""], "name at least one"),
                            (["--seed", "-1"], "--seed: '-1'"),
                            (["--set", "a=b"], "that is for --job"),
                            (["--job", "/nowhere"], "no file /nowhere")):
            with self.assertRaises(arguments.BadArguments, msg=line) as caught:
                self.parse(*line)
            self.assertIn(words, str(caught.exception))
        os.unlink(os.path.join(self.folder, "foreshard"))
        with self.assertRaisesRegex(arguments.BadArguments, "build it"):
            self.parse()

    def test_a_schedules_command_gives_it_again(self):
        given = self.parse("--rules", "ssgd,apmsqueeze", "--faults", "server-kill,torn-tail",
                           "--seconds", "3.5", "--lease", "7.5", "--schedules", "9")
        made = schedule.generate(8, given.variants, given.faults, given.training_seconds)
        words = given.command(made).split()
        self.assertEqual(words.pop(0), "tools/chaos")
        again = arguments.parse(words)
        self.assertEqual((again.seed, again.schedules, again.lease_seconds), (8, 1, 7.5))
        self.assertEqual(schedule.generate(again.seed, again.variants, again.faults,
                                           again.training_seconds), made)

    def test_the_lease_goes_into_the_job(self):
        with open(jobs.quadratic(self.folder, jobs.VARIANTS[0], 1.0, 7.5).path, encoding="ascii") as file:
            self.assertIn("lease_seconds: 7.5", file.read())
        path = os.path.join(self.folder, "given.textproto")
        with open(path, "w", encoding="ascii"):
            pass
        for line, seconds in (([], 4), (["--lease", "7.5"], 7.5)):
            settings = self.parse("--job", path, *line).given_job().settings
            self.assertIn(f"timeouts.lease_seconds={seconds:g}", settings)

    def test_a_given_job_is_looked_at(self):
        path = os.path.join(self.folder, "job.textproto")
        with open(path, "w", encoding="ascii") as file:
            file.write('update { rule: "dana_slim" }  # not rule: "ssgd"\n')
        self.assertFalse(self.parse("--job", path).given_job().synchronous)
        job = self.parse("--job", path, "--set", "update.rule=ssgd", "--workers", "4").given_job()
        self.assertTrue(job.synchronous)
        self.assertIn("training.workers=4", job.settings)


class Silence(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="chaos_suite_test.")
        self.addCleanup(shutil.rmtree, self.folder)
        self.fleet = fleet.Fleet(None, jobs.quadratic(self.folder, jobs.VARIANTS[0], 1.0),
                                 schedule.generate(1), self.folder)
        self.processes = []
        for name in ("server-0", "worker-0"):
            process = subprocess.Popen(["sleep", "60"])
            self.processes.append(process)
            log = os.path.join(self.folder, f"{name}.1.log")
            with open(log, "w", encoding="utf-8"):
                pass
            self.fleet.starts[name].append(fleet.Start(
                daemons.Daemon(name, process, log, None), 1, None))

    def tearDown(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def test_a_stopped_server_excuses_who_did_not_come_to_the_other(self):
        absence = fleet.Absence(1, time.monotonic())
        self.fleet.pause("server-0")
        absence.ended = time.monotonic()
        self.assertTrue(run.overlaps(absence, self.fleet.silences))
        self.fleet.go_on("server-0")
        later = fleet.Absence(1, time.monotonic(), time.monotonic() + 1)
        self.assertFalse(run.overlaps(later, self.fleet.silences))
        self.fleet.pause("worker-0")
        self.assertFalse(run.overlaps(later, self.fleet.silences))

    def test_a_worker_that_has_just_begun_may_end_by_the_signal(self):
        self.fleet.ask_to_end("worker-0")
        self.processes[1].wait()
        self.fleet.look_after()
        with open(self.fleet.now("worker-0").daemon.log_path, "w", encoding="utf-8") as file:
            file.write("it has come so far\n")
        self.fleet.now("worker-0").may_end = {0, 128 + signal.SIGTERM}
        with self.assertRaises(fleet.ScheduleFailure):
            self.fleet.look_after()


class Networks(unittest.TestCase):
    """In a mount namespace whose /run is empty, so that nothing here is touched."""

    def inside(self, program):
        """What a Python program prints that has local_fleet.network as `network`."""
        why = network.why_impossible()
        if why:
            self.skipTest(why)
        script = (f"import os, subprocess, sys\nsys.dont_write_bytecode = True\n"
                  f"sys.path.insert(0, {os.path.join(ROOT, 'tools')!r})\n"
                  f"from local_fleet import network\n"
                  f"def folder():\n"
                  f"    mounts = [line.split()[4] for line in open('/proc/self/mountinfo')]\n"
                  f"    return os.path.isdir('/run/netns'), mounts.count('/run/netns')\n" + program)
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c",
             'while umount -l /run/netns 2>/dev/null; do :; done; '
             'mount -t tmpfs none /run && exec /usr/bin/python3 -c "$1"', "sh", script],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout.split("\n")[:-1]

    def test_the_folder_of_namespaces_is_left_as_it_was(self):
        self.assertEqual(self.inside(
            "print(network.why_impossible(), *folder())\n"
            "with network.Network(['server-0'], ['worker-0'], None):\n"
            "    print(*folder())\n"
            "print(*folder())\n"
            "os.mkdir('/run/netns')\n"
            "print(network.why_impossible(), *folder())\n"),
            ["None False 0", "True 1", "False 0", "None True 0"])

    def test_the_folder_of_others_stays(self):
        self.assertEqual(self.inside(
            "with network.Network(['server-0'], ['worker-0'], None):\n"
            "    subprocess.run(['ip', 'netns', 'add', 'theirs'], check=True)\n"
            "print(*folder(), os.listdir('/run/netns'))\n"
            "print(network.why_impossible(), *folder())\n"
            "subprocess.run(['ip', 'netns', 'delete', 'theirs'], check=True)\n"
            "print(network.why_impossible(), *folder())\n"),
            ["True 1 ['theirs']", "None True 1", "None False 0"])


class Showing(unittest.TestCase):
    def test_outside_a_terminal_every_line_stays(self):
        stream = io.StringIO()
        lines = Lines(stream)
        lines.progress("a")
        lines.note("b")
        self.assertEqual(stream.getvalue(), "a\nb\n")


if __name__ == "__main__":
    unittest.main()
