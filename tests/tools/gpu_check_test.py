"""tools/gpu-check without a GPU: what it keeps, what it says, how it ends; and its bundle. Its
programs are stand-ins, but for the bundle's, which is made of this machine's libraries."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import types
import unittest
from unittest import mock

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))

from gpu_check import archive, bundle, machine, main, parts, results, table

GPU = {"name": "Test GPU", "capability": "9.0", "memory_mib": "1000", "driver": "1.2"}

# Without what it would look for first, and soon begun.
PYTHON = f"#!{sys.executable} -S\n"

# Answers as gpu_bench would, but for the model that it is told to fail at.
BENCH = PYTHON + """
import json, sys
line = {"part": sys.argv[1], "name": "copy", "elements": 1, "seconds": 1e-3, "bytes_per_second": 2e12}
if sys.argv[1] == "kernels":
    print(json.dumps(line))
    print(json.dumps(dict(line, name="encode/one_bit", bytes_per_second=2e12)))
    print(json.dumps(dict(line, name="encode/top_k", bytes_per_second=1.25e12)))
    print(json.dumps(dict(line, bytes_per_second=2.5e12)))
else:
    if sys.argv[2] == "resnet50":
        sys.exit("gpu_bench: out of GPU memory")
    name = sys.argv[2] if sys.argv[1] == "model" else "conv"
    print(json.dumps({"part": sys.argv[1] + "s" * (sys.argv[1] == "model"), "name": name,
                      "precision": sys.argv[-2], "batch": 128, "seconds": 2e-3, "host_seconds": 1e-4,
                      "shape": [4, 4, 3], "classes": 10, "layers": []}))
"""

# Says what GoogleTest says. DIES ends the program, LEAVES does so as if all were well; LOST fails, and so does
# what comes after it; after QUIET it ends with 1 and does not say why.
TESTS = PYTHON + """
import os, sys
wanted = %r
names = [f"All/S.T{i}/{i}" for i in range(len(wanted))]
if "--gtest_list_tests" in sys.argv:
    print("All/S.")
    for name in names:
        print("  " + name[len("All/S."):] + "  # GetParam() = 1")
    sys.exit(0)
chosen = next((a.split("=", 1)[1].split(":") for a in sys.argv if a.startswith("--gtest_filter")), names)
lost = failed = False
for name, state in zip(names, wanted):
    if name not in chosen:
        continue
    print("[ RUN      ] " + name, flush=True)
    if state == "DIES":
        os.abort()
    if state == "LEAVES":
        os._exit(0)
    lost = lost or state == "LOST"
    if lost:
        print("x.cc:1: Failure: INTERNAL: waiting for a stream: CUDA error 700")
    if state == "FAILED":
        print("x.cc:2: Failure: 1 is not 2")
    if state == "SKIPPED":
        print("x.h:3: Skipped\\nno GPU to test on: there is none")
    bad = lost or state == "FAILED"
    failed = failed or bad
    print("[  FAILED  ] %%s, where GetParam() = 1 (3 ms)" %% name if bad else
          "[  SKIPPED ] %%s (0 ms)" %% name if state == "SKIPPED" else "[       OK ] %%s (0 ms)" %% name)
