"""Lines for whoever watches: lines that stay, and one that is redrawn in a terminal."""

import sys


def clock(seconds):
    """"1:02:03", "2:03"."""
    whole = round(seconds)
    text = f"{whole // 60 % 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{text.zfill(5)}" if whole >= 3600 else text


class Lines:
    """On a stream, standard output by default."""

    def __init__(self, stream=None):
        self._stream = stream or sys.stdout
        self.terminal = self._stream.isatty()
        self._open = False  # a line is drawn and not ended

    def note(self, text):
        """A line that stays."""
        if self._open:
            self._stream.write("\r\x1b[K")
            self._open = False
        self._stream.write(text + "\n")
        self._stream.flush()

    def progress(self, text):
        """In a terminal drawn over the last one, else a line that stays."""
        if not self.terminal:
            self.note(text)
            return
        self._stream.write("\r\x1b[K" + text)
        self._stream.flush()
        self._open = True
