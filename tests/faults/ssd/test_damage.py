"""Files that were flipped, cut or swapped: errors or misses, never bytes (FR-038)."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import lmdb
import pytest

from mooncake_storage_node.ssd import OsFiles, Span, State, Store
from mooncake_storage_node.ssd.core import records
from mooncake_store.deadline import Deadline
from mooncake_store.errors import ChecksumMismatch, ConfigError, StaleExtent
from mooncake_store.limits import KIB, MIB
from mooncake_store.testing import seeded
from tests.faults.ssd.faulty import FaultyFiles
from tests.faults.ssd.handling import (
    WAIT_S,
    await_state,
    check_counts,
    fill,
    opened,
    outcome,
    outcomes,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mooncake_storage_node.ssd import Dropped

ALLOWED = {"ok", ChecksumMismatch.code, StaleExtent.code}


def region(folder: Path, number: int = 0) -> Path:
    return folder / "mooncake-ssd" / "regions" / f"{number:05d}.region"


def index(folder: Path) -> Path:
    return folder / "mooncake-ssd" / "index" / "data.mdb"


def place_of(store: Store, version: int) -> tuple[int, int]:
    """Return number of the region and offset in it."""
    volume = store._volume
    assert volume is not None
    entry = volume.ledger.table.at(store.find(version))
    assert entry is not None
    return divmod(entry.place, volume.ledger.geometry.region_bytes)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 16]))
        file.flush()
        os.fsync(file.fileno())


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("where", ["header", "payload", "table", "names"])
def test_fr_038_one_flipped_byte_costs_one_object(
    tmp_path: Path,
    where: str,
    reopen: bool,  # noqa: FBT001 - pytest passes it
) -> None:
    size = 600 * KIB
    at = {"header": 20, "payload": 64 + 300_000, "table": 64 + size + 3, "names": 64 + size + 50}
    dropped: list[Dropped] = []
    with opened(tmp_path, on_dropped=dropped.extend) as store:
        data = fill(store, [1, 2, 3], size)
        number, offset = place_of(store, 2)
        if not reopen:
            flip(region(tmp_path, number), offset + at[where])
            assert outcome(store, 2, data[2]) == ChecksumMismatch.code
            assert outcome(store, 2, data[2]) == StaleExtent.code
            assert [one.version for one in dropped] == [2]
            assert outcomes(store, {1: data[1], 3: data[3]}) == {1: "ok", 3: "ok"}
            assert sum(store.statistics().lost.values()) == 1
            check_counts(store.statistics())
    if reopen:
        flip(region(tmp_path, number), offset + at[where])
        with opened(tmp_path) as store:
            assert outcome(store, 2, data[2]) in ALLOWED - {"ok"}
            assert outcomes(store, {1: data[1], 3: data[3]}) == {1: "ok", 3: "ok"}
            assert sum(store.statistics().lost.values()) == 1
            check_counts(store.statistics())


@pytest.mark.parametrize("live", [False, True])
def test_fr_038_a_cut_file_costs_what_lay_behind_the_cut(
    tmp_path: Path,
    live: bool,  # noqa: FBT001 - pytest passes it
) -> None:
    with opened(tmp_path) as store:
        data = fill(store, range(1, 25), 512 * KIB)
        if live:
            os.truncate(region(tmp_path), 1 * MIB)
            check_cut(store, data)
    if not live:
        os.truncate(region(tmp_path), 1 * MIB)
        with opened(tmp_path) as store:
            check_cut(store, data)


def check_cut(store: Store, data: dict[int, bytes]) -> None:
    found = outcomes(store, data)
    assert set(found.values()) <= ALLOWED
    good = sum(code == "ok" for code in found.values())
    assert 12 <= good < len(data)
    check_counts(store.statistics())
    more = fill(store, range(100, 200), 512 * KIB)
    assert outcome(store, 199, more[199]) == "ok"
    assert set(outcomes(store, more).values()) <= ALLOWED


@pytest.mark.parametrize("live", [False, True])
def test_fr_038_swapped_files_give_nothing_wrong(
    tmp_path: Path,
    live: bool,  # noqa: FBT001 - pytest passes it
) -> None:
    def swap() -> None:
        first, second, aside = region(tmp_path, 0), region(tmp_path, 1), tmp_path / "aside"
        first_bytes, second_bytes = first.read_bytes(), second.read_bytes()
        for path, contents in ((first, second_bytes), (second, first_bytes)):
            with path.open("r+b") as file:
                file.write(contents)
                os.fsync(file.fileno())
        assert not aside.exists()

    with opened(tmp_path) as store:
        data = fill(store, range(1, 25), 512 * KIB)
        found: dict[int, str] = {}
        if live:
            swap()
            found = outcomes(store, data)
    if not live:
        swap()
        with opened(tmp_path) as store:
            found = outcomes(store, data)
            check_counts(store.statistics())
    assert set(found.values()) <= ALLOWED
    assert sum(code == "ok" for code in found.values()) >= 8
    assert sum(code != "ok" for code in found.values()) >= 8


@pytest.mark.parametrize("whole", [False, True])
def test_fr_038_two_extents_that_changed_places_are_both_refused(
    tmp_path: Path,
    whole: bool,  # noqa: FBT001 - pytest passes it
) -> None:
    with opened(tmp_path) as store:
        data = fill(store, [1, 2], 100 * KIB)
        assert len(data[1]) == len(data[2])
        places = [place_of(store, version) for version in (1, 2)]
        for (number, offset), version in zip(places, (2, 1), strict=True):
            with region(tmp_path, number).open("r+b") as file:
                file.seek(offset)
                file.write(data[version])
                file.flush()
                os.fsync(file.fileno())
        for version in (1, 2):
            if whole:
                assert outcome(store, version, data[version]) == ChecksumMismatch.code
                continue
            span = Span(store.find(version), version, 5000, 100)
            transfer = store.read_into(span, [memoryview(bytearray(100))], Deadline(WAIT_S))
            with pytest.raises(ChecksumMismatch):
                transfer.result(WAIT_S)
        assert store.statistics().lost == {"stale_extent": 2}


def test_a_missing_region_costs_its_objects_only(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        data = fill(store, range(1, 25), 512 * KIB)
    region(tmp_path, 0).unlink()
    with opened(tmp_path) as store:
        found = outcomes(store, data)
        assert set(found.values()) == {"ok", StaleExtent.code}
        more = fill(store, range(100, 120), 512 * KIB)
        assert set(outcomes(store, more).values()) == {"ok"}


def cut(path: Path, how: str) -> None:
    """Leave a file as a process does that is killed while the file gets its room."""
    if how == "short":
        os.truncate(path, path.stat().st_size // 2)
        return
    size = path.stat().st_size
    path.unlink()
    with path.open("wb") as file:  # its length is there already, its room is not
        file.truncate(size)


@pytest.mark.parametrize("how", ["short", "hole"])
def test_a_region_that_has_not_all_of_its_room_gets_it_at_reopen(tmp_path: Path, how: str) -> None:
    with opened(tmp_path) as store:
        data = fill(store, [1], 100 * KIB)
        volume = store._volume
        assert volume is not None
        size = volume.ledger.geometry.region_bytes
        count = len(volume.ledger.regions)
    unused = region(tmp_path, count - 1)
    cut(unused, how)
    with opened(tmp_path) as store:
        found = unused.stat()
        assert found.st_size == size
        assert found.st_blocks * 512 >= size
        assert outcomes(store, data) == {1: "ok"}


def test_an_unused_region_for_which_there_is_no_room_is_made_when_there_is(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, [1], 100 * KIB)
        volume = store._volume
        assert volume is not None
        count = len(volume.ledger.regions)
    unused = region(tmp_path, count - 1)
    os.truncate(unused, 4096)
    files = FaultyFiles()
    files.faults.fail("allocate", code=errno.ENOSPC, name=".region")
    with opened(tmp_path, files=files) as store:
        await_state(store, State.DEGRADED, "no room for a region")
        assert not unused.exists()
        files.faults.mend()
        await_state(store, State.READY)
        assert unused.exists()


def damage_somewhere(path: Path, seed: int) -> None:
    generator = seeded(seed)
    size = 256 * KIB  # The used part of a young index.
    with path.open("r+b") as file:
        for _ in range(generator.choice([1, 3, 50])):
            at = generator.randrange(size)
            if generator.random() < 0.5:
                at = at // 4096 * 4096 + at % 64
            file.seek(at)
            file.write(bytes([generator.randrange(256)]))
        if generator.random() < 0.2:
            file.truncate(generator.randrange(size))


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_index_brings_nothing_back_and_ends_nobody(tmp_path: Path, seed: int) -> None:
    with opened(tmp_path, files=OsFiles()) as store:
        data = fill(store, range(1, 200), 1 * KIB)
        gone = [v for v in data if v % 3 == 0]
        store.remove([(-1, v) for v in gone]).result(30)
        store.set_epochs({9: 4}).result(30)
    damage_somewhere(index(tmp_path), seed)
    with opened(tmp_path, files=OsFiles()) as store:
        assert store.state()[0] is State.READY
        found = outcomes(store, data)
        assert set(found.values()) <= ALLOWED
        assert all(found[v] == StaleExtent.code for v in gone)
        lost = sum(found[v] != "ok" for v in data if v not in gone)
        assert bool(lost) == bool(store.statistics().lost)
        check_counts(store.statistics())
        assert len(fill(store, range(500, 520), 64 * KIB)) == 20
    with opened(tmp_path, files=OsFiles()) as store:
        assert outcome(store, 519, b"") != "ok" or store.find(519) >= 0


def test_an_index_of_an_older_time_is_not_believed(tmp_path: Path) -> None:
    with opened(tmp_path, files=OsFiles()) as store:
        data = fill(store, range(1, 20), 1 * KIB)
    old = index(tmp_path).read_bytes()
    with opened(tmp_path, files=OsFiles()) as store:
        first = store.incarnation
        store.remove([(-1, 5)]).result(30)
    index(tmp_path).write_bytes(old)
    with opened(tmp_path, files=OsFiles()) as store:
        assert store.find(5) == -1
        assert store.statistics().lost == {"index_damaged": 1}
        assert store.incarnation != first
        assert set(outcomes(store, data).values()) == {StaleExtent.code}


def change_index(folder: Path, key: bytes, value: bytes | None) -> bytes | None:
    """Return a record; put another one in its place, behind the store's back."""
    with lmdb.open(str(index(folder).parent), map_size=8 * MIB, lock=False) as environment:
        transaction = environment.begin(write=True)
        old = transaction.get(key)
        if value is not None:
            transaction.put(key, value)
        transaction.commit()
    return old


