"""Listening sockets: several addresses, both families, options that every connection inherits."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Final

from mooncake_store.errors import ConfigError
from mooncake_store.wire.address import Address, is_loopback, is_wildcard, parse_address

if TYPE_CHECKING:
    from collections.abc import Iterable

BACKLOG: Final = 4096
"""Connections that the kernel completes before we accept them: 64 workers that start within one
second are 128 connections (field report 060); the kernel cuts this at ``net.core.somaxconn``."""

KEEPALIVE_S: Final = (30, 10, 3)
"""Idle time before the first probe, time between probes, probes: a peer whose host went away
without a word is noticed after a minute, which is what an idle connection may cost."""

PORT_TRIES: Final = 20
"""Tries to find one free port for several addresses where port 0 was asked."""


def listen(addresses: Iterable[Address], option: str) -> list[socket.socket]:
    """Open a listening socket for every address, names resolved to all they stand for.

    Port 0 takes one free port, the same on all addresses that ask for it.

    Args:
        addresses: What to bind; at least one.
        option: How the user spells this setting, for the message.

    Raises:
        ConfigError: An address cannot be resolved or bound.
    """
    wanted = _resolved(addresses, option)
    for attempt in range(PORT_TRIES):
        opened: list[socket.socket] = []
        chosen = 0
        try:
            for family, address in wanted:
                taken = _replace_port(address, chosen) if address[1] == 0 else address
                opened.append(_open(family, taken, alone=_has_ipv4_wildcard(wanted, address[1])))
                chosen = chosen or opened[-1].getsockname()[1]
        except OSError as error:
            for sock in opened:
                sock.close()
            if error.errno == errno.EADDRINUSE and chosen and attempt < PORT_TRIES - 1:
                continue
            raise _unusable(option, error, wanted[len(opened)][1]) from error
        else:
            return opened
    raise ConfigError(f"{option}: no port is free on all of its addresses")


def bound_addresses(sockets: Iterable[socket.socket]) -> list[Address]:
    """Return where the sockets listen, ports known."""
    return [Address(*sock.getsockname()[:2]) for sock in sockets]


def advertised(text: str, bound: list[Address]) -> Address:
    """Return the address that others are told: the one given, else the best of what is bound.

    A wildcard is nobody's address, so this machine's name stands in for it.

    Raises:
        ConfigError: ``text`` is no address.
    """
    if text:
        try:
            return parse_address(text, bound[0].port)
        except ValueError as error:
            raise ConfigError(f"--advertise: {text!r} {error}") from error
    far = [address for address in bound if not is_loopback(address.host)]
    best = far[0] if far else bound[0]
    return Address(socket.gethostname(), best.port) if is_wildcard(best.host) else best


def advertising_problem(advertised_to_all: Address, bound: list[Address]) -> str:
    """Return why peers on other hosts cannot use the advertised address; empty: they can."""
    if is_wildcard(advertised_to_all.host):
        return f"{advertised_to_all} is advertised, which is no address to connect to"
    reachable = any(not is_loopback(address.host) for address in bound)
    if reachable and is_loopback(advertised_to_all.host):
        return f"{advertised_to_all} is advertised, which other hosts take for themselves"
    return ""


_Endpoint = tuple[int, tuple[str, int] | tuple[str, int, int, int]]


def _resolved(addresses: Iterable[Address], option: str) -> list[_Endpoint]:
    found: dict[_Endpoint, None] = {}
    for address in addresses:
        host = "0.0.0.0" if address.host == "*" else address.host  # noqa: S104 - asked for
        try:
            entries = socket.getaddrinfo(
                host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"{option}: {address} cannot be resolved: {why}") from error
        usable = [(int(entry[0]), entry[4]) for entry in entries if _bindable(entry[0], entry[4])]
        if not usable:
            raise ConfigError(f"{option}: {address} is no address of this machine")
        found.update(dict.fromkeys(usable))  # type: ignore[arg-type] # stream addresses only
    return list(found)


def _bindable(family: int, address: object) -> bool:
    """Return whether an address that a name stands for is one of this machine.

    ``localhost`` often resolves to ``::1`` where no interface has it: the other one is enough.
    """
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address[0], 0, *address[2:]))  # type: ignore[index] # as getaddrinfo gave
    except OSError as error:
        return error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
    return True


def _replace_port(address: tuple[object, ...], port: int) -> tuple[object, ...]:
    return (address[0], port, *address[2:])


def _has_ipv4_wildcard(wanted: list[_Endpoint], port: int) -> bool:
    return any(entry[1][0] == "0.0.0.0" and entry[1][1] == port for entry in wanted)  # noqa: S104 - compared


def _open(family: int, address: tuple[object, ...], *, alone: bool) -> socket.socket:
    """Open one listening socket; ``alone``: IPv6 only, as IPv4 has a socket of its own."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1 if alone else 0)
        idle, between, count = KEEPALIVE_S
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, between)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)  # noqa: FBT003 - its only form
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _unusable(option: str, error: OSError, address: tuple[object, ...]) -> ConfigError:
    shown = Address(str(address[0]), int(str(address[1])))
    return ConfigError(f"{option}: cannot listen on {shown}: {error.strerror}")
