"""Going through all objects in the background, some at a time, while they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.records import Generation, Stored


class Round:
    """One way through all objects of all namespaces.

    Every object that is there from the beginning of the round to its end is met once, whatever is
    put, replaced and removed meanwhile. New ones may be met, too.
    """

    __slots__ = ("_catalog", "_home", "_items", "_shelves", "_slots")

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._slots = sorted(catalog.slots, reverse=True)
        self._home: Generation | None = None
        self._shelves: list[int] = []
        self._items: list[Stored] = []

    def next(self) -> Stored | None:
        """Return the next object, None where all were met."""
        while True:
            if self._items:
                stored = self._items.pop()
                if stored.shelf is not None and not stored.home.cleared:
                    return stored
            elif self._shelves and self._home is not None:
                shelf = self._home.shelves.get(self._shelves.pop())
                if shelf is not None:
                    self._items = [stored for _, stored in shelf.from_place(0)]
            elif self._slots:
                space = self._catalog.slots.get(self._slots.pop())
                if space is not None:
                    self._home = space.current
                    self._shelves = list(self._home.shelves)
            else:
                return None
