#!/usr/bin/python3
"""Training steps of PyTorch on one thread, one line of input at a time: the other side of
`foreshard bench train`.

    pytorch_steps.py MODEL HEIGHT WIDTH CHANNELS BATCH

Its products outside convolutions are those of the BLAS that it finds, which makes most of a BERT's
step: Debian's reference BLAS takes many times as long as OpenBLAS (package libopenblas0-pthread, or
LD_LIBRARY_PATH to it). What it has found is among its words.

It says "ready WORDS" or "absent REASON", and then, for each line with a number of steps, the
seconds that one of them took.
"""

import os
import sys
import time

sys.dont_write_bytecode = True
os.environ["OMP_NUM_THREADS"] = "1"


class Trainee:
    """Nesterov momentum on one made-up batch."""

    def __init__(self, torch, name, shape, batch, channels_last):
        from pytorch_models import make_model
        torch.manual_seed(1)
        self.torch = torch
        self.model = make_model(name, shape, 10)
        self.inputs = torch.randn(batch, shape[2], shape[0], shape[1])
        self.labels = torch.randint(0, 10, (batch,))
        if channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
            self.inputs = self.inputs.to(memory_format=torch.channels_last)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9,
                                         nesterov=True)

    def loss(self):
        return self.torch.nn.functional.cross_entropy(self.model(self.inputs), self.labels)

    def seconds(self, steps):
        begin = time.perf_counter()
        for _ in range(steps):
            self.optimiser.zero_grad(set_to_none=True)
            self.loss().backward()
            self.optimiser.step()
        return (time.perf_counter() - begin) / steps


class TextTrainee(Trainee):
    """The same of a BERT: sequences without padding, targets' positions alone, dropout 0.1."""

    VOCABULARY, TARGETS = 30522, 19

    def __init__(self, torch, name, shape, batch):  # pylint: disable=super-init-not-called
        from pytorch_bert import Bert, shapes
        torch.manual_seed(1)
        self.torch, positions = torch, shape[0]
        state = {name: (0.02 * torch.randn(size)).requires_grad_()
                 for name, size in shapes(name, self.VOCABULARY).items()}
        self.model = Bert(name, state, dropout=0.1)
        at = torch.arange(self.TARGETS) * positions // self.TARGETS
        self.inputs = {"tokens": torch.randint(0, self.VOCABULARY, (batch, positions)),
                       "segments": (torch.arange(positions) * 3 > positions).long().expand(batch, -1),
                       "targets": torch.randint(0, self.VOCABULARY, (batch, self.TARGETS)),
                       "target_positions": at.expand(batch, -1)}
        self.optimiser = torch.optim.SGD(state.values(), lr=0.01, momentum=0.9, nesterov=True)

    def loss(self):
        return self.model.loss(self.inputs)[0]


def blas():
    """Which library makes products."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        names = {os.path.basename(line.rstrip()) for line in file if "blas" in line or "mkl_" in line}
    for name in sorted(names):
        if name.startswith("libopenblas"):
            return "with OpenBLAS"
        if name.startswith("libmkl"):
            return "with MKL"
    return "with the reference BLAS" if names else "with a BLAS of its own"


def main():
    name = sys.argv[1]
    height, width, channels, batch = (int(text) for text in sys.argv[2:6])
    try:
        import torch
    except ImportError as error:
        print("absent", error, flush=True)
        return
    torch.set_num_threads(1)
    # Its own layout and the one that it recommends for convolutions: the faster one counts.
    shape = (height, width, channels)
    if name.startswith("bert"):
        trainees = [TextTrainee(torch, name, shape, batch)]
    else:
        trainees = [Trainee(torch, name, shape, batch, last) for last in (False, True)]
    for trainee in trainees:
        trainee.seconds(1)
    times = [min(trainee.seconds(1) for _ in range(3)) for trainee in trainees]
    faster = times.index(min(times))
    layout = () if len(trainees) == 1 else (("NCHW", "channels last")[faster],)
    print("ready PyTorch", torch.__version__, *layout, *([blas()] if name.startswith("bert") else []), flush=True)
    for line in sys.stdin:
        print(trainees[faster].seconds(int(line)), flush=True)


if __name__ == "__main__":
    main()
