"""What is shown while a study runs: a line redrawn in a terminal, a line every ten
seconds elsewhere."""

import sys
import time

from . import rates

_LINE_SECONDS = 10


def clock(seconds):
    """"1:02:03", "2:03"."""
    whole = round(seconds)
    text = f"{whole // 60 % 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{text.zfill(5)}" if whole >= 3600 else text


class Display:
    def __init__(self, stream=None):
        self._stream = stream or sys.stdout
        self._terminal = self._stream.isatty()
        self._open = False  # a line is drawn and not ended
        self._next = 0.0

    def _print(self, text):
        if self._open:
            self._stream.write("\r\x1b[K")
            self._open = False
        self._stream.write(text + "\n")
        self._stream.flush()

    def note(self, text):
        self._print(text)

    def begin(self, done, todo, more):
        """`more`: further runs follow once the rates are known."""
        text = f"{todo} runs to make" + (" without limits, then those at the rates" if more else "")
        self._print(f"{text}, {done} done already" if done else text)

    def begin_run(self, method, rate, seed):
        # A terminal shows the first step at once.
        self._next = 0.0 if self._terminal else time.monotonic() + _LINE_SECONDS
        self._print(f"{method.name} at {rates.format_rate(rate)}, seed {seed}: "
                    f"{' '.join(method.overrides)}")

    def step(self, seconds, steps, total_steps, loss, seconds_left):
        """`seconds_left`: (of the run, of the study), None where it cannot be said."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.5 if self._terminal else _LINE_SECONDS)
        text = f"  {clock(seconds)}  step {steps:.0f} of {total_steps:.0f}"
        if steps > 0:
            text += f"  {1000 * seconds / steps:.1f} ms a step"
        if loss is not None:
            text += f"  loss {loss:.4f}"
        run, study = ("-" if left is None else clock(left) for left in seconds_left)
        text += f"  left {run} of the run, {study} of the study"
        if self._terminal:
            self._stream.write("\r\x1b[K" + text)
            self._stream.flush()
            self._open = True
        else:
            self._print(text)

    def finished(self, record):
        parts = []
        for part in record["phases"]:
            phase = f"phase {part['phase']}: " if part["phase"] is not None else ""
            parts.append(f"{phase}{1000 * part['step_seconds']:.2f} ms a step, "
                         f"{part['push_bytes_per_step'] / 1e6:.3f} + "
                         f"{part['pull_bytes_per_step'] / 1e6:.3f} MB")
        accuracy = record["final_accuracy"]
        tail = f"; accuracy {100 * accuracy:.2f} %" if accuracy is not None else ""
        self._print(f"  done in {clock(record['seconds'])}: {'; '.join(parts)}{tail}")

    def failed(self, why):
        self._print(f"  FAILED: {why}")
