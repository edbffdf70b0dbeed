"""The kubelet's gRPC probe: grpc.health.v1.Health/Check over a connection, with as much of HTTP/2 as one
call needs (RFC 9113; headers as literals without an index, RFC 7541 section 6.2.2).

    serving(connection, "liveness")      # True, False; OSError where no answer came
"""

import struct

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACKNOWLEDGED = 1, 4, 1
# Of HealthCheckResponse: field 1, a varint, SERVING.
_SERVING = b"\x08\x01"
_MOST_FRAMES = 100


def _frame(kind, flags, stream, payload=b""):
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def _header(name, value):
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def _read(connection, size):
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise OSError("the server closed the connection")
        data += more
    return data


def serving(connection, service=""):
    """Of a service; without one, of the server as a whole."""
    name = service.encode()
    message = b"\x0a" + bytes([len(name)]) + name if name else b""
    headers = b"".join(_header(*h) for h in (
        (":method", "POST"), (":scheme", "http"), (":path", "/grpc.health.v1.Health/Check"), (":authority", "localhost"),
        ("content-type", "application/grpc"), ("te", "trailers")))
    connection.sendall(_PREFACE + _frame(_SETTINGS, 0, 0) + _frame(_HEADERS, _END_HEADERS, 1, headers)
                       + _frame(_DATA, _END_STREAM, 1, struct.pack("!BI", 0, len(message)) + message))
    answer = b""
    for _ in range(_MOST_FRAMES):
        head = _read(connection, 9)
        kind, flags, stream = head[3], head[4], struct.unpack("!I", head[5:])[0] & 0x7FFFFFFF
        payload = _read(connection, int.from_bytes(head[:3], "big"))
        if kind == _SETTINGS and not flags & _ACKNOWLEDGED:
            connection.sendall(_frame(_SETTINGS, _ACKNOWLEDGED, 0))
        elif kind == _PING and not flags & _ACKNOWLEDGED:
            connection.sendall(_frame(_PING, _ACKNOWLEDGED, 0, payload))
        elif kind == _GO_AWAY or (kind == _RESET and stream == 1):
            raise OSError("the server refused the health check")
        elif stream == 1:
            if kind == _DATA:
                answer += payload
            if flags & _END_STREAM:
                return answer[5:] == _SERVING
    raise OSError("the server did not answer the health check")
