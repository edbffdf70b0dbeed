"""The processes of one schedule: started, killed, paused, ended; where each one's log, state
and record are; and which ends of them are as they should be."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field

from local_fleet import daemons

from . import checkpoints, journal

READY_SECONDS = 40
_DIE_SECONDS = 10
_POLITE_SECONDS = 40
_STATUS_SECONDS = 5
_PORT_IN_NAMESPACE = 7000
# Below the ports that the kernel gives to outgoing connections: one of those could take a
# server's port while the server is down.
_PORTS = (20000, 32000)


class ScheduleFailure(Exception):
    """Something that must not happen has happened, or something that must did not."""


def free_ports(count):
    """So many ports of loopback on which nobody listens."""
    ports = []
    while len(ports) < count:
        port = random.randrange(*_PORTS)
        with socket.socket() as probe:
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                if port not in ports:
                    ports.append(port)
    return ports


@dataclass
class Start:
    """One start of a process."""
    daemon: object
    number: int
    acknowledged: str = None
    # Statuses with which it may end; negative: signals. Empty: any end of it fails the run,
    # but for a worker's 0.
    may_end: set = field(default_factory=set)
    paused: bool = False


@dataclass
class Absence:
    """A server that did not serve, from one moment to another (monotonic seconds)."""
    server: int
    began: float
    ended: float = None


class Fleet:
    """`folder` holds everything. `network`: of local_fleet, None for loopback."""

    def __init__(self, programs, job, schedule, folder, network=None):
        self.programs = programs
        self.job = job
        self.schedule = schedule
        self.folder = folder
        self.network = network
        self.servers = [f"server-{i}" for i in range(job.servers)]
        self.workers = [f"worker-{i}" for i in range(job.workers)]
        self.evaluators = ["evaluator"] if schedule.evaluator or job.evaluates else []
        self.starts = {name: [] for name in (*self.servers, *self.workers, *self.evaluators)}
        self._job_path = job.write(folder, schedule.durability())
        self.absences = []
        self.silences = []  # Absences too: servers that are stopped, or whose link is cut
        self.busy = set()  # names that a fault has in its hands
        self.disks = {}  # server name: SmallDisk
        self.unjournaled = set()  # shards
        if network is None:
            self.addresses = [f"127.0.0.1:{port}" for port in free_ports(job.servers)]
        else:
            self.addresses = [f"{network.address(name)}:{_PORT_IN_NAMESPACE}"
                              for name in self.servers]

    # Where things are.

    def disk_folder(self, server):
        """What may be a disk of its own: it holds all that is the server's."""
        return os.path.join(self.folder, "state", server)

    def state(self, server):
        """The state directory."""
        shard = self.servers.index(server)
        return os.path.join(self.disk_folder(server), f"shard-{shard}")

    def _links(self, server):
        return os.path.join(self.disk_folder(server), "journal")

    def journal_paths(self, server):
        """Every journal file there ever was, also those that a checkpoint has removed."""
        found = {os.path.basename(path): path for path in journal.paths_in(self._links(server))
                 if os.path.getsize(path) >= journal.HEADER_BYTES}
        found.update({os.path.basename(path): path
                      for path in journal.paths_in(self.state(server))})
        return list(found.values())

    def keep_journals(self):
        """A second name for each journal file, so that it outlives the first."""
        if self.schedule.keep_journal:
            return
        for server in self.servers:
            links = self._links(server)
            os.makedirs(links, exist_ok=True)
            for path in journal.paths_in(self.state(server)):
                link = os.path.join(links, os.path.basename(path))
                with contextlib.suppress(FileNotFoundError):
                    if os.path.exists(link):
                        if os.path.samefile(path, link):
                            continue
                        # A file that was just begun was removed, and its number given again.
                        os.unlink(link)
                    # A full disk has no room for a name either; it is tried again.
                    with contextlib.suppress(OSError):
                        os.link(path, link)

    def logs(self):
        return [start.daemon.log_path for starts in self.starts.values() for start in starts]

    def acknowledged_paths(self):
        return [start.acknowledged for name in self.workers for start in self.starts[name]
                if os.path.exists(start.acknowledged)]

    # Processes.

    def now(self, name):
        """The last start; None before the first."""
        return self.starts[name][-1] if self.starts[name] else None

    def running(self, name):
        start = self.now(name)
        return start is not None and start.daemon.running

    def start(self, name):
        """Starts it (again), and does not wait."""
        number = len(self.starts[name]) + 1
        base = os.path.join(self.folder, f"{name}.{number}")
        ready, record = None, None
        insecure = ["--insecure"] if self.network is not None else []
        arguments = [f"--job={self._job_path}", *self.job.overrides()]
        if name in self.servers:
            shard = self.servers.index(name)
            ready = f"{base}.ready.json"
            os.makedirs(self.disk_folder(name), exist_ok=True)
            command = [self.programs.path("foreshard-server"), *arguments, f"--shard={shard}",
                       f"--listen={self.addresses[shard]}", *insecure,
                       f"--state-directory={self.state(name)}"]
        else:
            role = "worker" if name in self.workers else "evaluator"
            command = [self.programs.path("foreshard-worker"), *arguments, *insecure,
                       f"--servers={','.join(self.addresses)}", f"--role={role}",
                       f"--name={name}.{number}", "--device=cpu"]
            if role == "worker":
                record = f"{base}.acknowledged.csv"
                command.append(f"--record-acknowledged={record}")
                if self.job.pace:
                    command.append(f"--pace={self.job.pace}")
        node = None
        if self.network is not None:
            node = name if name in self.network.nodes else "observer"
        daemon = daemons.start(name, command, f"{base}.log", self.network, node, ready)
        self.starts[name].append(Start(daemon, number, record))
        return self.now(name)

    def is_ready(self, name):
        """Whether the server's last start serves; ScheduleFailure where it has ended."""
        start = self.now(name)
        if start.daemon.ready() is not None:
            for absence in self.absences:
                if absence.server == self.servers.index(name) and absence.ended is None:
                    absence.ended = time.monotonic()
            return True
        if not start.daemon.running:
            raise ScheduleFailure(f"{name} does not start again: {start.daemon.describe_end()}")
        return False

    def _signal(self, name, signum):
        self.now(name).daemon.process.send_signal(signum)

    def _away(self, name):
        if name in self.servers:
            self.absences.append(Absence(self.servers.index(name), time.monotonic()))

    def kill(self, name):
        """kill -9. False: it does not run."""
        if not self.running(name):
            return False
        start = self.now(name)
        start.may_end = {-signal.SIGKILL}
        start.daemon.process.kill()
        start.daemon.process.wait(_DIE_SECONDS)
        self._away(name)
        return True

    def pause(self, name):
        if not self.running(name):
            return False
        self.now(name).paused = True
        self.fall_silent(name)
        self._signal(name, signal.SIGSTOP)
        return True

    def go_on(self, name):
        if self.running(name):
            self._signal(name, signal.SIGCONT)
        self.speak_again(name)
        self.now(name).paused = False

    def fall_silent(self, name):
        if name in self.servers:
            self.silences.append(Absence(self.servers.index(name), time.monotonic()))

    def speak_again(self, name):
        for silence in self.silences:
            if name in self.servers and silence.server == self.servers.index(name) and silence.ended is None:
                silence.ended = time.monotonic()

    def ask_to_end(self, name):
        """SIGTERM; a server must end with 0, a worker with 143 where its job is not complete, or by the
        signal where it has not come as far as to expect it."""
        if not self.running(name):
            return False
        self.now(name).may_end = {0}
        if name not in self.servers:
            self.now(name).may_end.add(128 + signal.SIGTERM)
            if not self.log_text(name):
                self.now(name).may_end.add(-signal.SIGTERM)
        self._signal(name, signal.SIGTERM)
        self._away(name)
        return True

    def has_ended(self, name):
        return not self.now(name).daemon.running

    def may_end(self, name, statuses):
        self.now(name).may_end = set(statuses)

    def log_text(self, name):
        """Of its last start."""
        with open(self.now(name).daemon.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def look_after(self):
        """ScheduleFailure where something has ended that should not have, or otherwise."""
        for name, starts in self.starts.items():
            for start in starts:
                status = start.daemon.process.poll()
                if status is None or status in start.may_end:
                    continue
                if not start.may_end and status == 0 and name not in self.servers:
                    continue  # the job is over
                raise ScheduleFailure(f"crash or wrong end: {start.daemon.describe_end()}")

    def trained(self):
        """All workers have left since the job is over."""
        return all(self.now(name) is not None and self.now(name).daemon.process.poll() == 0
                   and not self.now(name).may_end for name in self.workers)

    def status(self):
        """What all servers say; None: one does not answer."""
        command = [self.programs.path("foreshard"), "status", "--json",
                   f"--servers={','.join(self.addresses)}", f"--timeout={_STATUS_SECONDS}"]
        where = contextlib.nullcontext()
        if self.network is not None:
            command.append("--insecure")
            where = self.network.inside("observer")
        with where:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True, check=False,
                                  start_new_session=True)
        try:
            servers = json.loads(done.stdout)["servers"]
        except (ValueError, KeyError):
            return None
        return None if any("error" in server for server in servers) else servers

    def end_servers(self):
        """SIGTERM to all; ScheduleFailure where one does not end well."""
        for name in self.servers:
            self.ask_to_end(name)
        deadline = time.monotonic() + _POLITE_SECONDS
        while any(self.running(name) for name in self.servers):
            if time.monotonic() > deadline:
                late = [name for name in self.servers if self.running(name)]
                raise ScheduleFailure(f"{', '.join(late)}: still there {_POLITE_SECONDS} s after SIGTERM")
            time.sleep(0.02)
        self.look_after()

    def end_all(self):
        """Kills whatever runs; for every exit. Returns what it had to kill."""
        left = [start.daemon for starts in self.starts.values() for start in starts
                if start.daemon.running]
        daemons.end(left, 0)
        return [daemon.name for daemon in left]

    def strays(self):
        """Processes of this fleet's sessions, or with its folder among their arguments."""
        sessions = {start.daemon.process.pid for starts in self.starts.values() for start in starts}
        mark = f"{self.folder}/".encode()
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    arguments = file.read()
            except OSError:
                continue
            ours = b"/foreshard-" in arguments and mark in arguments
            if fields[0] not in "ZX" and (int(fields[3]) in sessions or ours):
                found.append(int(entry))
        return found

    def newest_checkpoint(self, name):
        folders = checkpoints.folders_in(self.state(name))
        return folders[-1] if folders else None


_CRASHES = re.compile(
    r"^F \d{4}-\d\d-\d\dT|^F\d{8} |\*\*\* Check failure|\*\*\* SIG|SIGSEGV|SIGABRT|"
    r"ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:|terminate called|"
    r"pure virtual|double free|stack smashing", re.MULTILINE)


def crash_lines(path):
    """Lines of a log that tell of a crash."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    found = []
    for match in _CRASHES.finditer(text):
        begin = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", match.start())
        found.append(text[begin:end if end >= 0 else len(text)])
    return found
