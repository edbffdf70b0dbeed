"""What gpu-check does, part by part. A part gives its data, or raises Failed or Impossible."""

import json
import os
import re
import shutil
import time

from .children import json_lines, last_words, run_lines

MODELS = ("resnet20", "resnet18", "wrn16_4", "resnet50")
# With the length of their sequences, and how many of those a batch has.
TEXT_MODELS = {"bert_base_128": 64, "bert_large_128": 32, "bert_base_512": 16}
PRECISIONS = ("tf32", "bf16")
# Steps whose loss and gradients are compared with PyTorch's in double precision, on the CPU.
PARITY = {"bert_tiny": ("fp32", "tf32", "bf16"), "bert_base": ("bf16",)}
BATCH = 128
_ATTEMPTS = 12  # processes of tests
_BUILT = "built.json"


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


_OUTCOME = re.compile(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] ([^\s,]+\.[^\s,]+)(.*)")
# After one of these the process can do nothing more with the GPU, and what follows fails too.
_LASTING = re.compile(r"CUDA error (46|214|226|7\d\d|999)\b|\(cuDNN status 5\d\d\d")


class Outcome:
    """Of one test: OK, FAILED, SKIPPED, or RUN where it never ended; what it said meanwhile."""

    def __init__(self, name):
        self.name, self.state, self.words = name, "RUN", []

    def text(self):
        return "\n".join(self.words[:8])[:1500]


def outcomes(lines):
    """A test program's lines as outcomes, in the order in which they ran."""
    found, now = [], None
    for line in lines:
        match = _OUTCOME.match(line)
        if match is None:
            if now is not None and line.strip():
                now.words.append(line.rstrip())
        elif match[1] == "RUN":
            now = Outcome(match[2])
            found.append(now)
        elif now is not None and match[2] == now.name:
            now.state, now = match[1], None
    return found


def beside_copy(lines):
    """gpu_bench's kernels with their share of a copy's bandwidth: that of the faster one of those that it
    makes before and after them."""
    copy = max((line for line in lines if line["name"] == "copy"), key=lambda line: line["bytes_per_second"],
               default=None)
    return [dict(line, of_copy=line["bytes_per_second"] / copy["bytes_per_second"]) for line in lines
            if copy and (line is copy or line["name"] != "copy")]


