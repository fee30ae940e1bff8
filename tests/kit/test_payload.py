"""Payloads say what they are."""

from __future__ import annotations

import pytest

from mooncake_store.testing import describe, identify, payload, payload_range, stamped_version
from mooncake_store.testing.payload import key_hash


@pytest.mark.parametrize("size", [0, 1, 23, 24, 25, 4095, 4096, 100_001])
def test_a_payload_has_the_size_asked_for_and_is_the_same_each_time(size: int) -> None:
    assert len(payload("k", 1, size)) == size
    assert payload("k", 1, size) == payload("k", 1, size)


def test_a_known_payload_never_changes() -> None:
    assert payload("key", 7, 40).hex() == GOLDEN


GOLDEN = "e36551a0630deabb07000000000000002800000000000000c98d6bc34bbd4681076b4bdd05222ab4"


def test_versions_differ_in_every_block() -> None:
    one, two = payload("k", 1, 8192), payload("k", 2, 8192)
    assert all(one[at : at + 64] != two[at : at + 64] for at in range(0, 8192, 64))


def test_a_payload_differs_from_itself_shifted_by_what_stores_align_to() -> None:
    data = payload("k", 1, 1 << 20)
    for shift in (512, 4096, 65536, 262144):
        assert data[:256] != data[shift : shift + 256]
        assert data[512:768] != data[512 + shift : 768 + shift]


def test_bytes_are_identified_among_candidates() -> None:
    assert identify(payload("k", 2, 500), "k", [1, 2, 3]) == 2
    assert identify(payload("k", 4, 500), "k", [1, 2, 3]) is None
    assert identify(payload("k", 2, 500)[:499], "k", [1, 2, 3]) is None


def test_a_range_is_a_part_of_the_whole() -> None:
    assert payload_range("k", 1, 1000, 100, 50) == payload("k", 1, 1000)[100:150]


def test_a_payload_says_itself_which_version_it_is() -> None:
    whole = payload("k", 7, 500)
    assert stamped_version(whole, "k") == 7
    assert stamped_version(whole[:100], "k") == 7
    assert stamped_version(whole, "other") is None
    assert stamped_version(whole[:100] + whole[99:], "k") is None
    assert stamped_version(whole[:200] + bytes(300), "k") is None
    assert stamped_version(b"short", "k") is None


def test_unexpected_bytes_are_described() -> None:
    names = {key_hash("other"): "other"}
    assert "version 3 of 'other'" in describe(payload("other", 3, 100), names)
    assert "only the beginning" in describe(payload("other", 3, 100)[:60] + bytes(40), names)
    assert describe(bytes(10)) == "10 zero bytes"
    assert describe(b"") == "no bytes"
    assert "no payload begins with" in describe(b"\xa5" * 100, names)
