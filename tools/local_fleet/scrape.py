"""Reading the daemons' /metrics pages (Prometheus text format)."""

import re
import socket

_TIMEOUT_SECONDS = 1.0
_LINE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: \d+)?')
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Metrics:
    """The series of one page."""

    def __init__(self, text):
        self._series = {}
        for line in text.splitlines():
            match = None if line.startswith("#") else _LINE.fullmatch(line.strip())
            if match is None:
                continue
            name, labels, value = match.groups()
            self._series.setdefault(name, []).append(
                (dict(_LABEL.findall(labels or "")), float(value)))

    def get(self, name, default=None, **labels):
        """The sum of the series of that name that have these labels; `default` where
        there is none."""
        values = [value for have, value in self._series.get("foreshard_" + name, [])
                  if all(have.get(key) == wanted for key, wanted in labels.items())]
        return sum(values) if values else default


def fetch(address):
    """The page at "host:port", from the namespace the thread is in; OSError."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_SECONDS) as connection:
        connection.settimeout(_TIMEOUT_SECONDS)
        connection.sendall(f"GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
        answer = b""
        while chunk := connection.recv(1 << 16):
            answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0] + b" ":
        raise OSError(f"{address}/metrics: {head[:80]!r}")
    return Metrics(body.decode("utf-8", "replace"))
