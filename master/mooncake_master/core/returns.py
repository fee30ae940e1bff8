"""Directories that are read to their end, until what was found to be over in them is erased.

What is noted about such a segment as a whole has done its work only then: a master that comes
before would adopt what its node did not erase.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_master.core.nodes import Disk
from mooncake_master.core.records import Freeing

if TYPE_CHECKING:
    from mooncake_master.core.nodes import Segment
    from mooncake_master.core.notes import Notes


class Returns:
    """Waits for nodes to erase what their directories should not have had."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._owed: dict[Segment, list[Freeing]] = {}

    def read(self, segment: Segment) -> None:
        """A directory is read to its end."""
        self._owed[segment] = being_freed(segment)
        self.tick()

    def more(self, segment: Segment) -> None:
        """Something else of a segment turned out to be over."""
        if segment in self._owed:
            self._owed[segment] = being_freed(segment)

    def lost(self, segment: Segment) -> None:
        """A segment is not known any more; what is noted about it stays."""
        self._owed.pop(segment, None)

    def tick(self) -> None:
        """Let go of notes that have done their work."""
        for segment, freeings in list(self._owed.items()):
            left = [freeing for freeing in freeings if not freeing.over]
            if left:
                self._owed[segment] = left
            else:
                del self._owed[segment]
                self._notes.read(segment.node.register.node_id, segment.incarnation)


def being_freed(segment: Segment) -> list[Freeing]:
    """Return what a segment's node was told to erase and has not confirmed."""
    if isinstance(segment, Disk):
        return list(segment.erasing)
    found: list[Freeing] = []
    extent = segment.space.edge.after
    while extent is not segment.space.edge:
        if isinstance(extent.owner, Freeing):
            found.append(extent.owner)
        extent = extent.after
    return found
