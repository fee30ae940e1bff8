"""Aligned memory that bytes pass through between a disk and whoever wants them. Bounded."""

from __future__ import annotations

import mmap
import threading
from heapq import heapify, heappush
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.ssd.core.layout import BLOCK_BYTES
from mooncake_store.limits import KIB, MIB
from mooncake_store.memory import address_of, move

if TYPE_CHECKING:
    from mooncake_store.deadline import Deadline

PIECE_BYTES: Final = 2 * MIB + 64 * KIB
"""Largest read of the disk: an object of 2 MiB comes in one. Longer reads are several, at once."""

SMALL_BYTES: Final = 80 * KIB
"""Size of the small buffers: an object of 64 KiB, or a header."""

COPY_BYTES_MIN: Final = 64 * KIB
"""Copies from this size on let other threads run; below, that costs more than the copy."""

_LARGE_BUFFER: Final = PIECE_BYTES + 2 * BLOCK_BYTES
_SMALL_BUFFER: Final = SMALL_BYTES
_SMALL_SHARE: Final = 5
"""One fifth of the memory is small buffers."""


def map_aligned(size: int) -> memoryview:
    """Return zeroed memory that begins at a page, and that forked children do not have.

    A child that shares pages with a parent into which a disk is writing makes the kernel copy them
    under the disk's hands; see open(2) on O_DIRECT.
    """
    mapping = mmap.mmap(-1, size)
    mapping.madvise(mmap.MADV_DONTFORK)
    return memoryview(mapping)


def copy(target: memoryview, source: memoryview) -> None:
    """Copy bytes of one length; other threads run meanwhile where that is worth it."""
    if len(source) >= COPY_BYTES_MIN:
        move(address_of(target), address_of(source), len(source))
    else:
        target[:] = source


class Staging:
    """A fixed number of buffers in two sizes; who finds none waits for one, in order of turns.

    Whoever sends several pieces one after another holds later ones while it waits for an earlier
    one. With the earliest turn always served first, the earliest piece of all is never waited for
    by all others: so they do not wait for each other for ever.
    """

    def __init__(self, total_bytes: int) -> None:
        """Take at most ``total_bytes``, but one buffer of each size in any case."""
        small = max(1, total_bytes // _SMALL_SHARE // _SMALL_BUFFER)
        large = max(1, (total_bytes - small * _SMALL_BUFFER) // _LARGE_BUFFER)
        self.total_bytes = small * _SMALL_BUFFER + large * _LARGE_BUFFER
        self._memory = map_aligned(self.total_bytes)
        self._small = self._cut(0, small, _SMALL_BUFFER)
        self._large = self._cut(small * _SMALL_BUFFER, large, _LARGE_BUFFER)
        self._changed = threading.Condition()
        self._lines: dict[int, list[int]] = {_SMALL_BUFFER: [], _LARGE_BUFFER: []}
        """{size: turns that wait for such a buffer}, heaps."""
        self._used = 0

    @property
    def used_bytes(self) -> int:
        """Bytes that somebody holds."""
        return self._used

    def take(self, size: int, deadline: Deadline, turn: int = 0) -> memoryview | None:
        """Return a buffer of at least ``size`` bytes, or None where none was free in time.

        Args:
            size: At most ``PIECE_BYTES`` and two blocks.
            deadline: When to give up waiting.
            turn: Lower ones are served first.
        """
        assert size <= _LARGE_BUFFER
        is_small = size <= _SMALL_BUFFER
        pool = self._small if is_small else self._large
        line = self._lines[_SMALL_BUFFER if is_small else _LARGE_BUFFER]
        with self._changed:
            heappush(line, turn)
            try:
                while not pool or line[0] != turn:
                    if not self._changed.wait(deadline.left_s()) and not deadline.left_s():
                        return None
                buffer = pool.pop()
            finally:
                line.remove(turn)
                heapify(line)
                if pool and line:
                    self._changed.notify_all()
            self._used += len(buffer)
            return buffer

    def give(self, buffer: memoryview) -> None:
        """Take a buffer back."""
        with self._changed:
            (self._small if len(buffer) == _SMALL_BUFFER else self._large).append(buffer)
            self._used -= len(buffer)
            self._changed.notify_all()

    def _cut(self, start: int, count: int, size: int) -> list[memoryview]:
        return [self._memory[at : at + size] for at in range(start, start + count * size, size)]
