"""All parts as one table: plain text for the terminal, Markdown for a README."""

from . import results
from .parts import MODELS, TEXT_MODELS

ENCODE_GOAL = 0.7       # of a copy's bandwidth
# Times PyTorch eager.
STEP_GOALS = {("resnet20", "tf32"): 1.5, ("bert_base_128", "bf16"): 1.0}

_HEAD = ("what", "ours", "limit or PyTorch eager", "torch.compile", "ratio", "goal")


def _milliseconds(seconds):
    return "-" if seconds is None else f"{1e3 * seconds:.3f} ms"


def _goal(ratio, goal):
    return f">= {goal}: {'met' if ratio >= goal else 'missed'}"


class Table:
    """`records`: part -> record."""

    def __init__(self, records):
        self.records = records
        self.rows = []
        self._tests()
        self._parity()
        self._kernels()
        self._steps("layers", "pytorch/layers/eager", "pytorch/layers/compile")
        for model in MODELS:
            self._steps(f"models/{model}", "pytorch/models/eager", f"pytorch/{model}/compile")
        for model in TEXT_MODELS:
            self._steps(f"models/{model}", "pytorch/text/eager", f"pytorch/{model}/compile")

    def _data(self, part):
        return (self.records.get(part) or {}).get("data") or []

    def _tests(self):
        for part in ("tests", "sanitizer/memcheck", "sanitizer/racecheck"):
            record = self.records.get(part)
            if record and record["data"]:
                data = record["data"]
                skipped = f", {data['skipped']} skipped" if data["skipped"] else ""
                # One that was cut off has not shown it, and has not missed it.
                verdict = {results.DONE: "met", results.FAILED: "missed"}.get(record["status"], "open")
                self.rows.append((part, f"{data['passed']} passed{skipped}", "", "", "", f"none fails: {verdict}"))

    def _parity(self):
        for line in self._data("parity"):
            self.rows.append((f"parity/{line['name']} ({line['precision']})", "", "", "", "",
                              f"gradients near PyTorch's: {'met' if line['passed'] else 'missed'}"))

    def _kernels(self):
        for line in self._data("kernels"):
            name, ratio = line["name"], line["of_copy"]
            self.rows.append((name, f"{line['bytes_per_second'] / 1e9:.0f} GB/s", "copy", "", f"{ratio:.2f}",
                              _goal(ratio, ENCODE_GOAL) if name.startswith("encode/") else ""))

    def _steps(self, part, eager_part, compiled_part):
        def seconds_of(other, line):
            return next((o["seconds"] for o in self._data(other)
                         if o["name"] == line["name"] and o["precision"] == line["precision"]), None)
        for line in self._data(part):
            eager, compiled = seconds_of(eager_part, line), seconds_of(compiled_part, line)
            ratio = eager / line["seconds"] if eager else None
            wanted = STEP_GOALS.get((line["name"], line["precision"]))
            goal = "" if ratio is None or wanted is None else _goal(ratio, wanted)
            ours = f"{_milliseconds(line['seconds'])} (host {_milliseconds(line['host_seconds'])})"
            if "of_peak" in line:
                ours += f", {line['tokens_per_second']:.0f} tokens/s, {line['of_peak']:.2f} of the peak"
            self.rows.append((f"{line['name']} {line['precision']}, batch {line['batch']:.0f}", ours,
                              _milliseconds(eager), _milliseconds(compiled),
                              f"{ratio:.2f}" if ratio else "-", goal))

    def notes(self):
        """What is not in it, and why."""
        return [f"{part}: {record['status']}: {record['words']}" for part, record in self.records.items()
                if record["status"] != results.DONE]

    def text(self):
        rows = [_HEAD] + self.rows
        widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        return "\n".join(lines if self.rows else ["no figures"])

    def markdown(self, title):
        lines = [title, "", "| " + " | ".join(_HEAD) + " |", "|" + "---|" * len(_HEAD)]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        lines += [""] + [f"* {note}" for note in self.notes()]
        return "\n".join(lines) + "\n"
