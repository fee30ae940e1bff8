"""The format of one extent: what is packed can be read, what is damaged is found."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_store import extent
from mooncake_store.errors import ChecksumMismatch, StaleExtent
from mooncake_store.fingerprint import fingerprint
from mooncake_store.limits import CHUNK_BYTES
from mooncake_store.testing.seeds import seeded
from mooncake_store.types import Pin

IDENTITY = extent.Identity(fingerprint("n", "k"), 1 << 41, 4095, 7, 12345)


def test_a_header_reads_back_as_it_was_packed() -> None:
    raw = extent.pack_header(IDENTITY, 99, 40)
    assert len(raw) == extent.HEADER_BYTES
    assert extent.unpack_header(raw) == (4095, 7, 40, 1 << 41, 12345, 99, IDENTITY.fingerprint)
    assert extent.expect_header(b"xx" + raw, 2, IDENTITY).checksum == 99


@pytest.mark.parametrize("at", range(64))
def test_every_byte_of_a_header_counts(at: int) -> None:
    raw = bytearray(extent.pack_header(IDENTITY, 99, 40))
    raw[at] ^= 1
    with pytest.raises((StaleExtent, ChecksumMismatch)):
        extent.unpack_header(raw)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 1}, StaleExtent),
        ({"fingerprint": bytes(16)}, StaleExtent),
        ({"epoch": 8}, StaleExtent),
        ({"slot": 1}, StaleExtent),
        ({"length": 1}, ChecksumMismatch),
    ],
)
def test_another_identity_is_refused(change: dict[str, object], error: type[Exception]) -> None:
    raw = extent.pack_header(IDENTITY, 99, 40)
    with pytest.raises(error):
        extent.expect_header(raw, 0, IDENTITY._replace(**change))  # type: ignore[arg-type]  # by name


@given(
    st.integers(0, 63),
    st.integers(0, 255),
    st.sampled_from([{}, {"version": 1}, {"epoch": 8}, {"slot": 1}, {"length": 1},
                     {"fingerprint": bytes(16)}]),
)  # fmt: skip
def test_a_header_states_its_checksum_to_whom_it_is_what_was_expected(
    at: int, change: int, wanted: dict[str, object]
) -> None:
    raw = bytearray(extent.pack_header(IDENTITY, 99, 40))
    raw[at] ^= change
    identity = IDENTITY._replace(**wanted)  # type: ignore[arg-type]  # by name
    expected: int | None = None
    with contextlib.suppress(StaleExtent, ChecksumMismatch):
        expected = extent.expect_header(raw, 0, identity).checksum
    assert extent.checksum_in(bytes(raw), identity) == expected
    assert (expected == 99) is (not change and not wanted)


@given(st.lists(st.integers(0, CHUNK_BYTES + 100), max_size=8))
def test_a_payload_hashes_the_same_however_it_is_cut(cuts: list[int]) -> None:
    size = sum(cuts)
    whole = memoryview(seeded(size).randbytes(size))
    parts = []
    at = 0
    for cut in cuts:
        parts.append(whole[at : at + cut])
        at += cut
    chunks = [whole[low : low + CHUNK_BYTES] for low in range(0, size, CHUNK_BYTES)] or [whole]
    wanted = [extent.hash_payload([chunk])[0] for chunk in chunks]
    assert extent.hash_payload(parts) == wanted
    assert len(wanted) == extent.chunk_count(size)
    assert len(extent.pack_table(wanted)) == extent.table_bytes(size)


def test_chunks_are_verified_against_the_table_and_the_table_against_the_header() -> None:
    payload = memoryview(seeded("chunks").randbytes(3 * CHUNK_BYTES + 5))
    digests = extent.hash_payload([payload])
    identity = IDENTITY._replace(length=len(payload))
    sealed = extent.seal(identity, digests, extent.Names("n", "k"))
    header = extent.unpack_header(sealed.header)
    table = memoryview(sealed.tail)[: extent.table_bytes(len(payload))]
    extent.verify_digests(digests, header)
    extent.verify_chunks(1, digests[1:3], table, header)
    with pytest.raises(ChecksumMismatch):
        extent.verify_chunks(0, digests[1:3], table, header)
    damaged = memoryview(bytes(8) + bytes(table[8:]))
    with pytest.raises(ChecksumMismatch):
        extent.verify_chunks(1, digests[1:3], damaged, header)
    with pytest.raises(ChecksumMismatch):
        extent.verify_digests(digests[:-1], header)


TEXTS = st.text(max_size=20)


@given(st.tuples(*[TEXTS] * 4), st.sampled_from(Pin), st.floats(0, 1e12), st.integers(1, 8))
def test_a_name_block_reads_back_as_it_was_packed(
    texts: tuple[str, str, str, str], pin: Pin, ends: float, replicas: int
) -> None:
    names = extent.Names(*texts, pin, ends, replicas, 5, 6)
    raw = extent.pack_names(names)
    assert len(raw) == extent.name_bytes(*texts)
    assert extent.unpack_names(raw) == names


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_damaged_name_block_is_found(at: int, change: int) -> None:
    raw = bytearray(extent.pack_names(extent.Names("namespace", "a key", "group", "parent")))
    raw[at % len(raw)] ^= change
    with pytest.raises(ChecksumMismatch):
        extent.unpack_names(raw)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_name_block_or_damage(raw: bytes) -> None:
    with pytest.raises(ChecksumMismatch):
        extent.unpack_names(raw)


def test_a_name_block_belongs_to_its_header() -> None:
    names = extent.Names("n", "k")
    header = extent.unpack_header(extent.pack_header(IDENTITY, 0, 0))
    extent.verify_names(header, names)
    with pytest.raises(ChecksumMismatch):
        extent.verify_names(header, names._replace(key="l"))


@pytest.mark.parametrize(
    ("size", "names", "wanted"), [(0, 40, 512), (408, 40, 512), (409, 40, 1024)]
)
def test_extents_take_whole_granules(size: int, names: int, wanted: int) -> None:
    assert extent.extent_bytes(size, names) == wanted
