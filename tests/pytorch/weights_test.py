#!/usr/bin/python3
"""Weights between our models and PyTorch's, by way of safetensors files: what we save loads
strictly there, what is saved there loads here, and both make the same of a batch.

    weights_test.py --weights-step build/bin/weights_step --model resnet20 --shape 32,32,3
    weights_test.py --weights-step build/bin/weights_step --model bert_tiny --shape 24,1,1 --targets 5

Where there is no PyTorch it says so and ends with 77, which CTest counts as skipped.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "bench"))

SKIPPED = 77
CLASSES, EXAMPLES = 7, 3
TOLERANCE = 1e-4  # of a logit
KINDS = {"F32": "<f4", "I64": "<i8", "F16": "<f2"}


def read(path):
    """A state_dict by the published format alone."""
    import numpy
    import torch
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length].decode("utf-8"))
    header.pop("__metadata__", None)
    state = {}
    for name, about in header.items():
        begin, end = (8 + length + offset for offset in about["data_offsets"])
        array = numpy.frombuffer(data[begin:end], KINDS[about["dtype"]]).reshape(about["shape"])
        state[name] = torch.from_numpy(array.copy())
    return state


def write(path, state):
    header, values = {}, b""
    kinds = {"torch.float32": "F32", "torch.int64": "I64", "torch.float16": "F16"}
    for name, tensor in state.items():
        kind = kinds[str(tensor.dtype)]
        part = tensor.contiguous().numpy().astype(KINDS[kind]).tobytes()
        header[name] = {"dtype": kind, "shape": list(tensor.shape),
                        "data_offsets": [len(values), len(values) + len(part)]}
        values += part
    text = json.dumps(header).encode("utf-8")
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + values)


def make(arguments, shape):
    """The model as PyTorch's users write it: images are flattened by channel, height, width."""
    name = arguments.model
    if arguments.targets:
        from hugging_face_bert import Bert
        return Bert(name, CLASSES, next_sentence=arguments.next_sentence).eval()
    import torch.nn.functional as F
    from pytorch_models import Mlp, make_model

    class PlainMlp(Mlp):
        def forward(self, x):
            x = x.flatten(1)
            for i in range(self.hidden):
                x = F.relu(getattr(self, f"bn{i + 1}")(getattr(self, f"fc{i + 1}")(x)))
            return self.output(x)

    model = PlainMlp(shape, CLASSES) if name == "mlp" else make_model(name, shape, CLASSES)
    return model.eval()


def text_difference(model, folder, arguments, positions):
    """Largest between the model's logarithms of targets' and labels' likelihoods and ours."""
    import numpy
    import torch

    def whole(name, *shape):
        return torch.from_numpy(numpy.fromfile(os.path.join(folder, name + ".i32"), "<i4")).long().view(EXAMPLES, *shape)

    def losses(name):
        return torch.from_numpy(numpy.fromfile(os.path.join(folder, name + ".f32"), "<f4")).view(EXAMPLES, -1)

    targets, at = whole("targets", arguments.targets), whole("target_positions", arguments.targets)
    mask = torch.arange(positions)[None] < whole("lengths")[:, None]
    with torch.no_grad():
        logits, side = model.double()(whole("tokens", positions), whole("segments", positions), mask)
    logits = torch.log_softmax(logits, 2).gather(1, at[:, :, None].expand(-1, -1, CLASSES))
    theirs = logits.gather(2, targets.clamp(min=0)[:, :, None])[:, :, 0] * (targets >= 0)
    worst = (theirs + losses("losses")).abs().max().item() / max(1.0, theirs.abs().max().item())
    if side is not None:
        worst = max(worst, (torch.log_softmax(side, 1) + losses("side_losses")).abs().max().item())
    return worst


def difference(model, folder, shape, arguments):
    """Largest between the model's logits and ours, each less its example's mean."""
    import numpy
    import torch
    if arguments.targets:
        return text_difference(model, folder, arguments, shape[0])
    height, width, channels = shape
    inputs = numpy.fromfile(os.path.join(folder, "inputs.f32"), "<f4")
    inputs = torch.from_numpy(inputs.reshape(EXAMPLES, height, width, channels).transpose(0, 3, 1, 2).copy())
    losses = numpy.fromfile(os.path.join(folder, "losses.f32"), "<f4").reshape(EXAMPLES, CLASSES)
    with torch.no_grad():
        theirs = torch.log_softmax(model.double()(inputs.double()), 1).numpy()
    scale = max(1.0, abs(theirs).max())
    return abs(theirs + losses).max() / scale


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights-step", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--shape", required=True, help="height,width,channels")
    parser.add_argument("--targets", type=int, default=0, help="of a sequence; a BERT's")
    parser.add_argument("--next-sentence", action="store_true", help="a BERT's second objective")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"skipped: no PyTorch to compare with ({error}); Debian has it as python3-torch")
        return SKIPPED
    torch.manual_seed(1)
    torch.set_num_threads(1)
    shape = tuple(int(side) for side in arguments.shape.split(","))
    command = [arguments.weights_step, "--model", arguments.model, "--shape", arguments.shape]
    if arguments.targets:
        command += ["--targets", str(arguments.targets)] + ["--next-sentence"] * arguments.next_sentence
    failures = []
    with tempfile.TemporaryDirectory(prefix="foreshard-weights-") as folder:
        path = os.path.join(folder, "weights.safetensors")

        subprocess.run(command + ["--save", folder], check=True)
        model = make(arguments, shape)
        model.load_state_dict(read(path), strict=True)
        worst = difference(model, folder, shape, arguments)
        print(f"{arguments.model}: out of ours: {len(model.state_dict())} tensors, logits differ by {worst:.1e}")
        if not worst <= TOLERANCE:
            failures.append("what we save is something else there")

        for half in (False, True):
            model = make(arguments, shape)
            for module in model.modules():
                if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                    torch.nn.init.normal_(module.running_mean, 0, 0.2)
                    torch.nn.init.uniform_(module.running_var, 0.5, 2)
                    torch.nn.init.uniform_(module.weight, 0.5, 1.5)
                    torch.nn.init.normal_(module.bias, 0, 0.2)
                    module.num_batches_tracked += 17
                elif isinstance(module, torch.nn.LayerNorm):
                    torch.nn.init.uniform_(module.weight, 0.5, 1.5)
                    torch.nn.init.normal_(module.bias, 0, 0.2)
            state = {name: value.half() if half and value.is_floating_point() else value
                     for name, value in model.state_dict().items()}
            model.load_state_dict(state)
            if arguments.targets and not half:  # what a state_dict of Hugging Face's has besides
                state["bert.embeddings.position_ids"] = torch.arange(512)[None]
                state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
                state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"]
            write(path, state)
            subprocess.run(command + ["--load", folder], check=True)
            worst = difference(model, folder, shape, arguments)
            print(f"{arguments.model}: into ours{' from F16' if half else ''}: logits differ by {worst:.1e}")
            if not worst <= TOLERANCE:
                failures.append("what we load is something else here")

        # A shape that does not fit is refused with both.
        name = next(iter(state))
        state[name] = state[name][:-1]
        write(path, state)
        refused = subprocess.run(command + ["--load", folder], check=False, stderr=subprocess.PIPE, text=True)
        if refused.returncode == 0 or f"tensor '{name}' has the shape" not in refused.stderr:
            failures.append(f"a tensor that is too short was not refused: {refused.stderr}")
    for failure in failures:
        print(f"FAILED {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
