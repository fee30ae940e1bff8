"""Pins that were set or taken away after their object was put: they outlive the master as notes.

An extent names the pin that it was put with, and may lie on a disk, so it is not changed. What was
asked later is noted by version (docs/adr/0046), and counts instead of what the extent says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_master.core import accounting
from mooncake_master.core.records import FOREVER, NEVER
from mooncake_master.core.rounds import Round

if TYPE_CHECKING:
    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.notes import Notes
    from mooncake_master.core.records import Stored
    from mooncake_store.wire.control import NoteItem

NOTED_MAX: Final = 32_768
"""Objects whose pin was changed after they were put, 200 bytes each here and on each keeper. Of
more, the next master knows the pin that they were put with; they are counted."""

LOOKS_MAX: Final = 1_000
"""Objects looked at in one turn, under 1 ms, where a note came after its version."""

_NONE, _HARD = 0, 1


class LaterPins:
    """How versions are pinned, where their extents do not say so."""

    def __init__(self, context: Context, notes: Notes) -> None:
        self._context = context
        self._notes = notes
        self._seen: set[int] = set()
        """Noted versions that are readable here, and pinned as the note says."""
        self._is_late = False
        self._are_all_there = False
        self._round: Round | None = None

    def changed(self, stored: list[Stored], end_s: float) -> None:
        """Note how objects are pinned from now on; before the caller is answered."""
        code = _NONE if end_s == NEVER else _HARD
        if end_s not in (NEVER, FOREVER):
            code = int((end_s + self._context.wall_offset_s) * 1000)
        known = self._notes.pins
        room = NOTED_MAX - len(known)
        ends = {}
        for one in stored:
            if one.version not in known and one.version not in ends:
                if room <= 0:
                    self._context.counters[accounting.PINS_UNNOTED] += 1
                    continue
                room -= 1
            ends[one.version] = code
        if ends:
            self._seen.update(ends)
            self._notes.note_pins(ends)

    def end_of(self, version: int) -> float | None:
        """Return until when a recovered version is pinned; None where nothing was noted."""
        code = self._notes.pin_of(version)
        if code is None:
            return None
        self._seen.add(version)
        if code in (_NONE, _HARD):
            return FOREVER if code else NEVER
        end_s = code / 1000 - self._context.wall_offset_s
        return end_s if end_s > self._context.now_s else NEVER

    def ended(self, version: int) -> None:
        """A version is over."""
        if version in self._seen:
            self._seen.discard(version)
            self._notes.drop_pin(version)

    def late(self, item: NoteItem) -> None:
        """A node says a note; the version may have been adopted before, without it."""
        if self._notes.is_news_of_pin(item):
            self._seen.discard(item.offset)
            self._is_late = True

    def tidy(self) -> None:
        """Everybody is back and listed: what nobody has is over."""
        self._are_all_there = True

    def tick(self, catalog: Catalog) -> None:
        """Pin what was adopted before its note came, then drop notes that are over."""
        if self._context.recovering:
            return
        if self._is_late and self._round is None:
            self._is_late = False
            if self._notes.pins.keys() - self._seen:
                self._round = Round(catalog)
        if self._round is not None:
            self._look(self._round, catalog)
        elif self._are_all_there:
            self._are_all_there = False
            for version in self._notes.pins.keys() - self._seen:
                self._notes.drop_pin(version)

    def _look(self, objects: Round, catalog: Catalog) -> None:
        for _ in range(LOOKS_MAX):
            stored = objects.next()
            if stored is None:
                self._round = None
                return
            if stored.version not in self._seen:
                end_s = self.end_of(stored.version)
                if end_s is not None:
                    catalog.pin(stored, end_s)
