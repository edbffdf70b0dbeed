"""Hosts joined by links of a limited rate: network namespaces on this machine.

Each server and each worker is a namespace with an interface `eth0`; a further namespace,
the hub, bridges them. The rate is imposed in both directions of each link, by a token
bucket where packets enter it: at the host, and at the hub's end. Servers have a second
interface, `control`, on a bridge of its own without a limit, to which the observer is
joined: evaluation and questions cross no link that is measured.

    with Network(["server-0"], ["worker-0", "worker-1"], rate=10_000_000) as network:
        with network.inside("worker-0"): ...

Every interface is inside a namespace, and a namespace's name says whose it is:
fsnet-PID-START-NODE, START being when that process began (field 22 of /proc/PID/stat), so
that the number of a process, used again, deceives nobody. What a killed process left
behind is found by these names (`remove_leftovers`).

Namespaces are entered by the calling thread alone; use one thread.
"""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import time

OBSERVER = "observer"
_HUB = "hub"
_NAMES = re.compile(r"fsnet-([0-9]+)-([0-9]+)-(.+)")
_FOLDER = "/run/netns"
_CLONE_NEWNET = 0x40000000
_SETTLE_SECONDS = 10

_libc = ctypes.CDLL(None, use_errno=True)


class NetworkError(Exception):
    """A command that makes the network failed, or the kernel refused."""


