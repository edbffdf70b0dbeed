"""What gpu-check does, part by part. A part gives its data, or raises Failed or Impossible."""

import json
import os
import signal
import subprocess
import threading
import time

MODELS = ("resnet20", "resnet18", "wrn16_4", "resnet50")
# With the length of their sequences, and how many of those a batch has.
TEXT_MODELS = {"bert_base_128": 64, "bert_large_128": 32, "bert_base_512": 16}
PRECISIONS = ("tf32", "bf16")
BATCH = 128
_SKIPPED = "SKIPPED"


class Failed(Exception):
    """It was possible and went wrong: .data is what there is of it."""

    def __init__(self, words, data=None):
        super().__init__(words)
        self.data = data


class Impossible(Exception):
    """Not on this machine: why."""


class Part:
    """`least_seconds`: with less time left it is not begun. `most_seconds`: then it is ended."""

    def __init__(self, name, run, least_seconds, most_seconds):
        self.name, self.run = name, run
        self.least_seconds, self.most_seconds = least_seconds, most_seconds


def run_lines(command, seconds, log, text="", environment=None):
    """Status (None: time was up) and lines of stdout, of a child in a group of its own that
    does not outlive this; stderr goes to `log`."""
    with open(log, "w", encoding="utf-8") as errors:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                 text=True, env=environment, start_new_session=True)
        late = threading.Event()

        def end():
            late.set()
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has just ended

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            out, _ = child.communicate(text)
        finally:
            timer.cancel()
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    return None if late.is_set() else child.returncode, (out or "").splitlines()


def last_words(log):
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
    except OSError:
        lines = []
    return lines[-1][:300] if lines else "it said nothing"


def json_lines(lines):
    found = []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


