"""Rules that Dockerfiles keep, beside hadolint, which images_test.py runs where it is there: ours, and those of its
that matter most (its numbers in brackets). Not kept, with reasons: versions of packages in apt-get (DL3008), since the
moment of the suite fixes all of them (SNAPSHOT); lists of apt removed (DL3009), since no stage that has them is shipped.

    findings = lint(text, "Dockerfile.cpu")     # "rule: what is wrong"
"""

import re
import shlex

import found_tools

RULES = {}
_KNOWN = {"ARG", "CMD", "COPY", "ENV", "EXPOSE", "FROM", "LABEL", "RUN", "USER", "WORKDIR"}
_LABELS = ("title", "description", "version", "revision", "base.name")


def rule(function):
    RULES[function.__name__] = function
    return function


class Instruction:
    def __init__(self, word, rest):
        self.word = word
        self.rest = rest

    @property
    def words(self):
        return shlex.split(self.rest)


class Dockerfile:
    def __init__(self, text):
        text = re.sub(r"(?m)^\s*#.*\n", "", text)
        text = re.sub(r"\\\n\s*", "", text)
        self.instructions = [Instruction(*(line.split(None, 1) + [""])[:2]) for line in text.splitlines() if line.strip()]
        self.stages = []  # (name, base, instructions)
        self.before = []
        for instruction in self.instructions:
            if instruction.word == "FROM":
                words = instruction.words
                self.stages.append((words[2] if len(words) == 3 else "", words[0], []))
            elif self.stages:
                self.stages[-1][2].append(instruction)
            else:
                self.before.append(instruction)

    def of(self, word):
        return [i for i in self.instructions if i.word == word]

    def last(self, word):
        return [i for i in self.stages[-1][2] if i.word == word]

    def arguments(self):
        """Defaults of those before the first stage."""
        return dict(i.rest.split("=", 1) for i in self.before if i.word == "ARG" and "=" in i.rest)


def commands(text):
    return [i.rest for i in Dockerfile(text).of("RUN")]


def _expand(text, arguments):
    for _ in range(3):
        text = re.sub(r"\$\{(\w+)\}", lambda m: arguments.get(m[1], m[0]), text)
    return text


@rule
def pinned_base(file):  # DL3006, DL3007
    names, arguments = set(), file.arguments()
    for name, base, _ in file.stages:
        base = _expand(base, arguments)
        if base not in names | {"scratch"} and not re.search(r"(:(?!latest)[\w.-]+|@sha256:\w+)$", base):
            yield f"{base} names no version"
        names.add(name)


@rule
def stages_exist(file):  # DL3022
    names = {name for name, _, _ in file.stages}
    for instruction in file.of("COPY"):
        for word in instruction.words:
            if word.startswith("--from=") and word.partition("=")[2] not in names:
                yield f"COPY {word}: no such stage"
    if file.arguments().get("PROGRAMS") not in names:
        yield "PROGRAMS names no stage"


@rule
def not_root(file):  # DL3002
    users = [i.rest for i in file.last("USER")]
    if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        yield "the last stage must run as a numeric user and group, which runAsNonRoot can check"


@rule
def labels(file):
    said = " ".join(i.rest for i in file.last("LABEL"))
    for label in _LABELS:
        if f"org.opencontainers.image.{label}=" not in said:
            yield f"no label {label}"


@rule
def last_stage_only_copies(file):
    for instruction in file.last("RUN"):
        yield f"RUN in the last stage: {instruction.rest[:40]}"


@rule
def exec_form(file):  # DL3025
    for instruction in file.of("CMD"):
        if not instruction.rest.startswith("["):
            yield "CMD takes a list: a shell would not pass signals on, and there is none"


@rule
def one_command(file):  # DL4003
    if len(file.last("CMD")) != 1:
        yield "one CMD"


@rule
def absolute_folders(file):  # DL3000
    for instruction in file.of("WORKDIR"):
        if not instruction.rest.startswith("/"):
            yield f"WORKDIR {instruction.rest}"


@rule
def copy_not_add(file):  # DL3020
    if file.of("ADD"):
        yield "COPY, not ADD, which also fetches and unpacks"


@rule
def no_cd(file):  # DL3003
    for instruction in file.of("RUN"):
        if re.search(r"\bcd ", instruction.rest):
            yield "WORKDIR, not cd"


@rule
def no_sudo(file):  # DL3004
    for instruction in file.of("RUN"):
        if re.search(r"\bsudo\b", instruction.rest):
            yield "builds are root already"


@rule
def apt_is_lean(file):  # DL3015, DL3014, DL3027
    for instruction in file.of("RUN"):
        if re.search(r"\bapt(-get)? .*install", instruction.rest) and "--no-install-recommends" not in instruction.rest:
            yield f"without --no-install-recommends: {instruction.rest[:60]}"


@rule
def no_secrets(file):
    for instruction in file.of("ARG") + file.of("ENV"):
        if re.search(r"(?i)token|password|secret|credential", instruction.rest):
            yield f"{instruction.rest}: it would stay readable in the image's history"


@rule
def known_instructions(file):  # DL4000 among others
    for instruction in file.instructions:
        if instruction.word not in _KNOWN | {"ADD"}:
            yield f"{instruction.word} is not used here"


@rule
def ports_of_the_chart(file):
    chart = (found_tools.SOURCE / "deploy/helm/foreshard/templates/server-statefulset.yaml").read_text()
    said = {port for i in file.last("EXPOSE") for port in i.words}
    if said != set(re.findall(r"containerPort: (\d+)", chart)):
        yield f"EXPOSE {sorted(said)}, other ports than the chart's"


@rule
def sources_exist(file):
    for instruction in file.of("COPY"):
        words = instruction.words
        if words[0].startswith("--") or words[0] == "stage":
            continue
        for source in words[:-1]:
            if not (found_tools.SOURCE / source).exists():
                yield f"COPY {source}: there is none"


@rule
def pipes_fail(file):  # DL4006
    for instruction in file.of("RUN"):
        if re.search(r"[^|]\|[^|]", instruction.rest) and "pipefail" not in instruction.rest:
            yield "a pipe hides its first command's failure"


@rule
def variables_are_declared(file):
    """Those of a stage, in it: what comes before the first stage is for FROM alone."""
    for name, _, instructions in file.stages:
        declared = {"PATH"}
        for instruction in instructions:
            if instruction.word == "ARG":
                declared.add(instruction.rest.partition("=")[0])
            for variable in re.findall(r"\$\{(\w+)\}", instruction.rest):
                if variable not in declared:
                    yield f"{variable} is not declared in stage {name or 'of the image'}"


def lint(text, title, only=None):
    file = Dockerfile(text)
    return [f"{title}: {name}: {found}" for name, check in RULES.items() if only is None or name in only for found in check(file)]