def _setns(file):
    if _libc.setns(file, _CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise NetworkError(f"cannot enter a network namespace: {os.strerror(error)}")


def _run(*command, lines=None):
    """Runs ip or tc; NetworkError has its words. In a session of its own, so that a
    terminal's Ctrl-C ends us in our own order."""
    # Where root's PATH is not that of an administrator.
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    program = shutil.which(command[0], path=path)
    if program is None:
        raise NetworkError(f"there is no program '{command[0]}' (Debian package iproute2)")
    try:
        done = subprocess.run([program, *command[1:]],
                              input="\n".join(lines) + "\n" if lines else None,
                              stdin=None if lines else subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              start_new_session=True, check=False)
    except OSError as error:
        raise NetworkError(f"'{program}' cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        text = " ".join(done.stdout.split()) or f"status {done.returncode}"
        raise NetworkError(f"'{' '.join(command)}' failed: {text}")
    return done.stdout


def _batch(program, namespace, lines):
    _run(program, "-n", namespace, "-batch", "-", lines=lines)


def _mount_of(folder):
    """The number of the mount that a folder is in; None: there is no such folder."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with open(f"/proc/self/fdinfo/{opened}", encoding="ascii") as file:
            return next(line.split()[1] for line in file if line.startswith("mnt_id:"))
    finally:
        os.close(opened)


def _is_mounted():
    """Whether something is mounted on the namespaces' folder itself."""
    return _mount_of(_FOLDER) not in (None, _mount_of(os.path.dirname(_FOLDER)))


# How the first of our namespaces found their folder: (it was there, it was a mount point); None:
# we have none.
_found = None


def _add(name):
    """The first `ip netns add` on a machine makes the folder and mounts it on itself."""
    global _found
    if _found is None:
        _found = (os.path.isdir(_FOLDER), _is_mounted())
    _run("ip", "netns", "add", name)


def _restore_folder():
    """As it was found, where nobody has a namespace in it any more."""
    global _found
    if _found is None:
        return
    was_there, was_mounted = _found
    with contextlib.suppress(OSError):
        if os.listdir(_FOLDER):
            return
        # The kernel refuses should somebody be quicker: their namespaces are mounts below it.
        while not was_mounted and _is_mounted():
            if _libc.umount2(_FOLDER.encode(), 0) != 0:
                return
        if not was_there:
            os.rmdir(_FOLDER)
    _found = None


def process_start(pid):
    """When a process began, in ticks since boot; None: there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    # A zombie holds nothing.
    return None if fields[0] in "ZX" else int(fields[19])


def owner():
    """The part of namespaces' names that says they are ours."""
    return f"fsnet-{os.getpid()}-{process_start(os.getpid())}-"


def namespaces():
    """Of all studies, living and dead."""
    try:
        return sorted(name for name in os.listdir(_FOLDER) if _NAMES.fullmatch(name))
    except FileNotFoundError:
        return []


def processes_inside(namespace):
    """The processes in a namespace, by number."""
    try:
        wanted = os.stat(f"{_FOLDER}/{namespace}")
    except OSError:
        return []
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            at = os.stat(f"/proc/{entry}/ns/net")
        except OSError:
            continue
        if (at.st_dev, at.st_ino) == (wanted.st_dev, wanted.st_ino):
            found.append(int(entry))
    return found


def _remove(names):
    """Kills what runs inside and deletes the namespaces with all their interfaces."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while any(pids := [pid for name in names for pid in processes_inside(name)]):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() >= deadline:
            raise NetworkError(f"processes {pids} in {', '.join(names)} cannot be ended")
        time.sleep(0.02)
    errors = []
    for name in names:
        try:
            _run("ip", "netns", "delete", name)
        except NetworkError as error:
            if os.path.exists(f"{_FOLDER}/{name}"):
                errors.append(str(error))
    if errors:
        raise NetworkError("; ".join(errors))


def remove_own():
    """Removes whatever this process made and has not removed yet."""
    prefix = owner()
    _remove([name for name in namespaces() if name.startswith(prefix)])


def remove_leftovers():
    """Removes what processes made that are gone; returns the namespaces' names."""
    dead = []
    for name in namespaces():
        pid, start, _ = _NAMES.fullmatch(name).groups()
        if process_start(int(pid)) != int(start):
            dead.append(name)
    _remove(dead)
    return dead


def why_impossible():
    """Why no such network can be made here; None where it can. Tries it."""
    probe = owner() + "probe"
    try:
        _run("tc", "-V")
        _add(probe)
        try:
            _batch("ip", probe, ["link add b0 type bridge",
                                 "link add v0 type veth peer name v1"])
            _batch("tc", probe, ["qdisc add dev v0 root tbf rate 1mbit burst 4000 limit 100000"])
            file = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                _setns(file)
            finally:
                os.close(file)
        finally:
            _run("ip", "netns", "delete", probe)
            _restore_folder()
    except NetworkError as error:
        return str(error)
    return None


def token_bucket(rate):
    """Arguments of tc for a link of `rate` bit/s. The bucket holds half a millisecond, so
    that a short message gains next to nothing by it; the queue holds 50 ms, and never
    less than a few senders' first flights."""
    burst = max(4000, round(rate * 0.0005 / 8))
    limit = max(256 * 1024, round(rate * 0.05 / 8))
    return f"tbf rate {round(rate)}bit burst {burst} limit {limit}"


class Network:
    """Made on entry, removed on exit. `rate` in bit/s; None: without limits."""

    def __init__(self, servers, workers, rate):
        self._nodes = {}  # of the links, with their addresses
        for i, name in enumerate(servers):
            self._nodes[name] = f"10.213.0.{1 + i}"
        for i, name in enumerate(workers):
            self._nodes[name] = f"10.213.1.{1 + i}"
        self._servers = list(servers)
        self._rate = rate
        self._prefix = owner()
        self._home = None

    def namespace(self, node):
        return self._prefix + node

    def address(self, node):
        """Of its link."""
        return self._nodes[node]

    @property
    def nodes(self):
        return list(self._nodes)

    def __enter__(self):
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            remove_own()
            _restore_folder()
        finally:
            if self._home is not None:
                os.close(self._home)
                self._home = None

    def _make(self):
        hub = self.namespace(_HUB)
        for node in (_HUB, OBSERVER, *self._nodes):
            _add(self.namespace(node))
            # Neighbour discovery would be counted as traffic.
            with self.inside(node):
                for kind in ("all", "default"):
                    with contextlib.suppress(FileNotFoundError):
                        with open(f"/proc/sys/net/ipv6/conf/{kind}/disable_ipv6", "w",
                                  encoding="ascii") as file:
                            file.write("1")
        lines = [f"link add {bridge} type bridge stp_state 0 forward_delay 0"
                 for bridge in ("links", "controls")]
        lines += [f"link set dev {bridge} up" for bridge in ("links", "controls")]
        for node in self._nodes:
            lines += self._port(node, "eth0", "l", "links")
        for node in (*self._servers, OBSERVER):
            lines += self._port(node, "control", "c", "controls")
        _batch("ip", hub, lines)
        for node, address in self._nodes.items():
            lines = ["link set lo up", f"addr add {address}/16 dev eth0", "link set dev eth0 up"]
            if node in self._servers:
                lines += [f"addr add {self._control(node)}/24 dev control",
                          "link set dev control up"]
            _batch("ip", self.namespace(node), lines)
        _batch("ip", self.namespace(OBSERVER),
               ["link set lo up", "addr add 10.214.0.254/24 dev control",
                "link set dev control up"] +
               [f"route add {self._nodes[node]}/32 via {self._control(node)}"
                for node in self._servers])
        if self._rate is not None:
            bucket = token_bucket(self._rate)
            for node in self._nodes:
                _batch("tc", self.namespace(node), [f"qdisc add dev eth0 root {bucket}"])
            _batch("tc", hub, [f"qdisc add dev l-{node} root {bucket}" for node in self._nodes])

    def _control(self, server):
        return f"10.214.0.{1 + self._servers.index(server)}"

    def _port(self, node, interface, letter, bridge):
        port = f"{letter}-{node}"
        return [f"link add {port} type veth peer name {interface} netns {self.namespace(node)}",
                f"link set dev {port} master {bridge}", f"link set dev {port} up"]

    def open_namespace(self, node):
        """A file that setns takes; the caller closes it."""
        return os.open(f"{_FOLDER}/{self.namespace(node)}", os.O_RDONLY | os.O_CLOEXEC)

    @contextlib.contextmanager
    def inside(self, node):
        """This thread is in the node's namespace meanwhile; sockets made here stay there."""
        file = self.open_namespace(node)
        try:
            _setns(file)
            try:
                yield
            finally:
                _setns(self._home)
        finally:
            os.close(file)

    def cut(self, node):
        """Nothing passes the node's link any more, either way, until `restore`; nobody is told."""
        _run("ip", "-n", self.namespace(_HUB), "link", "set", "dev", f"l-{node}", "nomaster")

    def restore(self, node):
        _run("ip", "-n", self.namespace(_HUB), "link", "set", "dev", f"l-{node}", "master", "links")

    def link_bytes(self):
        """{node: (received, sent)} of each link since it was made, as the node's interface
        counts them: with the headers of Ethernet, IP and TCP, without preamble and gaps."""
        counts = {}
        for node in self._nodes:
            with self.inside(node):
                with open("/proc/thread-self/net/dev", encoding="ascii") as file:
                    counts[node] = parse_counters(file.read(), "eth0")
        return counts


def parse_counters(text, interface):
    """(bytes received, bytes sent) of an interface in the text of /proc/net/dev."""
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if colon and name.strip() == interface:
            fields = rest.split()
            return int(fields[0]), int(fields[8])
    raise NetworkError(f"no interface '{interface}' among the counters")


def enter_for_good(file):
    """In a child between fork and exec."""
    _setns(file)
