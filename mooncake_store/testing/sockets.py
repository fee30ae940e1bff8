"""Small things that are done to sockets in tests."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import threading
from typing import Final

from mooncake_store.testing.seeds import seeded

_LINGER_NONE: Final = struct.pack("ii", 1, 0)

_PORTS: Final = range(18_000, 32_000)
"""Below the range from which Linux takes the ports of outgoing connections (from 32768), so that
no connection of another test occupies a port between its choice and its use."""

_given: set[int] = set()
_given_lock = threading.Lock()


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port on which nobody listens; this process is not given it again.

    Raises:
        OSError: There is none.
    """
    generator = seeded(os.getpid(), len(_given))
    with _given_lock:
        for port in generator.sample(_PORTS, len(_PORTS)):
            if port not in _given and _is_free(host, port):
                _given.add(port)
                return port
    raise OSError(errno.EADDRNOTAVAIL, "no free port", host)


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def reset(connection: socket.socket) -> None:
    """Close a connection so that its peer gets a reset, not an end."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    connection.close()


def begin_connection(target: tuple[str, int]) -> socket.socket:
    """Begin a connection to ``target`` without waiting for it.

    Raises:
        OSError: It failed at once.
    """
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.settimeout(0)
    code = connection.connect_ex(target)
    if code not in {0, errno.EINPROGRESS}:
        connection.close()
        raise OSError(code, "connect")
    return connection
