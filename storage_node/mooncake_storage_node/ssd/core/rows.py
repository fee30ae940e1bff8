"""Entries on their way from the index into the table: blocks of columns, no object for each. Pure.

A million entries are loaded in seconds because nothing but C touches most of their bytes.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

COLUMNS: Final = "QQIHHI"
"""Type codes of version, place, granules, slot, bytes of the name block, epoch."""

BLOCK_ROWS: Final = 32_768
"""Rows of one block: about 1 MiB."""

GAP_ROWS: Final = 256
"""Unused locations that are filled with zeros rather than begin another block."""

_ZEROS: Final = (0,) * len(COLUMNS)


class RowBlock(NamedTuple):
    """Consecutive rows of the table; version 0: unused."""

    first: int
    """Location of the first."""
    columns: list[bytes]
    """One for each of ``COLUMNS``, in this machine's byte order."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.columns[0]) // array(COLUMNS[0]).itemsize

    def versions(self) -> array[int]:
        """Return the first column."""
        return array(COLUMNS[0], self.columns[0])


class RowBuilder:
    """Gathers entries in the order of their locations into blocks."""

    def __init__(self) -> None:
        self._first = 0
        self._rows: list[tuple[int, ...]] = []

    def add(self, location: int, row: tuple[int, ...]) -> RowBlock | None:
        """Add the entry at a location; return the block before it if that is complete."""
        rows = self._rows
        gap = location - self._first - len(rows)
        if not gap and 0 < len(rows) < BLOCK_ROWS:
            rows.append(row)
            return None
        return self._add_slowly(location, row, gap)

    def _add_slowly(self, location: int, row: tuple[int, ...], gap: int) -> RowBlock | None:
        finished = None
        if self._rows and (len(self._rows) >= BLOCK_ROWS or gap > GAP_ROWS):
            finished = self.finish()
        if not self._rows:
            self._first = location
        elif gap:
            self._rows += [_ZEROS] * gap
        self._rows.append(row)
        return finished

    def finish(self) -> RowBlock:
        """Return what was gathered since the last block."""
        columns = zip(*self._rows, strict=True) if self._rows else [()] * len(COLUMNS)
        packed = [
            array(code, column).tobytes() for code, column in zip(COLUMNS, columns, strict=True)
        ]
        self._rows = []
        return RowBlock(self._first, packed)
