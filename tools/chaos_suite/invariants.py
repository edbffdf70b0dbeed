"""What must hold of a run, whatever was killed when: found from the servers' journals, from
what workers wrote down as acknowledged, and from what the servers said at the end.

    evidence = Evidence(journals=[...], acknowledged=[...], ...)
    violations = check(evidence)      # lines; none where all is well
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from . import journal as j

_CONSUMES = (j.PUSH, j.SKIP, j.DISCARD)
# What each answer says that the journal has.
_KINDS_OF = {"applied": (j.PUSH,), "pending": (j.PUSH, j.SKIP), "late": (j.LATE,),
             "skipped": (j.SKIP,), "discarded": (j.DISCARD,),
             "duplicate": (j.PUSH, j.SKIP, j.DISCARD, j.LATE)}
_HANDS = 8  # tickets that a worker holds at most (DealerOptions::max_outstanding)
_MOST_NAMED = 5
_HEADER = "segment,incarnation,sequence,ticket,version,result"


@dataclass(frozen=True)
class Answer:
    """A line of a worker's record of what was acknowledged."""
    segment: int
    incarnation: int
    sequence: int
    ticket: int
    version: int
    result: str


@dataclass
class Evidence:
    """Of one run. `segments`: {segment: shard} of the trainable ones; `versions`: {segment:
    version} as the servers said at the end; `states`: {(shard, segment or "dealer"): number}
    of each shard's last checkpoint; `unjournaled`: shards that were told to go on where their
    journal failed, and did, and those of whose journal files are missing; `batches`: of the job; `said`: what the lead said at the end."""
    journals: list
    acknowledged: list
    segments: dict
    versions: dict
    states: dict
    synchronous: bool
    workers: int
    batches: int
    batches_per_epoch: int
    said: dict
    unjournaled: set = field(default_factory=set)
    bounded: bool = False  # the dealer has bounds that are not replayed here


def read_acknowledged(path):
    """The answers of one worker's file. A worker that was killed may leave half a line."""
    with open(path, encoding="ascii") as file:
        text = file.read()
    lines = text.split("\n")
    if lines[0] != _HEADER and text:
        raise ValueError(f"{path}: it begins with '{lines[0]}', not '{_HEADER}'")
    # What follows the last line break is not whole.
    answers = []
    for line in lines[1:-1]:
        *numbers, result = line.split(",")
        answers.append(Answer(*map(int, numbers), result))
    return answers


class Dealer:
    """Deals batches as server/dealer.h says an asynchronous lead does, without its bounds."""

    def __init__(self, batches):
        self._batches = batches
        self._next = 0
        self._again = set()
        self._hands = {}
        self.deals = Counter()  # by ticket
        self.completed = Counter()
        self.lost = 0

    def apply(self, event):
        worker = event.worker
        if event.kind == j.DEALER_JOIN:
            self._hands.setdefault(worker, set())
        elif event.kind == j.DEALER_FETCH:
            self._fetch(worker, event.argument)
        elif event.kind == j.DEALER_COMPLETE:
            ticket = event.argument
            hand = self._hands.get(worker, set())
            if ticket in hand or ticket in self._again:
                hand.discard(ticket)
                self._again.discard(ticket)
                self.completed[ticket] += 1
        elif event.kind == j.DEALER_LOST:
            hand = self._hands.pop(worker, set())
            self._again |= hand
            self.lost += len(hand)

    def _fetch(self, worker, count):
        hand = self._hands.get(worker)
        if hand is None:
            return
        for _ in range(count):
            if len(hand) >= _HANDS:
                return
            if self._again:
                ticket = min(self._again)
                self._again.remove(ticket)
            elif self._next < self._batches:
                ticket = self._next
                self._next += 1
            else:
                return
            hand.add(ticket)
            self.deals[ticket] += 1


class _Found:
    """Violations, each sort with its first few examples."""

    def __init__(self):
        self.lines = []
        self._counts = Counter()

    def add(self, what, example):
        self._counts[what] += 1
        if self._counts[what] <= _MOST_NAMED:
            self.lines.append(f"{what}: {example}")

    def finish(self):
        self.lines += [f"{what}: {count} in all" for what, count in self._counts.items()
                       if count > _MOST_NAMED]
        return self.lines


