#!/usr/bin/python3
"""What `foreshard export` makes of a trained job's state loads into PyTorch, strict, for a residual
network and a BERT; `foreshard weights` makes the same values of the canonical file.

    export_test.py --programs build/bin

Where there is no PyTorch it says so and ends with 77, which CTest counts as skipped.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "bench"))

SKIPPED = 77
TRAINING = """
seed: 1
training { epochs: 1 batch_size: 8 workers: 1 }
update { rule: "nag_asgd" momentum: 0.9 }
schedule { learning_rate: 0.01 }
servers { shards: 2 }
"""
IMAGES = """
name: "images"
model { name: "%s" }
data { format: "cifar10" directory: "%s" train_files: "images.bin" test_files: "images.bin" }
"""
TEXT = """
name: "text"
model { name: "bert_tiny" positions: 16 }
data { format: "tokens" directory: "%s" train_tokens: "packed" test_tokens: "packed" }
"""


class Folder:
    def __init__(self, programs, path):
        self.foreshard, self.path = os.path.join(programs, "foreshard"), path

    def at(self, name):
        return os.path.join(self.path, name)

    def write(self, name, text, mode="w"):
        with open(self.at(name), mode) as file:  # pylint: disable=unspecified-encoding
            file.write(text)
        return self.at(name)

    def run(self, *words, status=0):
        ended = subprocess.run([self.foreshard, *words], check=False, capture_output=True, text=True, cwd=self.path)
        if ended.returncode != status:
            print(ended.stdout[-2000:], ended.stderr[-4000:])
            raise SystemExit(f"FAILED foreshard {words[0]} ended with {ended.returncode}, not {status}")
        return ended.stdout + ended.stderr


def state_of(path):
    from weights_test import read
    return read(path)


def train(folder, name, job):
    """The job's state, as its servers leave it."""
    job = folder.write(name + ".textproto", job + TRAINING)
    folder.run("run", "--job", job, "--device", "cpu", "--state-directory", folder.at(name), "--results",
               folder.at(name + ".results"))
    return job


def exported_both_ways(folder, name, job):
    folder.run("export", "--layout", "pytorch", "--output", folder.at(name + ".pt"), folder.at(name))
    folder.run("export", "--output", folder.at(name + ".plain"), folder.at(name))
    folder.run("weights", "--job", job, "--to-pytorch", folder.at(name + ".plain"), "--output", folder.at(name + ".weights"))
    # Back, as what a run begins with.
    folder.run("import", "--job", job, "--from", folder.at(name + ".pt"), "--layout", "pytorch", "--output",
               folder.at(name + ".again"))
    folder.run("export", "--from-journal", "--output", folder.at(name + ".back"), folder.at(name + ".again"))
    return (state_of(folder.at(name + suffix)) for suffix in (".pt", ".weights", ".plain", ".back"))


def same(first, second):
    import torch
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", required=True)
    arguments = parser.parse_args()
    try:
        import torch
        from hugging_face_bert import Bert
        from pytorch_models import make_model
    except ImportError as error:
        print(f"skipped: no PyTorch to compare with ({error}); Debian has it as python3-torch")
        return SKIPPED
    failures = []
    generator = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="foreshard-export-") as path:
        folder = Folder(os.path.abspath(arguments.programs), path)
        folder.write("images.bin", b"".join(bytes([generator.randrange(10)]) + generator.randbytes(3072)
                                            for _ in range(24)), "wb")
        folder.write("text.txt", " ".join(generator.choice(["one", "two", "three", "four"]) for _ in range(600)))
        folder.run("learn-vocabulary", "--input", "text.txt", "--size", "40", "--output", folder.at("vocab.txt"))
        folder.run("pack-text", "--input", "text.txt", "--vocabulary", "vocab.txt", "--sequence", "16", "--output",
                   folder.at("packed"))
        with open(folder.at("vocab.txt"), encoding="utf-8") as file:
            vocabulary = len(file.read().split())
        for name, job, model in (
                ("resnet20", IMAGES % ("resnet20", path), make_model("resnet20", (32, 32, 3), 10)),
                ("bert_tiny", TEXT % path, Bert("bert_tiny", vocabulary, positions=16))):
            exported, converted, plain, back = exported_both_ways(folder, name, train(folder, name, job))
            before = {key: value.clone() for key, value in model.state_dict().items()}
            model.load_state_dict(exported, strict=True)
            print(f"{name}: {len(exported)} tensors loaded")
            if all(torch.equal(before[key], value) for key, value in model.state_dict().items()):
                failures.append(f"{name}: loading changed nothing")
            if not same(exported, converted):
                failures.append(f"{name}: export --layout pytorch and weights --to-pytorch differ")
            if not same(plain, back):
                failures.append(f"{name}: what was exported comes back as something else")
        # A dense layer that reads an image: said, instead of columns in the wrong order.
        train(folder, "cnn", IMAGES % ("cnn", path))
        said = folder.run("export", "--layout", "pytorch", "--output", folder.at("cnn.pt"), folder.at("cnn"), status=2)
        if "model cnn has a dense layer that reads an image" not in said or os.path.exists(folder.at("cnn.pt")):
            failures.append(f"export of the cnn was not refused: {said}")
    for failure in failures:
        print(f"FAILED {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
