"""The coordinator in etcd: two keys, one of which lives as long as a lease.

Everything is asked for, nothing watched: a look every 0.2 s costs less than a watch that has to be
kept alive, and cannot be silently dead.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from mooncake_master.leadership.coordinator import Coordinator, Lease, Reign, Seat
from mooncake_master.leadership.members import EtcdMembers, decode, encode
from mooncake_store.errors import ProtocolError

if TYPE_CHECKING:
    from mooncake_master.leadership.location import Location


class _Kept(msgspec.Struct, frozen=True):
    """The key that outlives leases."""

    cluster_id: str
    term: int


class EtcdCoordinator(Coordinator):
    """Keeps who leads under ``/<name>/leader``, how far terms were used under ``/<name>/reign``.

    For one event loop; for one caller at a time.
    """

    def __init__(self, location: Location, lease_s: float) -> None:
        """Prepare; connections are made when they are used.

        Args:
            location: Where etcd is.
            lease_s: Length of the leases.
        """
        self._leader = f"/{location.name}/leader".encode()
        self._reign = f"/{location.name}/reign".encode()
        self._members = EtcdMembers(location, lease_s)

    async def read(self) -> Reign:
        """See `Coordinator`."""

        async def ask(client: Any) -> Any:  # noqa: ANN401 - aetcd is not typed
            keys = client.transactions
            return await client.transaction(
                compare=[], success=[keys.get(self._leader), keys.get(self._reign)], failure=[]
            )

        _, (leader, reign) = await self._members.ask(ask)
        kept = decode(reign, _Kept) or _Kept("", 0)
        seat = decode(leader, Seat)
        term = max(kept.term, seat.term if seat is not None else 0)
        return Reign(seat, term, kept.cluster_id)

    async def grant(self, ttl_s: float) -> Lease:
        """See `Coordinator`."""
        granted = await self._members.ask(lambda client: client.lease(math.ceil(ttl_s)))
        return Lease(int(granted.id), float(granted.ttl))

    async def renew(self, lease: Lease) -> float:
        """See `Coordinator`."""
        reply = await self._members.ask(lambda client: client.refresh_lease(lease.number))
        if reply is None:
            raise ProtocolError("etcd renews no lease and says nothing about it")
        return max(0.0, float(reply.TTL))

    async def revoke(self, lease: Lease) -> None:
        """See `Coordinator`."""
        await self._members.ask(lambda client: client.revoke_lease(lease.number))

    async def take(self, lease: Lease, seat: Seat, before: Reign, cluster_id: str) -> bool:
        """See `Coordinator`."""

        async def ask(client: Any) -> Any:  # noqa: ANN401 - aetcd is not typed
            keys = client.transactions
            # Somebody who led between our look and now has written a higher term.
            unused = (
                keys.value(self._reign) == encode(_Kept(before.cluster_id, before.term))
                if before.term
                else keys.version(self._reign) == 0
            )
            return await client.transaction(
                compare=[keys.version(self._leader) == 0, unused],
                success=[
                    keys.put(self._leader, encode(seat), lease.number),
                    keys.put(self._reign, encode(_Kept(cluster_id, seat.term))),
                ],
                failure=[],
            )

        return bool((await self._members.ask(ask))[0])

    async def update(self, lease: Lease, seat: Seat) -> bool:
        """See `Coordinator`."""
        before = await self.read()
        there = before.seat
        if there is None or there.candidate != seat.candidate:
            return False
        kept = _Kept(before.cluster_id, max(before.term, seat.term))

        async def ask(client: Any) -> Any:  # noqa: ANN401 - aetcd is not typed
            keys = client.transactions
            return await client.transaction(
                compare=[keys.value(self._leader) == encode(there)],
                success=[
                    keys.put(self._leader, encode(seat), lease.number),
                    keys.put(self._reign, encode(kept)),
                ],
                failure=[],
            )

        return bool((await self._members.ask(ask))[0])

    async def aclose(self) -> None:
        """See `Coordinator`."""
        await self._members.aclose()
