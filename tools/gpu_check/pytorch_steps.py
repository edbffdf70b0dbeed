#!/usr/bin/env python3
"""The other side of gpu_bench: the same networks in PyTorch on the same GPU. Its argument is "eager"
or "compile"; reads gpu_bench's lines and prints one for each: {"name", "precision", "seconds"}.

The batch comes from pinned host memory in each step, as ours does. Convolutions choose their
algorithms by trying (cudnn.benchmark), images are channels last; TF32 as the line's precision says,
bf16 by autocast. BERT's attention is PyTorch's fused one. Only forward, loss and backward count, what we compute in a step too, and each step
is waited for, since a worker must know its loss."""

import json
import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "bench"))

WARM_UP = 12
LEAST_SECONDS = 1.0
LEAST_STEPS = 10


def small_network(nn, shape, layers):
    channels, flat, modules = shape[2], shape[0] == shape[1] == 1, []
    for kind, *numbers in layers:
        if kind == "conv":
            outputs, kernel, stride = numbers
            modules.append(nn.Conv2d(channels, outputs, kernel, stride, kernel // 2, bias=False))
            channels = outputs
        elif kind == "batch_norm":
            modules.append(nn.BatchNorm2d(channels))
        elif kind == "relu":
            modules.append(nn.ReLU())
        elif kind == "max_pool":
            modules.append(nn.MaxPool2d(*numbers))
        elif kind == "average_pool":
            if not flat:
                modules += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        elif kind == "dense":
            modules.append(nn.Linear(channels, numbers[0]))
            channels = numbers[0]
        else:
            raise ValueError(f"there is no layer {kind}")
    return nn.Sequential(*([nn.Flatten()] if flat else []), *modules), channels


def image_step(torch, line, mode):
    """One step of a network that reads images, forward and backward."""
    from torch import nn
    from pytorch_models import make_model
    precision, batch, shape = line["precision"], int(line["batch"]), line["shape"]
    if line["part"] == "models":
        classes = int(line["classes"])
        model = make_model(line["name"], shape, classes)
    else:
        model, classes = small_network(nn, shape, line["layers"])
    model = model.cuda().to(memory_format=torch.channels_last)
    host = torch.randn(batch, shape[2], shape[0], shape[1]).to(memory_format=torch.channels_last)
    host = host.pin_memory()
    host_labels = torch.randint(0, classes, (batch,)).pin_memory()
    inputs = torch.empty_like(host, device="cuda")
    labels = torch.empty_like(host_labels, device="cuda")
    run = torch.compile(model) if mode == "compile" else model

    def step():
        inputs.copy_(host, non_blocking=True)
        labels.copy_(host_labels, non_blocking=True)
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = nn.functional.cross_entropy(run(inputs), labels)
        loss.backward()
        loss.item()
    return step


def text_module(torch, line):
    """A BERT whose forward is its loss; parameters have Hugging Face's names, with lines for dots."""
    from torch import nn
    from pytorch_bert import Bert, shapes

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            state = {}
            for name, size in shapes(line["model"], int(line["classes"])).items():
                made = torch.ones(size) if name.endswith("LayerNorm.weight") else 0.02 * torch.randn(size)
                state[name] = nn.Parameter(made.cuda())
                self.register_parameter(name.replace(".", "_"), state[name])
            self.bert = Bert(line["model"], state, dropout=line["dropout"], fused=True)

        def forward(self, batch):
            return self.bert.loss(batch)[0]

    return Module()


def text_batch(torch, line):
    """Full sequences, targets spread over them, in pinned memory."""
    batch, positions, targets = int(line["batch"]), line["shape"][0], int(line["targets"])
    classes, at = int(line["classes"]), torch.arange(targets) * positions // targets
    made = {"tokens": torch.randint(0, classes, (batch, positions)),
            "segments": (torch.arange(positions) * 3 >= positions).long().repeat(batch, 1),
            "targets": torch.randint(0, classes, (batch, targets)),
            "target_positions": at.repeat(batch, 1)}
    return {name: tensor.pin_memory() for name, tensor in made.items()}


def text_step(torch, line, mode):
    """The same of a BERT."""
    model, host = text_module(torch, line), text_batch(torch, line)
    inputs = {name: torch.empty_like(tensor, device="cuda") for name, tensor in host.items()}
    run = torch.compile(model) if mode == "compile" else model

    def step():
        for name, tensor in host.items():
            inputs[name].copy_(tensor, non_blocking=True)
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=line["precision"] == "bf16"):
            loss = run(inputs)
        loss.backward()
        loss.item()
    return step


def seconds_of(torch, line, mode):
    torch.backends.cuda.matmul.allow_tf32 = line["precision"] != "fp32"
    torch.backends.cudnn.allow_tf32 = line["precision"] != "fp32"
    torch.backends.cudnn.benchmark = True
    step = (text_step if "targets" in line else image_step)(torch, line, mode)
    for _ in range(WARM_UP):
        step()
    seconds, begin = [], time.perf_counter()
    while len(seconds) < LEAST_STEPS or time.perf_counter() - begin < LEAST_SECONDS:
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    seconds.sort()
    return seconds[len(seconds) // 2]


def main():
    mode = sys.argv[1]
    import torch
    torch.manual_seed(1)
    failed = False
    for text in sys.stdin:
        line = json.loads(text)
        try:
            seconds = seconds_of(torch, line, mode)
        except Exception as error:  # whatever it was, the others may do
            print(f"{line['name']} {line['precision']}: {str(error).strip().splitlines()[:1]}", file=sys.stderr)
            failed = True
            continue
        print(json.dumps({"name": line["name"], "precision": line["precision"],
                          "seconds": seconds}), flush=True)
        if mode == "compile":
            torch._dynamo.reset()
        torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
