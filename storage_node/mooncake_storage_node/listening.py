"""Listening sockets of the data port: several addresses, both families, one port."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Final

from mooncake_store.errors import ConfigError
from mooncake_store.wire.address import Address, is_wildcard

if TYPE_CHECKING:
    from collections.abc import Iterable

BACKLOG: Final = 1024
PORT_TRIES: Final = 20
"""Tries to find one free port for several addresses."""


def listen(addresses: Iterable[Address]) -> list[socket.socket]:
    """Open a listening socket for each address; names are bound under all that they stand for.

    Port 0 takes a free one, the same for all addresses that ask for it.

    Raises:
        ConfigError: An address cannot be resolved or bound.
    """
    wanted = [(address, *endpoint) for address in addresses for endpoint in _resolve(address)]
    for _ in range(PORT_TRIES):
        opened: list[socket.socket] = []
        try:
            for address, family, host in wanted:
                port = address.port or (opened[0].getsockname()[1] if opened else 0)
                opened += _open(family, host, port)
        except OSError as error:
            for sock in opened:
                sock.close()
            if error.errno == errno.EADDRINUSE and opened and not wanted[0][0].port:
                continue  # The free port of the first address is taken on another one.
            names = ", ".join(dict.fromkeys(str(entry[0]) for entry in wanted))
            raise ConfigError(f"--bind: cannot listen on {names}: {error.strerror}") from error
        if opened:
            return opened
        break
    raise ConfigError("--bind: none of its addresses is one of this machine")


def listening_on(sockets: Iterable[socket.socket]) -> list[Address]:
    """Return where the sockets listen."""
    return [Address(*sock.getsockname()[:2]) for sock in sockets]


def advertised_host(bound: list[Address], own_host: str) -> str:
    """Return the host to tell clients where none was given.

    Args:
        bound: Where the data port listens.
        own_host: Address from which this host reaches the master.
    """
    first = bound[0].host
    return own_host if is_wildcard(first) else first


def _resolve(address: Address) -> list[tuple[socket.AddressFamily, str]]:
    host = "0.0.0.0" if address.host == "*" else address.host  # noqa: S104 - asked for
    try:
        rows = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"--bind: {address} cannot be resolved: {why}") from error
    # IPv4 first: what is advertised is the first address that works.
    found = dict.fromkeys((row[0], str(row[4][0])) for row in rows)
    return sorted(found, key=lambda entry: entry[0] != socket.AF_INET)


def _open(family: socket.AddressFamily, host: str, port: int) -> list[socket.socket]:
    """Open one socket; none where the address is not of this machine (``::1`` without IPv6)."""
    sock: socket.socket | None = None
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
        sock.settimeout(0)
    except OSError as error:
        if sock is not None:
            sock.close()
        if error.errno in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
            return []
        raise
    return [sock]
