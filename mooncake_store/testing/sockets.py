"""Small things that are done to sockets in tests."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mooncake_store.testing.seeds import seeded

if TYPE_CHECKING:
    from collections.abc import Sequence

_LINGER_NONE: Final = struct.pack("ii", 1, 0)

_PORTS: Sequence[int] = range(18_000, 32_000)
"""Below the range from which Linux takes the ports of outgoing connections (from 32768), so that
no connection of another test occupies a port between its choice and its use."""


class PortBook:
    """Who uses which port, among all processes of this user that keep the same book.

    A port that is free when it is chosen may be taken by others before the server that it was
    chosen for listens, or while that server is killed and started again. So a process locks the
    byte of each port that it was given in one file, until it ends, however it ends.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._given: set[int] = set()
        self._lock = threading.Lock()
        self._descriptor = -1

    def free_port(self, host: str) -> int:
        """Return a port on which nobody listens; neither we nor others are given it again.

        Raises:
            OSError: There is none, or the book cannot be opened.
        """
        with self._lock:
            if self._descriptor < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o600)
            generator = seeded(os.getpid(), len(self._given))
            for port in generator.sample(_PORTS, len(_PORTS)):
                if port not in self._given and _is_free(host, port) and self._take(port):
                    self._given.add(port)
                    return port
        raise OSError(errno.EADDRNOTAVAIL, "no free port", host)

    def _take(self, port: int) -> bool:
        """Lock a port's byte: a lock of this process, which no child inherits."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except (PermissionError, BlockingIOError):
            return False
        return True


_book: Final = PortBook(Path(tempfile.gettempdir()) / f"mooncake-test-ports-{os.getuid()}")


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port on which nobody listens.

    No process of this user that asks in this way is given it again while this one lives.

    Raises:
        OSError: There is none.
    """
    return _book.free_port(host)


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
