"""The layout of a segment and its rules, on plain memory."""

from __future__ import annotations

import pytest

from mooncake_store.errors import ConfigError, Overloaded, StaleExtent
from mooncake_store.limits import WRITERS_MAX
from mooncake_store.segment import (
    FREED,
    PIECE_BYTES,
    Intent,
    Segment,
    extents_at,
    mapped_bytes,
)

POOL_BYTES = 1 << 20


@pytest.fixture
def memory() -> memoryview:
    return memoryview(bytearray(mapped_bytes(POOL_BYTES)))


@pytest.fixture
def segment(memory: memoryview) -> Segment:
    return Segment.format(memory, POOL_BYTES, 77)


def test_what_was_formatted_can_be_attached(memory: memoryview, segment: Segment) -> None:
    segment.term = 9
    segment.epochs[4095] = 3
    segment.table[5] = 11
    again = Segment(memory)
    assert (again.incarnation, again.bytes, again.term) == (77, POOL_BYTES, 9)
    assert again.epochs[4095] == 3
    assert again.table[5] == 11
    assert len(again.extents) == POOL_BYTES
    assert extents_at(POOL_BYTES) % (2 << 20) == 0


@pytest.mark.parametrize("at", [0, 8, 12, 24, 32])
def test_anything_else_cannot_be_attached(memory: memoryview, segment: Segment, at: int) -> None:
    del segment
    memory[at] ^= 0xFF
    with pytest.raises(ConfigError):
        Segment(memory)


def test_memory_that_is_too_short_cannot_be_attached(memory: memoryview, segment: Segment) -> None:
    del segment
    for size in (0, 100, 1 << 16, len(memory) - 1):
        with pytest.raises(ConfigError):
            Segment(memory[:size])


@pytest.mark.parametrize("size", [0, -512, 513, 1 << 47])
def test_sizes_that_cannot_be_are_refused(memory: memoryview, size: int) -> None:
    with pytest.raises(ConfigError):
        Segment.format(memory, size, 1)


def test_a_version_is_readable_from_its_publication_to_its_end(segment: Segment) -> None:
    assert segment.may_write(512, 64, 5)
    assert not segment.holds(512, 5)
    segment.publish(512, bytes(range(64)), 5)
    assert segment.holds(512, 5)
    assert bytes(segment.extents[512:576]) == bytes(range(64))
    assert segment.free(512, 5) is True
    assert not segment.holds(512, 5)
    assert not any(segment.extents[512:576])
    assert segment.table[1] == 5 | FREED
    assert segment.free(512, 5) is False


def test_a_fence_keeps_every_version_up_to_it_away(segment: Segment) -> None:
    assert segment.free(0, 5) is False
    for version in (4, 5):
        assert not segment.may_write(0, 64, version)
        with pytest.raises(StaleExtent):
            segment.publish(0, bytes(64), version)
    assert segment.may_write(0, 64, 6)
    segment.publish(0, bytes(64), 6)
    assert segment.holds(0, 6)


def test_a_version_that_would_be_a_fence_is_never_written(segment: Segment) -> None:
    assert segment.may_write(0, 64, FREED - 1)
    assert not segment.may_write(0, 64, FREED)
    assert not segment.may_write(0, 64, 2 * FREED - 1)


def test_a_late_free_of_an_older_version_leaves_the_newer_one(segment: Segment) -> None:
    segment.publish(0, bytes(64), 6)
    assert segment.free(0, 5) is False
    assert segment.holds(0, 6)
    assert segment.free(0, 6)
    segment.free(0, 3)
    assert segment.table[0] == 6 | FREED


@pytest.mark.parametrize(
    ("offset", "size", "wanted"),
    [
        (0, 64, True),
        (0, POOL_BYTES, True),
        (POOL_BYTES - 512, 512, True),
        (0, 63, False),
        (1, 64, False),
        (-512, 64, False),
        (POOL_BYTES - 512, 513, False),
        (POOL_BYTES, 64, False),
        (1 << 60, 64, False),
    ],
)
def test_an_extent_fits_or_not(segment: Segment, offset: int, size: int, *, wanted: bool) -> None:
    assert segment.fits(offset, size) is wanted
    assert segment.may_write(offset, size, 1) is wanted


def test_offsets_that_cannot_be_hold_nothing(segment: Segment) -> None:
    for offset in (-512, 1, 513, POOL_BYTES, 1 << 60):
        assert not segment.holds(offset, 0)


def test_declared_writes_are_seen_until_they_end(segment: Segment) -> None:
    first, last = Intent(5, 512, 1000, 7), Intent(6, 1024, 64, 8)
    segment.intend(0, first)
    segment.intend(WRITERS_MAX - 1, last)
    assert segment.intents() == [(0, first), (WRITERS_MAX - 1, last)]
    segment.finish_intent(0)
    assert segment.intents() == [(WRITERS_MAX - 1, last)]


def test_a_slots_range_is_where_its_words_are(memory: memoryview, segment: Segment) -> None:
    for slot in (0, 1, WRITERS_MAX - 1):
        start, size = Segment.intent_range(slot)
        segment.intend(slot, Intent(1, 2, 3, 4))
        assert memory[start : start + size].cast("Q").tolist() == [1, 2, 3, 4]


def test_release_lets_the_memory_go(segment: Segment) -> None:
    segment.release()
    with pytest.raises(ValueError, match="released"):
        segment.table[0] = 1


def test_memory_is_asked_for_before_it_is_written_and_once() -> None:
    pool_bytes = 3 * PIECE_BYTES
    memory = memoryview(bytearray(mapped_bytes(pool_bytes)))
    Segment.format(memory, pool_bytes, 77)
    asked: list[tuple[int, int]] = []
    segment = Segment(memory, lambda offset, size: asked.append((offset, size)))
    start = extents_at(pool_bytes)
    segment.secure(PIECE_BYTES - 512, 512)
    assert asked == [(start, PIECE_BYTES)]
    segment.secure(PIECE_BYTES - 512, 513)
    assert asked == [(start, PIECE_BYTES), (start + PIECE_BYTES, PIECE_BYTES)]
    segment.secure(0, pool_bytes)
    segment.secure(0, pool_bytes)
    assert asked == [(start + at, PIECE_BYTES) for at in range(0, pool_bytes, PIECE_BYTES)]


def test_where_the_host_has_no_memory_left_a_write_is_refused_and_asked_for_again() -> None:
    memory = memoryview(bytearray(mapped_bytes(POOL_BYTES)))
    Segment.format(memory, POOL_BYTES, 77)
    is_full = True

    def populate(offset: int, size: int) -> None:
        assert offset + size <= len(memory)
        if is_full:
            raise MemoryError

    segment = Segment(memory, populate)
    for _ in range(2):
        with pytest.raises(Overloaded, match="no memory left"):
            segment.secure(512, 512)
    is_full = False
    segment.secure(512, 512)
