"""tools/gpu-check without a GPU: what it keeps, what it says, how it ends; and its bundle. Its
programs are stand-ins, but for the bundle's, which is made of this machine's libraries."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))

from gpu_check import bundle, machine, main, parts, results, table

GPU = {"name": "Test GPU", "capability": "9.0", "memory_mib": "1000", "driver": "1.2"}

# Answers as gpu_bench would, but for the model that it is told to fail at.
BENCH = """#!/usr/bin/env python3
import json, sys
line = {"part": sys.argv[1], "name": "copy", "elements": 1, "seconds": 1e-3, "bytes_per_second": 2e12, "of_copy": 1}
if sys.argv[1] == "kernels":
    print(json.dumps(line))
    print(json.dumps(dict(line, name="encode/one_bit", of_copy=0.8)))
    print(json.dumps(dict(line, name="encode/top_k", of_copy=0.5)))
else:
    if sys.argv[2] == "resnet50":
        sys.exit("gpu_bench: out of GPU memory")
    name = sys.argv[2] if sys.argv[1] == "model" else "conv"
    print(json.dumps({"part": sys.argv[1] + "s" * (sys.argv[1] == "model"), "name": name,
                      "precision": sys.argv[-2], "batch": 128, "seconds": 2e-3, "host_seconds": 1e-4,
                      "shape": [4, 4, 3], "classes": 10, "layers": []}))
"""

# A report as GoogleTest's.
TESTS = """#!/usr/bin/env python3
import json, os, sys
wanted = %r
print("no GPU to test on: there is none")
report = next(a.split(":", 1)[1] for a in sys.argv if a.startswith("--gtest_output"))
suite = [{"name": f"T{i}", "result": r if r == "SKIPPED" else "COMPLETED",
          **({"failures": [{"failure": "x"}]} if r == "FAILED" else {})} for i, r in enumerate(wanted)]
