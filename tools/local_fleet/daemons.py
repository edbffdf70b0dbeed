"""The daemons of one job, each in a namespace of a Network.

They die with this process, whatever ends it, and are ended by their process numbers.
"""

import json
import os
import signal
import subprocess
import time

from . import network as networks
from .die_with_parent import die_with_parent

_LOG_LINES = 8
_POLL_SECONDS = 0.02
_KILL_SECONDS = 10


class DaemonError(Exception):
    """A daemon did not come up, or ended when it should not have."""


class Daemon:
    """A process with its log."""

    def __init__(self, name, process, log_path, ready_path=None):
        self.name = name
        self.process = process
        self.log_path = log_path
        self.ready_path = ready_path

    @property
    def running(self):
        return self.process.poll() is None

    @property
    def ended_well(self):
        return self.process.poll() == 0

    @property
    def ended_as_told(self):
        """By itself, or after SIGTERM: a worker whose job is not complete says so by its status."""
        return self.process.poll() in (0, 128 + signal.SIGTERM)

    def ready(self):
        """What the ready file says and when it was written (seconds since the epoch), or
        None while there is none."""
        try:
            with open(self.ready_path, encoding="utf-8") as file:
                return json.load(file), os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None

    def describe_end(self):
        """"worker-1 was killed by SIGKILL; log: PATH, which ends with ..."."""
        status = self.process.poll()
        if status is None:
            how = "is running"
        elif status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        else:
            how = f"ended with status {status}"
        lines = last_lines(self.log_path)
        text = f"{self.name} {how}; log: {self.log_path}"
        if lines:
            text += ", which ends with" + "".join(f"\n    {line}" for line in lines)
        return text


def last_lines(path, count=_LOG_LINES):
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 65536))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]


def start(name, command, log_path, network=None, node=None, ready_path=None, niceness=0):
    """Starts one process, in a node's namespace where a network is given."""
    parent = os.getpid()
    file = network.open_namespace(node) if network is not None else None
    if ready_path is not None:
        command = [*command, f"--ready-file={ready_path}"]
        if os.path.exists(ready_path):
            os.unlink(ready_path)

    def become():
        die_with_parent(parent)
        if file is not None:
            networks.enter_for_good(file)
        if niceness:
            os.nice(niceness)

    try:
        with open(log_path, "wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       start_new_session=True, preexec_fn=become)
    except FileNotFoundError as error:
        raise DaemonError(f"there is no program {command[0]}; build it: tools/build release "
                          "foreshard foreshard-server foreshard-worker") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise DaemonError(f"{name}: {command[0]} cannot be started: {error}") from error
    finally:
        if file is not None:
            os.close(file)
    return Daemon(name, process, log_path, ready_path)


def await_ready(daemons, seconds, interrupt, others=()):
    """Waits for the ready files of all; DaemonError names who has none. One that ends
    meanwhile, of these or of `others`, is an error too."""
    deadline = time.monotonic() + seconds
    while True:
        interrupt.check()
        waiting = [daemon for daemon in daemons if daemon.ready() is None]
        if not waiting:
            return
        for daemon in (*others, *waiting):
            if not daemon.running:
                raise DaemonError(daemon.describe_end())
        if time.monotonic() >= deadline:
            raise DaemonError(f"{', '.join(daemon.name for daemon in waiting)} not up within "
                              f"{seconds:g} s; logs in {os.path.dirname(waiting[0].log_path)}")
        time.sleep(_POLL_SECONDS)


def end(daemons, grace_seconds):
    """SIGTERM to all that run, SIGKILL after the grace (at once where it is 0)."""
    running = [daemon for daemon in daemons if daemon.running]
    deadline = time.monotonic() + grace_seconds
    if grace_seconds > 0:
        for daemon in running:
            daemon.process.send_signal(signal.SIGTERM)
        while any(daemon.running for daemon in running) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    for daemon in running:
        if daemon.running:
            daemon.process.kill()
    for daemon in running:
        try:
            daemon.process.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise DaemonError(
                f"{daemon.name} (process {daemon.process.pid}) does not die") from error
