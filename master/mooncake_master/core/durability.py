"""Durable puts: their commit is answered when each object is on a disk.

A disk of a node that has a replica in memory is asked first, then those of others. If none takes
it, the item is answered with the last one's error; the object stays, in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_master.core.copying import Start
from mooncake_store.errors import BY_CODE, NotSupported, Overloaded
from mooncake_store.wire.control import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mooncake_master.core.barriers import Barrier
    from mooncake_master.core.context import Context
    from mooncake_master.core.copying import Copier
    from mooncake_master.core.freeing import Freer
    from mooncake_master.core.nodes import Disk
    from mooncake_master.core.records import Stored

DURABLE: Final = "durable"
TRIES_MAX: Final = 3
"""Disks that are asked for one object, one after the other, within the deadline of the put."""


class _Wish:
    """One object that has to be on a disk.

    Attributes:
        stored: The object.
        version: Its version when it was committed.
        barrier: Reply that waits.
        refuse: Told why no disk takes it.
        disks: Disks that may be asked yet, best first.
        code: What the last one said.
        said: The same in a sentence, where it said one.
    """

    __slots__ = ("barrier", "code", "disks", "refuse", "said", "stored", "version")

    def __init__(
        self, stored: Stored, barrier: Barrier, refuse: Callable[[Refusal], None],
        disks: list[Disk],
    ) -> None:  # fmt: skip
        self.stored = stored
        self.version = stored.version
        self.barrier = barrier
        self.refuse = refuse
        self.disks = disks
        self.code = ""
        self.said = ""


class Durability:
    """Has committed objects written to disks before their writers are answered."""

    def __init__(self, context: Context, freer: Freer, copier: Copier) -> None:
        self._context = context
        self._freer = freer
        self._copier = copier

    def ensure(self, stored: Stored, barrier: Barrier, refuse: Callable[[Refusal], None]) -> None:
        """Let a reply wait until an object is on a disk.

        Args:
            stored: The object.
            barrier: Holds the reply back.
            refuse: Told why no disk takes it, before the reply is let go.
        """
        if _is_on_disk(stored):
            return
        wish = _Wish(stored, barrier, refuse, self._disks(stored))
        barrier.unwritten += 1
        self._try(wish)

    def _disks(self, stored: Stored) -> list[Disk]:
        """Return the disks to ask: of nodes that have the object in memory, then the emptiest."""
        holders = {extent.segment.node for extent in stored.extents()}
        ready = [disk for disk in self._context.cluster.disks.values() if disk.is_ready]
        ready.sort(key=lambda d: (d.node not in holders, d.used / max(1, d.granules)))
        return ready[:TRIES_MAX]

    def _try(self, wish: _Wish) -> None:
        """Ask the next disk, or end."""
        stored = wish.stored
        if stored.version != wish.version or stored.shelf is None:
            self._freer.written(wish.barrier)  # Removed or replaced since: nothing is to be kept.
            return
        if _is_on_disk(stored):
            self._freer.written(wish.barrier)  # Another copy has brought it there meanwhile.
            return
        while wish.disks:
            disk = wish.disks.pop(0)
            source = next((e for e in stored.extents() if e.segment.readable), None)
            if source is None:
                break
            start = self._copier.store(
                stored, source, disk, purpose=DURABLE, wanted=True,
                patience_s=self._context.config.store_patience_s,
                done=lambda code: self._done(wish, code),
            )  # fmt: skip
            if start is Start.BEGUN:
                return
        wish.refuse(_refusal(wish, self._context.cluster.disks.values()))
        self._freer.written(wish.barrier)

    def _done(self, wish: _Wish, code: str) -> None:
        if code:
            wish.code, wish.said = code, self._copier.said
            self._try(wish)
        else:
            self._freer.written(wish.barrier)


def _is_on_disk(stored: Stored) -> bool:
    return any(extent.segment.tier and extent.segment.readable for extent in stored.extents())


def _refusal(wish: _Wish, disks: Collection[Disk]) -> Refusal:
    key = wish.stored.key
    if wish.code:
        code = wish.code if wish.code in BY_CODE else Overloaded.code
        said = wish.said or wish.code
        return Refusal(code, f"{key!r} is in memory only: no disk took it ({said})")
    if not disks:
        return Refusal(
            NotSupported.code,
            f"{key!r} is in memory only: no node has a disk that could take it (node --ssd)",
        )
    troubles = "; ".join([_trouble(disk) for disk in disks][:TRIES_MAX])
    return Refusal(
        Overloaded.code, f"{key!r} is in memory only: no disk can take it now ({troubles})"
    )


def _trouble(disk: Disk) -> str:
    status = disk.status
    if not disk.readable:
        what = "away"
    elif status is None or disk.is_ready:
        what = "ready, but no copy to write is readable"
    else:
        what = f"{status.state}, {status.reason}"
    return f"{disk.node.name}: {what}"
