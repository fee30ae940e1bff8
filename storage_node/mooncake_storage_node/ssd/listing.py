"""A page of the directory: what a new master asks every store for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.ssd.core import records
from mooncake_storage_node.ssd.verifying import read_names
from mooncake_store import extent
from mooncake_store.errors import ChecksumMismatch
from mooncake_store.limits import BATCH_BYTES_MAX
from mooncake_store.wire.control import DirectoryEntry, DirectoryPage

if TYPE_CHECKING:
    from mooncake_storage_node.ssd.core.records import EntryRecord
    from mooncake_storage_node.ssd.index import Index
    from mooncake_storage_node.ssd.ledger import Ledger

Lose = Callable[[int, int, str], None]
"""Called with location, version and reason of an entry that proved bad."""

RECORD_DAMAGED: Final = "record_damaged"

PAGE_ENTRIES_MAX: Final = 4_096
"""Entries of one page, whatever was asked for: about 20 ms."""


def list_page(
    ledger: Ledger,
    index: Index,
    cursor: int,
    limit: int,
    lose: Lose,
) -> DirectoryPage:
    """Return the readable entries from location ``cursor`` on; their offset is the location.

    Args:
        ledger: Says what is readable.
        index: Says what it is called.
        cursor: As the last page gave it; 0 at first.
        limit: Most entries, at least 1.
        lose: Called for an entry whose record proves bad.

    Raises:
        IndexFailed: The index cannot be read.
    """
    limit = max(1, min(limit, PAGE_ENTRIES_MAX))
    found = index.page(max(0, cursor), limit)
    entries: list[DirectoryEntry] = []
    total = 0
    next_cursor = -1
    for key, value in found:
        next_cursor = int.from_bytes(key[1:], "big") + 1
        opened = records.unpack_entry(key, value)
        if opened is None:
            _lose_damaged(ledger, next_cursor - 1, lose)
            continue
        location, record = opened
        total += len(value)
        if total > BATCH_BYTES_MAX and entries:
            next_cursor = location
            return DirectoryPage(entries, next_cursor)
        if not _is_readable(ledger, location, record):
            continue
        try:
            entries.append(_describe(location, record))
        except ChecksumMismatch as error:
            lose(location, record.entry.version, error.code)
    return DirectoryPage(entries, next_cursor if len(found) == limit else -1)


def _lose_damaged(ledger: Ledger, location: int, lose: Lose) -> None:
    """Give up the entry whose record was damaged since it was loaded: nobody could list it."""
    with ledger.lock:
        entry = ledger.table.at(location) if location < len(ledger.table) else None
    if entry is not None:
        lose(location, entry.version, RECORD_DAMAGED)


def _is_readable(ledger: Ledger, location: int, record: EntryRecord) -> bool:
    entry = record.entry
    with ledger.lock:
        return ledger.table.get(location, entry.version) is not None and not ledger.is_cleared(
            entry.slot, entry.epoch
        )


def _describe(location: int, record: EntryRecord) -> DirectoryEntry:
    entry = record.entry
    header = extent.Header(
        entry.slot, entry.epoch, entry.name_bytes, entry.version, record.length, record.checksum,
        record.fingerprint,
    )  # fmt: skip
    names = read_names(header, record.names)
    return DirectoryEntry(
        offset=location,
        version=entry.version,
        length=record.length,
        slot=entry.slot,
        epoch=entry.epoch,
        namespace=names.namespace,
        key=names.key,
        group=names.group,
        parent=names.parent,
        pin=int(names.pin),
        pin_ends_s=names.pin_ends_s,
        replicas=names.replicas,
        set_id=names.set_id,
        set_count=names.set_count,
    )
