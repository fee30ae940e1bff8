"""Walking a segment's table finds what landed, and only that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_storage_node.core.directory import landed, list_page, read_entry
from mooncake_store import extent, fingerprint
from mooncake_store.errors import StoreError
from mooncake_store.segment import FREED, Segment, mapped_bytes
from mooncake_store.types import Pin

POOL_BYTES = 8 << 20  # 16,384 granules: four blocks of the walk.


def make_segment() -> Segment:
    return Segment.format(memoryview(bytearray(mapped_bytes(POOL_BYTES))), POOL_BYTES, 5)


def write(segment: Segment, offset: int, version: int, size: int, names: extent.Names) -> None:
    identity = extent.Identity(
        fingerprint.fingerprint(names.namespace, names.key), version, 3, 2, size
    )
    payload = memoryview(bytes(size))
    sealed = extent.seal(identity, extent.hash_payload([payload]), names)
    raw = sealed.header + bytes(payload) + sealed.tail
    segment.extents[offset : offset + len(raw)] = raw
    segment.table[offset // 512] = version


@given(
    st.dictionaries(
        st.integers(0, POOL_BYTES // 512 - 1),
        st.tuples(st.integers(1, (1 << 62)), st.booleans()),
        max_size=40,
    ),
    st.integers(0, POOL_BYTES // 512),
)
def test_the_walk_finds_every_entry_that_is_no_fence(
    entries: dict[int, tuple[int, bool]], start: int
) -> None:
    segment = make_segment()
    for index, (version, freed) in entries.items():
        segment.table[index] = version | (FREED if freed else 0)
    wanted = [
        (index * 512, version)
        for index, (version, freed) in sorted(entries.items())
        if not freed and index >= start
    ]
    assert list(landed(segment, start * 512)) == wanted


def test_an_entry_tells_everything_that_an_index_needs() -> None:
    segment = make_segment()
    names = extent.Names("näme", "key/é", "grp", "par", Pin.SOFT, 12.5, 3, 77, 4)
    write(segment, 1024, 9, 300_000, names)
    entry = read_entry(segment, 1024, 9)
    assert (entry.offset, entry.version, entry.length) == (1024, 9, 300_000)
    assert (entry.slot, entry.epoch) == (3, 2)
    assert (entry.namespace, entry.key, entry.group, entry.parent) == names[:4]
    assert (entry.pin, entry.pin_ends_s, entry.replicas) == (int(Pin.SOFT), 12.5, 3)
    assert (entry.set_id, entry.set_count) == (77, 4)


@pytest.mark.parametrize("limit", [1, 3, 10, 1000])
def test_pages_join_to_the_whole_without_gaps_or_repetitions(limit: int) -> None:
    segment = make_segment()
    for number in range(30):
        write(segment, number * 8192, number + 1, 100 * number, extent.Names("n", f"k{number}"))
    seen: list[str] = []
    cursor = 0
    pages = 0
    while cursor >= 0:
        page, damaged = list_page(segment, cursor, limit)
        assert not damaged
        assert len(page.entries) <= limit
        seen += [entry.key for entry in page.entries]
        cursor = page.cursor
        pages += 1
    assert seen == [f"k{number}" for number in range(30)]
    assert pages == -(-30 // limit)


def test_what_is_damaged_is_told_apart() -> None:
    segment = make_segment()
    for number in range(5):
        write(segment, number * 4096, number + 1, 100, extent.Names("n", f"k{number}"))
    segment.extents[4096 + 20] ^= 1  # a header
    segment.extents[2 * 4096 + 64 + 100 + 37] ^= 1  # a name block
    segment.table[3 * 8] = 3  # an attempt that is older than the header's version
    page, damaged = list_page(segment, 0, 100)
    assert [entry.key for entry in page.entries] == ["k0", "k4"]
    assert damaged == [(4096, 2), (8192, 3), (12288, 3)]
    with pytest.raises(StoreError):
        read_entry(segment, 4096, 2)


def test_a_copy_is_listed_with_its_version_and_the_number_of_its_write() -> None:
    segment = make_segment()
    write(segment, 4096, 9, 100, extent.Names("n", "k"))
    segment.table[8] = 12
    page, damaged = list_page(segment, 0, 100)
    assert not damaged
    assert [(entry.version, entry.attempt) for entry in page.entries] == [(9, 12)]


def test_a_header_that_points_outside_of_the_segment_is_damage() -> None:
    segment = make_segment()
    offset = POOL_BYTES - 512
    identity = extent.Identity(bytes(16), 7, 3, 2, 1 << 30)
    segment.extents[offset : offset + 64] = extent.pack_header(identity, 1, 100)
    segment.table[offset // 512] = 7
    page, damaged = list_page(segment, 0, 100)
    assert not page.entries
    assert damaged == [(offset, 7)]
