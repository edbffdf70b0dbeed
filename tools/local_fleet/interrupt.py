"""Ctrl-C, SIGTERM and a terminal's hang-up as a question asked at safe points, so that
what was begun is undone in order whenever they come."""

import signal
import time


class Interrupted(Exception):
    """A signal asked for the end; `signum` is its number."""

    def __init__(self, signum):
        super().__init__(f"{signal.Signals(signum).name}")
        self.signum = signum


class Interrupt:
    """One at a time; takes the signals while entered."""

    def __init__(self):
        self._signum = None
        self._before = {}

    def __enter__(self):
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *_):
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum, _):
        self._signum = signum

    def check(self):
        """Raises Interrupted once a signal has come."""
        if self._signum is not None:
            raise Interrupted(self._signum)

    def sleep(self, seconds):
        """Sleeps so long, or until a signal comes."""
        end = time.monotonic() + seconds
        self.check()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
            self.check()
