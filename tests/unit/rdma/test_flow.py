"""Work requests are as few, as large and as rarely signalled as the device allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mooncake_store.testing.seeds import seeded
from mooncake_store.transport.rdma.flow import SIGNAL_EVERY, Batch
from mooncake_store.transport.rdma.verbs import DeviceLimits

if TYPE_CHECKING:
    from mooncake_store.transport.rdma.verbs import WorkRequest

KEY = 9
LIMITS = DeviceLimits(pieces_max=4, requests_max=1000, message_bytes_max=1000)


def requests_of(*moves: tuple[int, list[tuple[int, int, int]]]) -> list[WorkRequest]:
    batch = Batch(LIMITS)
    for remote, pieces in moves:
        batch.add(write=False, remote=remote, key=KEY, pieces=pieces)
    return batch.number(1)


def test_what_continues_joins_the_request_before() -> None:
    (request,) = requests_of((100, [(5000, 64, 1)]), (164, [(9000, 200, 2)]), (364, [(1, 8, 1)]))
    assert request.remote == 100
    assert request.pieces == [(5000, 64, 1), (9000, 200, 2), (1, 8, 1)]
    assert request.signalled


def test_neighbours_in_our_memory_are_one_piece() -> None:
    (request,) = requests_of((100, [(5000, 64, 1)]), (164, [(5064, 200, 1)]), (364, [(5264, 8, 1)]))
    assert request.pieces == [(5000, 272, 1)]


def test_another_key_another_place_or_another_direction_is_another_request() -> None:
    batch = Batch(LIMITS)
    batch.add(write=False, remote=0, key=1, pieces=[(0, 10, 0)])
    batch.add(write=False, remote=10, key=2, pieces=[(10, 10, 0)])
    batch.add(write=False, remote=30, key=2, pieces=[(20, 10, 0)])
    batch.add(write=True, remote=40, key=2, pieces=[(30, 10, 0)])
    assert [(r.remote, r.key, r.write) for r in batch.number(1)] == [
        (0, 1, False), (10, 2, False), (30, 2, False), (40, 2, True),
    ]  # fmt: skip


def test_requests_end_at_the_device_s_limits() -> None:
    requests = requests_of((0, [(10_000 * n, 600, n) for n in range(5)]))
    assert [sum(piece[1] for piece in r.pieces) for r in requests] == [1000, 1000, 1000]
    assert [r.remote for r in requests] == [0, 1000, 2000]
    many = requests_of((0, [(100 * n, 10, n) for n in range(9)]))
    assert [len(r.pieces) for r in many] == [4, 4, 1]


@pytest.mark.parametrize("count", [1, 15, 16, 17, 128, 257])
@pytest.mark.parametrize("first", [1, 7, 1000])
def test_one_in_sixteen_is_signalled_and_the_last(count: int, first: int) -> None:
    batch = Batch(LIMITS)
    for number in range(count):
        batch.add(write=False, remote=1000 * number, key=KEY, pieces=[(50 * number, 10, 1)])
    requests = batch.number(first)
    assert [r.number for r in requests] == list(range(first, first + count))
    signalled = [r.number for r in requests if r.signalled]
    assert signalled[-1] == first + count - 1
    assert len(signalled) <= count // SIGNAL_EVERY + 2
    gaps = [b - a for a, b in zip([first - 1, *signalled], signalled, strict=False)]
    assert max(gaps) <= SIGNAL_EVERY


@pytest.mark.parametrize("seed", range(20))
def test_every_byte_goes_where_it_was_sent_whatever_is_joined(seed: int) -> None:
    random = seeded(f"batches {seed}")
    batch = Batch(LIMITS)
    wanted: dict[int, tuple[int, int]] = {}
    remote = local = 0
    for _ in range(60):
        remote += random.choice((0, 0, 0, 5000))
        start, pieces = remote, []
        for _ in range(random.randint(1, 6)):
            local += random.choice((0, 0, 77))
            size, key = random.randint(1, 1500), random.randint(1, 2)
            pieces.append((local, size, key))
            wanted |= {remote + at: (local + at, key) for at in range(size)}
            local += size
            remote += size
        batch.add(write=False, remote=start, key=KEY, pieces=pieces)
    got: dict[int, tuple[int, int]] = {}
    for request in batch.number(1):
        assert len(request.pieces) <= LIMITS.pieces_max
        assert sum(size for _, size, _ in request.pieces) <= LIMITS.message_bytes_max
        at = request.remote
        for address, size, key in request.pieces:
            got |= {at + n: (address + n, key) for n in range(size)}
            at += size
    assert got == wanted
