"""What gpu-check does, part by part. A part gives its data, or raises Failed, TimedOut or Impossible."""

import json
import os
import re
import shutil
import time

from .children import json_lines, last_words, run_lines
from .results import FAILED, IMPOSSIBLE

MODELS = ("resnet20", "resnet18", "wrn16_4", "resnet50")
# With the length of their sequences, and how many of those a batch has.
TEXT_MODELS = {"bert_base_128": 64, "bert_large_128": 32, "bert_base_512": 16}
PRECISIONS = ("tf32", "bf16")
# Steps whose loss and gradients are compared with PyTorch's in double precision, on the CPU.
PARITY = {"bert_tiny": ("fp32", "tf32", "bf16"), "bert_base": ("bf16",)}
BATCH = 128
_ATTEMPTS = 12  # processes of tests
_HANG_SECONDS = 150  # of one of them; what then still runs, hangs
_BUILT = "built.json"


class NotDone(Exception):
    """.data is what there is of it all the same."""
    status = FAILED

    def __init__(self, words, data=None):
        super().__init__(words)
        self.data = data


class Failed(NotDone):
    """It was possible and went wrong."""


class Impossible(NotDone):
    """Not on this machine: why."""
    status = IMPOSSIBLE


class TimedOut(NotDone):
    """Nothing went wrong until the time was up. `status` is what that means where it was all the time
    that the part may have; where the run itself was at its end it means nothing."""

    def __init__(self, words, data=None, status=FAILED):
        super().__init__(words, data)
        self.status = status


class Part:
    """`least_seconds`: with less time left it is not begun. `most_seconds`: then it is ended. `reads`: the
    parts whose figures in these precisions it compares."""

    def __init__(self, name, run, least_seconds, most_seconds, reads=(), precisions=()):
        self.name, self.run = name, run
        self.least_seconds, self.most_seconds = least_seconds, most_seconds
        self.reads, self.precisions = reads, precisions


_OUTCOME = re.compile(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] ([^\s,]+\.[^\s,]+)(.*)")
# After one of these the process can do nothing more with the GPU, and what follows fails too.
_LASTING = re.compile(r"CUDA error (46|214|226|7\d\d|999)\b|\(cuDNN status 5\d\d\d|\(cuBLAS status 1[34]\b")
# compute-sanitizer's own lines, and of those what it found and how it ended.
_SANITIZER = re.compile(r"=====+ *(.*)")
_FOUND = re.compile(r"Invalid __|Race reported|Program hit|Misaligned|Uninitialized")
_SUMMARY = re.compile(r"(ERROR|RACECHECK) SUMMARY")


class Outcome:
    """Of one test: OK, FAILED, SKIPPED, or RUN where it never ended; what it said meanwhile."""

    def __init__(self, name):
        self.name, self.state, self.words = name, "RUN", []

    def text(self):
        return "\n".join(self.words[:8])[:1500]

    def breaks(self):
        """Whether those behind it cannot run in the same process."""
        return self.state == "RUN" or (self.state == "FAILED" and _LASTING.search("\n".join(self.words)) is not None)

    def fail(self, why):
        self.state, self.words = "FAILED", [why] + self.words


def outcomes(lines):
    """A test program's lines as outcomes, in the order in which they ran."""
    found, now = [], None
    for line in lines:
        match = _OUTCOME.search(line)  # a test's own words may lack a line's end
        if match is None:
            if now is not None and line.strip():
                now.words.append(line.rstrip())
        elif match[1] == "RUN":
            now = Outcome(match[2])
            found.append(now)
        elif now is not None and match[2] == now.name:
            now.state, now = match[1], None
    return found


def counted(found):
    """The outcomes as data; a test that began and never ended has failed."""
    for outcome in found:
        if outcome.state == "RUN":
            outcome.fail("did not end")
    failed = [outcome for outcome in found if outcome.state == "FAILED"]
    return {"passed": sum(outcome.state == "OK" for outcome in found), "failed": [o.name for o in failed],
            "skipped": sum(outcome.state == "SKIPPED" for outcome in found),
            "said": {o.name: o.text() for o in failed}}


def without_running(found):
    """Without the test that was under way when the time was up: it has neither passed nor failed."""
    return [outcome for outcome in found if outcome.state != "RUN"]


