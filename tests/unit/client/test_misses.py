"""The reasons of the last misses."""

from __future__ import annotations

from mooncake_client._core.misses import Misses
from mooncake_store.types import MissReason


def test_the_last_reason_of_a_key_stands() -> None:
    misses = Misses()
    assert misses.reason("k") is None
    misses.note("k", MissReason.ABSENT)
    misses.note("k", MissReason.NODE_DOWN)
    assert misses.reason("k") is MissReason.NODE_DOWN


def test_the_newest_are_remembered_and_their_number_is_bounded() -> None:
    misses = Misses(entries_max=10)
    for at in range(100):
        misses.note(f"k{at}", MissReason.EVICTED)
        assert len(misses) <= 10
    assert all(misses.reason(f"k{at}") is MissReason.EVICTED for at in range(95, 100))
    assert misses.reason("k0") is None


def test_the_newest_reason_counts_even_where_an_older_one_is_remembered() -> None:
    misses = Misses(entries_max=4)
    for key, reason in (("k", 0), ("x", 0), ("k", 6)):
        misses.note(key, reason)
    assert misses.reason("k") is MissReason.NODE_DOWN


def test_a_reason_of_a_newer_master_is_as_good_as_none() -> None:
    misses = Misses()
    misses.note("k", 200)
    assert misses.reason("k") is MissReason.ABSENT
