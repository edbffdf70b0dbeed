"""The tiny job of --quick: made-up images, which a small network learns in a second."""

import os
import random
import struct

RATES = "30mbit,300mbit"

_SIDE = 16
_CLASSES = 4
_TRAIN_EXAMPLES = 1600
_TEST_EXAMPLES = 200

_JOB = """\
# Written by tools/bandwidth-study --quick.
name: "bandwidth_quick"
seed: 1
model {{ name: "mlp" widths: 64 }}
data {{
  format: "idx"
  directory: "{directory}"
  train_images: "train-images"
  train_labels: "train-labels"
  test_images: "test-images"
  test_labels: "test-labels"
  classes: {classes}
  mean: 0.4
  deviation: 0.2
}}
training {{ epochs: 1 batch_size: 8 workers: 2 }}
update {{ rule: "adam" }}
schedule {{ learning_rate: 0.002 }}
servers {{ shards: 1 }}
evaluation {{ recalibration_batches: 2 }}
"""


def _write_idx(folder, name, examples, seed):
    """Noise with one bright quadrant, which is the class."""
    source = random.Random(seed)
    labels = bytes(i % _CLASSES for i in range(examples))
    images = bytearray()
    half = _SIDE // 2
    for label in labels:
        noise = source.randbytes(_SIDE * _SIDE)
        for y in range(_SIDE):
            for x in range(_SIDE):
                quadrant = (2 if y >= half else 0) + (1 if x >= half else 0)
                images.append((noise[y * _SIDE + x] >> 1) + (100 if quadrant == label else 0))
    with open(os.path.join(folder, f"{name}-images"), "wb") as file:
        file.write(struct.pack(">IIII", 0x803, examples, _SIDE, _SIDE) + images)
    with open(os.path.join(folder, f"{name}-labels"), "wb") as file:
        file.write(struct.pack(">II", 0x801, examples) + labels)


def write_job(folder):
    """Data and job into a folder; the job's path."""
    os.makedirs(folder, exist_ok=True)
    _write_idx(folder, "train", _TRAIN_EXAMPLES, 1)
    _write_idx(folder, "test", _TEST_EXAMPLES, 2)
    path = os.path.join(folder, "job.textproto")
    with open(path, "w", encoding="utf-8") as file:
        file.write(_JOB.format(directory=folder, classes=_CLASSES))
    return path
