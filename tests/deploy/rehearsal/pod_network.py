"""A cluster's network on this machine: a namespace a pod, all on one bridge, and a name server that knows
them by the names Kubernetes gives.

    with PodNetwork(namespace="training") as network:
        pod = network.add("demo-server-0")                 # an address no pod had before
        network.names.set("demo-server-0.demo-server", pod.address)
        network.connect(pod.address, 8086)                 # as the node does

Namespaces have the names of tools/local_fleet/network.py, so what a killed process leaves is found.
"""

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import threading

import found_tools

sys.path.insert(0, str(found_tools.SOURCE / "tools"))
from local_fleet import network as namespaces  # pylint: disable=wrong-import-position

DOMAIN = "cluster.local"
NODE = "10.215.0.1"
NAME_SERVER = "10.215.0.10"
_HUB = "hub"
_CLONE_NEWNET = 0x40000000
_TYPE_A = 1
_libc = ctypes.CDLL(None, use_errno=True)


def why_impossible():
    return "network namespaces need root" if os.geteuid() != 0 else namespaces.why_impossible()


def _setns(file):
    if _libc.setns(file, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


def _ip(*arguments, lines=None):
    done = subprocess.run([shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin"), *arguments], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, input="\n".join(lines) + "\n" if lines else "", check=False)
    if done.returncode != 0:
        raise namespaces.NetworkError(f"ip {' '.join(arguments)}: {done.stdout.strip()}")


class Names:
    """The cluster's name server: IPv4 addresses of pods and services, over UDP."""

    def __init__(self, udp, namespace):
        self._udp = udp
        self._suffix = f".{namespace}.svc.{DOMAIN}"
        self._addresses = {}
        self._lock = threading.Lock()
        self.asked = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def set(self, name, address):
        """Name without namespace and domain: POD.SERVICE, or a service's own."""
        with self._lock:
            self._addresses[name.lower() + self._suffix] = address

    def remove(self, name, address):
        """Unless another pod has the name already."""
        with self._lock:
            if self._addresses.get(name.lower() + self._suffix) == address:
                del self._addresses[name.lower() + self._suffix]

    def _serve(self):
        while True:
            try:
                question, sender = self._udp.recvfrom(1500)
                if sender is None:  # shut down
                    return
                self.asked += 1
                self._udp.sendto(self._answer(question), sender)
            except (IndexError, struct.error):
                continue
            except OSError:
                return

    def _answer(self, question):
        labels, at = [], 12
        while question[at]:
            labels.append(question[at + 1:at + 1 + question[at]].decode("ascii", "replace"))
            at += 1 + question[at]
        (kind,) = struct.unpack_from("!H", question, at + 1)
        asked = question[12:at + 5]
        with self._lock:
            address = self._addresses.get(".".join(labels).lower())
        answers = 1 if address and kind == _TYPE_A else 0
        # Response, authoritative; 3: no such name.
        flags = 0x8580 if address else 0x8583
        head = question[:2] + struct.pack("!HHHHH", flags, 1, answers, 0, 0)
        record = struct.pack("!HHHIH", 0xC00C, _TYPE_A, 1, 5, 4) + socket.inet_aton(address) if answers else b""
        return head + asked + record


@dataclasses.dataclass(frozen=True)
class PodAddress:
    name: str
    address: str
    path: str      # of its network namespace
    node: str      # its name on the bridge


class PodNetwork:
    def __init__(self, namespace):
        self._namespace = namespace
        self._home = None
        self._count = 0
        self._udp = None
        self.names = None

    def __enter__(self):
        namespaces.remove_leftovers()
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            hub = self._name(_HUB)
            _ip("netns", "add", hub)
            _ip("-n", hub, "-batch", "-", lines=[
                # With an address that stays: by itself a bridge takes one of its ports', and pods that come and go would
                # change it, so that for half a minute nothing found the node.
                "link set lo up", "link add pods address 02:00:00:00:00:01 type bridge stp_state 0 forward_delay 0", f"addr add {NODE}/16 dev pods",
                f"addr add {NAME_SERVER}/16 dev pods", "link set dev pods up"])
            with self._inside(_HUB):
                self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                self._udp.bind((NAME_SERVER, 53))
            self.names = Names(self._udp, self._namespace)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            if self._udp is not None:
                # close alone would leave the thread waiting.
                with contextlib.suppress(OSError):
                    self._udp.shutdown(socket.SHUT_RDWR)
                self._udp.close()
            namespaces.remove_own()
        finally:
            os.close(self._home)

    def _name(self, node):
        return namespaces.owner() + node

    @contextlib.contextmanager
    def _inside(self, node):
        file = os.open(f"/run/netns/{self._name(node)}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(file)
            try:
                yield
            finally:
                _setns(self._home)
        finally:
            os.close(file)

    def add(self, name):
        self._count += 1
        node, hub = f"p{self._count}", self._name(_HUB)
        address = f"10.215.{1 + self._count // 200}.{1 + self._count % 200}"
        own = self._name(node)
        _ip("netns", "add", own)
        _ip("-n", hub, "-batch", "-", lines=[f"link add l-{node} type veth peer name eth0 netns {own}",
                                             f"link set dev l-{node} master pods", f"link set dev l-{node} up"])
        _ip("-n", own, "-batch", "-", lines=["link set lo up", f"addr add {address}/16 dev eth0", "link set dev eth0 up"])
        return PodAddress(name, address, f"/run/netns/{own}", node)

    def remove(self, pod):
        _ip("netns", "delete", self._name(pod.node))

    def cut(self, pod):
        """Its node has lost the network: nothing arrives any more, and nobody is told."""
        _ip("-n", self._name(_HUB), "link", "set", "dev", f"l-{pod.node}", "nomaster")

    def restore(self, pod):
        _ip("-n", self._name(_HUB), "link", "set", "dev", f"l-{pod.node}", "master", "pods")

    def connect(self, address, port, timeout=3):
        with self._inside(_HUB):
            return socket.create_connection((address, port), timeout)

    def listen(self, port):
        """A socket on the node."""
        with self._inside(_HUB):
            return socket.create_server((NODE, port))

    def write_resolver(self, folder, pod):
        """The two files that the kubelet gives each pod; returns (hosts, resolv.conf)."""
        hosts, resolver = pathlib.Path(folder) / "hosts", pathlib.Path(folder) / "resolv.conf"
        hosts.write_text(f"127.0.0.1\tlocalhost\n{pod.address}\t{pod.name}\n")
        resolver.write_text(f"search {self._namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}\n"
                            f"nameserver {NAME_SERVER}\noptions ndots:5\n")
        return hosts, resolver
