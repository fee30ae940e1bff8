"""Fuzz targets of what an SSD store reads from its disk: never wrong bytes, a crash or a hang."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mooncake_storage_node.ssd import State
from mooncake_storage_node.ssd.core import records
from mooncake_storage_node.ssd.core.records import EntryRecord
from mooncake_storage_node.ssd.core.rows import RowBuilder
from mooncake_storage_node.ssd.core.table import Entry
from mooncake_storage_node.ssd.disk import region_number
from mooncake_storage_node.ssd.index import LmdbIndex
from mooncake_storage_node.ssd.verifying import ExtentVerifier
from mooncake_store import extent
from mooncake_store.errors import StoreError
from mooncake_store.extent import Names
from mooncake_store.limits import MIB
from mooncake_store.testing import seeded
from tests.faults.ssd.extents import make_extent
from tests.faults.ssd.handling import check_counts, fill, opened, outcome

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

CAPACITY = 32 * MIB
WORDS = [0, 1, 2, 511, 512, 4096, 1 << 20, (1 << 31) - 1, (1 << 32) - 1, (1 << 62) + 1]
"""Numbers that programs stumble over."""


@given(key=st.binary(max_size=40), value=st.binary(max_size=400))
@example(key=b"", value=b"")
@example(key=records.SEAL_KEY, value=bytes(32))
def test_any_record_is_read_or_refused(key: bytes, value: bytes) -> None:
    for text in (value, records.close_record(key, value)):
        body = records.open_record(key, text)
        records.unpack_entry(key, text)
        records.unpack_seal(text)
        check, row = records.row_of(key, text)
        assert check == records.check_of(text)
        if row is not None:
            builder = RowBuilder()
            builder.add(records.location_of(key), row)
            assert builder.finish().first == records.location_of(key)
        for read in (records.unpack_identity, records.unpack_epochs, records.unpack_wear):
            read(body)
        records.unpack_region(key, body or b"")


@given(data=st.binary(max_size=3000), cuts=st.lists(st.integers(0, 3000), max_size=4))
def test_any_bytes_are_an_extent_or_are_refused(data: bytes, cuts: list[int]) -> None:
    header = extent.unpack_header(make_extent("key", 5, 700))
    verifier = ExtentVerifier(header)
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        verifier.update(memoryview(data)[at:cut])
        at = max(at, cut)
    with pytest.raises(StoreError):
        verifier.finish()


@given(name=st.text(max_size=20))
@example(name="00000.region")
@example(name="\u0661\u0661\u0661\u0661\u0661.region")
@example(name="-0001.region")
def test_any_file_name_is_a_region_or_is_not(name: str) -> None:
    number = region_number(name)
    assert number == -1 or name == f"{number:05d}.region"


def forge(generator: Random) -> tuple[bytes, bytes]:
    """Return an entry that nobody of ours wrote, with a right check."""

    def word(bits: int) -> int:
        chosen = generator.choice([generator.choice(WORDS), generator.getrandbits(bits)])
        return chosen & ((1 << bits) - 1)

    names = extent.pack_names(Names("ns", f"key-{word(16)}"))[: generator.choice([0, 10, 999])]
    entry = Entry(
        word(64), word(64), word(32) * 512 if generator.random() < 0.7 else 512, word(12),
        word(32), len(names),
    )  # fmt: skip
    record = EntryRecord(entry, word(64), word(64), generator.randbytes(16), names)
    return records.pack_entry(word(32), record)


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
def test_an_index_whose_every_check_is_right_can_say_what_it_likes(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("forged")
    generator = seeded(seed)
    with opened(folder, CAPACITY) as store:
        data = fill(store, range(1, 20), 1000)
    forged = LmdbIndex(folder / "mooncake-ssd" / "index", 8 * MIB)
    forged.commit([forge(generator) for _ in range(50)], [])
    forged.close()
    with opened(folder, CAPACITY) as store:
        assert store.state()[0] is State.READY
        found = store.statistics()
        assert found.memory_bytes < 64 * MIB
        check_counts(found)
        for version, expected in data.items():
            outcome(store, version, expected)
        cursor = 0
        while cursor >= 0:
            page = store.list_page(cursor, 10).result(30)
            assert page.cursor == -1 or page.cursor > cursor
            cursor = page.cursor
        more = fill(store, range(1000, 1020), 300_000)
        assert outcome(store, 1019, more[1019]) == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_regions_full_of_anything_give_nothing_wrong(tmp_path: Path, seed: int) -> None:
    generator = seeded(f"regions-{seed}")
    with opened(tmp_path, CAPACITY) as store:
        data = fill(store, range(1, 80), 30_000)
    for path in sorted(tmp_path.rglob("*.region"))[:3]:
        with path.open("r+b") as file:
            for _ in range(generator.choice([1, 10, 300])):
                file.seek(generator.randrange(CAPACITY // 20))
                file.write(generator.randbytes(generator.choice([1, 8, 512])))
    with opened(tmp_path, CAPACITY) as store:
        found = {outcome(store, version, expected) for version, expected in data.items()}
        assert found <= {"ok", "checksum_mismatch", "stale_extent"}
        check_counts(store.statistics())


def test_the_canary_sees_wrong_bytes(tmp_path: Path) -> None:
    """What these targets look for is noticed when it is there."""
    with opened(tmp_path, CAPACITY) as store:
        data = fill(store, [1], 1000)
        with pytest.raises(AssertionError, match="wrong bytes"):
            outcome(store, 1, data[1][:-1] + b"x")
