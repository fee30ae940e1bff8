"""What masters ask of the place where they meet, and what is kept there."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Seat(msgspec.Struct, frozen=True):
    """What the master in office says of itself; gone when its lease ends."""

    address: str
    """Where nodes and clients reach it."""
    candidate: str
    """Random name of its process."""
    term: int
    serving: bool = False
    """It answers requests: others may send their callers there."""


class Reign(msgspec.Struct, frozen=True):
    """Everything that is kept: who leads, and how far terms have been used."""

    seat: Seat | None
    term: int
    """Highest one used, as far as was written down; 0 at the very first."""
    cluster_id: str
    """Of the pool; empty before the first election."""


class Lease(msgspec.Struct, frozen=True):
    """Time at the coordinator, whose end also ends what is attached to it."""

    number: int
    ttl_s: float


class Coordinator(Protocol):
    """A consistent store with leases. Every method ends in bounded time.

    All raise ``Unreachable`` or ``DeadlineExceeded`` when there is no answer (it may have been
    carried out all the same), and ``ProtocolError`` when the answer makes no sense.
    """

    async def read(self) -> Reign:
        """Return what is kept now; confirmed by a majority, so never out of date."""
        ...

    async def grant(self, ttl_s: float) -> Lease:
        """Return a new lease."""
        ...

    async def renew(self, lease: Lease) -> float:
        """Return the time for which a lease holds from now on, 0 where it has ended."""
        ...

    async def revoke(self, lease: Lease) -> None:
        """End a lease and what is attached to it."""
        ...

    async def take(self, lease: Lease, seat: Seat, before: Reign, cluster_id: str) -> bool:
        """Take the seat and its term in one step, if the seat is free and ``before`` still holds.

        Returns:
            Whether that was so.
        """
        ...

    async def update(self, lease: Lease, seat: Seat) -> bool:
        """Change what is said of the seat, and its term, if it is ours still; say whether."""
        ...

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        ...
