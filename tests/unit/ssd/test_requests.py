from __future__ import annotations

from concurrent.futures import Future
from functools import partial

from mooncake_storage_node.ssd.buffers import PIECE_BYTES, Staging
from mooncake_storage_node.ssd.requests import Removal, Staged, Transfer, fail, settle, spread
from mooncake_store.deadline import Deadline
from mooncake_store.errors import Overloaded
from mooncake_store.limits import MIB


def test_a_future_ends_once() -> None:
    future: Future[int] = Future()
    assert settle(future, 1)
    assert not settle(future, 2)
    fail(future, Overloaded("late"))
    assert future.result() == 1


def test_bytes_are_spread_over_targets_from_an_offset_on() -> None:
    targets = [memoryview(bytearray(3)), memoryview(bytearray(4)), memoryview(bytearray(3))]
    spread(targets, 2, memoryview(b"abcdef"))
    assert b"".join(bytes(t) for t in targets) == b"\0\0abcdef\0\0"
    spread(targets, 0, memoryview(b""))


def test_nothing_is_copied_after_a_transfer_was_given_up() -> None:
    for by_caller in (True, False):
        transfer = Transfer(Deadline(60))
        transfer.expect(2)
        copies: list[int] = []
        assert not transfer.deliver(partial(copies.append, 1))
        if by_caller:
            assert transfer.cancel()
        else:
            transfer.give_up(Overloaded("over"))
        assert not transfer.deliver(partial(copies.append, 2))
        assert copies == [1]
        assert transfer.done()


def test_the_last_part_is_told_so() -> None:
    transfer = Transfer(Deadline(60))
    transfer.expect(2)
    assert not transfer.deliver(lambda: None)
    assert transfer.deliver(lambda: None)


def test_staged_memory_is_given_back_once() -> None:
    staging = Staging(8 * MIB)
    buffer = staging.take(1000, Deadline(0))
    assert buffer is not None
    staged = Staged(buffer[:1000], lambda: staging.give(buffer))
    assert staging.used_bytes > 0
    with staged as view:
        assert len(view) == 1000
    staged.release()
    assert staging.used_bytes == 0


def test_staging_memory_is_bounded_and_waited_for_until_the_deadline() -> None:
    staging = Staging(8 * MIB)
    held = []
    while (buffer := staging.take(PIECE_BYTES, Deadline(0.01))) is not None:
        held.append(buffer)
    assert 1 <= len(held) <= 4
    assert staging.used_bytes <= staging.total_bytes <= 8 * MIB
    assert staging.take(100, Deadline(0)) is not None
    staging.give(held.pop())
    assert staging.take(PIECE_BYTES, Deadline(0)) is not None


def test_a_removal_ends_when_all_its_steps_have() -> None:
    removal = Removal()
    removal.left += 1
    removal.step()
    removal.settle_if_over()
    assert not removal.future.done()
    removal.step()
    removal.settle_if_over()
    assert removal.future.result() is None
