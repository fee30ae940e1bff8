"""Where masters meet: ``etcd://host:2379[,host:2379...][/name]``."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from mooncake_store.wire.address import Address, parse_address

SCHEME: Final = "etcd://"
PORT: Final = 2379
NAME: Final = "mooncake-store"
ENDPOINTS_MAX: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Location(NamedTuple):
    """Members of one etcd cluster, and the name that the masters of one pool share in it."""

    endpoints: tuple[Address, ...]
    name: str

    def __str__(self) -> str:
        return f"{SCHEME}{','.join(map(str, self.endpoints))}/{self.name}"


def parse_location(text: str) -> Location:
    """Return the location that ``text`` names.

    Raises:
        ValueError: It names none; the message continues "<option>: <text> ".
    """
    if not text.startswith(SCHEME):
        raise ValueError(f"does not begin with {SCHEME} (such as etcd://host:{PORT},host:{PORT})")
    hosts, slash, name = text.removeprefix(SCHEME).partition("/")
    if slash and not _NAME.fullmatch(name):
        raise ValueError("has a name that is not 1 to 64 letters, digits, dots or dashes")
    endpoints = []
    for part in hosts.split(","):
        try:
            endpoint = parse_address(part, PORT)
        except ValueError as error:
            raise ValueError(f"names the member {part!r}, which {error}") from error
        if not endpoint.port:
            raise ValueError(f"names the member {part!r}, whose port nobody can reach")
        endpoints.append(endpoint)
    if len(endpoints) > ENDPOINTS_MAX:
        raise ValueError(f"names {len(endpoints)} members; etcd has at most {ENDPOINTS_MAX}")
    return Location(tuple(endpoints), name or NAME)
