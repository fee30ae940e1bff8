"""What a store knows of those before it in its directory: which are gone for good (ADR 82)."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node.ssd import OsFiles, State
from mooncake_store.limits import KIB, MIB, REPLACED_MAX
from mooncake_store.testing import wait_until
from tests.faults.ssd.handling import WAIT_S, check_counts, fill, opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mooncake_storage_node.ssd import Store


def root(folder: Path) -> Path:
    return folder / "mooncake-ssd"


def spoil(path: Path) -> None:
    """Write garbage over the beginning of a file."""
    with path.open("r+b") as file:
        file.write(b"\xa5" * 16 * KIB)
        file.flush()
        os.fsync(file.fileno())


def spoil_index(folder: Path) -> None:
    spoil(root(folder) / "index" / "data.mdb")


def remove_index(folder: Path) -> None:
    (root(folder) / "index" / "data.mdb").unlink()


def remove_index_and_witness(folder: Path) -> None:
    remove_index(folder)
    (root(folder) / "witness").unlink()


def spoil_format(folder: Path) -> None:
    spoil(root(folder) / "format")


def remove_format(folder: Path) -> None:
    (root(folder) / "format").unlink()


def spoil_all(folder: Path) -> None:
    spoil_format(folder)
    spoil_index(folder)


def remove_regions(folder: Path) -> None:
    for file in (root(folder) / "regions").iterdir():
        file.unlink()


def move_away(folder: Path) -> None:
    root(folder).rename(folder / "elsewhere")


def empty(folder: Path) -> None:
    for file in folder.iterdir():
        shutil.rmtree(file)


def made(folder: Path, capacity: int = 64 * MIB) -> int:
    """Have a store in a folder that holds something; return its incarnation."""
    with opened(folder, capacity, files=OsFiles()) as store:
        fill(store, range(1, 20), 1 * KIB)
        return store.incarnation


GOOD: list[Callable[[Path], None]] = [spoil_index, remove_index, spoil_format, remove_format]
AWAY: list[Callable[[Path], None]] = [move_away, empty, spoil_all]
SAME: list[Callable[[Path], None]] = [remove_regions, remove_index_and_witness]


@pytest.mark.parametrize("harm", GOOD)
def test_a_store_that_was_made_of_the_files_of_another_one_says_so_ever_after(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    old = made(tmp_path)
    harm(tmp_path)
    for _ in range(3):
        with opened(tmp_path, files=OsFiles()) as store:
            assert store.incarnation != old
            assert store.replaced == (old,)


@pytest.mark.parametrize("harm", AWAY)
def test_a_store_that_may_have_been_moved_away_is_not_said_to_be_gone(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    """Nor one of which nothing says any more whose it was."""
    old = made(tmp_path)
    harm(tmp_path)
    with opened(tmp_path, files=OsFiles()) as store:
        assert store.incarnation != old
        assert store.replaced == ()


@pytest.mark.parametrize("harm", SAME)
def test_a_store_that_lost_its_contents_is_the_same_one(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    old = made(tmp_path)
    harm(tmp_path)
    with opened(tmp_path, files=OsFiles()) as store:
        assert (store.incarnation, store.replaced) == (old, ())
        assert store.statistics().entries == 0


@pytest.mark.parametrize("harm", [spoil_index, spoil_format])
def test_under_a_live_store_it_is_the_same(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    with opened(tmp_path, files=OsFiles()) as store:
        fill(store, range(1, 20), 1 * KIB)
        old = store.incarnation
        harm(tmp_path)
        volume = store._volume
        assert volume is not None
        volume.ledger.stop("the test wants it opened again")
        wait_until(lambda: store.incarnation != old, WAIT_S, what="it is made anew")
        assert store.replaced == (old,)
        check_counts(store.statistics())


def test_an_emptied_directory_of_a_live_store_says_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, files=OsFiles()) as store:
        old = store.incarnation
        move_away(tmp_path)
        wait_until(lambda: store.incarnation != old, WAIT_S, what="it is made anew")
        assert store.replaced == ()


def test_a_capacity_that_its_regions_do_not_fit_replaces_it(tmp_path: Path) -> None:
    old = made(tmp_path, capacity=256 * MIB)
    with opened(tmp_path, capacity=32 * MIB, files=OsFiles()) as store:
        assert store.replaced == (old,)


def test_the_newest_of_many_are_remembered(tmp_path: Path) -> None:
    all_of_them = []
    for _ in range(REPLACED_MAX + 3):
        all_of_them.append(made(tmp_path))
        spoil_index(tmp_path)
    with opened(tmp_path, files=OsFiles()) as store:
        assert store.replaced == tuple(all_of_them[-REPLACED_MAX:])


def test_a_copy_of_a_store_that_is_gone_begins_empty(tmp_path: Path) -> None:
    disk, backup = tmp_path / "disk", tmp_path / "backup"
    disk.mkdir()
    old = made(disk)
    shutil.copytree(root(disk), backup)
    spoil_index(disk)
    with opened(disk, files=OsFiles()) as store:
        new, replaced = store.incarnation, store.replaced
    shutil.rmtree(root(disk))
    shutil.copytree(backup, root(disk))
    with opened(disk, files=OsFiles(), gone=set(replaced)) as store:
        assert store.state()[0] is State.READY
        assert store.incarnation not in {old, new}
        assert store.statistics().entries == 0
        assert store.statistics().lost == {"replaced": 1}
        assert store.replaced == (old,)


def test_numbers_that_no_store_has_are_not_repeated(tmp_path: Path) -> None:
    import xxhash  # noqa: PLC0415 - only here

    old = made(tmp_path)
    path = root(tmp_path) / "format"
    body = path.read_text().rstrip("\0\n").rpartition(" ")[0]
    body = body.replace('"replaced":[]', f'"replaced":[-1,0,{1 << 63},{1 << 200},7]')
    path.write_text(f"{body} {xxhash.xxh3_64_hexdigest(body.encode())}\n")
    with opened(tmp_path, files=OsFiles()) as store:
        assert_same(store, old)


def assert_same(store: Store, incarnation: int) -> None:
    assert (store.incarnation, store.replaced) == (incarnation, (7,))


def test_a_format_file_of_an_older_version_says_nothing_of_it(tmp_path: Path) -> None:
    import xxhash  # noqa: PLC0415 - only here

    old = made(tmp_path)
    path = root(tmp_path) / "format"
    body = path.read_text().rstrip("\0\n").rpartition(" ")[0].replace(',"replaced":[]', "")
    path.write_text(f"{body} {xxhash.xxh3_64_hexdigest(body.encode())}\n")
    with opened(tmp_path, files=OsFiles()) as store:
        assert (store.incarnation, store.replaced) == (old, ())