def ended_with(what, status):
    """How a program ended that did not end well. None: it was ended for taking too long."""
    if status == 0:
        return ""
    return (f"{what} did not end" if status is None else
            f"{what} ended by signal {-status}" if status < 0 else f"{what} ended with {status}")


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
        models = [self.model_part(model) for model in MODELS]
        texts = [self.model_part(model, 45 if model == "bert_large_128" else 10) for model in TEXT_MODELS]
        parts = [Part("build", self.build, 0, 3600), Part("tests", self.tests, 0, 300),
                 Part("kernels", self.kernels, 10, 120), Part("parity", self.parity, 20, 120),
                 *models, self.pytorch_part("pytorch/models/eager", models, PRECISIONS, 30, 150),
                 *texts, self.pytorch_part("pytorch/text/eager", texts, PRECISIONS, 30, 150)]
        layers = Part("layers", self.layers, 10, 90)
        parts += [layers, self.pytorch_part("pytorch/layers/eager", [layers], ("tf32",), 20, 90)]
        # Compiling takes longest and is asked of no goal but the first model's: last, where time is short.
        compiled = [self.pytorch_part(f"pytorch/{name}/compile", [model], ("tf32",), 60 if name == "resnet50" else 30, 150)
                    for name, model in zip(MODELS, models)]
        compiled += [self.pytorch_part(f"pytorch/{name}/compile", [model], ("bf16",), 60, 200)
                     for name, model in zip(TEXT_MODELS, texts)]
        compiled.append(self.pytorch_part("pytorch/layers/compile", [layers], ("tf32",), 60, 150))
        parts += [compiled[0], Part("sanitizer/memcheck", lambda s: self.sanitizer("memcheck", s), 20, 120),
                  *compiled[1:], Part("sanitizer/racecheck", lambda s: self.sanitizer("racecheck", s), 20, 120)]
        return parts

    def model_part(self, name, least_seconds=10):
        return Part(f"models/{name}", lambda s: self.model(name, s), least_seconds, 90)

    def pytorch_part(self, name, others, precisions, least_seconds, most_seconds):
        """Of the name's last word, eager or compile."""
        part = Part(name, lambda s: self.pytorch(part, s), least_seconds, most_seconds,
                    tuple(other.name for other in others), precisions)
        return part

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
        if status is None:
            raise TimedOut(f"CMake did not end within {seconds:.0f} s")
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
            raise TimedOut(f"the build did not end within {seconds:.0f} s; what is built is kept, run again")
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

    def built(self):
        """What the build folder says that it has, of this tree for this architecture, or None."""
        try:
            with open(os.path.join(self.build_folder, _BUILT), encoding="utf-8") as file:
                built = json.load(file)
        except (OSError, ValueError):
            return None
        tree, architecture = built.pop("tree", None), built.get("architecture")
        return built if (tree, architecture) == (self.results.identity["tree"], self.architecture) else None

    def built_before(self):
        """The same, perhaps of another machine; None where it does not run here."""
        built = self.built()
        if built is None:
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
        """A test that ends the program, hangs or leaves the GPU unusable is named, and those behind it run
        in another process."""
        program, end = self.program("kernels_gpu_tests"), time.monotonic() + seconds
        ran, wanted, late = {}, None, None
        for attempt in range(_ATTEMPTS):
            left = max(1, end - time.monotonic())
            status, found = self.some_tests(program, wanted, attempt, min(left, _HANG_SECONDS))
            if status is None and left <= _HANG_SECONDS:
                late = TimedOut(f"the tests did not end within {seconds:.0f} s")
                found = without_running(found)
            ran.update((outcome.name, outcome) for outcome in found)
            broken = next((i for i, outcome in enumerate(found) if outcome.breaks()), None)
            if broken is None or late:
                break
            if found[broken].state == "RUN":
                found[broken].fail(ended_with("the program", status))
            wanted = self.test_names(program) if wanted is None else wanted
            done = {o.name for o in found[:broken + 1]} | {o.name for o in found if o.state in ("OK", "SKIPPED")}
            wanted = [name for name in wanted if name not in done]
            if not wanted or time.monotonic() > end - 5:
                break
        return self.judged(list(ran.values()), "" if broken is not None else ended_with("the tests", status), late)

    def some_tests(self, program, wanted, attempt, seconds):
        command = [program] + ([f"--gtest_filter={':'.join(wanted)}"] if wanted is not None else [])
        log = self.log("tests" if attempt == 0 else f"tests-{attempt + 1}")
        status, lines = run_lines(command, seconds, log, environment=self.environment)
        return status, outcomes(lines)

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

    def judged(self, found, ended, late=None, **other):
        """The outcomes as data, where the program ended well and in time; Impossible where none could run."""
        data = dict(counted(found), **other)
        if data["failed"]:
            names, others = ", ".join(data["failed"][:5]), len(data["failed"]) - 5
            more = (f" and {others} more" if others > 0 else "") + (f"; {late}" if late else "")
            raise Failed(f"{len(data['failed'])} tests failed: {names}{more}", data)
        if late:
            late.data = data
            raise late
        if ended:
            raise Failed(ended, data)
        why = next((line.strip() for o in found if o.state == "SKIPPED" for line in o.words
                    if "no GPU to test on" in line), None)
        if why is not None and self.machine.gpu is not None:  # it is there, and does not work
            raise Failed(f"{data['skipped']} tests skipped: {why}", data)
        if data["passed"] == 0 or (self.machine.gpu is None and data["skipped"]):
            raise Impossible(f"{data['skipped']} tests skipped: {why or self.machine.no_gpu or 'no reason was said'}")
        return data

    def sanitizer(self, tool, seconds):
        self.need_gpu()
        if self.machine.sanitizer is None:
            raise Impossible("there is no compute-sanitizer on the PATH or beside nvcc")
        # A test asks for more memory than there is: what the API refuses is the tests' to judge.
        command = [self.machine.sanitizer, "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "99",
                   self.program("kernels_gpu_tests"), "--gtest_filter=-*Network*"]
        log = self.log(f"sanitizer/{tool}")
        status, lines = run_lines(command, seconds, log, environment=self.environment)
        # It says so, and runs nothing.
        if any("Device not supported" in line for line in lines):
            raise Impossible("compute-sanitizer does not support this GPU or driver")
        said = [match[1] for match in map(_SANITIZER.match, lines) if match]
        summary = next((line for line in reversed(said) if _SUMMARY.search(line)), "")
        wrong = next((line for line in said if _FOUND.search(line)), "")
        found, late, ended = outcomes(lines), None, ""
        if status is None:
            found = without_running(found)
            late = TimedOut(f"{tool} did not end within {seconds:.0f} s; nothing was found by then", status=IMPOSSIBLE)
        elif status != 0:
            ended = f"{ended_with(tool, status)}: {said[-1] if said else last_words(log)}"
        elif not summary:
            ended = f"{tool} ended without a summary of errors"
        # A test that fails as well takes the status for itself.
        if status == 99 or re.search(r"\b[1-9]\d* errors?\b", summary) or (late and wrong):
            raise Failed(f"{tool}: {wrong or summary or 'see its log'}", dict(counted(found), summary=summary))
        return self.judged(found, ended, late, summary=summary)

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
            raise TimedOut(f"gpu_bench did not end within {seconds:.0f} s", data)
        if status != 0:
            raise Failed(last_words(self.log(part)), data)
        return data

    def kernels(self, seconds):
        self.need_gpu()
        try:
            return beside_copy(self.bench("kernels", ["kernels"], seconds))
        except NotDone as end:
            end.data = beside_copy(end.data or [])
            raise

    def layers(self, seconds):
        self.need_layers()
        return self.bench("layers", ["layers", "tf32", str(BATCH)], seconds)

    def model(self, name, seconds):
        self.need_layers()
        end, data, wrong, late = time.monotonic() + seconds, [], [], []
        for i, precision in enumerate(PRECISIONS):
            left = max(1, end - time.monotonic())
            try:
                data += self.bench(f"models/{name}/{precision}", ["model", name, precision, str(TEXT_MODELS.get(name, BATCH))],
                                   left / (len(PRECISIONS) - i))
            except (Failed, TimedOut) as why:  # the other may do
                data += why.data or []
                (wrong if isinstance(why, Failed) else late).append(f"{precision}: {why}")
        if wrong or late:
            raise (Failed if wrong else TimedOut)("; ".join(wrong + late), data)
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
        for model, precision in ((model, precision) for model, all_of in PARITY.items() for precision in all_of):
            log = self.log(f"parity/{model}/{precision}")
            status, lines = run_lines(
                [self.machine.python, script, "--dump-step", program, "--model", model, "--next-sentence",
                 "--device", "cuda", "--precision", precision],
                max(1, end - time.monotonic()), log, environment=self.environment)
            if status is None:
                late = f"{model} in {precision}: did not end in time"
                raise (Failed if wrong else TimedOut)("; ".join(wrong + [late]), data)
            data.append({"name": model, "precision": precision, "passed": status == 0, "said": lines[:10]})
            if status != 0:
                words = next((line for line in lines if line.startswith("FAILED")), last_words(log))
                wrong.append(f"{model} in {precision}: {words}")
        if wrong:
            raise Failed("; ".join(wrong), data)
        return data

    def ours(self, part):
        """The lines that a part compares."""
        return [line for name in part.reads for line in (self.results.read(name) or {}).get("data") or []
                if line["precision"] in part.precisions]

    def lacks(self, part, record):
        """Whether there are lines by now that it has not compared."""
        ours = {(line["name"], line["precision"]) for line in self.ours(part)}
        return bool(ours) and not ours <= {(line["name"], line["precision"]) for line in record["data"] or []}

    def pytorch(self, part, seconds):
        mode = part.name.rsplit("/", 1)[1]
        self.need_gpu()
        if self.machine.no_cuda_in_torch():
            raise Impossible(self.machine.no_cuda_in_torch())
        if mode == "compile" and not self.machine.torch["compiles"]:
            raise Impossible(f"PyTorch {self.machine.torch['version']} has no torch.compile")
        lines = self.ours(part)
        if not lines:
            raise Impossible("there is nothing of ours to compare with")
        log, script = self.log(part.name), os.path.join(self.root, "tools", "gpu_check", "pytorch_steps.py")
        status, said = run_lines([self.machine.python, script, mode], seconds, log,
                                 "".join(json.dumps(line) + "\n" for line in lines))
        data = json_lines(said)
        if status is None:
            raise TimedOut(f"PyTorch ({mode}): did not end within {seconds:.0f} s", data)
        if status != 0:
            raise Failed(f"PyTorch ({mode}): {last_words(log)}", data)
        return data
