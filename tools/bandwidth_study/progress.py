"""What is shown while a study runs: a line redrawn in a terminal, a line every ten
seconds elsewhere."""

import time

from local_fleet.lines import Lines, clock

from . import rates

_LINE_SECONDS = 10


class Display:
    def __init__(self, stream=None):
        self._lines = Lines(stream)
        self._next = 0.0

    def note(self, text):
        self._lines.note(text)

    def begin(self, done, todo, more):
        """`more`: further runs follow once the rates are known."""
        text = f"{todo} runs to make" + (" without limits, then those at the rates" if more else "")
        self._lines.note(f"{text}, {done} done already" if done else text)

    def begin_run(self, method, rate, seed):
        # A terminal shows the first step at once.
        self._next = 0.0 if self._lines.terminal else time.monotonic() + _LINE_SECONDS
        self._lines.note(f"{method.name} at {rates.format_rate(rate)}, seed {seed}: "
                         f"{' '.join(method.overrides)}")

    def step(self, seconds, steps, total_steps, loss, seconds_left):
        """`seconds_left`: (of the run, of the study), None where it cannot be said."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.5 if self._lines.terminal else _LINE_SECONDS)
        text = f"  {clock(seconds)}  step {steps:.0f} of {total_steps:.0f}"
        if steps > 0:
            text += f"  {1000 * seconds / steps:.1f} ms a step"
        if loss is not None:
            text += f"  loss {loss:.4f}"
        run, study = ("-" if left is None else clock(left) for left in seconds_left)
        text += f"  left {run} of the run, {study} of the study"
        self._lines.progress(text)

    def finished(self, record):
        parts = []
        for part in record["phases"]:
            phase = f"phase {part['phase']}: " if part["phase"] is not None else ""
            parts.append(f"{phase}{1000 * part['step_seconds']:.2f} ms a step, "
                         f"{part['push_bytes_per_step'] / 1e6:.3f} + "
                         f"{part['pull_bytes_per_step'] / 1e6:.3f} MB")
        accuracy = record["final_accuracy"]
        tail = f"; accuracy {100 * accuracy:.2f} %" if accuracy is not None else ""
        self._lines.note(f"  done in {clock(record['seconds'])}: {'; '.join(parts)}{tail}")

    def failed(self, why):
        self._lines.note(f"  FAILED: {why}")
