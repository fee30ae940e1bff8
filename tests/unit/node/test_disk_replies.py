"""What a reply says of a disk that is late, in trouble or damaged, before and in the middle."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

import pytest

from mooncake_storage_node.disk_reads import CannotGoOn, DiskReply
from mooncake_storage_node.ssd import PIECE_BYTES
from mooncake_store.deadline import Deadline
from mooncake_store.errors import ChecksumMismatch, DeadlineExceeded, Overloaded
from mooncake_store.wire.data import Entry, Operation, Status, encode_reply

if TYPE_CHECKING:
    from collections.abc import Iterator

INCARNATION = 7


class FakeStaged:
    """Memory that a piece was read into."""

    def __init__(self, size: int) -> None:
        self.view = memoryview(bytes([1]) * size)

    def __enter__(self) -> memoryview:
        return self.view

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Give it back: nothing to do."""


class FakeDisk:
    """Stores with one extent of ``size`` bytes at every offset; the test answers the reads."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reads: list[tuple[int, Future[FakeStaged]]] = []
        self.stores = self

    def find(self, incarnation: int) -> FakeDisk | None:
        return self if incarnation == INCARNATION else None

    def owns(self, incarnation: int) -> bool:
        return incarnation == INCARNATION

    def version_of(self, version: int) -> int:
        return version

    def size_of(self, location: int, version: int) -> int:
        del location, version
        return self.size

    def read(
        self, location: int, version: int, start: int, size: int, deadline: Deadline
    ) -> Future[FakeStaged]:
        del location, version, start, deadline
        future: Future[FakeStaged] = Future()
        self.reads.append((size, future))
        return future

    def answer(self, number: int) -> None:
        size, future = self.reads[number]
        future.set_result(FakeStaged(size))

    def fail(self, number: int, error: Exception) -> None:
        self.reads[number][1].set_exception(error)


def reply_to(disk: FakeDisk, entries: int, deadline: Deadline) -> DiskReply:
    wanted = [Entry(INCARNATION, at << 20, 1, 0, disk.size) for at in range(entries)]
    statuses = [Status.UNKNOWN_SEGMENT] * entries
    return DiskReply(cast("Any", disk), wanted, statuses, deadline, lambda: None)


def sent(steps: Iterator[list[memoryview] | None]) -> bytes:
    step = next(steps)
    assert step is not None
    return b"".join(step)


def test_what_was_not_read_when_time_is_up_is_busy() -> None:
    disk = FakeDisk(2 * PIECE_BYTES)
    steps = reply_to(disk, 3, Deadline(0)).steps(5, {})
    assert next(steps) is None
    disk.fail(0, DeadlineExceeded("a disk did not answer in time"))
    assert sent(steps) == encode_reply(Operation.READ, 5, [Status.BUSY] * 3, 0)
    assert next(steps, "the end") == "the end"


@pytest.mark.parametrize("error", [DeadlineExceeded("late"), Overloaded("the disk is in trouble")])
def test_a_disk_that_is_late_in_the_middle_ends_the_connection(error: Exception) -> None:
    disk = FakeDisk(2 * PIECE_BYTES)
    steps = reply_to(disk, 1, Deadline(30)).steps(5, {})
    next(steps)
    disk.answer(0)
    assert sent(steps) == encode_reply(Operation.READ, 5, [Status.OK], disk.size)
    assert sent(steps) == bytes([1]) * PIECE_BYTES
    assert next(steps) is None
    disk.fail(1, error)
    with pytest.raises(CannotGoOn):
        next(steps)


def test_what_is_damaged_in_the_middle_is_sent_as_zeros() -> None:
    disk = FakeDisk(2 * PIECE_BYTES)
    steps = reply_to(disk, 1, Deadline(30)).steps(5, {})
    next(steps)
    disk.answer(0)
    sent(steps)
    sent(steps)
    disk.fail(1, ChecksumMismatch("a piece is damaged"))
    rest = b"".join(b"".join(step) for step in steps if step is not None)
    assert rest == bytes(PIECE_BYTES)
