from __future__ import annotations

import pytest

from mooncake_storage_node.ssd.verifying import ExtentVerifier, read_names
from mooncake_store import extent
from mooncake_store.errors import ChecksumMismatch, StoreError
from mooncake_store.extent import Names
from mooncake_store.limits import CHUNK_BYTES
from tests.faults.ssd.extents import make_extent

SIZES = [0, 1, 63, 64, 4096, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 17]


def verify(data: bytes, cuts: list[int]) -> bytes:
    verifier = ExtentVerifier(extent.unpack_header(data))
    view = memoryview(data)
    at = 0
    for cut in [*cuts, len(data)]:
        verifier.update(view[at:cut])
        at = max(at, cut)
    return verifier.finish()


@pytest.mark.parametrize("size", SIZES)
def test_a_whole_extent_verifies_however_it_is_cut(size: int) -> None:
    data = make_extent("key", 5, size)
    names = extent.pack_names(Names("ns", "key"))
    assert verify(data, []) == names
    assert verify(data, [1, 64, 65, 1000, len(data) - 1]) == names


@pytest.mark.parametrize("size", SIZES)
def test_a_flipped_bit_anywhere_is_noticed(size: int) -> None:
    data = make_extent("key", 5, size)
    end = extent.read_bytes(size) + len(extent.pack_names(Names("ns", "key")))
    header = extent.unpack_header(data)
    for at in {0, 8, 40, 63, 64, 64 + size // 2, 64 + size, end - 1}:
        bad = bytearray(data)
        bad[at] ^= 4
        verifier = ExtentVerifier(header)
        verifier.update(memoryview(bad))
        with pytest.raises(StoreError):
            verifier.finish()


def test_a_name_block_of_another_object_is_refused() -> None:
    header = extent.unpack_header(make_extent("key", 5, 10))
    with pytest.raises(ChecksumMismatch):
        read_names(header, extent.pack_names(Names("ns", "other")))


def test_a_name_block_with_a_right_check_and_wrong_contents_is_refused() -> None:
    header = extent.unpack_header(make_extent("key", 5, 10))
    block = extent.pack_names(Names("ns", "key", pin=99))  # type: ignore[arg-type]  # no pin at all
    with pytest.raises(ChecksumMismatch, match="no sense"):
        read_names(header, block)