def test_a_record_of_an_older_time_is_not_believed(tmp_path: Path) -> None:
    """As if a damaged page led to an old leaf, whose records are all right by themselves."""
    with opened(tmp_path, files=OsFiles()) as store:
        fill(store, range(1, 20), 1 * KIB)
        location = store.find(5)
    key = records.entry_key(location)
    old = change_index(tmp_path, key, None)
    with opened(tmp_path, files=OsFiles()) as store:
        store.remove([(location, 5)]).result(30)
    change_index(tmp_path, key, old)
    with opened(tmp_path, files=OsFiles()) as store:
        assert store.find(5) == -1
        assert store.statistics().lost == {"index_damaged": 1}


def test_the_index_of_another_store_is_not_believed(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        with opened(tmp_path / name, files=OsFiles()) as store:
            fill(store, range(1, 20), 1 * KIB)
    index(tmp_path / "a").write_bytes(index(tmp_path / "b").read_bytes())
    with opened(tmp_path / "a", files=OsFiles()) as store:
        assert store.statistics().entries == 0
        assert store.statistics().lost == {"index_damaged": 1}


def format_file(folder: Path) -> Path:
    return folder / "mooncake-ssd" / "format"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("1", "2", 1),
        lambda _: "",
        lambda _: "{} 2d06800538d394c2\n",
        lambda _: "\xff\x00garbage",
    ],
)
def test_a_damaged_format_file_means_an_empty_store(
    tmp_path: Path, change: Callable[[str], str]
) -> None:
    with opened(tmp_path) as store:
        fill(store, range(1, 20), 1 * KIB)
    path = format_file(tmp_path)
    path.write_text(change(path.read_text()), encoding="latin-1")
    with opened(tmp_path) as store:
        assert store.statistics().entries == 0
        assert store.statistics().lost == {"format_damaged": 1}
        assert len(fill(store, [1], 10)) == 1


def test_a_directory_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    import xxhash  # noqa: PLC0415 - only here

    with opened(tmp_path) as store:
        fill(store, [1], 1 * KIB)
    path = format_file(tmp_path)
    body = path.read_text().rstrip("\0\n").rpartition(" ")[0].replace('"format":1', '"format":2')
    newer = f"{body} {xxhash.xxh3_64_hexdigest(body.encode())}\n"
    path.write_text(newer)
    with pytest.raises(ConfigError, match="format 2"):
        Store.open(tmp_path, 64 * MIB)
    assert path.read_text() == newer


def test_files_that_are_not_ours_do_no_harm(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        data = fill(store, [1], 1 * KIB)
    root = tmp_path / "mooncake-ssd"
    (root / "format.tmp").write_text("half")
    (root / "regions" / "notes.txt").write_text("mine")
    (root / "regions" / "1.region").write_text("mine")
    (root / "regions" / "00007.region").write_bytes(bytes(100))
    with opened(tmp_path) as store:
        assert outcomes(store, data) == {1: "ok"}
        assert not (root / "format.tmp").exists()
        assert (root / "regions" / "notes.txt").exists()
        more = fill(store, range(10, 100), 512 * KIB)
        assert outcome(store, 99, more[99]) == "ok"