class Check:
    """The parts on one machine, with one results folder."""

    def __init__(self, root, machine, results, libraries, jobs):
        self.root, self.machine, self.results = root, machine, results
        self.libraries, self.jobs = libraries, jobs
        self.build_folder = os.path.join(results.folder, "build")
        self.environment = dict(os.environ, LD_LIBRARY_PATH=machine.library_path())

    def parts(self):
        parts = [Part("build", self.build, 0, 560), Part("tests", self.tests, 0, 300),
                 Part("kernels", self.kernels, 10, 120)]
        for model in MODELS:
            parts.append(Part(f"models/{model}", lambda s, m=model: self.model(m, s), 10, 90))
        parts.append(Part("pytorch/models/eager", lambda s: self.pytorch("models", MODELS, "eager", PRECISIONS, s), 30, 150))
        for model in MODELS:
            parts.append(Part(f"pytorch/{model}/compile",
                              lambda s, m=model: self.pytorch("models", (m,), "compile", ("tf32",), s), 30, 150))
        for model in TEXT_MODELS:
            parts.append(Part(f"models/{model}", lambda s, m=model: self.model(m, s), 10, 90))
        parts.append(Part("pytorch/text/eager", lambda s: self.pytorch("models", TEXT_MODELS, "eager", PRECISIONS, s), 30, 150))
        for model in TEXT_MODELS:
            parts.append(Part(f"pytorch/{model}/compile",
                              lambda s, m=model: self.pytorch("models", (m,), "compile", ("bf16",), s), 60, 200))
        parts += [Part("layers", self.layers, 10, 90),
                  Part("pytorch/layers/eager", lambda s: self.pytorch("layers", (), "eager", ("tf32",), s), 20, 90),
                  Part("pytorch/layers/compile", lambda s: self.pytorch("layers", (), "compile", ("tf32",), s), 30, 150),
                  Part("sanitizer/memcheck", lambda s: self.sanitizer("memcheck", s), 20, 120),
                  Part("sanitizer/racecheck", lambda s: self.sanitizer("racecheck", s), 20, 120)]
        return parts

    def log(self, part):
        return os.path.join(self.results.folder, "parts", part.replace("/", "-") + ".log")

    def program(self, name):
        path = os.path.join(self.build_folder, name)
        if not os.access(path, os.X_OK):
            raise Impossible("nothing was built")
        return path

    def built_with(self):
        record = self.results.read("build")
        return (record or {}).get("data") or {}

    def build(self, seconds):
        machine, log = self.machine, self.log("build")
        missing = machine.missing()
        if missing:
            raise Failed(missing)
        begin = time.monotonic()
        configure = [machine.cmake, "-S", os.path.join(self.root, "tools", "gpu_check"), "-B",
                     self.build_folder, f"-DCMAKE_CUDA_COMPILER={machine.nvcc}",
                     f"-DCMAKE_CUDA_ARCHITECTURES={machine.architecture()}",
                     f"-DFORESHARD_LIBRARIES={self.libraries or ''}",
                     f"-DFORESHARD_HEADERS={';'.join(machine.headers())}"]
        if machine.ninja:
            configure += ["-G", "Ninja"]
        status, lines = run_lines(configure, seconds, log)
        if status != 0:
            with open(log, encoding="utf-8", errors="replace") as file:
                errors = file.read()
            where = "" if self.libraries else (
                "; where abseil or GoogleTest are missing, bring them: `tools/gpu-check --bundle FILE.tar` "
                "on a Debian machine that has them")
            reason = next((line.strip() for line in errors.splitlines() if "Could not find" in line
                           or "Could NOT find" in line or "By not providing" in line), last_words(log))
            raise Failed(f"CMake: {reason}{where} ({log})")
        without_layers = any("layers and models are left out" in line for line in lines)
        status, lines = run_lines([machine.cmake, "--build", self.build_folder, "--parallel", str(self.jobs)],
                                  max(1, seconds - (time.monotonic() - begin)), log)
        if status is None:
            raise Failed(f"the build did not end within {seconds:.0f} s; what is built is kept, run again")
        if status != 0:
            wrong = next((line.strip() for line in lines if "error" in line.lower()), last_words(log))
            raise Failed(f"the build failed: {wrong[:300]}")
        return {"layers": not without_layers, "architecture": machine.architecture(),
                "libraries": "bundle" if self.libraries else "system"}

    def tests(self, seconds):
        program, report = self.program("kernels_gpu_tests"), self.log("tests") + ".json"
        status, lines = run_lines([program, f"--gtest_output=json:{report}"], seconds, self.log("tests"),
                                  environment=self.environment)
        return self.counted(status, report, lines, seconds)

    def counted(self, status, report, lines, seconds):
        """The tests of a report; Impossible where none could run."""
        try:
            with open(report, encoding="utf-8") as file:
                suites = json.load(file)["testsuites"]
        except (OSError, ValueError, KeyError):
            if status is None:
                raise Failed(f"the tests did not end within {seconds:.0f} s") from None
            if status < 0:
                raise Failed(f"the tests ended by signal {-status}") from None
            raise Failed(f"the tests ended with {status} and no report") from None
        tests = [(f"{suite['name']}.{test['name']}", test) for suite in suites for test in suite["testsuite"]]
        failed = [name for name, test in tests if test.get("failures")]
        skipped = [name for name, test in tests if test.get("result") == _SKIPPED]
        data = {"passed": len(tests) - len(failed) - len(skipped), "failed": failed, "skipped": len(skipped)}
        if failed or status != 0:
            names = ", ".join(failed[:5]) + (f" and {len(failed) - 5} more" if len(failed) > 5 else "")
            raise Failed(f"{len(failed)} tests failed: {names}" if failed else f"the tests ended with {status}",
                         data)
        if data["passed"] == 0 or (self.machine.gpu is None and skipped):
            why = next((line.strip() for line in lines if "no GPU to test on" in line),
                       self.machine.no_gpu or "no reason was said")
            raise Impossible(f"{len(skipped)} tests skipped: {why}")
        return data

    def sanitizer(self, tool, seconds):
        self.need_gpu()
        if self.machine.sanitizer is None:
            raise Impossible("there is no compute-sanitizer on the PATH or beside nvcc")
        program = self.program("kernels_gpu_tests")
        report = self.log(f"sanitizer/{tool}") + ".json"
        command = [self.machine.sanitizer, "--tool", tool, "--error-exitcode", "99", program,
                   "--gtest_filter=-*Network*", f"--gtest_output=json:{report}"]
        status, lines = run_lines(command, seconds, self.log(f"sanitizer/{tool}"), environment=self.environment)
        errors = [line.strip() for line in lines if "ERROR SUMMARY" in line or "RACECHECK SUMMARY" in line]
        if status is None:
            raise Impossible(f"{tool} did not end within {seconds:.0f} s; {errors or 'nothing was found by then'}")
        if status == 99:
            first = next((line.strip("= ") for line in lines if "Invalid" in line or "race" in line.lower()),
                         errors[0] if errors else "see its log")
            raise Failed(f"{tool}: {first}")
        return dict(self.counted(status, report, lines, seconds), summary=errors[-1] if errors else "")

    def need_gpu(self):
        if self.machine.gpu is None:
            raise Impossible(self.machine.no_gpu)

    def need_layers(self):
        self.need_gpu()
        if not self.built_with().get("layers"):
            raise Impossible("built without cudnn.h or cublasLt.h, so there are no layers")

    def bench(self, part, arguments, seconds):
        status, lines = run_lines([self.program("gpu_bench"), *arguments], seconds, self.log(part),
                                  environment=self.environment)
        data = json_lines(lines)
        if status is None:
            raise Failed(f"gpu_bench did not end within {seconds:.0f} s", data)
        if status != 0:
            raise Failed(last_words(self.log(part)), data)
        return data

    def kernels(self, seconds):
        self.need_gpu()
        return self.bench("kernels", ["kernels"], seconds)

    def layers(self, seconds):
        self.need_layers()
        return self.bench("layers", ["layers", "tf32", str(BATCH)], seconds)

    def model(self, name, seconds):
        self.need_layers()
        data = []
        for precision in PRECISIONS:
            data += self.bench(f"models/{name}", ["model", name, precision, str(TEXT_MODELS.get(name, BATCH))], seconds / 2)
        return data

    def pytorch(self, kind, names, mode, precisions, seconds):
        self.need_gpu()
        if self.machine.torch is None:
            raise Impossible(self.machine.no_torch)
        if not self.machine.torch["sees_gpu"]:
            raise Impossible(f"PyTorch {self.machine.torch['version']} sees no GPU")
        if mode == "compile" and not self.machine.torch["compiles"]:
            raise Impossible(f"PyTorch {self.machine.torch['version']} has no torch.compile")
        lines = []
        for part in (["layers"] if kind == "layers" else [f"models/{name}" for name in names]):
            record = self.results.read(part)
            lines += [line for line in (record or {}).get("data") or [] if line["precision"] in precisions]
        if not lines:
            raise Impossible("there is nothing of ours to compare with")
        names = list(names)
        label = names[0] if len(names) == 1 else "text" if names and names[0] in TEXT_MODELS else kind
        log = self.log(f"pytorch/{label}/{mode}")
        script = os.path.join(self.root, "tools", "gpu_check", "pytorch_steps.py")
        status, said = run_lines([self.machine.python, script, mode], seconds, log,
                                 "".join(json.dumps(line) + "\n" for line in lines))
        data = json_lines(said)
        if status != 0:
            words = f"did not end within {seconds:.0f} s" if status is None else last_words(log)
            raise Failed(f"PyTorch ({mode}): {words}", data)
        return data
