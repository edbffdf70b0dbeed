#!/usr/bin/python3
"""A model's step here and in PyTorch: same weights, same batch; loss, statistics and the gradient
of every tensor agree. PyTorch computes in double precision, so what differs is our rounding.

    parity_test.py --dump-step build/bin/dump_step --model resnet20 --shape 32,32,3 --batch 8

Where there is no PyTorch it says so and ends with 77, which CTest counts as skipped.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "bench"))

SKIPPED = 77
TOLERANCE = 1e-4  # of a tensor's norm
# A relu whose input is as near to zero as single precision rounds lets its gradient through on
# one side only, which no tolerance covers. A batch without such an input is looked for.
LEAST_MARGIN = 2e-6
MOST_SEEDS = 40


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dump-step", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--shape", default="32,32,3", help="height,width,channels")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1, help="the first that is tried")
    parser.add_argument("--branches", type=float, default=1.0,
                        help="factor of the branches of resnet50's blocks")
    parser.add_argument("--device", default="cpu", help="of our step")
    return parser.parse_args()


class Step:
    """What dump_step wrote, in PyTorch's layouts and double precision."""

    def __init__(self, folder):
        import numpy
        with open(os.path.join(folder, "step.json"), encoding="utf-8") as file:
            self.about = json.load(file)

        def read(name, kind):
            return numpy.fromfile(os.path.join(folder, name), kind)

        height, width, channels = self.about["shape"]
        inputs = read("inputs.f32", "<f4").reshape(-1, height, width, channels)
        self.inputs = self.tensor(inputs.transpose(0, 3, 1, 2))
        self.labels = self.tensor(read("labels.i32", "<i4"), "i8")
        vector, gradient = read("vector.f32", "<f4"), read("gradient.f32", "<f4")
        statistics = read("statistics.f32", "<f4")
        self.values, self.gradients, self.statistics = {}, {}, {}
        for about in self.about["tensors"]:
            name = about["name"]
            self.values[name] = self.cut(vector, about["offset"], about["shape"])
            if about["trainable"]:
                self.gradients[name] = self.cut(gradient, about["offset"], about["shape"])
            else:
                begin = about["offset"] - len(gradient)
                self.statistics[name] = self.cut(statistics, begin, about["shape"])

    @staticmethod
    def tensor(array, kind="f8"):
        import torch
        return torch.from_numpy(array.astype(kind, copy=True))

    def cut(self, values, begin, shape):
        count = 1
        for side in shape:
            count *= side
        array = values[begin:begin + count].reshape(shape)
        if len(shape) == 4:  # filters: out, height, width, in
            array = array.transpose(0, 3, 1, 2)
        return self.tensor(array)


class Comparison:
    def __init__(self):
        self.worst = (0.0, "nothing")
        self.failures = []
        self.margin = float("inf")

    def near(self, what, got, want):
        if tuple(got.shape) != tuple(want.shape):
            self.failures.append(f"{what}: shape {tuple(got.shape)}, not {tuple(want.shape)}")
            return
        norm = want.norm().item()
        difference = (got - want).norm().item() / norm if norm > 0 else got.norm().item()
        if not difference <= TOLERANCE:
            self.failures.append(f"{what}: differs by {difference:.2e} of its norm")
        self.worst = max(self.worst, (difference, what))


@contextlib.contextmanager
def closest_to_zero(comparison):
    """Notes how near to its kink any relu came while this is open."""
    import torch.nn.functional
    relu = torch.nn.functional.relu

    def watched(inputs):
        comparison.margin = min(comparison.margin, inputs.abs().min().item())
        return relu(inputs)

    torch.nn.functional.relu = watched
    try:
        yield
    finally:
        torch.nn.functional.relu = relu


def compare(step):
    import torch
    from pytorch_models import make_model
    model = make_model(step.about["model"], tuple(step.about["shape"]), step.about["classes"],
                       as_stored=True).double()
    comparison = Comparison()
    state = {name: value for name, value in model.state_dict().items()
             if not name.endswith("num_batches_tracked")}
    if set(state) != set(step.values):
        comparison.failures.append(
            f"names: {sorted(set(state) ^ set(step.values))} are on one side only")
        return comparison
    model.load_state_dict(step.values, strict=False)

    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0  # running statistics become the batch's
    with closest_to_zero(comparison):
        outputs = model(step.inputs)
    loss = torch.nn.functional.cross_entropy(outputs, step.labels)
    loss.backward()
    model.eval()
    with torch.no_grad():
        evaluation = torch.nn.functional.cross_entropy(model(step.inputs), step.labels)

    scalar = torch.tensor
    comparison.near("loss", scalar(step.about["loss"]).double(), loss.detach())
    comparison.near("evaluation loss", scalar(step.about["evaluation_loss"]).double(), evaluation)
    correct = (outputs.argmax(1) == step.labels).sum().item()
    if correct != step.about["correct"]:
        comparison.failures.append(f"correct: {step.about['correct']}, not {correct}")
    for name, parameter in model.named_parameters():
        comparison.near(f"gradient of {name}", step.gradients[name], parameter.grad)
    for name, statistic in model.named_buffers():
        if name in step.statistics:
            comparison.near(f"statistic {name}", step.statistics[name], statistic)
    return comparison


def main():
    arguments = parse_arguments()
    try:
        import torch
    except ImportError as error:
        print(f"skipped: no PyTorch to compare with ({error}); Debian has it as python3-torch")
        return SKIPPED
    torch.manual_seed(1)
    for seed in range(arguments.seed, arguments.seed + MOST_SEEDS):
        with tempfile.TemporaryDirectory(prefix="foreshard-parity-") as folder:
            subprocess.run([arguments.dump_step, "--model", arguments.model, "--shape",
                            arguments.shape, "--batch", str(arguments.batch), "--seed", str(seed),
                            "--branches", str(arguments.branches),
                            "--device", arguments.device, "--out", folder], check=True)
            step = Step(folder)
        comparison = compare(step)
        if comparison.margin >= LEAST_MARGIN:
            break
    else:
        print(f"FAILED: none of {MOST_SEEDS} seeds gives a batch that keeps {LEAST_MARGIN} from "
              "every relu's kink; take a smaller one")
        return 1
    worst, what = comparison.worst
    print(f"{arguments.model}, seed {seed}: {len(step.gradients)} gradients; largest difference "
          f"{worst:.1e} of its norm, {what}; {step.about['device']}")
    for failure in comparison.failures:
        print(f"FAILED {failure}")
    return 1 if comparison.failures else 0


if __name__ == "__main__":
    sys.exit(main())
