"""Writes that arrive over TCP or RDMA right now, so that a free can cut them off first."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from mooncake_storage_node.core.fencing import concerns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mooncake_store.wire.control import FreeItem


class Incoming:
    """One extent that is being received.

    ``guard`` is held while bytes move into the extent and while it is published; so whoever sets
    ``cut`` under it knows that nothing of this write happens afterwards.

    Attributes:
        incarnation: Segment of the extent.
        offset: Where the extent begins.
        bytes: How many are written.
        version: The attempt.
        guard: Lock of the connection that receives it.
        cut: The attempt is over: throw the bytes away.
        revoke: Takes the writer's access away, where its bytes come without our help (RDMA).
    """

    __slots__ = ("bytes", "cut", "guard", "incarnation", "offset", "revoke", "version")

    def __init__(
        self,
        place: tuple[int, int],
        size: int,
        version: int,
        guard: threading.Lock,
        revoke: Callable[[], None] | None = None,
    ) -> None:
        self.incarnation, self.offset = place
        self.bytes = size
        self.version = version
        self.guard = guard
        self.cut = False
        self.revoke = revoke

    def end(self) -> None:
        """Cut the write off: when this returns, none of its bytes arrives any more. Idempotent."""
        with self.guard:
            was, self.cut = self.cut, True
            if self.revoke is not None and not was:
                self.revoke()


class IncomingWrites:
    """All of them, of all data threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes: set[Incoming] = set()

    def __len__(self) -> int:
        return len(self._writes)

    def add(self, writes: Iterable[Incoming]) -> None:
        """Announce writes. Look at their fences only after this: a free that came first set it."""
        with self._lock:
            self._writes.update(writes)

    def add_one(self, write: Incoming) -> None:
        """Announce one write, as ``add``."""
        with self._lock:
            self._writes.add(write)

    def remove_one(self, write: Incoming) -> None:
        """Forget one write that is over."""
        with self._lock:
            self._writes.discard(write)

    def remove(self, writes: Iterable[Incoming]) -> None:
        """Forget writes that are over."""
        with self._lock:
            self._writes.difference_update(writes)

    def cut(self, item: FreeItem) -> None:
        """End every write that must not go on once ``item`` is free, before returning."""
        with self._lock:
            writes = [write for write in self._writes if write.incarnation == item.incarnation]
        for write in writes:
            if concerns(item, write.offset, write.bytes, write.version):
                write.end()

    def cut_older(self, term_version: int) -> None:
        """End every write whose version is below ``term_version``: its master's reign is over."""
        with self._lock:
            writes = list(self._writes)
        for write in writes:
            if write.version < term_version:
                write.end()
