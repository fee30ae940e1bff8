"""Real file systems that are full, read-only, broken or somebody else's (FR-053, FR-054).

They are mounted, which needs root; elsewhere ``test_disk_faults`` shows the same with a file layer
that fails to order.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node.ssd import OsFiles, State, Store
from mooncake_store.errors import Overloaded, StaleExtent, StoreError
from mooncake_store.limits import KIB, MIB
from mooncake_store.testing import wait_until
from tests.faults.ssd.extents import make_extent
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
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Mount = Callable[..., Path]


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=60)


def can_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """A function that mounts a file system and returns its directory; unmounted in the end."""
    place = tmp_path / "mount"

    def mount_it(*words: str) -> Path:
        place.mkdir(exist_ok=True)
        try:
            run("mount", *words, str(place))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"nothing can be mounted here: {error}")
        return place

    if not can_mount():
        pytest.skip("mounting a file system needs root")
    yield mount_it
    if place.is_mount():
        run("umount", "--lazy", str(place))


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A file that holds an empty ext4."""
    path = tmp_path / "disk.img"
    with path.open("wb") as file:
        file.truncate(96 * MIB)
    run("mkfs.ext4", "-q", "-m", "0", str(path))
    return path


def hog(place: Path) -> Path:
    """Fill a file system with somebody else's file."""
    path = place / "foreign"
    with path.open("wb", buffering=0) as file:
        for size in (1 * MIB, 4 * KIB):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return path


def test_fr_053_a_file_system_filled_by_others(mount: Mount) -> None:
    place = mount("-t", "tmpfs", "-o", "size=64m", "tmpfs")
    with opened(place, 60 * MIB, files=OsFiles()) as store:
        data = fill(store, range(1, 30), 512 * KIB)
        foreign = hog(place)
        data |= fill(store, range(30, 120), 512 * KIB)
        assert "No space" in await_state(store, State.DEGRADED, "no room")
        found = outcomes(store, data)
        assert set(found.values()) == {"ok", StaleExtent.code}
        assert found[119] == "ok"
        store.remove([(-1, 119)]).result(WAIT_S)
        foreign.unlink()
        fill(store, range(200, 300), 512 * KIB)
        await_state(store, State.READY)
        check_counts(store.statistics())
    with opened(place, 60 * MIB, files=OsFiles()) as store:
        assert store.find(119) == -1
        assert store.find(299) >= 0


def test_fr_053_a_file_system_that_was_full_before(mount: Mount) -> None:
    place = mount("-t", "tmpfs", "-o", "size=64m", "tmpfs")
    foreign = hog(place)
    with opened(place, 60 * MIB, files=OsFiles()) as store:
        assert "No space" in await_state(store, State.DEGRADED)
        with pytest.raises(Overloaded):
            store.write(memoryview(make_extent("k", 1, 10)), 1)
        foreign.unlink()
        await_state(store, State.READY)
        assert len(fill(store, range(1, 9), 512 * KIB)) == 8


def test_fr_053_a_file_system_that_gives_up_and_is_repaired(mount: Mount, image: Path) -> None:
    place = mount("-o", "loop", str(image))
    with opened(place, 64 * MIB, files=OsFiles()) as store:
        data = fill(store, range(1, 30), 512 * KIB)
        gone = store.find(5)
        store.remove([(gone, 5)]).result(WAIT_S)
        run("mount", "-o", "remount,abort", str(place))
        with pytest.raises(StoreError):
            fill(store, range(50, 60), 512 * KIB)
        await_state(store, State.DEGRADED, "Read-only")
        wait_until(lambda: unmount(place), WAIT_S, what="the store lets go of the disk")
        await_state(store, State.DEGRADED, "another file system than before")
        assert not list(place.iterdir())
        subprocess.run(["e2fsck", "-fy", str(image)], capture_output=True, check=False, timeout=60)  # noqa: S607 - fixed words
        mount("-o", "loop", str(image))
        await_state(store, State.READY)
        found = outcomes(store, data)
        assert found.pop(5) == StaleExtent.code
        assert set(found.values()) == {"ok"}, f"{store.statistics().lost} {found}"
        assert len(fill(store, range(100, 110), 512 * KIB)) == 10
        check_counts(store.statistics())


def unmount(place: Path) -> bool:
    done = subprocess.run(["umount", str(place)], capture_output=True, check=False, timeout=60)  # noqa: S607 - fixed words
    return not done.returncode


def test_a_file_system_that_is_read_only_at_first(mount: Mount, image: Path) -> None:
    place = mount("-o", "loop", str(image))
    run("mount", "-o", "remount,ro", str(place))
    with opened(place, 64 * MIB, files=OsFiles()) as store:
        assert "Read-only" in await_state(store, State.DEGRADED)
        run("mount", "-o", "remount,rw", str(place))
        await_state(store, State.READY)
        assert len(fill(store, [1], 10)) == 1


def test_fr_054_the_oldest_file_cannot_be_changed(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("chattr") is None:
        pytest.skip("making a file immutable needs root and chattr")
    with opened(tmp_path, 64 * MIB, files=OsFiles()) as store:
        fill(store, range(1, 20), 512 * KIB)
        oldest = tmp_path / "mooncake-ssd" / "regions" / "00000.region"
        try:
            run("chattr", "+i", str(oldest))
        except subprocess.CalledProcessError:
            pytest.skip("this file system has no immutable files")
        try:
            data = fill(store, range(20, 250), 512 * KIB)
            assert len(data) == 230
            assert "region file 0" in await_state(store, State.DEGRADED, "not permitted")
            assert store.statistics().regions_broken == 1
            assert outcome(store, 249, data[249]) == "ok"
        finally:
            run("chattr", "-i", str(oldest))
        check_counts(store.statistics())


def test_a_directory_of_somebody_else(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("being somebody else for a while needs root")
    place = tmp_path / "private"
    place.mkdir(mode=0o700)
    os.seteuid(65_534)
    try:
        with opened(place) as store:
            assert "Permission denied" in await_state(store, State.DEGRADED)
            os.seteuid(0)
            await_state(store, State.READY)
            assert len(fill(store, [1], 10)) == 1
    finally:
        os.seteuid(0)


def test_a_tmpfs_and_a_disk_without_o_direct_do_the_same(mount: Mount) -> None:
    place = mount("-t", "tmpfs", "-o", "size=64m", "tmpfs")
    with opened(place, 48 * MIB) as store:
        data = fill(store, range(1, 200), 512 * KIB)
        assert outcome(store, 199, data[199]) == "ok"
        assert store.statistics().evicted > 0
    with Store.open(place, 48 * MIB) as store:
        assert outcome(store, 199, data[199]) == "ok"