class Check:
    """The parts on one machine, with one results folder."""

    def __init__(self, root, machine, results, libraries, jobs, architecture=None):
        self.root, self.machine, self.results = root, machine, results
        self.libraries, self.jobs = libraries, jobs
        self.architecture = architecture or machine.architecture()
        self.build_folder = os.path.join(results.folder, "build")
        self.environment = dict(os.environ, LD_LIBRARY_PATH=machine.library_path())

    def parts(self):
        parts = [Part("build", self.build, 0, 3600), Part("tests", self.tests, 0, 300),
                 Part("kernels", self.kernels, 10, 120), Part("parity", self.parity, 20, 120)]
        for model in MODELS:
            parts.append(Part(f"models/{model}", lambda s, m=model: self.model(m, s), 10, 90))
        parts.append(Part("pytorch/models/eager", lambda s: self.pytorch("models", MODELS, "eager", PRECISIONS, s), 30, 150))
        for model in TEXT_MODELS:
            parts.append(Part(f"models/{model}", lambda s, m=model: self.model(m, s), 10, 90))
        parts.append(Part("pytorch/text/eager", lambda s: self.pytorch("models", TEXT_MODELS, "eager", PRECISIONS, s), 30, 150))
        parts += [Part("layers", self.layers, 10, 90),
                  Part("pytorch/layers/eager", lambda s: self.pytorch("layers", (), "eager", ("tf32",), s), 20, 90)]
        # Compiling takes longest and is asked of no goal but the first model's: last, where time is short.
        compiled = [Part(f"pytorch/{model}/compile",
                         lambda s, m=model: self.pytorch("models", (m,), "compile", ("tf32",), s), 30, 150)
                    for model in MODELS]
        compiled += [Part(f"pytorch/{model}/compile",
                          lambda s, m=model: self.pytorch("models", (m,), "compile", ("bf16",), s), 60, 200)
                     for model in TEXT_MODELS]
        compiled.append(Part("pytorch/layers/compile",
                             lambda s: self.pytorch("layers", (), "compile", ("tf32",), s), 30, 150))
        parts += [compiled[0], Part("sanitizer/memcheck", lambda s: self.sanitizer("memcheck", s), 20, 120),
                  *compiled[1:], Part("sanitizer/racecheck", lambda s: self.sanitizer("racecheck", s), 20, 120)]
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
        before = self.built_before()
        if before:
            return dict(before, built="before")
        missing = machine.missing()
        if missing:
            raise Failed(missing)
        begin = time.monotonic()
        self.forget_another_place()
        configure = [machine.cmake, "-S", os.path.join(self.root, "tools", "gpu_check"), "-B",
                     self.build_folder, f"-DCMAKE_CUDA_COMPILER={machine.nvcc}",
                     f"-DCMAKE_CUDA_ARCHITECTURES={self.architecture}",
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
            # Ninja says it on stdout, make on stderr.
            with open(log, encoding="utf-8", errors="replace") as file:
                lines += file.read().splitlines()
            wrong = next((line.strip() for line in lines if re.search(r"\berror\b|undefined reference", line)),
                         last_words(log))
            raise Failed(f"the build failed: {wrong[:300]} ({log})")
        data = {"layers": not without_layers, "architecture": self.architecture,
                "libraries": "bundle" if self.libraries else "system"}
        self.results.write_file(os.path.join("build", _BUILT), json.dumps(
            dict(data, tree=self.results.identity["tree"])))
        return data

    def built_before(self):
        """What was built of this tree for this architecture, perhaps on another machine; None where
        there is nothing, or it does not run here."""
        try:
            with open(os.path.join(self.build_folder, _BUILT), encoding="utf-8") as file:
                built = json.load(file)
        except (OSError, ValueError):
            return None
        if built.pop("tree", None) != self.results.identity["tree"] or built.get("architecture") != self.architecture:
            return None
        for name, question, answers in (("kernels_gpu_tests", "--gtest_list_tests", (0,)), ("gpu_bench", "?", (2,))):
            path = os.path.join(self.build_folder, name)
            if not os.access(path, os.X_OK):
                return None
            status, _ = run_lines([path, question], 60, self.log("build-before"), environment=self.environment)
            if status not in answers:
                return None
        return built

    def forget_another_place(self):
        """CMake goes on only where it began."""
        cache = os.path.join(self.build_folder, "CMakeCache.txt")
        try:
            with open(cache, encoding="utf-8") as file:
                places = dict(re.findall(r"^(CMAKE_HOME_DIRECTORY|CMAKE_CACHEFILE_DIR):INTERNAL=(.*)$", file.read(), re.M))
        except OSError:
            return
        source = os.path.join(self.root, "tools", "gpu_check")
        if places != {"CMAKE_HOME_DIRECTORY": source, "CMAKE_CACHEFILE_DIR": self.build_folder}:
            shutil.rmtree(self.build_folder)

    def tests(self, seconds):
        program, log = self.program("kernels_gpu_tests"), self.log("tests")
        end, ran, wanted, ended = time.monotonic() + seconds, {}, None, ""
        # A test that ends the program, hangs or leaves the GPU unusable is named, and those behind it
        # run in another process.
        for attempt in range(_ATTEMPTS):
            command = [program] + ([f"--gtest_filter={':'.join(wanted)}"] if wanted is not None else [])
            left = max(1, end - time.monotonic())
            status, lines = run_lines(command, min(left, max(20, seconds / 2)), log if attempt == 0 else
                                      f"{log[:-len('.log')]}-{attempt + 1}.log", environment=self.environment)
            found = outcomes(lines)
            for outcome in found:
                ran[outcome.name] = outcome
            broken = next((i for i, o in enumerate(found) if o.state == "RUN"
                           or (o.state == "FAILED" and _LASTING.search("\n".join(o.words)))), None)
            if broken is not None and found[broken].state == "RUN":
                how = ("did not end" if status is None else
                       f"ended the program by signal {-status}" if status < 0 else
                       f"ended the program with {status}")
                found[broken].state, found[broken].words = "FAILED", [how] + found[broken].words
            ended = "" if broken is not None or status in (0, 1) else (
                f"the tests did not end within {seconds:.0f} s" if status is None else
                f"the tests ended by signal {-status}" if status < 0 else f"the tests ended with {status}")
            if broken is None:
                break
            if wanted is None:
                wanted = self.test_names(program)
            done = {o.name for o in found[:broken + 1]} | {o.name for o in found if o.state in ("OK", "SKIPPED")}
            wanted = [name for name in wanted if name not in done]
            if not wanted or time.monotonic() > end - 5:
                break
        for outcome in ran.values():
            if outcome.state == "RUN":
                outcome.state, outcome.words = "FAILED", ["did not end, behind another that failed"]
        return self.counted(list(ran.values()), ended)

    def test_names(self, program):
        _, lines = run_lines([program, "--gtest_list_tests"], 60, self.log("tests-names"),
                             environment=self.environment)
        names, suite = [], ""
        for line in lines:
            text = line.split("#")[0].rstrip()
            if text and not line.startswith(" "):
                suite = text
            elif text and suite.endswith("."):
                names.append(suite + text.strip())
        return names

    def counted(self, found, ended):
        """Counts the outcomes; Impossible where none could run."""
        failed = [outcome for outcome in found if outcome.state == "FAILED"]
        skipped = [outcome for outcome in found if outcome.state == "SKIPPED"]
        data = {"passed": sum(outcome.state == "OK" for outcome in found), "failed": [o.name for o in failed],
                "skipped": len(skipped), "said": {o.name: o.text() for o in failed}}
        if failed or ended:
            names = ", ".join(data["failed"][:5]) + (f" and {len(failed) - 5} more" if len(failed) > 5 else "")
            raise Failed(f"{len(failed)} tests failed: {names}" if failed else ended, data)
        why = next((line.strip() for o in skipped for line in o.words if "no GPU to test on" in line), None)
        if why is not None and self.machine.gpu is not None:  # it is there, and does not work
            raise Failed(f"{len(skipped)} tests skipped: {why}", data)
        if data["passed"] == 0 or (self.machine.gpu is None and skipped):
            raise Impossible(f"{len(skipped)} tests skipped: {why or self.machine.no_gpu or 'no reason was said'}")
        return data

    def sanitizer(self, tool, seconds):
        self.need_gpu()
        if self.machine.sanitizer is None:
            raise Impossible("there is no compute-sanitizer on the PATH or beside nvcc")
        program = self.program("kernels_gpu_tests")
        command = [self.machine.sanitizer, "--tool", tool, "--error-exitcode", "99", program,
                   "--gtest_filter=-*Network*"]
        status, lines = run_lines(command, seconds, self.log(f"sanitizer/{tool}"), environment=self.environment)
        errors = [line.strip() for line in lines if "ERROR SUMMARY" in line or "RACECHECK SUMMARY" in line]
        if status is None:
            raise Impossible(f"{tool} did not end within {seconds:.0f} s; {errors or 'nothing was found by then'}")
        # It says so, and runs nothing.
        if any("Device not supported" in line for line in lines):
            raise Impossible("compute-sanitizer does not support this GPU or driver")
        if status == 99:
            first = next((line.strip("= ") for line in lines if "Invalid" in line or "race" in line.lower()),
                         errors[0] if errors else "see its log")
            raise Failed(f"{tool}: {first}")
        ended = "" if status in (0, 1) else f"{tool} ended with {status}: {last_words(self.log(f'sanitizer/{tool}'))}"
        return dict(self.counted(outcomes(lines), ended), summary=errors[-1] if errors else "")

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
        try:
            return beside_copy(self.bench("kernels", ["kernels"], seconds))
        except Failed as failure:
            failure.data = beside_copy(failure.data or [])
            raise

    def layers(self, seconds):
        self.need_layers()
        return self.bench("layers", ["layers", "tf32", str(BATCH)], seconds)

    def model(self, name, seconds):
        self.need_layers()
        data, wrong = [], []
        for precision in PRECISIONS:
            try:
                data += self.bench(f"models/{name}/{precision}", ["model", name, precision, str(TEXT_MODELS.get(name, BATCH))], seconds / 2)
            except Failed as failure:  # the other may do
                data += failure.data or []
                wrong.append(f"{precision}: {failure}")
        if wrong:
            raise Failed("; ".join(wrong), data)
        return data

    def parity(self, seconds):
        """What bert_parity_test.py says of each step."""
        self.need_layers()
        if self.machine.torch is None:
            raise Impossible(self.machine.no_torch)
        program = os.path.join(self.build_folder, "dump_step")
        if not os.access(program, os.X_OK):
            raise Impossible("built without CLI11, so there is no dump_step")
        script = os.path.join(self.root, "tests", "pytorch", "bert_parity_test.py")
        end, data, wrong = time.monotonic() + seconds, [], []
        for model, precisions in PARITY.items():
            for precision in precisions:
                status, lines = run_lines(
                    [self.machine.python, script, "--dump-step", program, "--model", model, "--next-sentence",
                     "--device", "cuda", "--precision", precision],
                    max(1, end - time.monotonic()), self.log(f"parity/{model}/{precision}"), environment=self.environment)
                data.append({"name": model, "precision": precision, "passed": status == 0, "said": lines[:10]})
                if status != 0:
                    words = "did not end in time" if status is None else next(
                        (line for line in lines if line.startswith("FAILED")), last_words(self.log(f"parity/{model}/{precision}")))
                    wrong.append(f"{model} in {precision}: {words}")
        if wrong:
            raise Failed("; ".join(wrong), data)
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
