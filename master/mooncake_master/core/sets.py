"""Sets of which a member is gone: what is left of them is to come back after a restart.

Members of a set name it in their extents, and a new master shows a set whole or not at all, since
an incomplete one cannot be told from one that was never committed (docs/adr/0012). So where a
member ends by itself, a note says that the set was committed (docs/adr/0043).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_master.core import accounting
from mooncake_master.core.records import set_group

if TYPE_CHECKING:
    from mooncake_master.core.context import Context
    from mooncake_master.core.notes import Notes
    from mooncake_master.core.records import Group, Hints, Stored

BROKEN_MAX: Final = 16_384
"""Sets of which a part is gone and a part is left, 100 bytes and 16 a member each. Of more, the
next master does not bring back what is left; they are counted."""


class Sets:
    """Which sets are incomplete, and what is left of them."""

    def __init__(self, context: Context, notes: Notes) -> None:
        self._context = context
        self._notes = notes
        self._left: dict[int, dict[Stored, None]] = {}
        """{set of which a member is gone: those that are left}"""
        self._apart: dict[int, dict[Stored, None]] = {}
        """{set: members of it that are not in a group of its own, as writers named others}"""
        self._new: dict[int, None] = {}
        """Sets to be noted at the end of this event, unless nothing is left of them by then."""

    def is_broken(self, set_id: int) -> bool:
        """Return whether a set was committed, and does not become whole again."""
        return set_id in self._left or self._notes.knows_set(set_id)

    def joined(self, stored: Stored, set_id: int, group: Group | None) -> None:
        """An object of a set is readable; after a restart the set may be broken."""
        if group is None or group.name != set_group(set_id):
            self._apart.setdefault(set_id, {})[stored] = None
        if set_id in self._left or self._notes.knows_set(set_id):
            self._left.setdefault(set_id, {})[stored] = None

    def ended(self, stored: Stored, hints: Hints) -> None:
        """An object's version is over, in whichever way."""
        set_id, hints.set_id = hints.set_id, 0
        if not set_id:
            return
        apart = self._apart.get(set_id)
        if apart is not None:
            apart.pop(stored, None)
            if not apart:
                del self._apart[set_id]
        left = self._left.get(set_id)
        if left is not None:
            left.pop(stored, None)
            if not left:
                self._forget(set_id)
        elif not stored.home.cleared:
            left = self._others(stored, set_id)
            if left:
                self._note(set_id, left)

    def missing(self, set_id: int, left: dict[Stored, None]) -> None:
        """A set is shown without a member that was removed before it was whole."""
        if left and not self.is_broken(set_id):
            self._note(set_id, left)

    def flush(self) -> None:
        """Have the new ones noted; before any node is told to erase something."""
        if self._new:
            self._notes.note_sets(list(self._new))
            self._new = {}

    def tidy(self) -> None:
        """Everybody is back and listed: what nobody has a member of is over."""
        for set_id in self._notes.sets():
            if set_id not in self._left:
                self._notes.drop_set(set_id)

    def _others(self, stored: Stored, set_id: int) -> dict[Stored, None]:
        """Return the other members of a set that is whole until now."""
        found = dict(self._apart.get(set_id, {}))
        group = stored.home.groups.get(set_group(set_id))
        for other in () if group is None else group.members:
            if other is not stored and other.hints is not None and other.hints.set_id == set_id:
                found[other] = None
        return found

    def _note(self, set_id: int, left: dict[Stored, None]) -> None:
        if len(self._left) >= BROKEN_MAX:
            self._context.counters[accounting.SETS_UNNOTED] += 1
            return
        self._left[set_id] = left
        self._new[set_id] = None

    def _forget(self, set_id: int) -> None:
        del self._left[set_id]
        if set_id in self._new:
            del self._new[set_id]
        else:
            self._notes.drop_set(set_id)
