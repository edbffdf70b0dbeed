#!/usr/bin/python3
"""Training steps of PyTorch on one thread, one line of input at a time: the other side of
`foreshard bench train`.

    pytorch_steps.py MODEL HEIGHT WIDTH CHANNELS BATCH

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

    def seconds(self, steps):
        begin = time.perf_counter()
        for _ in range(steps):
            self.optimiser.zero_grad(set_to_none=True)
            outputs = self.model(self.inputs)
            self.torch.nn.functional.cross_entropy(outputs, self.labels).backward()
            self.optimiser.step()
        return (time.perf_counter() - begin) / steps


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
    trainees = [Trainee(torch, name, shape, batch, last) for last in (False, True)]
    for trainee in trainees:
        trainee.seconds(1)
    times = [min(trainee.seconds(1) for _ in range(3)) for trainee in trainees]
    faster = times.index(min(times))
    print("ready PyTorch", torch.__version__, ("NCHW", "channels last")[faster], flush=True)
    for line in sys.stdin:
        print(trainees[faster].seconds(int(line)), flush=True)


if __name__ == "__main__":
    main()
