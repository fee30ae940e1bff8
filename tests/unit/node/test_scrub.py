"""Everything a node holds is verified in the background, at a bounded rate."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

import pytest

from mooncake_storage_node.scrub import COST_BYTES_MIN, PIECE_BYTES, Scrubber, is_bad, pieces
from mooncake_storage_node.ssd.requests import Staged
from mooncake_store import extent, fingerprint
from mooncake_store.errors import ChecksumMismatch, Overloaded, StaleExtent, StoreError
from mooncake_store.segment import Segment, mapped_bytes
from mooncake_store.testing import wait_until
from mooncake_store.wire.control import DirectoryEntry, DirectoryPage, DroppedItem
from tests.faults.ssd.extents import make_extent

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.deadline import Deadline

T = TypeVar("T")
POOL_BYTES = 8 << 20
FAST = 1 << 40
INCARNATION = 5
SIZES = [0, 1, 4096, 300_000, 700_000]


def make_segment() -> Segment:
    memory = memoryview(bytearray(mapped_bytes(POOL_BYTES)))
    return Segment.format(memory, POOL_BYTES, INCARNATION)


def write(segment: Segment, offset: int, size: int, *, version: int = 9, attempt: int = 0) -> int:
    """Land an object; return the bytes of its extent."""
    identity = extent.Identity(fingerprint.fingerprint("n", "k"), version, 3, 2, size)
    payload = memoryview(bytes(range(256)) * (size // 256 + 1))[:size]
    sealed = extent.seal(identity, extent.hash_payload([payload]), extent.Names("n", "k"))
    raw = sealed.header + bytes(payload) + sealed.tail
    segment.extents[offset : offset + len(raw)] = raw
    segment.table[offset // 512] = attempt or version
    return len(raw)


class Reports:
    def __init__(self) -> None:
        self.items: list[DroppedItem] = []

    def __call__(self, items: list[DroppedItem]) -> None:
        self.items += items


def filled() -> tuple[Segment, dict[int, int]]:
    """Return a segment, and {offset: bytes} of what lies in it."""
    segment = make_segment()
    found: dict[int, int] = {}
    offset = 512
    for size in SIZES:
        found[offset] = write(segment, offset, size)
        offset += -(-found[offset] // 512) * 512 + 1024
    return segment, found


def test_what_is_right_is_gone_through_and_nothing_is_reported() -> None:
    segment, found = filled()
    write(segment, POOL_BYTES // 2, 5000, version=9, attempt=30)  # a copy
    reports = Reports()
    scrubber = Scrubber([segment], FAST, reports)
    scrubber.round()
    scrubber.round()
    assert reports.items == []
    assert (scrubber.rounds, scrubber.extents, scrubber.bad) == (2, 2 * (len(found) + 1), 0)


def test_fr_038_one_flipped_bit_anywhere_in_an_extent_is_found() -> None:
    segment, found = filled()
    for offset, size in found.items():
        for at in {0, 3, 20, 63, 64, size // 2, size - 9, size - 1}:
            segment.extents[offset + at] ^= 4
            reports = Reports()
            Scrubber([segment], FAST, reports).round()
            expected = DroppedItem(INCARNATION, offset, 9, "checksum_mismatch")
            assert reports.items == [expected], (offset, at)
            segment.extents[offset + at] ^= 4


def test_what_is_bad_is_reported_until_it_is_gone_and_counted_once() -> None:
    segment, found = filled()
    segment.extents[max(found) + 1000] ^= 1
    reports = Reports()
    scrubber = Scrubber([segment], FAST, reports)
    for _ in range(3):
        scrubber.round()
    assert (len(reports.items), scrubber.bad) == (3, 1)
    segment.free(max(found), 9)
    scrubber.round()
    assert (len(reports.items), scrubber.bad) == (3, 1)


def test_a_header_with_absurd_numbers_does_no_harm() -> None:
    segment = make_segment()
    size = write(segment, POOL_BYTES - 4096, 3000)
    identity = extent.Identity(fingerprint.fingerprint("n", "k"), 9, 3, 2, 1 << 30)
    segment.extents[POOL_BYTES - 4096 : POOL_BYTES - 4032] = extent.pack_header(identity, 1, size)
    write(segment, 0, 100, version=50)
    segment.table[0] = 40
    reports = Reports()
    Scrubber([segment], FAST, reports).round()
    assert [item.offset for item in reports.items] == [0, POOL_BYTES - 4096]


def test_what_is_freed_while_it_is_looked_at_is_not_reported() -> None:
    segment, found = filled()
    offset = max(found)
    steps = pieces(segment, offset, 9)
    next(steps)
    segment.free(offset, 9)
    write(segment, offset, 100, version=12)
    with pytest.raises(ChecksumMismatch):
        list(steps)
    assert not is_bad(segment, offset, 9)
    assert not is_bad(segment, offset, 12)
    with pytest.raises(StaleExtent):
        list(pieces(segment, offset, 9))


def test_the_rate_is_kept_and_small_extents_cost_their_part() -> None:
    segment = make_segment()
    for number in range(20):
        write(segment, number * 8192, 4096)
    write(segment, 2 << 20, 1 << 20)
    scrubber = Scrubber([segment], 8 * (20 * COST_BYTES_MIN + (1 << 20)), Reports())
    began_s = time.monotonic()
    scrubber.round()
    assert time.monotonic() - began_s > 0.08


def test_it_stops_in_the_middle_of_a_round() -> None:
    segment, _ = filled()
    scrubber = Scrubber([segment], 1000, Reports())
    scrubber.start()
    time.sleep(0.05)
    scrubber.stop()
    scrubber.stop()
    assert scrubber.rounds == 0


def test_rounds_go_on_by_themselves() -> None:
    segment, found = filled()
    reports = Reports()
    scrubber = Scrubber([segment], FAST, reports, round_s=0.01)
    scrubber.start()
    wait_until(lambda: scrubber.rounds > 2, 20)
    segment.extents[max(found) + 1000] ^= 1
    wait_until(lambda: reports.items, 20)
    scrubber.stop()


class FakeDisk:
    """A store with some extents; some do not read back."""

    def __init__(self, count: int, problems: dict[int, StoreError], size: int = 100) -> None:
        self.lent = 0
        self._extent = make_extent("k", 1, size)
        self.loaded: list[int] = []
        self._count = count
        self._problems = problems

    def list_page(self, cursor: int, limit: int) -> Future[DirectoryPage]:
        end = min(cursor + limit, self._count)
        entries = [
            DirectoryEntry(at, at + 1, 100, 0, 1, "n", f"k{at}") for at in range(cursor, end)
        ]
        return done(lambda: DirectoryPage(entries, end if end < self._count else -1))

    def size_of(self, location: int, version: int) -> int:
        assert version == location + 1
        if isinstance(self._problems.get(location), StaleExtent):
            raise self._problems[location]
        return len(self._extent)

    def read(
        self,
        location: int,
        version: int,
        start: int,
        length: int,
        deadline: Deadline,
        *,
        counts: bool = True,
    ) -> Future[Staged]:
        assert not counts
        assert version == location + 1
        assert deadline.left_s() > 0
        assert length <= PIECE_BYTES

        def read() -> Staged:
            if location in self._problems:
                raise self._problems[location]
            if not start:
                self.loaded.append(location)
            self.lent += 1
            return Staged(memoryview(self._extent)[start : start + length], self._give_back)

        return done(read)

    def _give_back(self) -> None:
        self.lent -= 1

    def give_up(self, location: int, version: int, reason: str) -> None:
        raise AssertionError(f"{version} at {location} is well, not {reason}")


def done(work: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except StoreError as error:
        future.set_exception(error)
    return future


def test_disks_are_read_whole_and_what_is_bad_is_counted() -> None:
    problems: dict[int, StoreError] = {3: ChecksumMismatch("flipped"), 4: StaleExtent("gone")}
    disk = FakeDisk(600, problems)
    reports = Reports()
    scrubber = Scrubber([], FAST, reports, lambda: [disk])
    scrubber.round()
    assert disk.loaded == [at for at in range(600) if at not in problems]
    assert (scrubber.extents, scrubber.bad) == (598, 1)
    assert reports.items == []  # the store says so itself


def test_a_large_extent_of_a_disk_is_read_in_pieces_and_each_is_given_back() -> None:
    disk = FakeDisk(2, {}, 2 * PIECE_BYTES)
    scrubber = Scrubber([], FAST, Reports(), lambda: [disk])
    scrubber.round()
    assert scrubber.extents == 2
    assert scrubber.bytes > 4 * PIECE_BYTES
    assert disk.lent == 0


def test_a_disk_in_trouble_is_left_alone_until_the_next_round() -> None:
    problems: dict[int, StoreError] = {3: Overloaded("degraded")}
    disk, other = FakeDisk(10, problems), FakeDisk(5, {})
    scrubber = Scrubber([], FAST, Reports(), lambda: [disk, other])
    scrubber.round()
    assert disk.loaded == [0, 1, 2]
    assert len(other.loaded) == 5
    problems.clear()
    scrubber.round()
    assert len(disk.loaded) == 13
