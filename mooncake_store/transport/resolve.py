"""Names to addresses within a deadline; the C library's resolver knows none."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from mooncake_store.errors import Unreachable

if TYPE_CHECKING:
    from mooncake_store.deadline import Deadline

Address = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]


def resolve(host: str, port: int, deadline: Deadline) -> list[Address]:
    """Return the addresses of a host, in the order to try them. Never cached: names move.

    Raises:
        Unreachable: The name does not resolve.
        DeadlineExceeded: Nobody said in time.
    """
    with contextlib.suppress(OSError):  # A name, which takes longer.
        return _look_up(host, port, socket.AI_NUMERICHOST)
    found: list[list[Address] | OSError] = []

    def ask() -> None:
        try:
            found.append(_look_up(host, port, 0))
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=ask, name=f"resolve {host}", daemon=True)
    thread.start()
    thread.join(deadline.left_s())
    if not found:
        deadline.check(f"resolving {host}")
        raise Unreachable(f"{host} was not resolved in time")
    if isinstance(found[0], OSError):
        raise Unreachable(f"{host} does not resolve: {found[0]}") from found[0]
    return found[0]


def _look_up(host: str, port: int, flags: int) -> list[Address]:
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:  # no name at all; peers name hosts, too
        raise OSError(str(error)) from error
    return [(family, sockaddr) for family, _, _, _, sockaddr in rows]  # type: ignore[misc]  # rows of stream sockets only
