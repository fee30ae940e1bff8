"""Percentiles, blocks and crews."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_client._cli.blocks import block_bytes, wrong_bytes
from mooncake_client._cli.crew import run_together
from mooncake_client._cli.figures import Durations

if TYPE_CHECKING:
    import threading


def test_percentiles_are_durations_that_occurred() -> None:
    durations = Durations(n / 1000 for n in range(1, 101))
    assert [durations.percentile_ms(p) for p in (1, 50, 99, 100)] == [1, 50, 99, 100]
    assert Durations([0.25]).percentile_ms(99) == 250
    assert Durations().percentile_ms(50) is None


def test_durations_add_up() -> None:
    one, two = Durations([0.001]), Durations([0.003])
    two.add(0.002)
    one.merge(two)
    assert len(one) == 3
    assert one.percentile_ms(50) == 2


@given(st.text(), st.integers(0, 5_000))
def test_a_block_has_its_size_and_is_the_same_each_time(key: str, size: int) -> None:
    block = block_bytes(key, size)
    assert len(block) == size
    assert wrong_bytes(bytearray(block), key) == 0


def test_blocks_of_different_keys_differ() -> None:
    assert wrong_bytes(block_bytes("a", 4096), "b") > 4000


def test_a_crew_ends_when_all_have_returned() -> None:
    done: list[int] = []
    run_together([lambda _stop, n=n: done.append(n) for n in range(5)])  # type: ignore[misc] # bound default
    assert sorted(done) == [0, 1, 2, 3, 4]


def test_the_first_failure_stops_the_others_and_is_raised() -> None:
    def fails(stop: threading.Event) -> None:
        del stop
        raise ValueError("first")

    def waits(stop: threading.Event) -> None:
        assert stop.wait(10)

    with pytest.raises(ValueError, match="first"):
        run_together([waits, fails, waits])
