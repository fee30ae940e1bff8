"""A directory that is being read, page by page, and what of it is not shown yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_master.core.records import DiskExtent
from mooncake_store.types import TERM_MAX, term_of

if TYPE_CHECKING:
    from mooncake_master.core.nodes import Segment
    from mooncake_master.core.records import Extent, Generation
    from mooncake_store.wire.control import DirectoryEntry, FreeItem


class Listing:
    """A segment whose directory is being listed.

    Attributes:
        segment: The segment.
        cursor: Where the next page begins.
        token: Of the request that is under way; 0 while there is none.
        retry_s: When to ask again after a failure.
        writing: Where local processes still write for an older reign, in ascending order.
        unseen: Locations of a store's extents that were known before and not listed yet; None
            where nothing was: the index is not complete without this listing.
        failed: The last try has failed, or the store is not there: nobody waits for it, as a disk
            may be in trouble for long.
    """

    __slots__ = ("cursor", "failed", "retry_s", "segment", "token", "unseen", "writing")

    def __init__(
        self, segment: Segment, unseen: set[int] | None = None, *, failed: bool = False
    ) -> None:
        self.segment = segment
        self.unseen = unseen
        self.failed = failed
        self.cursor = 0
        self.token = 0
        self.retry_s = 0.0
        self.writing: list[FreeItem] = []


class Member:
    """A member of a set that is kept back until all are there.

    Attributes:
        extent: Where it lies.
        entry: What its node said of it.
        home: The generation that it belongs to.
        listed_s: When it was listed: no reader of an earlier reign has a lease for longer than one
            lease from then.
        given_up: It was removed or replaced meanwhile, and is being erased.
    """

    __slots__ = ("entry", "extent", "given_up", "home", "listed_s")

    def __init__(
        self,
        extent: Extent,
        entry: DirectoryEntry,
        home: Generation,
        listed_s: float,
        *,
        given_up: bool,
    ) -> None:
        self.extent = extent
        self.entry = entry
        self.home = home
        self.listed_s = listed_s
        self.given_up = given_up

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is there any more."""
        return self.given_up or (isinstance(self.extent, DiskExtent) and self.extent.vanished)


def number_of(entry: DirectoryEntry) -> int:
    """Return the number of the write that put an entry there."""
    return entry.attempt or entry.version


def is_numbered(entry: DirectoryEntry) -> bool:
    """Return whether a master can have given an entry its numbers: later ones are none."""
    return 0 < entry.version <= number_of(entry) and term_of(number_of(entry)) < TERM_MAX
