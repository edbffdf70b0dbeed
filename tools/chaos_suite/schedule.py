"""Seeded schedules of faults: the same seed gives the same schedule, whoever may inflict
which faults here.

    schedule = generate(seed, settings)
    print(schedule.line());  Schedule.from_json(text) == schedule
"""

import json
import random
from dataclasses import asdict, dataclass, field

from . import jobs

# What each fault does is in faults.py.
WEIGHTS = {
    "server-kill": 6,          # kill -9, then started again
    "server-kill-twice": 3,    # and killed again while it recovers
    "servers-kill": 2,         # all at once
    "fleet-kill": 2,           # servers and workers
    "worker-kill": 6,
    "workers-kill": 1,
    "evaluator-kill": 1,
    "server-stop-short": 2,    # SIGSTOP for less than the lease, then SIGCONT
    "server-stop-long": 2,     # for more
    "worker-stop-short": 3,
    "worker-stop-long": 3,
    "server-term": 3,          # SIGTERM, then started again
    "worker-term": 3,
    "link-cut-short": 2,       # nothing passes for less than the lease
    "link-cut-long": 2,        # for more
    "disk-full": 3,            # the state directory's, later freed
    "torn-tail": 3,            # kill -9, and half a record behind the journal
    "flip-checkpoint": 2,      # kill -9, and a bit of the newest checkpoint flipped
    "flip-journal": 2,         # kill -9, and a bit in the middle of the journal flipped
}
NEEDS_ROOT = ("link-cut-short", "link-cut-long", "disk-full")
ON_SERVERS = ("server-kill", "server-kill-twice", "server-stop-short", "server-stop-long",
              "server-term", "disk-full", "torn-tail", "flip-checkpoint", "flip-journal")
_MOST_FAULTS = 6


@dataclass(frozen=True)
class Fault:
    """`at` seconds after training began; `target`: "server-1", "worker-0", "servers", ...;
    `seconds`: how long it lasts; `draw`: a number below 2^31 for what else is random."""
    kind: str
    at: float
    target: str
    seconds: float
    draw: int


@dataclass(frozen=True)
class Schedule:
    """One run: who trains, what is kept, what happens."""
    seed: int
    variant: str
    training_seconds: float
    journal: str
    checkpoint_seconds: float
    keep_checkpoints: int
    keep_journal: bool
    on_failure: str
    evaluator: bool
    faults: tuple = field(default_factory=tuple)

    def durability(self):
        """The job's field of that name, as text."""
        return (f'durability {{ journal: "{self.journal}" '
                f"checkpoint_seconds: {self.checkpoint_seconds:g} "
                f"keep_checkpoints: {self.keep_checkpoints} "
                f"keep_journal: {'true' if self.keep_journal else 'false'} "
                f'on_failure: "{self.on_failure}" }}\n')

    def line(self):
        faults = ", ".join(f"{f.kind} {f.target} at {f.at:.2f} s" for f in self.faults)
        return f"{self.variant}, {self.journal}, {self.on_failure}: {faults or 'no faults'}"

    def to_json(self):
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text):
        fields = json.loads(text)
        fields["faults"] = tuple(Fault(**fault) for fault in fields["faults"])
        return Schedule(**fields)


def _target(kind, random_, servers, workers):
    if kind in ON_SERVERS:
        return f"server-{random_.randrange(servers)}"
    if kind in ("servers-kill", "fleet-kill", "workers-kill"):
        return kind.partition("-")[0]
    if kind == "evaluator-kill":
        return "evaluator"
    if kind.startswith("link-cut"):
        nodes = [f"server-{i}" for i in range(servers)] + [f"worker-{i}" for i in range(workers)]
        return random_.choice(nodes)
    return f"worker-{random_.randrange(workers)}"


def _seconds(kind, random_, lease):
    if kind.endswith("-short"):
        return random_.uniform(0.1, 0.5) * lease
    if kind.endswith("-long"):
        return random_.uniform(1.3, 2.2) * lease
    # How long it stays away: sometimes hardly at all, sometimes beyond the lease.
    return random_.choice((0.02, 0.3, 0.8, 1.2)) * random_.uniform(0.5, 1.5) * lease


def generate(seed, variants=None, faults=None, training_seconds=6.0, servers=jobs.SHARDS,
             workers=jobs.WORKERS, lease=jobs.LEASE_SECONDS):
    """`variants`: names to choose from; `faults`: likewise, of WEIGHTS."""
    variants = list(variants or [v.name for v in jobs.VARIANTS])
    kinds = list(WEIGHTS) if faults is None else list(faults)
    random_ = random.Random(f"chaos {seed}")
    # In turn, so that a few seeds have every rule.
    variant = variants[seed % len(variants)]
    count = random_.randint(2, _MOST_FAULTS) if kinds else 0
    chosen = random_.choices(kinds, [WEIGHTS[kind] for kind in kinds], k=count) if kinds else []
    evaluator = random_.random() < 0.3 or "evaluator-kill" in chosen
    # Until the training would be four fifths over, had nothing happened.
    times = sorted(random_.uniform(0.05, 0.8) * training_seconds for _ in chosen)
    return Schedule(
        seed=seed, variant=variant, training_seconds=training_seconds,
        journal=random_.choice(("buffered", "buffered", "synced")),
        checkpoint_seconds=round(random_.uniform(0.4, 2.5), 2),
        keep_checkpoints=random_.randint(1, 3), keep_journal=random_.random() < 0.6,
        on_failure=random_.choice(("stop", "continue")), evaluator=evaluator,
        faults=tuple(Fault(kind, round(at, 3), _target(kind, random_, servers, workers),
                           round(_seconds(kind, random_, lease), 3), random_.randrange(2**31))
                     for kind, at in zip(chosen, times)))
