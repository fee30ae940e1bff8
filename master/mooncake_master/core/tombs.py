"""What was removed or replaced while somebody was away of whom it is not known what he holds.

A master that has begun anew knows an absent node, or a disk that cannot be opened, by name at most.
Copies that it does not know of cannot be noted by their places (docs/adr/0034), so the key is
remembered instead, until everybody is back and has said what he holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_master.core.remembered import Tomb, tomb_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mooncake_master.core.context import Context

TOMBS_MAX: Final = 100_000
"""Keys that are remembered, about 300 bytes each; with more, those who are away come back empty."""


class Tombs:
    """Keys of which older versions may turn up.

    Attributes:
        overflow: Called where there are too many: those who are away have to come back empty.
    """

    def __init__(self, context: Context) -> None:
        self.overflow: Callable[[], None] = lambda: None
        self._context = context
        self._table: dict[tuple[int, str], int] = {}

    def __len__(self) -> int:
        return len(self._table)

    def recall(self, kept: Iterable[Tomb]) -> None:
        """Begin with what an earlier master has kept."""
        self._table = {(tomb.slot, tomb.key): tomb.version for tomb in kept}

    def note(self, slot: int, key: str, version: int) -> None:
        """Remember that a key is gone up to a version, if somebody may bring it back."""
        context = self._context
        if not context.keeps or not (context.unseen or context.unlisted):
            return
        if self._table.get((slot, key), 0) >= version:
            return
        if len(self._table) >= TOMBS_MAX:
            self.overflow()
            return
        self._table[slot, key] = version
        context.remember("removed", tomb_key(slot, key), Tomb(slot, key, version))

    def spare(self, slot: int, key: str, version: int) -> None:
        """A version was committed after its key was removed: only older ones must not come back.

        A removal of a key of which nothing was known covers every version of its reign, and a
        write that began before it may end after it.
        """
        if self._table and self._table.get((slot, key), 0) >= version:
            self._table[slot, key] = version - 1
            self._context.remember("removed", tomb_key(slot, key), Tomb(slot, key, version - 1))

    def covers(self, slot: int, key: str, version: int) -> bool:
        """Return whether a version was removed or replaced while its holder was away."""
        return bool(self._table) and self._table.get((slot, key), 0) >= version

    def clear(self) -> None:
        """Everybody is back, and has erased what he had to."""
        for slot, key in self._table:
            self._context.forget("removed", tomb_key(slot, key))
        self._table = {}