json.dump({"testsuites": [{"name": "S", "testsuite": suite}]}, open(report, "w"))
sys.exit("FAILED" in wanted)
"""


def executable(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o755)


class Fake:
    """A machine with what the test wants it to have."""

    def __init__(self, gpu=GPU, torch=None):
        self.gpu, self.no_gpu = gpu, None if gpu else "no GPU: the test has none"
        self.torch, self.no_torch = torch, None if torch else "no PyTorch: the test has none"
        self.python, self.nvcc, self.cmake, self.ninja, self.toolkit = sys.executable, "/n", "/c", None, "13.0"
        self.sanitizer = None

    def missing(self):
        return None

    def library_path(self):
        return ""

    def facts(self):
        return {"gpu": self.gpu}


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="foreshard-gpu-check-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.said = []
        patch = mock.patch.object(main, "say", self.said.append)
        patch.start()
        self.addCleanup(patch.stop)

    def run_it(self, fake, tests=("COMPLETED",), arguments=(), built=True):
        """The status of a run whose build is the stand-ins'."""
        def build(check, seconds):
            if not built:
                raise parts.Failed("the build failed: error: x")
            os.makedirs(check.build_folder, exist_ok=True)
            executable(os.path.join(check.build_folder, "gpu_bench"), BENCH)
            executable(os.path.join(check.build_folder, "kernels_gpu_tests"), TESTS % (list(tests),))
            return {"layers": True}
        with mock.patch.object(parts.Check, "build", build), \
                mock.patch.object(main, "Machine", lambda python: fake):
            return main.main(["--results", self.folder, *arguments])

    def records(self):
        with open(os.path.join(self.folder, "results.json"), encoding="utf-8") as file:
            return json.load(file)["parts"]

    def text(self):
        return "\n".join(self.said)

    def test_without_a_gpu_it_builds_and_says_so(self):
        self.assertEqual(self.run_it(Fake(gpu=None), ["SKIPPED", "SKIPPED"]), main.EXIT_NO_GPU)
        states = {name: record["status"] for name, record in self.records().items()}
        self.assertEqual(states.pop("build"), results.DONE)
        self.assertEqual(set(states.values()), {results.IMPOSSIBLE})
        self.assertIn("2 tests skipped: no GPU to test on", self.text())
        self.assertIn("kernels: not possible: no GPU: the test has none", self.text())
        with open(os.path.join(self.folder, "table.md"), encoding="utf-8") as file:
            self.assertIn("no GPU", file.read())

    def test_figures_are_set_beside_their_goals(self):
        status = self.run_it(Fake(), arguments=["--only", "build", "--only", "tests", "--only", "kernels"])
        self.assertEqual(status, main.EXIT_DONE)
        self.assertRegex(self.text(), r"encode/one_bit +2000 GB/s +copy +0\.80 +>= 0\.7: met")
        self.assertRegex(self.text(), r"encode/top_k +2000 GB/s +copy +0\.50 +>= 0\.7: missed")
        self.assertRegex(self.text(), r"tests +1 passed .*met")

    def test_models_are_set_beside_pytorch(self):
        Record = lambda data: {"status": results.DONE, "words": "", "data": data}
        line = {"name": "resnet20", "precision": "tf32", "batch": 128, "seconds": 2e-3, "host_seconds": 1e-4}
        made = table.Table({"models/resnet20": Record([line]),
                            "pytorch/models/eager": Record([dict(line, seconds=5e-3)]),
                            "pytorch/resnet20/compile": Record([dict(line, seconds=3e-3)])})
        self.assertRegex(made.text(), r"resnet20 tf32, batch 128 +2\.000 ms \(host 0\.100 ms\) +5\.000 ms +3\.000 ms +2\.50 +>= 1\.5: met")

    def test_text_is_told_in_tokens_and_shares_of_the_peak(self):
        Record = lambda data: {"status": results.DONE, "words": "", "data": data}
        line = {"name": "bert_base_128", "precision": "bf16", "batch": 64, "seconds": 1e-2, "host_seconds": 1e-4,
                "tokens_per_second": 819200, "of_peak": 0.456}
        made = table.Table({"models/bert_base_128": Record([line]),
                            "pytorch/text/eager": Record([dict(line, seconds=1.2e-2)]),
                            "pytorch/bert_base_128/compile": Record([dict(line, seconds=9e-3)])})
        self.assertRegex(made.text(), r"bert_base_128 bf16, batch 64 +10\.000 ms \(host 0\.100 ms\), 819200 tokens/s, "
                                      r"0\.46 of the peak +12\.000 ms +9\.000 ms +1\.20 +>= 1\.0: met")

    def test_pytorchs_bert_takes_its_fused_attention(self):
        """On the CPU, in a PyTorch that may have no such function yet: a stand-in says what it was given."""
        try:
            import torch
        except ImportError as missing:
            self.skipTest(str(missing))
        sys.path.insert(0, os.path.join(ROOT, "tools", "bench"))
        sys.path.insert(0, os.path.join(ROOT, "tools", "gpu_check"))
        import pytorch_bert
        import pytorch_steps
        given = []

        def fused(query, key, value, mask, dropout):
            given.append((tuple(query.shape), mask, dropout))
            return torch.softmax(query @ key.transpose(2, 3) / query.shape[3] ** 0.5, 3) @ value

        line = {"model": "bert_tiny", "name": "bert_tiny_12", "precision": "fp32", "batch": 2, "shape": [12, 1, 1],
                "targets": 2, "classes": 50, "dropout": 0.1}
        with mock.patch.object(torch.Tensor, "cuda", lambda tensor: tensor), \
                mock.patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor), \
                mock.patch.object(pytorch_bert.F, "scaled_dot_product_attention", fused, create=True):
            model, batch = pytorch_steps.text_module(torch, line), pytorch_steps.text_batch(torch, line)
            model(batch).backward()
            # Without dropout both kinds of attention are the same.
            model.bert.dropout = 0.0
            with_it = model(batch).item()
            model.bert.fused = False
            self.assertAlmostEqual(model(batch).item(), with_it, places=5)
        self.assertEqual(given[0], ((2, 2, 12, 64), None, 0.1))
        self.assertEqual(batch["target_positions"].tolist(), [[0, 6]] * 2)
        missing = [name for name, tensor in model.named_parameters() if tensor.grad is None]
        self.assertEqual(missing, [])

    def test_what_is_done_is_kept_and_what_failed_is_done_again(self):
        self.assertEqual(self.run_it(Fake()), main.EXIT_FAILED)
        first = self.records()
        self.assertEqual(first["models/resnet50"]["status"], results.FAILED)
        self.assertIn("out of GPU memory", first["models/resnet50"]["words"])
        self.assertEqual(first["models/resnet20"]["status"], results.DONE)
        self.assertEqual(first["sanitizer/memcheck"]["status"], results.IMPOSSIBLE)
        self.said.clear()
        self.run_it(Fake())
        self.assertIn("models/resnet20: done before", self.text())
        self.assertNotIn("models/resnet50: done before", self.text())
        self.said.clear()
        self.run_it(Fake(), arguments=["--again", "--only", "models/resnet20"])
        self.assertNotIn("models/resnet20: done before", self.text())

    def test_another_gpu_begins_anew(self):
        self.run_it(Fake())
        self.said.clear()
        self.run_it(Fake(gpu=dict(GPU, name="Another")))
        self.assertNotIn("done before", self.text())

    def test_failing_tests_are_named(self):
        self.assertEqual(self.run_it(Fake(), ["COMPLETED", "FAILED"], ["--only", "tests", "--only", "build"]),
                         main.EXIT_FAILED)
        self.assertIn("tests: failed: 1 tests failed: S.T1", self.text())

    def test_nothing_is_run_that_was_not_built(self):
        self.assertEqual(self.run_it(Fake(), built=False), main.EXIT_FAILED)
        self.assertEqual(list(self.records()), ["build"])

    def test_what_does_not_fit_is_left(self):
        status = self.run_it(Fake(), arguments=["--minutes", "0.1", "--only", "build", "--only", "layers"])
        self.assertEqual(status, main.EXIT_LEFT)
        self.assertEqual(self.records()["layers"]["status"], results.LEFT)

    def test_a_child_that_hangs_is_ended(self):
        log = os.path.join(self.folder, "log")
        status, lines = parts.run_lines([sys.executable, "-c", "import time; print('{\"a\": 1}', flush=True); time.sleep(60)"],
                                        2, log)
        self.assertIsNone(status)
        self.assertEqual(parts.json_lines(lines), [{"a": 1}])

    def test_bad_arguments(self):
        with mock.patch("sys.stderr"):
            for arguments in (["--minutes", "x"], ["--only", "nothing"], ["--unknown"],
                              ["--libraries", os.path.join(self.folder, "none")]):
                with mock.patch.object(main, "Machine", lambda python: Fake()):
                    self.assertEqual(main.main(["--results", self.folder, *arguments]), main.EXIT_BAD, arguments)

    def test_a_machine_without_nvidia_says_no_gpu(self):
        with mock.patch.object(machine, "output_of", lambda command, timeout=60: (None, f"there is no {command[0]}")):
            looked = machine.Machine(sys.executable)
        self.assertIsNone(looked.gpu)
        self.assertEqual(looked.no_gpu, "no GPU: there is no nvidia-smi")
        self.assertEqual(looked.architecture(), "75")
        self.assertIn("no PyTorch in", looked.no_torch)

    def test_the_bundle_has_the_tree_and_the_libraries(self):
        path = os.path.join(self.folder, "bundle.tar")
        try:
            self.assertIn("tar xf bundle.tar", bundle.write(ROOT, path))
        except bundle.CannotBundle as missing:
            self.skipTest(str(missing))
        with tarfile.open(path) as tar:
            names = set(tar.getnames())
        for name in ("tools/gpu-check", "kernels/cuda/signs.cu", "worker/models/resnet20.cc",
                     "tests/kernels/cuda/on_device.h", "tools/bench/pytorch_models.py", "tools/bench/pytorch_bert.py",
                     "libraries/include/absl/status/status.h", "libraries/include/xxhash.h",
                     "libraries/include/gmock/gmock.h", "libraries/lib/libgtest_main.a",
                     "libraries/lib/libabsl_status.a"):
            self.assertIn("foreshard/" + name, names)
        self.assertFalse([n for n in names if "build-" in n or "__pycache__" in n])
        # Unpacked it is the same tree, and finds its libraries by itself.
        with tarfile.open(path) as tar:
            tar.extractall(self.folder)
        top = os.path.join(self.folder, "foreshard")
        self.assertEqual(results.tree_checksum(top), results.tree_checksum(ROOT))
        said = subprocess.run([sys.executable, os.path.join(top, "tools", "gpu-check"), "--help"],
                              capture_output=True, text=True, check=True).stdout
        self.assertIn("--bundle", said)

    def test_a_library_that_is_missing_is_named(self):
        with self.assertRaisesRegex(bundle.CannotBundle, "libabsl-dev"):
            bundle.library_files(self.folder)


if __name__ == "__main__":
    unittest.main()