print("[==========] tests ran.")
print("[  FAILED  ] All/S.T0/0")
sys.exit(failed or "QUIET" in wanted)
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

    def architecture(self):
        return "90"

    no_cuda_in_torch = machine.Machine.no_cuda_in_torch

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

    def run_it(self, fake, tests=("COMPLETED",), arguments=(), built=True, look=lambda: None):
        """The status of a run whose build is the stand-ins'; `look` happens where it looks at the machine."""
        def build(check, seconds):
            if not built:
                raise parts.Failed("the build failed: error: x")
            os.makedirs(check.build_folder, exist_ok=True)
            executable(os.path.join(check.build_folder, "gpu_bench"), BENCH)
            executable(os.path.join(check.build_folder, "kernels_gpu_tests"), TESTS % (list(tests),))
            self.is_built(check)
            return {"layers": True}
        with mock.patch.object(parts.Check, "build", build), \
                mock.patch.object(main, "Machine", lambda python: look() or fake):
            return main.main(["--results", self.folder, *arguments])

    @staticmethod
    def is_built(check, **other):
        built = {"layers": True, "architecture": "90", "libraries": "bundle", "tree": check.results.identity["tree"]}
        check.results.write_file("build/built.json", json.dumps(dict(built, **other)))

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

    def test_a_gpu_that_does_not_work_is_no_success(self):
        self.assertEqual(self.run_it(Fake(), ["COMPLETED", "SKIPPED"], ["--only", "tests"]), main.EXIT_FAILED)
        self.assertIn("tests: failed: 1 tests skipped: no GPU to test on: there is none", self.text())
        self.assertRegex(self.text(), r"tests +1 passed, 1 skipped .*missed")

    def test_figures_are_set_beside_their_goals(self):
        status = self.run_it(Fake(), arguments=["--only", "build", "--only", "tests", "--only", "kernels"])
        self.assertEqual(status, main.EXIT_DONE)
        # Beside the faster of two copies, which alone is shown.
        self.assertEqual(re.findall(r"^copy +(\d+) GB/s +copy +(\S+)", self.text(), re.M), [("2500", "1.00")])
        self.assertRegex(self.text(), r"encode/one_bit +2000 GB/s +copy +0\.80 +>= 0\.7: met")
        self.assertRegex(self.text(), r"encode/top_k +1250 GB/s +copy +0\.50 +>= 0\.7: missed")
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
        self.run_it(Fake(), arguments=["--only", "tests"])
        self.said.clear()
        self.run_it(Fake(gpu=dict(GPU, name="Another")), arguments=["--only", "tests"])
        self.assertNotIn("done before", self.text())

    def test_failing_tests_are_named(self):
        self.assertEqual(self.run_it(Fake(), ["COMPLETED", "FAILED"], ["--only", "tests", "--only", "build"]),
                         main.EXIT_FAILED)
        self.assertIn("tests: failed: 1 tests failed: All/S.T1/1", self.text())
        data = self.records()["tests"]["data"]
        self.assertEqual((data["passed"], data["skipped"]), (1, 0))
        self.assertIn("1 is not 2", data["said"]["All/S.T1/1"])

    def test_what_a_test_takes_with_it_is_run_again(self):
        self.assertEqual(self.run_it(Fake(), ["COMPLETED", "DIES", "COMPLETED", "LOST", "COMPLETED", "DIES"],
                                     ["--only", "tests", "--only", "build"]), main.EXIT_FAILED)
        data = self.records()["tests"]["data"]
        self.assertEqual(data["failed"], ["All/S.T1/1", "All/S.T3/3", "All/S.T5/5"])
        self.assertEqual(data["passed"], 3)
        self.assertIn("the program ended by signal 6", data["said"]["All/S.T1/1"])
        self.assertIn("CUDA error 700", data["said"]["All/S.T3/3"])
        self.assertRegex(self.text(), r"tests +3 passed .*missed")

    def test_what_pytorch_lacks_is_said(self):
        only = ["--again", "--only", "pytorch/resnet20/compile"]
        for torch, words, status in (
                ({"version": "1.13", "sees_gpu": True, "compiles": False}, "has no torch.compile", main.EXIT_DONE),
                ({"version": "2.0", "sees_gpu": False, "compiles": True}, "sees no GPU", main.EXIT_LEFT)):
            self.said.clear()
            self.assertEqual(self.run_it(Fake(torch=torch), arguments=only), status)
            self.assertIn(f"pytorch/resnet20/compile: not possible: PyTorch {torch['version']} {words}", self.text())
        self.assertIn("\nnothing was compared with PyTorch: PyTorch 2.0 sees no GPU\n", self.text())

    def test_a_gpu_without_pytorch_is_not_all_done(self):
        self.assertEqual(self.run_it(Fake(), arguments=["--only", "pytorch"]), main.EXIT_LEFT)
        self.assertIn("\nnothing was compared with PyTorch: no PyTorch: the test has none\n", self.text())
        self.said.clear()
        self.assertEqual(self.run_it(Fake(), arguments=["--only", "tests"]), main.EXIT_DONE)
        self.assertNotIn("nothing was compared", self.text())
        # Nor is it where PyTorch is there and slow to come up.
        asked = {}
        def slow(command, timeout=60):
            asked[command[0]] = timeout
            return None, f"{command[0]} did not end within {timeout} s"
        with mock.patch.object(machine, "output_of", slow):
            looked = machine.Machine(sys.executable)
        self.assertEqual(asked[sys.executable], 240)
        self.assertIn("did not end within 240 s", looked.no_cuda_in_torch())

    def test_what_ends_the_tests_without_a_word_is_a_failure(self):
        for tests, words in ((["COMPLETED", "LEAVES"], "1 tests failed: All/S.T1/1"),
                             (["COMPLETED", "QUIET"], "the tests ended with 1")):
            self.said.clear()
            self.assertEqual(self.run_it(Fake(), tests, ["--again", "--only", "tests"]), main.EXIT_FAILED)
            self.assertIn(f"tests: failed: {words}", self.text())
            self.assertRegex(self.text(), r"tests +[12] passed .*missed")

    def test_what_a_lost_gpu_says_is_known(self):
        for words, lost in (("CUDA error 700", True), ("CUDA error 70", False), ("(cuDNN status 5001)", True),
                            ("(cuBLAS status 13)", True), ("(cuBLAS status 14)", True), ("(cuBLAS status 15)", False),
                            ("(cuBLAS status 7)", False)):
            outcome, = parts.outcomes(["[ RUN      ] S.T", words, "[  FAILED  ] S.T (1 ms)"])
            self.assertEqual(outcome.breaks(), lost, words)

    def tell(self, *told):
        """A check whose programs say what is told, (status, lines) each in turn, and where their commands will be."""
        check = parts.Check(ROOT, Fake(), results.Results(self.folder, {"tree": "t"}), None, 1)
        check.machine.sanitizer = "/compute-sanitizer"
        os.makedirs(check.build_folder, exist_ok=True)
        executable(os.path.join(check.build_folder, "kernels_gpu_tests"), "")
        commands, told = [], list(told)
        def run_lines(command, seconds, log, environment=None):
            commands.append(command)
            return told.pop(0)
        patch = mock.patch.object(parts, "run_lines", run_lines)
        patch.start()
        self.addCleanup(patch.stop)
        return check, commands

    def test_a_test_that_hangs_is_named_and_one_that_is_cut_off_is_not(self):
        first, second = ["[ RUN      ] S.A", "[       OK ] S.A (1 ms)", "[ RUN      ] S.B"], ["S.", "  A", "  B", "  C"]
        third = ["[ RUN      ] S.C", "[       OK ] S.C (1 ms)"]
        check, commands = self.tell((None, first), (0, second), (0, third))
        with self.assertRaises(parts.Failed) as raised:
            check.tests(300)
        self.assertEqual(raised.exception.data["said"], {"S.B": "the program did not end"})
        self.assertEqual(raised.exception.data["passed"], 2)
        self.assertEqual(commands[-1][1:], ["--gtest_filter=S.C"])
        check, commands = self.tell((None, first))
        with self.assertRaises(parts.TimedOut) as raised:
            check.tests(40)
        self.assertEqual((raised.exception.data["passed"], raised.exception.data["failed"]), (1, []))

    RAN = ["========= COMPUTE-SANITIZER", "[ RUN      ] S.A", "[       OK ] S.A (1 ms)"]
    CLEAN = "========= ERROR SUMMARY: 0 errors"

    def sanitized(self, tool, status, *lines):
        """Data, or what the sanitizer's part raises where it ended so, having said this behind RAN."""
        check, commands = self.tell((status, [*self.RAN, *lines]))
        try:
            return check.sanitizer(tool, 100)
        except parts.NotDone as why:
            return why
        finally:
            # A refused cudaMalloc is what a test asks for.
            self.assertIn("--tool %s --report-api-errors no --error-exitcode 99" % tool, " ".join(commands[0]))

    def test_a_sanitizer_that_finds_nothing(self):
        data = self.sanitized("memcheck", 0, self.CLEAN)
        self.assertEqual((data["passed"], data["failed"], data["summary"]), (1, [], "ERROR SUMMARY: 0 errors"))
        self.assertEqual(self.sanitized("racecheck", 0, "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")
                         ["summary"], "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")

    def test_what_a_sanitizer_finds_is_the_reason(self):
        for tool, line in (("memcheck", "Invalid __global__ read of size 4 bytes"), ("memcheck", "Misaligned Shared or Local Address"),
                           ("racecheck", "Error: Race reported between Write access at 0x10 and Read access at 0x20"),
                           ("memcheck", "Program hit CUDA_ERROR_LAUNCH_FAILED (error 719)")):
            why = self.sanitized(tool, 99, "Invalid __global__ is what a test says", "=========     Saved host backtrace up to driver",
                                 f"========= {line}", "=========     Host Frame: [0x2f52fb]", "========= ERROR SUMMARY: 1 error")
            self.assertIsInstance(why, parts.Failed)
            self.assertEqual(str(why), f"{tool}: {line}")
            self.assertEqual((why.data["passed"], why.data["summary"]), (1, "ERROR SUMMARY: 1 error"))
        made = table.Table({"sanitizer/memcheck": {"data": why.data, "status": why.status}})
        self.assertRegex(made.text(), r"sanitizer/memcheck +1 passed +none fails: missed")
        # A test that fails too has the status, and a run that is cut off has none.
        for status in (1, None):
            why = self.sanitized("memcheck", status, "========= Invalid __global__ write of size 1 bytes",
                                 *(["========= ERROR SUMMARY: 2 errors"] if status else []))
            self.assertIsInstance(why, parts.Failed)
            self.assertIn("Invalid __global__ write", str(why))

    def test_a_sanitizer_that_does_not_come_to_its_end_has_passed_nothing(self):
        begun = "[ RUN      ] S.B"
        for status, lines, words in ((1, [begun, self.CLEAN], "1 tests failed: S.B"), (0, [begun, self.CLEAN], "1 tests failed: S.B"),
                                     (1, [self.CLEAN], "memcheck ended with 1: ERROR SUMMARY: 0 errors"),
                                     (-9, [], "memcheck ended by signal 9: COMPUTE-SANITIZER"),
                                     (0, [], "memcheck ended without a summary of errors")):
            why = self.sanitized("memcheck", status, *lines)
            self.assertIsInstance(why, parts.Failed)
            self.assertEqual(str(why), words)
            self.assertEqual(why.data["passed"], 1)
        why = self.sanitized("memcheck", None, begun)
        self.assertIsInstance(why, parts.TimedOut)
        self.assertEqual((why.status, why.data["passed"], why.data["failed"]), (results.IMPOSSIBLE, 1, []))

    def test_without_a_compiler_nothing_is_built(self):
        fake = Fake()
        fake.missing = lambda: "there is no nvcc on this machine"
        with mock.patch.object(main, "Machine", lambda python: fake):
            self.assertEqual(main.main(["--results", self.folder]), main.EXIT_FAILED)
        self.assertIn("build: failed: there is no nvcc on this machine", self.text())
        self.assertEqual(list(self.records()), ["build"])

    def test_one_precision_that_fails_leaves_the_other(self):
        check = parts.Check(ROOT, Fake(), results.Results(self.folder, {"tree": "t"}), None, 1)
        check.results.write("build", results.DONE, 1, {"layers": True})
        def bench(part, arguments, seconds):
            if "tf32" in arguments:
                raise parts.Failed("no algorithm")
            return [{"precision": "bf16"}]
        with mock.patch.object(check, "bench", bench), self.assertRaises(parts.Failed) as raised:
            check.model("resnet20", 60)
        self.assertEqual(str(raised.exception), "tf32: no algorithm")
        self.assertEqual(raised.exception.data, [{"precision": "bf16"}])

    def test_steps_that_differ_from_pytorchs_are_named(self):
        torch = {"version": "2.0", "sees_gpu": True, "compiles": True}
        check = parts.Check(ROOT, Fake(torch=torch), results.Results(self.folder, {"tree": "t"}), None, 1)
        check.results.write("build", results.DONE, 1, {"layers": True})
        with self.assertRaises(parts.Impossible):
            check.parity(60)
        os.makedirs(check.build_folder)
        executable(os.path.join(check.build_folder, "dump_step"), "")
        ran = []
        def run_lines(command, seconds, log, environment=None):
            self.assertTrue(os.access(command[1], os.R_OK), command[1])
            ran.append((command[command.index("--model") + 1], command[command.index("--precision") + 1]))
            return (1, ["FAILED loss: differs"]) if ran[-1] == ("bert_base", "bf16") else (0, ["near"])
        with mock.patch.object(parts, "run_lines", run_lines), self.assertRaises(parts.Failed) as raised:
            check.parity(60)
        self.assertEqual(str(raised.exception), "bert_base in bf16: FAILED loss: differs")
        self.assertEqual(ran, [("bert_tiny", "fp32"), ("bert_tiny", "tf32"), ("bert_tiny", "bf16"), ("bert_base", "bf16")])
        rows = table.Table({"parity": {"data": raised.exception.data, "status": results.FAILED}}).rows
        self.assertEqual([row[-1].rsplit(" ", 1)[1] for row in rows], ["met", "met", "met", "missed"])

    def test_what_was_built_elsewhere_is_taken(self):
        check = parts.Check(ROOT, Fake(), results.Results(self.folder, {"tree": "t"}), None, 1)
        os.makedirs(check.build_folder)
        executable(os.path.join(check.build_folder, "kernels_gpu_tests"), TESTS % (["COMPLETED"],))
        executable(os.path.join(check.build_folder, "gpu_bench"), "#!/bin/sh\nexit 2\n")
        def built_before(**other):
            self.is_built(check, **other)
            return check.built_before()
        self.assertEqual(built_before(), {"layers": True, "architecture": "90", "libraries": "bundle"})
        self.assertEqual(check.build(10)["built"], "before")
        self.assertIsNone(built_before(tree="another"))
        self.assertIsNone(built_before(architecture="75"))
        executable(os.path.join(check.build_folder, "gpu_bench"), "#!/bin/sh\nexit 127\n")  # a library is missing
        self.assertIsNone(built_before())

    def test_a_build_from_another_place_begins_anew(self):
        check = parts.Check(ROOT, Fake(), results.Results(self.folder, {"tree": "t"}), None, 1)
        os.makedirs(check.build_folder)
        cache = os.path.join(check.build_folder, "CMakeCache.txt")
        def write(source, folder):
            with open(cache, "w", encoding="utf-8") as file:
                file.write(f"CMAKE_CACHEFILE_DIR:INTERNAL={folder}\nCMAKE_HOME_DIRECTORY:INTERNAL={source}\n")
            check.forget_another_place()
            return os.path.exists(cache)
        source = os.path.join(ROOT, "tools", "gpu_check")
        self.assertTrue(write(source, check.build_folder))
        self.assertFalse(write(source, "/elsewhere"))

    def test_the_table_is_there_after_each_part(self):
        def interrupted(check, seconds):
            raise KeyboardInterrupt
        with mock.patch.object(parts.Check, "kernels", interrupted), mock.patch("sys.stderr"):
            self.assertEqual(self.run_it(Fake(), arguments=["--only", "tests", "--only", "kernels"]),
                             main.EXIT_INTERRUPTED)
        self.assertEqual(self.records()["tests"]["status"], results.DONE)
        with open(os.path.join(self.folder, "table.md"), encoding="utf-8") as file:
            self.assertIn("1 passed", file.read())

    def test_nothing_is_run_that_was_not_built(self):
        self.assertEqual(self.run_it(Fake(), built=False), main.EXIT_FAILED)
        self.assertEqual(list(self.records()), ["build"])

    def test_what_does_not_fit_is_left(self):
        status = self.run_it(Fake(), arguments=["--minutes", "0.1", "--only", "build", "--only", "layers"])
        self.assertEqual(status, main.EXIT_LEFT)
        self.assertEqual(self.records()["layers"]["status"], results.LEFT)

    def test_looking_at_the_machine_takes_of_the_time(self):
        now = [0.0]
        clock = types.SimpleNamespace(monotonic=lambda: now[0], strftime=time.strftime, gmtime=time.gmtime)
        def look():
            now[0] += 9 * 60 - 5
        with mock.patch.object(main, "time", clock):
            self.assertEqual(self.run_it(Fake(), arguments=["--only", "tests", "--only", "kernels"], look=look), main.EXIT_LEFT)
        self.assertEqual({name: record["status"] for name, record in self.records().items()},
                         {"build": results.DONE, "tests": results.DONE, "kernels": results.LEFT})

    def test_what_the_end_of_the_run_cuts_off_is_left(self):
        only = ["--only", "build", "--only", "kernels"]
        def cut(check, seconds):
            raise parts.TimedOut("did not end", [{"name": "copy", "bytes_per_second": 1e12, "of_copy": 1}])
        with mock.patch.object(parts.Check, "kernels", cut):
            self.assertEqual(self.run_it(Fake(), arguments=["--minutes", "1", *only]), main.EXIT_LEFT)
            record = self.records()["kernels"]
            self.assertEqual((record["status"], len(record["data"])), (results.LEFT, 1))
            self.assertRegex(self.text(), r"copy +1000 GB/s")
            # It has no more than its own time in any run.
            self.assertEqual(self.run_it(Fake(), arguments=["--minutes", "9", *only]), main.EXIT_FAILED)
        failed = self.records()["kernels"]
        self.assertEqual((failed["status"], failed["data"]), (results.FAILED, record["data"]))
        # Another run has less time than it needs.
        self.assertEqual(self.run_it(Fake(), arguments=["--minutes", "0.1", *only]), main.EXIT_FAILED)
        self.assertEqual(self.records()["kernels"], failed)
        self.assertIn("kernels: the time was up; failed before", self.text())

    def test_a_build_that_is_cut_off_is_left(self):
        def cut(check, seconds):
            raise parts.TimedOut("the build did not end")
        for gpu in (GPU, None):
            with mock.patch.object(parts.Check, "build", cut), mock.patch.object(main, "Machine", lambda python: Fake(gpu=gpu)):
                self.assertEqual(main.main(["--results", self.folder]), main.EXIT_LEFT)
            self.assertEqual(list(self.records()), ["build"])

    def test_no_time_is_no_reason_to_forget(self):
        kept = results.Results(self.folder, {"tree": "t"})
        lines = [{"name": "a"}, {"name": "b"}]
        for before, after in (((results.DONE, 1, [], ""), (results.LEFT, 5, lines, "")),
                              ((results.FAILED, 1, None, "x"), (results.LEFT, 0, None, "")),
                              ((results.IMPOSSIBLE, 0, None, "x"), (results.LEFT, 5, lines, "")),
                              ((results.LEFT, 5, lines, "x"), (results.LEFT, 5, lines[:1], "")),
                              ((results.LEFT, 5, lines, "x"), (results.LEFT, 0, None, "")),
                              ((results.LEFT, 5, None, "x"), (results.LEFT, 0, None, ""))):
            os.makedirs(os.path.join(self.folder, "parts"), exist_ok=True)
            first = kept.write("p", *before)
            self.assertEqual(kept.write("p", *after), first)
            self.assertEqual(kept.read("p"), first)
            # Also that of another machine stays where it is.
            results.Results(self.folder, {"tree": "other"}).write("p", results.LEFT, 0)
            self.assertEqual(kept.read("p"), first)
            shutil.rmtree(os.path.join(self.folder, "parts"))
        os.makedirs(os.path.join(self.folder, "parts"))
        for record in ((results.LEFT, 0, None), (results.LEFT, 5, lines[:1]), (results.LEFT, 6, lines), (results.FAILED, 1, None)):
            self.assertEqual(kept.write("p", *record)["status"], kept.read("p")["status"])
            self.assertEqual(kept.read("p")["data"], record[2])

    def plan(self, made, before=(), tree="t"):
        """Runs parts that are made up: name -> (least seconds, function); the names in the order in which they ran."""
        check = parts.Check(ROOT, Fake(), results.Results(self.folder, {"tree": "t"}), None, 1)
        os.makedirs(check.build_folder, exist_ok=True)
        executable(os.path.join(check.build_folder, "kernels_gpu_tests"), "")
        self.is_built(check, tree=tree)
        for record in before:
            check.results.write(*record)
        ran = []
        def part(name, least, data):
            reads = ("models/a",) if name.startswith("pytorch") else ()
            return parts.Part(name, lambda seconds: ran.append(name) or data(check), least, 100, reads, ("tf32",))
        check.parts = lambda: [part(name, *what) for name, what in made.items()]
        run = main.Run(main.parse(["--results", self.folder]), Fake(), check, check.results, time.monotonic() + 300)
        run.all()
        return ran, run

    def test_what_was_never_begun_goes_first(self):
        nothing = (0, lambda check: [])
        ran, _ = self.plan({name: nothing for name in ("build", "a", "b", "c", "d", "e", "f")}, before=(
            ("build", results.DONE, 1), ("a", results.FAILED, 1), ("b", results.DONE, 1), ("c", results.LEFT, 3, [{}]),
            ("d", results.LEFT, 0), ("e", results.FAILED, 90, None, "did not end within 90 s")))
        self.assertEqual(ran, ["d", "f", "a", "c", "e"])
        # A record of the build is none of what another tree has left in its folder.
        self.assertEqual(self.plan({"build": nothing}, tree="another")[0], ["build"])

    def test_what_was_measured_behind_its_comparison_is_compared_again(self):
        line = {"name": "a", "precision": "tf32"}
        def compare(check):
            if not check.ours(check.parts()[2]):
                raise parts.Impossible("nothing to compare")
            return [line]
        ran, run = self.plan({"build": (0, lambda check: []), "models/a": (0, lambda check: [line]), "pytorch/a/eager": (0, compare)},
                             before=(("models/a", results.FAILED, 1),))
        self.assertEqual(ran, ["build", "pytorch/a/eager", "models/a", "pytorch/a/eager"])
        self.assertEqual(run.records["pytorch/a/eager"]["status"], results.DONE)
        # So is, later, what has come since.
        more = [line, dict(line, name="b")]
        ran, _ = self.plan({"build": (0, lambda check: []), "models/a": (0, lambda check: []),
                            "pytorch/a/eager": (0, lambda check: more)}, before=(("models/a", results.DONE, 1, more),))
        self.assertEqual(ran, ["pytorch/a/eager"])

    def test_what_takes_long_is_not_begun_at_the_end(self):
        check = parts.Check(ROOT, Fake(), results.Results(self.folder, {"tree": "t"}), None, 1)
        least = {part.name: part.least_seconds for part in check.parts()}
        self.assertEqual(least["models/bert_large_128"], 45)
        self.assertEqual(least["pytorch/resnet50/compile"], 60)
        self.assertEqual(least["pytorch/layers/compile"], 60)

    def packed(self, *members):
        """A .tgz of (name, text) or TarInfo."""
        path = os.path.join(self.folder, "packed.tgz")
        with tarfile.open(path, "w:gz") as tar:
            for member in members:
                if isinstance(member, tarfile.TarInfo):
                    tar.addfile(member)
                else:
                    info = tarfile.TarInfo(member[0])
                    info.size = len(member[1])
                    tar.addfile(info, io.BytesIO(member[1].encode()))
        return path

    def test_results_are_packed_after_each_part_and_taken_up_elsewhere(self):
        out = os.path.join(self.folder, "out")
        os.makedirs(out)
        def interrupted(check, seconds):
            raise KeyboardInterrupt
        only = ["--only", "tests", "--only", "kernels"]
        with mock.patch.dict(os.environ, OUT=out), mock.patch("sys.stderr"), \
                mock.patch.object(parts.Check, "kernels", interrupted):
            self.assertEqual(self.run_it(Fake(), arguments=only), main.EXIT_INTERRUPTED)
        packed = os.path.join(out, "gpu-check.tgz")
        with tarfile.open(packed) as tar:
            names = tar.getnames()
        self.assertLessEqual({"results.json", "table.md", "parts/build.json", "parts/tests.json", "parts/tests.out"}, set(names))
        self.assertFalse([name for name in names if name.startswith("build") or "gpu-check.tgz" in name])
        self.assertEqual(os.listdir(out), ["gpu-check.tgz"])
        elsewhere = os.path.join(self.folder, "elsewhere")
        self.said.clear()
        self.run_it(Fake(), arguments=[*only, "--results", elsewhere, "--resume-from", packed])
        self.assertIn(f"{packed}: 2 parts of this tree, GPU and PyTorch", self.text())
        self.assertIn("tests: done before", self.text())
        self.assertNotIn("kernels: done before", self.text())

    def test_results_that_cannot_be_packed_are_kept_all_the_same(self):
        os.makedirs(os.path.join(self.folder, "out", "gpu-check.tgz.new"))
        with mock.patch.dict(os.environ, OUT=os.path.join(self.folder, "out")), \
                mock.patch("sys.stderr", io.StringIO()) as said:
            self.assertEqual(self.run_it(Fake(), arguments=["--only", "tests"]), main.EXIT_DONE)
        self.assertIn("gpu-check.tgz: ", said.getvalue())
        self.assertEqual(self.records()["tests"]["status"], results.DONE)

    def test_what_is_no_archive_is_refused(self):
        good = ("results.json", json.dumps({"format": results.FORMAT}))
        link = tarfile.TarInfo("parts")
        link.type, link.linkname = tarfile.SYMTYPE, "/tmp"
        text = os.path.join(self.folder, "text")
        executable(text, "no archive")
        elsewhere = os.path.join(self.folder, "elsewhere")
        for make, words in ((lambda: text, "not a gzip file"), (lambda: self.folder + "/none", "No such file"),
                            (lambda: self.packed(("a", "b")), "there is no results.json"),
                            (lambda: self.packed(("results.json", "{")), "there is no results.json"),
                            (lambda: self.packed(good, ("../evil", "x")), "'../evil' in it"),
                            (lambda: self.packed(good, ("/evil", "x")), "'/evil' in it"),
                            (lambda: self.packed(good, ("build/kernels_gpu_tests", "x")), "'build/kernels_gpu_tests' in it"),
                            (lambda: self.packed(link, good), "'parts' in it")):
            with mock.patch("sys.stderr", io.StringIO()) as said:
                self.assertEqual(self.run_it(Fake(), arguments=["--results", elsewhere, "--resume-from", make()]), main.EXIT_BAD)
            self.assertIn("argument --resume-from: ", said.getvalue())
            self.assertIn(" is no archive of gpu-check's: ", said.getvalue())
            self.assertIn(words, said.getvalue())
            self.assertFalse(os.path.exists(elsewhere))
        whole = self.packed(good)
        with open(whole, "rb") as file:
            half = file.read()[:40]
        with open(whole, "wb") as file:
            file.write(half)
        with self.assertRaises(archive.NoArchive):
            archive.unpack(whole, elsewhere)

    def test_a_child_dies_with_a_parent_that_is_killed(self):
        told = os.path.join(self.folder, "pid")
        child = (f"import os, time; open({told!r} + '.new', 'w').write(str(os.getpid())); "
                 f"os.rename({told!r} + '.new', {told!r}); time.sleep(60)")
        parent = subprocess.Popen([sys.executable, "-c", f"""
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, {os.path.join(ROOT, "tools")!r})
from gpu_check import children
children.run_lines([sys.executable, "-c", {child!r}], 60, {told + ".log"!r})"""])
        self.addCleanup(parent.wait)
        self.addCleanup(parent.kill)
        def wait_for(what):
            end = time.monotonic() + 20
            while not what() and time.monotonic() < end:
                time.sleep(0.02)
            self.assertTrue(what())
        wait_for(lambda: os.path.exists(told))
        with open(told, encoding="utf-8") as file:
            pid = int(file.read())
        self.assertEqual(os.getpgid(pid), pid)
        parent.send_signal(signal.SIGKILL)
        def gone():
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                    return file.read().rsplit(")", 1)[1].split()[0] in "ZX"
            except OSError:
                return True
        wait_for(gone)

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
                     "libraries/include/nlohmann/json.hpp", "libraries/include/gmock/gmock.h", "libraries/lib/libgtest_main.a",
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

    def test_the_bundle_has_every_header_that_is_included(self):
        try:
            brought = {place[len("include/"):] for place, _ in bundle.library_files() if place.startswith("include/")}
        except bundle.CannotBundle as missing:
            self.skipTest(str(missing))
        tree = set(bundle.tree_files(ROOT))
        # What CMakeLists.txt there leaves out, and what is CUDA's.
        left_out = {"kernels/make_device.cc", "tests/kernels/cuda/emulation_test.cc"}
        toolkit = {"cuda_runtime.h", "cudnn.h", "cublasLt.h"}
        compiled = [name for name in sorted(tree - left_out) if name.endswith((".cc", ".cu")) and (
            os.path.dirname(name) in ("common/core", "kernels", "kernels/codecs", "kernels/cuda", "worker/models",
                                      "kernels/cuda/libraries", "tests/kernels/cuda", "tools/gpu_check")
            or name in ("kernels/cpu/isa.cc", "kernels/cpu/sum.cc", "kernels/cpu/vector_math.cc"))]
        self.assertGreater(len(compiled), 80)
        looked, missing = set(), {}
        while compiled:
            name = compiled.pop()
            if name in looked:
                continue
            looked.add(name)
            with open(os.path.join(ROOT, name), encoding="utf-8") as file:
                text = file.read()
            for header in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.M):
                if os.path.exists(os.path.join(ROOT, header)):
                    compiled.append(header)
                    if header not in tree:
                        missing[header] = name
                elif header not in brought | toolkit:
                    missing[header] = name
        self.assertEqual(missing, {})

    def test_a_library_that_is_missing_is_named(self):
        with self.assertRaisesRegex(bundle.CannotBundle, "libabsl-dev"):
            bundle.library_files(self.folder)


if __name__ == "__main__":
    unittest.main()
