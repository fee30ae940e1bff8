"""Answers for people: what is stored, where, and why something is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_master.core.instructions import Reply
from mooncake_master.core.judging import check_batch
from mooncake_master.core.records import FOREVER, TIER_NAMES, wire_offset
from mooncake_store.errors import InvalidArgument, StaleTerm
from mooncake_store.limits import SCAN_PAGE_MAX
from mooncake_store.types import MissReason, NodeState, Tier
from mooncake_store.wire.control import ObjectRecord, ReplicaRecord, Scanned, StatReply, WhyReply

if TYPE_CHECKING:
    from mooncake_master.core.barriers import Request
    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.parking import Parking
    from mooncake_master.core.reads import Reads
    from mooncake_master.core.records import Extent, Generation, Hints, Stored
    from mooncake_store.wire.control import Scan, Stat, Why

EXAMINED_MAX: Final = 20_000
"""Objects looked at for one page: a prefix that few keys have takes more pages, not longer ones."""

DETAILS: Final = {
    MissReason.ABSENT: "it was never put, or that was too long ago to be remembered",
    MissReason.EVICTED: "it was evicted to make room",
    MissReason.REMOVED: "it was removed",
    MissReason.CLEARED: "its namespace was cleared",
    MissReason.EXPIRED: "its last put was never finished",
    MissReason.WRITING: "a put is under way",
    MissReason.NODE_DOWN: "nodes that may hold it are away, or cannot be listed",
    MissReason.LOST: "the nodes that held it lost that memory, or that disk",
    MissReason.CORRUPT: "its bytes were found damaged",
    MissReason.RECOVERING: "the nodes' directories are still being listed",
}


class Inspection:
    """Describes objects; leaves no trace."""

    def __init__(self, context: Context, catalog: Catalog, reads: Reads, parking: Parking) -> None:
        self._context = context
        self._catalog = catalog
        self._reads = reads
        self._parking = parking

    def stat(self, request: Request, message: Stat) -> None:
        """Handle a `Stat`; what is missing waits for the index to be complete, as in a read."""
        check_batch(len(message.keys))
        home = self._catalog.generation(message.slot, message.epoch)
        if self._reads.waits_for_recovery(request, home, message.keys):
            return
        items: list[ObjectRecord | int] = []
        for key in message.keys:
            stored = home.objects.get(key)
            items.append(
                int(self._reads.reason(home, key)) if stored is None else self._record(stored)
            )
        self._context.out.append(Reply(request.peer, request.request_id, StatReply(items)))

    def scan(self, request: Request, message: Scan) -> None:
        """Handle a `Scan`: shelf by shelf, in the order of the objects' making.

        Raises:
            DeadlineExceeded: The index is not complete; a part of it would pass for all of it.
            StaleTerm: The pages before came from another reign, which had other shelves.
        """
        home = self._catalog.generation(message.slot, message.epoch)
        if not 1 <= message.limit <= SCAN_PAGE_MAX:
            raise InvalidArgument(f"a page has 1 to {SCAN_PAGE_MAX} objects, not {message.limit}")
        if self._parking.holds_back(request, "objects cannot be listed"):
            return
        term = self._context.term
        number, place = _parse_cursor(message.cursor, term)
        items: list[ObjectRecord] = []
        examined = 0
        cursor = ""
        while number < home.shelf_count and not cursor:
            shelf = home.shelves.get(number)
            examined += 1
            for at, stored in [] if shelf is None else shelf.from_place(place):
                if len(items) == message.limit:
                    cursor = f"{term}.{number}.{at}"
                    break
                examined += 1
                if stored.key.startswith(message.prefix):
                    items.append(self._record(stored))
            number += 1
            place = 0
            if examined >= EXAMINED_MAX and number < home.shelf_count and not cursor:
                cursor = f"{term}.{number}.0"
        self._context.out.append(Reply(request.peer, request.request_id, Scanned(items, cursor)))

    def why(self, request: Request, message: Why) -> None:
        """Handle a `Why`."""
        home = self._catalog.generation(message.slot, message.epoch)
        reason, detail = self._explain(home, message.key)
        self._context.out.append(Reply(request.peer, request.request_id, WhyReply(reason, detail)))

    def _explain(self, home: Generation, key: str) -> tuple[int, str]:
        stored = home.objects.get(key)
        if stored is None:
            reason = self._reads.reason(home, key)
            return int(reason), DETAILS[reason]
        names = ", ".join(dict.fromkeys(extent.segment.node.name for extent in stored.extents()))
        if stored.readable:
            return -1, f"version {stored.version} of {stored.length} bytes is readable on {names}"
        return int(MissReason.NODE_DOWN), f"the nodes that hold it are away: {names}"

    def _record(self, stored: Stored) -> ObjectRecord:
        now_s = self._context.now_s
        pin, pin_left_s = "none", 0.0
        if stored.pin_s == FOREVER:
            pin = "hard"
        elif stored.pin_s > now_s:
            pin, pin_left_s = "soft", stored.pin_s - now_s
        hints = stored.hints
        return ObjectRecord(
            key=stored.key,
            version=stored.version,
            length=stored.length,
            replicas=tuple(_replica(extent) for extent in stored.extents()),
            pin=pin,
            pin_left_s=pin_left_s,
            lease_left_s=max(0.0, stored.lease_s - now_s),
            group=_group(hints),
            parent=hints.parent_key if hints is not None else "",
            wanted_replicas=stored.wanted,
        )


def _group(hints: Hints | None) -> str:
    """Return the group that the writer named, if it did."""
    if hints is None or hints.group is None or hints.group.name.startswith("\0"):
        return ""
    return hints.group.name


def _replica(extent: Extent) -> ReplicaRecord:
    segment = extent.segment
    if segment.readable:
        state = "suspect" if segment.node.state is NodeState.SUSPECT else "readable"
    else:
        state = "lost" if segment.lost else "away"
    return ReplicaRecord(
        segment.node.name, TIER_NAMES[Tier(segment.tier)], state, segment.incarnation,
        wire_offset(extent),
    )  # fmt: skip


def _parse_cursor(cursor: str, term: int) -> tuple[int, int]:
    """Return shelf and place of a cursor.

    Raises:
        InvalidArgument: It is none that a master gives.
        StaleTerm: It was given in another term than ours.
    """
    if not cursor:
        return 0, 0
    parts = cursor.split(".")
    if not (len(parts) == 3 and all(map(_is_number, parts))):  # noqa: PLR2004  # term, shelf, place
        raise InvalidArgument(f"{cursor!r} is no cursor of a scan")
    given, number, place = map(int, parts)
    if given != term:
        raise StaleTerm(f"the listing began in term {given}, this is {term}; begin it again")
    return number, place


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdecimal() and len(part) < 16  # noqa: PLR2004  # of 48 bits