def _name(event):
    return (f"segment {event.segment}, worker {event.worker}, incarnation {event.incarnation}, "
            f"push {event.sequence}, ticket {event.ticket} (event {event.number})")


def _check_once(evidence, found):
    """No push is taken twice; returns {(segment, incarnation, sequence): event}."""
    taken = {}
    for journal in evidence.journals:
        seen = set()
        in_round = set()
        for event in journal.events:
            if event.segment == j.DEALER or event.kind not in (*_CONSUMES, j.LATE):
                continue
            key = (event.segment, event.worker, event.incarnation, event.sequence)
            if event.kind == j.LATE:
                # Said again it is late again, and changes nothing.
                if key in seen:
                    found.add("a push that was taken is late as well", _name(event))
            elif key in seen:
                found.add("a push was applied twice", _name(event))
            else:
                seen.add(key)
            if evidence.synchronous and event.kind == j.PUSH and event.segment in evidence.segments:
                place = (event.segment, event.worker, event.argument)
                if place in in_round:
                    found.add("a worker contributed twice to one round",
                              f"round {event.argument}, {_name(event)}")
                in_round.add(place)
            taken.setdefault((event.segment, event.incarnation, event.sequence), event)
    return taken


def _room_in_holes(journal):
    return sum(after - before - 1 for before, after in journal.holes)


def _check_acknowledged(evidence, taken, found):
    """Everything that was acknowledged is in a journal. Returns the answers that are not
    there, by shard, where the shard may have lost them."""
    missing = defaultdict(list)
    for answer in evidence.acknowledged:
        event = taken.get((answer.segment, answer.incarnation, answer.sequence))
        what = (f"segment {answer.segment}, incarnation {answer.incarnation}, push "
                f"{answer.sequence}, ticket {answer.ticket}, acknowledged as {answer.result} at "
                f"version {answer.version}")
        if event is None:
            shard = evidence.segments.get(answer.segment)
            if shard in evidence.unjournaled:
                missing[shard].append(answer)
            else:
                found.add("an acknowledged push is lost", what)
        elif event.ticket != answer.ticket or event.kind not in _KINDS_OF.get(answer.result, ()):
            found.add("a push is in the journal otherwise than it was acknowledged",
                      f"{what}; there it is kind {event.kind}, ticket {event.ticket}")
    for shard, answers in missing.items():
        room = _room_in_holes(evidence.journals[shard])
        if len(answers) > room:
            found.add("an acknowledged push is lost",
                      f"shard {shard} went on without a journal for {room} events, and lacks "
                      f"{len(answers)} pushes")
    return missing


def _check_versions(evidence, found):
    """What the servers say to have applied is what the journal has."""
    for shard, journal in enumerate(evidence.journals):
        if journal.holes:
            continue
        counts = Counter()
        rounds = defaultdict(set)  # segment: rounds somebody contributed to
        for event in journal.events:
            if event.segment == j.DEALER:
                continue
            if event.kind == j.PUSH:
                if evidence.synchronous and event.segment in evidence.segments:
                    rounds[event.segment].add(event.argument)
                else:
                    counts[event.segment] += 1
            elif event.kind == j.ROUND_CLOSED:
                if event.argument in rounds[event.segment]:
                    rounds[event.segment].remove(event.argument)
                    counts[event.segment] += 1
        for segment, version in evidence.versions.items():
            if evidence.segments.get(segment) != shard:
                continue
            if counts[segment] != version:
                found.add("a segment has not applied what its journal has",
                          f"segment {segment} is at version {version}; its journal has "
                          f"{counts[segment]} updates")


