#!/usr/bin/python3
"""A step of a BERT here and in PyTorch: same weights, same batch, no dropout; the loss and the
gradient of every tensor agree. PyTorch computes in double precision, so what differs is our
rounding, for which each precision has a tolerance.

    bert_parity_test.py --dump-step build/bin/dump_step --model bert_tiny --sequence 48

Where there is no PyTorch it says so and ends with 77, which CTest counts as skipped.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "bench"))

SKIPPED = 77
# Of a tensor's norm. Rounding to bf16 what our layers keep in it, in double precision otherwise, makes
# gradients differ by 0.02 at most (bert_tiny and bert_base); tf32 has three more bits.
TOLERANCES = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dump-step", required=True)
    parser.add_argument("--model", default="bert_tiny")
    parser.add_argument("--sequence", type=int, default=48)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--targets", type=int, default=7)
    parser.add_argument("--vocabulary", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--next-sentence", action="store_true")
    parser.add_argument("--device", default="cpu", help="of our step")
    parser.add_argument("--precision", default="fp32", choices=TOLERANCES, help="of our step on a GPU")
    arguments = parser.parse_args()
    try:
        import numpy
        import torch
        from pytorch_bert import Bert, shapes
    except ImportError as error:
        print(f"skipped: no PyTorch to compare with ({error}); Debian has it as python3-torch")
        return SKIPPED
    torch.set_num_threads(1)
    command = [arguments.dump_step, "--model", arguments.model, "--shape", f"{arguments.sequence},1,1",
               "--classes", str(arguments.vocabulary), "--batch", str(arguments.batch),
               "--targets", str(arguments.targets), "--seed", str(arguments.seed),
               "--device", arguments.device, "--precision", arguments.precision] + ["--next-sentence"] * arguments.next_sentence
    with tempfile.TemporaryDirectory(prefix="foreshard-parity-") as folder:
        subprocess.run(command + ["--out", folder], check=True)
        with open(os.path.join(folder, "step.json"), encoding="utf-8") as file:
            about = json.load(file)

        def read(name, kind):
            return torch.from_numpy(numpy.fromfile(os.path.join(folder, name), kind))

        def whole(name, *shape):
            return read(name + ".i32", "<i4").long().view(arguments.batch, *shape)

        batch = {"tokens": whole("tokens", arguments.sequence),
                 "segments": whole("segments", arguments.sequence),
                 "targets": whole("targets", arguments.targets),
                 "target_positions": whole("target_positions", arguments.targets),
                 "labels": whole("labels")}
        batch["mask"] = torch.arange(arguments.sequence)[None] < whole("lengths")[:, None]
        vector, gradient = read("vector.f32", "<f4").double(), read("gradient.f32", "<f4").double()

    tolerance = TOLERANCES[about["precision"]]
    failures, state, ours = [], {}, {}
    for tensor in about["tensors"]:
        count = 1
        for side in tensor["shape"]:
            count *= side
        cut = slice(tensor["offset"], tensor["offset"] + count)
        state[tensor["name"]] = vector[cut].view(tensor["shape"]).clone().requires_grad_()
        ours[tensor["name"]] = gradient[cut].view(tensor["shape"])
    wanted = shapes(arguments.model, arguments.vocabulary, next_sentence=arguments.next_sentence)
    if {name: tuple(value.shape) for name, value in state.items()} != wanted:
        names = sorted(set(state) ^ set(wanted)) or "shapes"
        print(f"FAILED tensors differ: {names}")
        return 1
    model = Bert(arguments.model, state)
    loss, logits = model.loss(batch, arguments.next_sentence)
    loss.backward()

    worst = (0.0, "nothing")

    def near(what, got, want):
        nonlocal worst
        norm = want.norm().item()
        difference = (got - want).norm().item() / norm if norm > 0 else got.norm().item()
        worst = max(worst, (difference, what))
        if not difference <= tolerance:
            failures.append(f"{what}: differs by {difference:.2e} of its norm")

    near("loss", torch.tensor(about["loss"]).double(), loss.detach())
    near("evaluation loss", torch.tensor(about["evaluation_loss"]).double(), loss.detach())
    correct = ((logits.argmax(2) == batch["targets"]) & (batch["targets"] >= 0)).sum().item()
    # Nearly equal logits may change places where they are rounded more.
    doubtful = 0 if about["precision"] == "fp32" else 1 + arguments.batch * arguments.targets // 20
    if abs(correct - about["correct"]) > doubtful:
        failures.append(f"correct: {about['correct']}, not {correct}")
    # A shift of all keys changes no softmax: the gradient of a key's bias is 0 but for rounding.
    for name, value in state.items():
        if name.endswith("self.key.bias"):
            weight = state[name.replace("bias", "weight")].grad.norm().item()
            if not ours[name].norm().item() <= tolerance * weight:
                failures.append(f"gradient of {name}: {ours[name].norm().item():.2e} is not near 0")
            continue
        near(f"gradient of {name}", ours[name], value.grad)
    print(f"{arguments.model}: {len(state)} gradients; largest difference {worst[0]:.1e} of its norm, "
          f"{worst[1]}; {about['precision']} on {about['device']}")
    for failure in failures:
        print(f"FAILED {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
