"""The capacity simulation drives the real core, and answers what was measured independently."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from mooncake_master.core import simulate_capacity
from mooncake_store.testing import seeded
from mooncake_store.traces import open_trace

if TYPE_CHECKING:
    from collections.abc import Iterator


def reference(requests: list[list[int]], capacity: int) -> tuple[int, int, int]:
    """A dict in the order of use: hits, leading hits, evictions."""
    held: dict[int, None] = {}
    hits = prefix = evictions = 0
    for ids in requests:
        unbroken = True
        for block in ids:
            if block in held:
                del held[block]
                hits += 1
                prefix += unbroken
            else:
                unbroken = False
                if len(held) == capacity:
                    del held[next(iter(held))]
                    evictions += 1
            held[block] = None
    return hits, prefix, evictions


@pytest.mark.parametrize("capacity", [30, 50, 200])
@pytest.mark.parametrize("seed", range(3))
def test_it_equals_a_plain_dict(capacity: int, seed: int) -> None:
    random_ = seeded(seed)
    requests = []
    for _ in range(200):
        head, length = random_.randrange(6) * 100, random_.randrange(1, 25)
        fork = random_.randrange(length)
        requests.append([head + n + (50 if n > fork else 0) for n in range(length)])
    result = simulate_capacity(requests, capacity)
    wanted = reference(requests, capacity)
    assert (result.block_hits, result.prefix_hits, result.evictions) == wanted
    assert result.requests == 200


def test_an_unlimited_pool_evicts_nothing() -> None:
    result = simulate_capacity([[1, 2, 3], [1, 2, 4]], None)
    assert (result.block_hits, result.blocks, result.evictions) == (2, 6, 0)
    assert result.block_hit_rate == result.prefix_hit_rate == pytest.approx(1 / 3)


def test_no_requests_have_no_hits() -> None:
    assert simulate_capacity([], 10).block_hit_rate == 0.0


def test_another_policy_gives_another_answer() -> None:
    requests = [[1], [2], [1], [3], [1]]
    assert simulate_capacity(requests, 2, "lru").block_hits == 2
    assert simulate_capacity(requests, 2, "fifo").block_hits == 1


@pytest.fixture
def _no_collector() -> Iterator[None]:
    """The core leaves no cycles; looking for them among all that pytest holds takes time."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize(
    ("trace", "capacity", "rate"),
    [
        ("conversation", 1_000, 0.0445),
        ("conversation", 5_859, 0.1355),
        ("conversation", 10_000, 0.2112),
        ("conversation", None, 0.3664),
        ("synthetic", 1_000, 0.0825),
        ("synthetic", 5_859, 0.3094),
        ("synthetic", 10_000, 0.4235),
        ("synthetic", None, 0.6396),
    ],
)
def test_whole_traces_hit_as_often_as_measured_independently(
    trace: str, capacity: int | None, rate: float
) -> None:
    """Figures of paper-results.md section 3.2: share of all looked-up blocks, head first."""
    result = simulate_capacity([request.hash_ids for request in open_trace(trace)], capacity)
    assert round(result.block_hit_rate, 4) == rate
    assert round(result.prefix_hit_rate, 4) == rate