def _check_batches(evidence, found):
    """Each batch of the job is applied once on every segment, or was dealt again."""
    lead = evidence.journals[0]
    if lead.holes:
        return {}
    events = [event for event in lead.events if event.segment == j.DEALER]
    applied = defaultdict(Counter)  # segment: ticket: how often it was consumed
    late = defaultdict(Counter)
    for journal in evidence.journals:
        for event in journal.events:
            if event.segment in evidence.segments:
                if event.kind in _CONSUMES:
                    applied[event.segment][event.ticket] += 1
                elif event.kind == j.LATE:
                    late[event.segment][event.ticket] += 1
    whole = [segment for segment, shard in evidence.segments.items()
             if not evidence.journals[shard].holes]
    if evidence.synchronous:
        return _check_rounds(evidence, events, whole, applied, late, found)
    if evidence.bounded:
        return {}
    dealer = Dealer(evidence.batches)
    for event in events:
        dealer.apply(event)
    for ticket in range(evidence.batches):
        if dealer.completed[ticket] != 1:
            found.add("a batch is not completed once",
                      f"ticket {ticket} {dealer.completed[ticket]} times")
        for segment in whole:
            times, deals = applied[segment][ticket], dealer.deals[ticket]
            if times < 1:
                found.add("a batch was not applied", f"ticket {ticket}, segment {segment}")
            elif times > deals:
                found.add("a batch was applied more often than it was dealt",
                          f"ticket {ticket}, segment {segment}: {times} times, dealt {deals} times")
    again = sum(count - 1 for count in dealer.deals.values())
    return {"dealt_again": again}


def _check_rounds(evidence, events, whole, applied, late, found):
    completed = {event.argument for event in events if event.kind == j.DEALER_COMPLETE}
    given_up = sum(event.kind in (j.DEALER_LOST, j.DEALER_SKIP_TO) for event in events)
    per_epoch = evidence.batches_per_epoch
    for epoch in range(evidence.batches // per_epoch):
        tickets = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        dropped = sum(ticket not in completed for ticket in tickets)
        # A remainder is less than there are members, of which some may be new starts.
        most = 2 * evidence.workers - 1 if given_up else per_epoch % evidence.workers
        if dropped > most:
            found.add("batches of an epoch are missing", f"{dropped} of epoch {epoch}")
    absent = again = 0
    for ticket in sorted(completed):
        for segment in whole:
            times = applied[segment][ticket]
            if times == 0 and late[segment][ticket] == 0:
                found.add("a batch was not applied", f"ticket {ticket}, segment {segment}")
            absent += times == 0
            again += max(times - 1, 0)
            if times > 1 and given_up == 0:
                found.add("a batch was applied more often than it was dealt",
                          f"ticket {ticket}, segment {segment}: {times} times")
    return {"late": absent, "applied_again": again}


def _check_end(evidence, found):
    said = evidence.said
    if not said.get("finished"):
        found.add("the job is not finished", said.get("finish_reason") or "the lead says so")
    if said.get("completed_tickets", 0) != said.get("total_tickets", 0):
        found.add("the lead has not all batches",
                  f"{said.get('completed_tickets', 0)} of {said.get('total_tickets', 0)}")
    for shard, journal in enumerate(evidence.journals):
        last = {}
        for event in journal.events:
            last["dealer" if event.segment == j.DEALER else event.segment] = event.number
        for place, number in last.items():
            state = evidence.states.get((shard, place))
            if state is None or state < number:
                found.add("the last checkpoint lacks events",
                          f"shard {shard}, {place}: it has {state}, the journal {number}")


def check(evidence):
    """(violations as lines, figures that are worth telling)."""
    found = _Found()
    taken = _check_once(evidence, found)
    missing = _check_acknowledged(evidence, taken, found)
    _check_versions(evidence, found)
    figures = _check_batches(evidence, found)
    _check_end(evidence, found)
    figures["acknowledged"] = len(evidence.acknowledged)
    figures["unjournaled"] = sum(len(answers) for answers in missing.values())
    return found.finish(), figures


def contributions(journals):
    """{(segment, round): ((worker slot, ticket), ...)} of closed rounds: where those of two
    runs are the same, so are the parameters, to the bit."""
    rounds = defaultdict(dict)
    closed = {}
    for journal in journals:
        for event in journal.events:
            if event.segment == j.DEALER:
                continue
            key = (event.segment, event.argument)
            if event.kind == j.PUSH:
                rounds[key][event.worker] = event.ticket
            elif event.kind == j.ROUND_CLOSED:
                closed[key] = tuple(sorted(rounds.get(key, {}).items()))
    return closed
