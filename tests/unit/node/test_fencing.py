"""When an extent is free, by the book of ADR 2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_storage_node.core.fencing import blocking_slots, concerns, overlaps
from mooncake_store.segment import Intent
from mooncake_store.wire.control import FreeItem

ITEM = FreeItem(1, 4096, 1024, 10)


@given(*[st.integers(0, 40)] * 2, *[st.integers(1, 20)] * 2)
def test_ranges_overlap_when_they_share_a_byte(a: int, b: int, size_a: int, size_b: int) -> None:
    shared = set(range(a, a + size_a)) & set(range(b, b + size_b))
    assert overlaps(a, size_a, b, size_b) is bool(shared)


@pytest.mark.parametrize(
    ("offset", "size", "version", "wanted"),
    [
        (4096, 1024, 10, True),
        (4096, 1, 9, True),
        (0, 4097, 10, True),
        (5119, 1, 10, True),
        (0, 4096, 10, False),
        (5120, 512, 10, False),
        (4096, 1024, 11, False),
    ],
)
def test_a_write_concerns_an_extent_that_it_shares_and_that_is_not_older(
    offset: int, size: int, version: int, *, wanted: bool
) -> None:
    assert concerns(ITEM, offset, size, version) is wanted


def test_every_declared_write_that_concerns_an_extent_blocks_it() -> None:
    intents = [
        (0, Intent(5, 4096, 100, 10)),
        (3, Intent(5, 0, 100, 10)),
        (9, Intent(6, 4000, 4000, 2)),
        (11, Intent(6, 4096, 100, 99)),
    ]
    assert blocking_slots(ITEM, intents) == [0, 9]
    assert blocking_slots(ITEM, []) == []
