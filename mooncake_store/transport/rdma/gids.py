"""Which of a port's addresses (GIDs) a queue pair uses. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_store.errors import ConfigError
from mooncake_store.wire.rdma import LinkLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

ROCE_V2: Final = 2
_MAPPED_IPV4: Final = bytes(10) + b"\xff\xff"
_LINK_LOCAL: Final = 0xFE80


class Gid(NamedTuple):
    """One entry of a port's table.

    Attributes:
        place: Its index.
        address: 16 bytes.
        roce: Version of RoCE; 0: InfiniBand.
    """

    place: int
    address: bytes
    roce: int


def choose_gid(table: Sequence[Gid], link: LinkLayer, device: str) -> Gid:
    """Return the address that is reached from furthest: RoCE v2 over IPv4, then over IPv6.

    Raises:
        ConfigError: There is none of a kind that can be used; the message says what is missing.
    """
    usable = [gid for gid in table if any(gid.address)]
    if link == LinkLayer.INFINIBAND:
        if not usable:
            raise ConfigError(f"{device} has no GID: is a subnet manager running?")
        return usable[0]
    routed = [gid for gid in usable if gid.roce == ROCE_V2]
    if not routed:
        found = "RoCE v1 addresses only" if usable else "no address"
        raise ConfigError(
            f"{device} has {found}: give its network interface an IP address (RoCE v2 is needed)"
        )
    return min(routed, key=_rank)


def _rank(gid: Gid) -> tuple[int, int]:
    if gid.address.startswith(_MAPPED_IPV4):
        return 0, gid.place
    is_local = int.from_bytes(gid.address[:2], "big") & 0xFFC0 == _LINK_LOCAL
    return (2 if is_local else 1), gid.place
