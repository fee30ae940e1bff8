"""When an extent may be given to a new owner (ADR 2). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mooncake_store.segment import Intent
    from mooncake_store.wire.control import FreeItem


def overlaps(offset: int, size: int, other_offset: int, other_size: int) -> bool:
    """Return whether two ranges of one segment share a byte."""
    return offset < other_offset + other_size and other_offset < offset + size


def concerns(item: FreeItem, offset: int, size: int, version: int) -> bool:
    """Return whether a write of ``version`` must be over before ``item`` is free.

    A newer version in the same place is its new owner's: a late repetition of the order to free
    the old one must not disturb it.
    """
    return version <= item.version and overlaps(item.offset, item.bytes, offset, size)


def blocking_slots(item: FreeItem, intents: Iterable[tuple[int, Intent]]) -> list[int]:
    """Return the slots whose declared writes keep ``item`` from being free."""
    return [
        slot
        for slot, intent in intents
        if concerns(item, intent.offset, intent.bytes, intent.version)
    ]
