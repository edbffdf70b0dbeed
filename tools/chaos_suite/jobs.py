"""The jobs that chaos is played with: a small noisy quadratic of several segments on two
servers, trained by rules of every sort at a given pace, so that a run takes as long on any
machine; or a given job."""

import math
import os
from dataclasses import dataclass

SHARDS = 2
WORKERS = 3
ELEMENTS = 8192
_SEGMENT_ELEMENTS = 1024
_SLOTS = 16  # fleets in which many die need many
_BATCH = 4
_EPOCHS = 3
STEP_SECONDS = 0.02
LEASE_SECONDS = 1.5
# Steps of a given job may take longer than the quadratic's.
GIVEN_LEASE_SECONDS = 4.0
CONNECT_SECONDS = 40


@dataclass(frozen=True)
class Variant:
    """A rule with its codecs."""
    name: str
    synchronous: bool
    settings: tuple


VARIANTS = (
    Variant("dana_zero", False, ("update.rule=dana_zero", "update.momentum=0.9",
                                 "schedule.learning_rate=0.02")),
    Variant("dana_slim_1bit", False, ("update.rule=dana_slim", "update.momentum=0.9",
                                      "schedule.learning_rate=0.002",
                                      "compression.push=one_bit_mean")),
    Variant("ssgd", True, ("update.rule=ssgd", "update.momentum=0.9",
                           "schedule.learning_rate=0.05")),
    Variant("dana_zero_1bit_both", False, (
        "update.rule=dana_zero", "update.momentum=0.9", "schedule.learning_rate=0.002",
        "compression.push=one_bit", "compression.reply=one_bit")),
    Variant("apmsqueeze", True, ("update.rule=apmsqueeze", "schedule.learning_rate=0.005",
                                 "compression.push=one_bit", "apmsqueeze.warmup_fraction=0.3",
                                 "apmsqueeze.fold_rounds=20")),
    Variant("adam_rounds", True, ("update.rule=adam", "update.synchronous=true",
                                  "schedule.learning_rate=0.005")),
)


def variant(name):
    return next((v for v in VARIANTS if v.name == name), None)


_TEXT = """\
# Written by tools/chaos.
name: "chaos"
seed: 1
model {{ name: "quadratic" elements: {elements} }}
data {{ format: "synthetic" examples: {examples} }}
training {{ epochs: {epochs} batch_size: {batch} workers: {workers} max_workers: {slots} }}
servers {{ shards: {shards} segment_elements: {segment} }}
compression {{ block_elements: 512 }}
timeouts {{ lease_seconds: {lease} connect_seconds: {connect} }}
"""


@dataclass
class Job:
    """A job as the daemons are given it."""
    name: str
    path: str
    settings: list
    servers: int
    workers: int
    synchronous: bool
    pace: str = None  # file
    # Of the quadratic: batches and parameters; else None.
    batches: int = None
    elements: int = None
    evaluates: bool = False  # always with an evaluator, compared by accuracy
    bounded: bool = False  # its lead deals within bounds that invariants.py does not know

    def write(self, folder, more):
        """A copy of the job with more text at its end; its path."""
        with open(self.path, encoding="utf-8") as file:
            text = file.read()
        path = os.path.join(folder, "job.textproto")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{text}\n{more}")
        return path

    def overrides(self):
        """Flags of the daemons."""
        return [f"--set={setting}" for setting in self.settings]


def quadratic(folder, of, seconds, lease=LEASE_SECONDS):
    """The job of a variant that takes about so long undisturbed, written to a folder; its workers
    keep their places for `lease` seconds without a word."""
    os.makedirs(folder, exist_ok=True)
    per_epoch = max(WORKERS, round(seconds / STEP_SECONDS / _EPOCHS) * WORKERS)
    path = os.path.join(folder, "job.textproto")
    with open(path, "w", encoding="ascii") as file:
        file.write(_TEXT.format(
            elements=ELEMENTS, examples=per_epoch * _BATCH, epochs=_EPOCHS, batch=_BATCH,
            workers=WORKERS, slots=_SLOTS, shards=SHARDS, segment=_SEGMENT_ELEMENTS,
            lease=lease, connect=CONNECT_SECONDS))
    pace = os.path.join(folder, "pace.csv")
    with open(pace, "w", encoding="ascii") as file:
        file.write("worker,step,seconds\n")
        # Unequal machines, but none three times as slow as another.
        file.writelines(f"{slot},0,{STEP_SECONDS * (0.8 + 0.2 * (slot % 3)):g}\n"
                        for slot in range(_SLOTS))
    return Job(of.name, path, list(of.settings), SHARDS, WORKERS, of.synchronous, pace,
               per_epoch * _EPOCHS, ELEMENTS)


def loss(values):
    """The quadratic's, by the formula in worker/models/quadratic.cc: 0.5 sum h_j x_j^2 with
    h_j = 10^(-3 (j mod 256) / 255)."""
    curvatures = [10 ** (-3 * j / 255) for j in range(256)]
    return 0.5 * math.fsum(curvatures[j % 256] * x * x for j, x in enumerate(values))
