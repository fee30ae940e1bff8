"""Why the last misses were misses: what the master said in the answers that reported them.

Asked a moment later it may say something else: a put has ended, a node is back.
"""

from __future__ import annotations

from typing import Final

from mooncake_store.types import MissReason

ENTRIES_MAX: Final = 8_192
"""About 1 MB at most; two of the largest batches."""


class Misses:
    """The reasons of the keys that were missed last, in two generations like ``LocationCache``.

    Threads may share one: every step is a single dictionary operation.
    """

    __slots__ = ("_half", "_newer", "_older")

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._newer: dict[str, int] = {}
        self._older: dict[str, int] = {}
        self._half = entries_max // 2

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def note(self, key: str, reason: int) -> None:
        """Remember a miss; the older half makes room."""
        if len(self._newer) >= self._half:
            self._older, self._newer = self._newer, {}
        self._newer[key] = reason

    def reason(self, key: str) -> MissReason | None:
        """Return why ``key`` was missed last; None where that is not remembered."""
        reason = self._newer.get(key)
        if reason is None:
            reason = self._older.get(key)
        if reason is None:
            return None
        try:
            return MissReason(reason)
        except ValueError:  # a newer master knows more reasons than we do
            return MissReason.ABSENT
