"""Network addresses as people write them: ``host``, ``host:port``, ``[::1]:50051``, bare ``::1``.

Shared by every role: a text is cut in one place, so an IPv6 address is never cut at its first
colon (field report 062).
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

PORT_MAX = 65_535


class Address(NamedTuple):
    """A host (name or literal, without brackets) and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return format_address(self.host, self.port)


def parse_address(text: str, default_port: int) -> Address:
    """Return the address that ``text`` names.

    Raises:
        ValueError: It names none; the message continues "<option>: <text> ".
    """
    host, port = _split(text.strip())
    if not host or any(character.isspace() or character in "[]/," for character in host):
        raise ValueError("is not a host, host:port or [IPv6]:port")
    if ":" in host and _literal(host) is None:
        raise ValueError("is neither host:port nor an IPv6 address")
    if not _is_encodable(host):
        raise ValueError("has a host that is no name: a part of it is empty, too long or no text")
    if port is None:
        return Address(host, default_port)
    if not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise ValueError(f"has a port that is not a number from 0 to {PORT_MAX}")
    return Address(host, int(port))


def format_address(host: str, port: int) -> str:
    """Return ``host:port``, an IPv6 literal in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_wildcard(host: str) -> bool:
    """Return whether a host means "every address of this machine": nobody can connect to it."""
    literal = _literal(host)
    return host == "*" or (literal is not None and literal.is_unspecified)


def is_loopback(host: str) -> bool:
    """Return whether a host reaches only the machine that it is used on."""
    literal = _literal(host)
    return host.lower() == "localhost" or (literal is not None and literal.is_loopback)


def _split(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            return "", None
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        return text, None
    host, colon, port = text.partition(":")
    return host, port if colon else None


def _is_encodable(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:
        return ":" in host  # a literal, which is not looked up by name
    return True


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
