"""Faults of a disk to order: the store says what is wrong, does what it can and mends itself."""

from __future__ import annotations

import errno
import fcntl
import logging
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node.ssd import Span, State, Store, locking
from mooncake_storage_node.ssd import format as texts
from mooncake_storage_node.ssd.disk import FOLDER
from mooncake_store.deadline import Deadline
from mooncake_store.errors import (
    ChecksumMismatch,
    Closed,
    ConfigError,
    DeadlineExceeded,
    NoSpace,
    Overloaded,
    StaleExtent,
)
from mooncake_store.limits import KIB, MIB
from mooncake_store.testing import wait_until
from tests.faults.ssd.extents import make_extent
from tests.faults.ssd.faulty import FaultyFiles
from tests.faults.ssd.handling import (
    WAIT_S,
    await_state,
    check_counts,
    fill,
    opened,
    outcome,
    outcomes,
    read_whole,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mooncake_storage_node.ssd import Dropped
    from mooncake_storage_node.ssd.files import File

REGION = ".region"


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


def test_a_disk_that_refuses_writes_refuses_them_aloud_and_reads_go_on(
    tmp_path: Path, files: FaultyFiles
) -> None:
    with opened(tmp_path, files=files) as store:
        data = fill(store, range(1, 9), 256 * KIB)
        files.faults.fail("write", "sync", code=errno.EIO, name=REGION)
        files.faults.fail("write", code=errno.EIO, name="probe")
        with pytest.raises(Overloaded, match="Input/output"):
            fill(store, range(20, 24), 256 * KIB)
        assert "cannot be written" in await_state(store, State.DEGRADED)
        with pytest.raises(Overloaded, match="written"):
            store.write(memoryview(make_extent("k", 99, 10)), 99)
        assert set(outcomes(store, data).values()) == {"ok"}
        refused = store.statistics().refused
        assert refused["degraded"] >= 1
        files.faults.mend()
        await_state(store, State.READY)
        data |= fill(store, range(30, 40), 256 * KIB)
        assert set(outcomes(store, data).values()) == {"ok"}
        check_counts(store.statistics())


def test_a_region_that_refuses_writes_is_skipped_and_reported(
    tmp_path: Path, files: FaultyFiles
) -> None:
    with opened(tmp_path, files=files) as store:
        files.faults.fail("write", code=errno.EPERM, name="00001.region")
        data = fill(store, range(1, 60), 512 * KIB)
        assert len(data) == 59
        reason = await_state(store, State.DEGRADED, "region file 1")
        assert "not permitted" in reason
        assert store.statistics().regions_broken == 1
        assert set(outcomes(store, data).values()) == {"ok"}


def test_a_disk_that_cannot_be_read_is_not_read_and_nothing_is_forgotten(
    tmp_path: Path, files: FaultyFiles
) -> None:
    with opened(tmp_path, files=files) as store:
        data = fill(store, range(1, 9), 64 * KIB)
        files.faults.fail("read", code=errno.EIO)
        assert outcome(store, 1, data[1]) == Overloaded.code
        assert "cannot be read" in await_state(store, State.DEGRADED)
        asked: list[str] = []

        def note(operation: str, path: Path) -> int:
            asked.append(f"{operation} {path.name}")
            return 0

        files.faults.rules.insert(0, note)
        assert set(outcomes(store, data).values()) == {Overloaded.code}
        # It goes on to probe the disk with a file of its own.
        assert not [each for each in asked if each.startswith("read") and each.endswith(REGION)]
        files.faults.mend()
        await_state(store, State.READY)
        assert set(outcomes(store, data).values()) == {"ok"}


def test_a_place_that_cannot_be_read_costs_what_lies_there(
    tmp_path: Path, files: FaultyFiles
) -> None:
    dropped: list[Dropped] = []
    with opened(tmp_path, files=files, on_dropped=dropped.extend) as store:
        data = fill(store, range(1, 30), 512 * KIB)
        files.faults.fail("read", code=errno.EIO, name="00000.region")
        found = outcomes(store, data)
        bad = {version for version, code in found.items() if code != "ok"}
        assert bad
        assert {found[version] for version in bad} == {ChecksumMismatch.code}
        assert {one.version for one in dropped} == bad
        assert store.statistics().lost == {"io_error": len(bad)}
        assert store.state()[0] is State.READY
        assert all(store.find(version) < 0 for version in bad)
        check_counts(store.statistics())


def test_a_failed_sync_is_a_failed_write(tmp_path: Path, files: FaultyFiles) -> None:
    with opened(tmp_path, files=files) as store:
        files.faults.fail("sync", code=errno.EIO, name="00000.region")
        with pytest.raises(Overloaded, match="synced"):
            fill(store, [1], 4 * KIB)
        assert store.find(1) == -1
        data = fill(store, [1, 2], 4 * KIB)
        assert set(outcomes(store, data).values()) == {"ok"}


def test_without_an_index_nothing_is_served_until_it_is_back(
    tmp_path: Path, files: FaultyFiles
) -> None:
    changes: list[tuple[State, str]] = []
    with opened(
        tmp_path, files=files, on_change=lambda store: changes.append(store.state())
    ) as store:
        data = fill(store, range(1, 9), 64 * KIB)
        incarnation = store.incarnation
        files.faults.fail("commit", code=errno.EROFS)
        with pytest.raises(Overloaded, match="Read-only"):
            fill(store, [20], 64 * KIB)
        await_state(store, State.DEGRADED, "Read-only")
        wait_until(lambda: outcome(store, 1, data[1]) != "ok", WAIT_S)
        with pytest.raises(Overloaded):
            store.read(0, 1, 0, 64, Deadline(1))
        files.faults.mend()
        await_state(store, State.READY)
        assert store.incarnation == incarnation
        assert set(outcomes(store, data).values()) == {"ok"}
        wait_until(lambda: changes[-1][0] is State.READY, WAIT_S, what="the change is told")
        assert State.DEGRADED in [state for state, _ in changes]
        check_counts(store.statistics())


def test_what_was_removed_while_the_index_failed_never_comes_back(
    tmp_path: Path, files: FaultyFiles
) -> None:
    with opened(tmp_path, files=files) as store:
        data = fill(store, range(1, 9), 64 * KIB)
        locations = {version: store.find(version) for version in data}
        files.faults.fail("commit", code=errno.EIO)
        with pytest.raises(Overloaded):
            store.remove([(locations[1], 1)]).result(WAIT_S)
        wait_until(lambda: store.find(2) < 0, WAIT_S, what="the store is closed")
        with pytest.raises(Overloaded):
            store.remove([(-1, 2)])
        with pytest.raises(Overloaded):
            store.set_epochs({1: 1, 7: 3})
        files.faults.mend()
        await_state(store, State.READY)
        found = outcomes(store, data)
        assert (found.pop(1), found.pop(2)) == (StaleExtent.code, StaleExtent.code)
        assert set(found.values()) == {"ok"}
        store.remove([(locations[3], 3)]).result(WAIT_S)
    with opened(tmp_path) as store:
        assert [store.find(version) for version in (1, 2, 3)] == [-1, -1, -1]
        assert store.find(4) == locations[4]
        with pytest.raises(StaleExtent):
            store.write(memoryview(make_extent("k", 50, 10, slot=7, epoch=2)), 50)


def test_a_full_disk_is_said_and_the_room_that_is_there_is_used(
    tmp_path: Path, files: FaultyFiles
) -> None:
    with opened(tmp_path, files=files) as store:
        data = fill(store, range(1, 12), 512 * KIB)
        files.faults.fail("allocate", code=errno.ENOSPC, name=REGION)
        data |= fill(store, range(12, 80), 512 * KIB)
        assert "No space" in await_state(store, State.DEGRADED, "no room")
        found = store.statistics()
        assert 2 <= found.regions < 8
        assert found.evicted > 0
        assert {"ok", StaleExtent.code} == set(outcomes(store, data).values())
        assert outcome(store, 79, data[79]) == "ok"
        files.faults.mend()
        fill(store, range(100, 120), 512 * KIB)
        await_state(store, State.READY)
        assert store.statistics().regions > found.regions


def test_a_disk_that_has_room_again_says_so_though_nobody_writes(
    tmp_path: Path, files: FaultyFiles
) -> None:
    """A master asks nothing of a disk in trouble: waiting for its writes would be for ever."""
    with opened(tmp_path, files=files) as store:
        fill(store, range(1, 12), 512 * KIB)
        files.faults.fail("allocate", code=errno.ENOSPC, name=REGION)
        fill(store, range(12, 80), 512 * KIB)
        await_state(store, State.DEGRADED, "no room")
        files.faults.mend()
        await_state(store, State.READY)


def test_a_disk_without_room_for_one_region_refuses_and_says_why(
    tmp_path: Path, files: FaultyFiles
) -> None:
    files.faults.fail("allocate", code=errno.ENOSPC, name=REGION)
    with opened(tmp_path, files=files) as store:
        with pytest.raises(NoSpace, match="No space"):
            fill(store, [1], 4 * KIB)
        assert store.statistics().refused == {"no_room": 1}
        files.faults.mend()
        wait_until(lambda: store.state()[0] is State.READY, WAIT_S)
        assert len(fill(store, [1], 4 * KIB)) == 1


def test_a_slow_disk_fills_the_queue_and_then_refuses(tmp_path: Path, files: FaultyFiles) -> None:
    made = {v: memoryview(make_extent(f"key-{v}", v, 256 * KIB)) for v in range(2, 20)}
    with opened(tmp_path, files=files, queue_bytes_max=2 * MIB, stall_s=3.0) as store:
        fill(store, [1], 64 * KIB)
        files.faults.hold("write")
        waiting = []
        with pytest.raises(Overloaded, match="wait"):
            for version, data in made.items():
                waiting.append(store.write(data, version))
        assert len(waiting) >= 7  # as many as the queue holds; one more if a write has begun
        assert store.statistics().refused["queue_full"] == 1
        assert "not answered" in await_state(store, State.DEGRADED)
        assert outcome(store, 1, make_extent("key-1", 1, 64 * KIB)) == "ok"
        files.faults.mend()
        assert all(future.result(WAIT_S).location >= 0 for future in waiting)
        await_state(store, State.READY)


def test_a_disk_that_hangs_for_long_is_said_a_few_times_and_not_again_and_again(
    tmp_path: Path, files: FaultyFiles, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mooncake_storage_node.ssd")
    with opened(tmp_path, files=files, stall_s=0.1) as store:
        files.faults.hold("write")
        waiting = store.write(memoryview(make_extent("key-1", 1, 64 * KIB)), 1)

        def said() -> list[str]:
            return [line for line in caplog.messages if "has not answered" in line]

        def silences_s() -> list[float]:
            return [float(line.partition(" for ")[2].split()[0]) for line in said()]

        wait_until(
            lambda: max(silences_s(), default=0) >= 1.6, WAIT_S, what="the disk is silent for long"
        )
        so_far = silences_s()
        assert len(so_far) == len(set(so_far)), "the same is said again"
        assert set(so_far) <= {0.1 * 2**times for times in range(12)}, so_far
        files.faults.mend()
        assert waiting.result(WAIT_S).location >= 0
        await_state(store, State.READY)


def test_a_witness_that_cannot_be_written_is_said_once_however_often_that_happens(
    tmp_path: Path, files: FaultyFiles, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mooncake_storage_node.ssd")
    with opened(tmp_path, files=files) as store:
        for number in (1, 2):
            files.faults.fail("write", code=errno.EROFS, name="witness")
            for version in range(number * 10, number * 10 + 5):
                fill(store, [version], 64 * KIB)  # A commit each.
            assert len([line for line in caplog.messages if "witness" in line]) == number
            files.faults.mend()
            fill(store, [number * 10 + 5], 64 * KIB)


def test_a_read_ends_at_its_deadline_and_touches_nothing_afterwards(
    tmp_path: Path, files: FaultyFiles
) -> None:
    with opened(tmp_path, files=files) as store:
        data = fill(store, [1], 3 * MIB)[1]
        location = store.find(1)
        files.faults.hold("read")
        target = bytearray(len(data))
        transfer = store.read_into(
            Span(location, 1, 0, len(data)), [memoryview(target)], Deadline(0.3)
        )
        with pytest.raises(DeadlineExceeded):
            transfer.result(WAIT_S)
        staged = store.read(location, 1, 0, 4096, Deadline(0.2))
        with pytest.raises(DeadlineExceeded):
            staged.result(WAIT_S)  # both ended while the disk still hangs
        files.faults.mend()
        assert read_whole(store, 1, len(data)) == data
        assert not any(target)
        volume = store._volume
        assert volume is not None
        wait_until(lambda: not store._staging.used_bytes, WAIT_S, what="memory is given back")


def test_reads_are_bounded_in_number_and_in_memory(tmp_path: Path, files: FaultyFiles) -> None:
    with opened(tmp_path, files=files, reads_waiting_max=16, readers=2) as store:
        data = fill(store, [1], 1 * MIB)[1]
        files.faults.hold("read")
        location = store.find(1)
        futures = []
        with pytest.raises(Overloaded, match="wait"):
            for _ in range(100):
                futures.append(store.read(location, 1, 0, len(data), Deadline(WAIT_S)))
        assert len(futures) <= 20
        assert store.statistics().reads_refused["queue_full"] == 1
        files.faults.mend()
        for future in futures:
            with future.result(WAIT_S) as view:
                assert view == data


def test_who_keeps_staged_memory_makes_others_wait_until_their_deadline(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, staging_bytes=8 * MIB) as store:
        data = fill(store, [1], 1 * MIB)[1]
        location = store.find(1)
        kept = []
        with pytest.raises((Overloaded, DeadlineExceeded)):
            for _ in range(20):
                read = store.read(location, 1, 0, len(data), Deadline(2.0))
                kept.append(read.result(WAIT_S))
        assert 1 <= len(kept) <= 4
        for staged in kept:
            staged.release()
        assert read_whole(store, 1, len(data)) == data


def test_a_store_closes_in_time_although_its_disk_hangs(tmp_path: Path, files: FaultyFiles) -> None:
    with opened(tmp_path, files=files) as store:
        fill(store, [1], 64 * KIB)
        files.faults.hold("write", "read")
        future = store.write(memoryview(make_extent("key-2", 2, 64 * KIB)), 2)
        closing = threading.Thread(target=store.close, args=(0.5,))
        closing.start()
        closing.join(40)
        assert not closing.is_alive()
        files.faults.mend()
        with pytest.raises(Overloaded):
            future.result(WAIT_S)
        with pytest.raises(Closed):
            store.write(memoryview(make_extent("key-3", 3, 64 * KIB)), 3)
        assert store.state()[0] is State.CLOSED


def test_a_directory_is_not_opened_again_while_an_old_write_hangs(
    tmp_path: Path, files: FaultyFiles
) -> None:
    with opened(tmp_path, files=files, stall_s=0.3) as store:
        fill(store, [1], 64 * KIB)
        files.faults.hold("write")
        store.write(memoryview(make_extent("key-2", 2, 64 * KIB)), 2)
        wait_until(lambda: store.state()[0] is State.DEGRADED, WAIT_S)
        volume = store._volume
        assert volume is not None
        volume.ledger.stop("told to")
        wait_until(lambda: store._volume is None, 60)
        time.sleep(0.5)  # Several looks of the supervisor: it must not have opened the directory.
        assert store._volume is None
        files.faults.mend()
        await_state(store, State.READY)
        assert store.find(1) >= 0


def test_a_missing_directory_is_waited_for(tmp_path: Path) -> None:
    place = tmp_path / "mount"
    with opened(place) as store:
        assert "there is no directory" in await_state(store, State.DEGRADED)
        with pytest.raises(Overloaded, match="degraded"):
            store.write(memoryview(make_extent("k", 1, 10)), 1)
        assert store.statistics().refused == {"degraded": 1}
        place.mkdir()
        await_state(store, State.READY)
        assert len(fill(store, [1], 10)) == 1


@pytest.mark.parametrize("below", ["", "inside"])
def test_a_file_where_a_directory_is_wanted_is_refused_at_once(tmp_path: Path, below: str) -> None:
    place = tmp_path / "file"
    place.touch()
    with pytest.raises(ConfigError, match="is no directory"), opened(place / below):
        pass


def test_a_directory_that_is_taken_away_is_noticed_and_a_new_one_is_taken(
    tmp_path: Path,
) -> None:
    place = tmp_path / "mount"
    place.mkdir()
    with opened(place) as store:
        data = fill(store, range(1, 5), 64 * KIB)
        first = store.incarnation
        place.rename(tmp_path / "away")
        await_state(store, State.DEGRADED)
        place.mkdir()
        await_state(store, State.READY)
        assert store.incarnation != first
        assert set(outcomes(store, data).values()) == {StaleExtent.code}
        check_counts(store.statistics())


def test_a_mistake_in_a_thread_costs_a_reopening(tmp_path: Path, files: FaultyFiles) -> None:
    with opened(tmp_path, files=files) as store:
        data = fill(store, range(1, 5), 64 * KIB)
        volume = store._volume
        assert volume is not None

        def mistaken(_: Sequence[int], __: Sequence[int]) -> None:
            raise RuntimeError("no such thing")

        volume.ledger.allocate = mistaken  # type: ignore[method-assign, assignment]  # the mistake
        future = store.write(memoryview(make_extent("key-9", 9, 64 * KIB)), 9)
        wait_until(lambda: store._volume is not volume and store._volume is not None, WAIT_S)
        await_state(store, State.READY)
        with pytest.raises(Overloaded):
            future.result(WAIT_S)
        assert set(outcomes(store, data).values()) == {"ok"}


def test_a_second_store_on_a_directory_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with opened(tmp_path) as store, pytest.raises(ConfigError, match="in use by process"):
        assert isinstance(store, Store)
        Store.open(tmp_path, 64 * MIB)


def test_fr_011_a_killed_stores_last_commit_is_waited_for_on_a_slow_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its index process has the lock until that is over."""
    monkeypatch.setattr(locking, "LOCK_WAIT_S", 0.0)
    with opened(tmp_path) as store:
        data = fill(store, range(1, 5), 64 * KIB)
    with subprocess.Popen([sys.executable, "-c", ""]) as killed:
        pass
    with (tmp_path / FOLDER / "lock").open("r+") as held, ThreadPoolExecutor(1) as opening:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(f"process {killed.pid}\n")
        held.flush()
        looks: list[str] = []
        read_text = texts.read_text

        def look(file: File) -> str:
            looks.append(read_text(file))
            return looks[-1]

        monkeypatch.setattr(locking, "read_text", look)
        found = opening.submit(Store.open, tmp_path, 64 * MIB, files=FaultyFiles())
        wait_until(lambda: len(looks) > 2 or found.done(), WAIT_S)
        fcntl.flock(held, fcntl.LOCK_UN)
        with closing(found.result(WAIT_S)) as again:
            assert set(outcomes(again, data).values()) == {"ok"}
