"""What comes before what: nothing is acknowledged before it is durable, nothing reused before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node.ssd import Span
from mooncake_store.deadline import Deadline
from mooncake_store.errors import StaleExtent
from mooncake_store.limits import KIB
from mooncake_store.testing import wait_until
from tests.faults.ssd.extents import make_extent
from tests.faults.ssd.faulty import FaultyFiles
from tests.faults.ssd.handling import WAIT_S, check_counts, fill, opened, outcome, outcomes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


def wait_at_gate(files: FaultyFiles, count: int = 1) -> None:
    wait_until(lambda: files.faults.waiting >= count, WAIT_S, what="something waits at the gate")


@pytest.mark.parametrize("step", ["write", "sync", "commit"])
def test_a_write_is_acknowledged_and_readable_after_its_last_step(
    tmp_path: Path, files: FaultyFiles, step: str
) -> None:
    data = make_extent("key-2", 2, 64 * KIB)
    with opened(tmp_path, files=files) as store:
        fill(store, [1], 64 * KIB)
        files.faults.hold(step)
        future = store.write(memoryview(data), 2)
        wait_at_gate(files)
        assert not future.done()
        assert store.find(2) == -1
        files.faults.mend()
        assert future.result(WAIT_S).location == store.find(2) >= 0
        assert outcome(store, 2, data) == "ok"


def test_a_removal_is_unreadable_at_once_and_acknowledged_when_it_is_durable(
    tmp_path: Path, files: FaultyFiles
) -> None:
    with opened(tmp_path, files=files) as store:
        data = fill(store, [1, 2], 64 * KIB)
        location = store.find(1)
        files.faults.hold("commit")
        first = store.remove([(location, 1)])
        assert outcome(store, 1, data[1]) == StaleExtent.code
        wait_at_gate(files)
        second = store.remove([(location, 1)])
        time.sleep(0.1)
        assert not first.done()
        assert not second.done(), "the first removal is not durable yet"
        files.faults.mend()
        first.result(WAIT_S)
        second.result(WAIT_S)
        assert outcome(store, 2, data[2]) == "ok"


def test_epochs_are_acknowledged_when_they_are_durable(tmp_path: Path, files: FaultyFiles) -> None:
    with opened(tmp_path, files=files) as store:
        data = fill(store, [1], 64 * KIB)
        files.faults.hold("commit")
        future = store.set_epochs({1: 2})
        assert outcome(store, 1, data[1]) == StaleExtent.code
        wait_at_gate(files)
        assert not future.done()
        files.faults.mend()
        future.result(WAIT_S)
    with opened(tmp_path) as store:
        assert outcome(store, 1, data[1]) == StaleExtent.code
        with pytest.raises(StaleExtent):
            fill(store, [2], 10)


@pytest.mark.parametrize("step", ["write", "sync", "commit"])
def test_a_removal_fences_a_write_at_every_step(
    tmp_path: Path, files: FaultyFiles, step: str
) -> None:
    with opened(tmp_path, files=files) as store:
        fill(store, [1], 64 * KIB)
        files.faults.hold(step)
        write = store.write(memoryview(make_extent("key-2", 2, 64 * KIB)), 2)
        wait_at_gate(files)
        removal = store.remove([(-1, 2)])
        time.sleep(0.05)
        assert not removal.done()
        files.faults.mend()
        removal.result(WAIT_S)
        assert store.find(2) == -1
        with pytest.raises(StaleExtent):
            write.result(WAIT_S)
        check_counts(store.statistics())
    with opened(tmp_path) as store:
        assert store.find(2) == -1
        assert store.find(1) >= 0


def test_room_is_not_used_again_before_its_entries_are_durably_gone(
    tmp_path: Path, files: FaultyFiles
) -> None:
    with opened(tmp_path, 32 * 1024 * KIB, files=files, carry_share=0.0) as store:
        data = fill(store, range(1, 40), 512 * KIB)
        first = min(version for version in data if store.find(version) >= 0)
        files.faults.hold("commit")
        futures = [
            store.write(memoryview(make_extent(f"key-{v}", v, 512 * KIB)), v)
            for v in range(100, 130)
        ]
        wait_at_gate(files)
        time.sleep(0.3)
        volume = store._volume
        assert volume is not None
        # As a crash would: nothing more is said to the index, and the directory is opened again.
        volume.ledger.stop("killed")
        files.faults.mend()
        wait_until(lambda: store._volume not in {volume, None}, WAIT_S)
        assert all(future.exception(WAIT_S) is not None or True for future in futures)
        found = outcomes(store, data)
        assert set(found.values()) <= {"ok", StaleExtent.code}
        assert not [reason for reason in store.statistics().lost if reason != "not_recovered"]
        assert found[max(data)] == "ok"
        assert first


def test_a_read_under_way_keeps_its_place_although_its_extent_is_carried_away(
    tmp_path: Path, files: FaultyFiles
) -> None:
    with opened(tmp_path, 32 * 1024 * KIB, files=files, carry_share=0.5) as store:
        data = fill(store, [1], 100 * KIB)[1]
        for _ in range(3):
            assert outcome(store, 1, data) == "ok"
        target = bytearray(len(data))
        span = Span(store.find(1), 1, 0, len(data))
        files.faults.hold("read", threads="ssd read")
        transfer = store.read_into(span, [memoryview(target)], Deadline(WAIT_S))
        wait_at_gate(files)
        fill(store, range(100, 190), 512 * KIB)
        assert store.statistics().carried >= 1
        assert not transfer.done()
        files.faults.mend()
        transfer.result(WAIT_S)
        assert target == data


def test_an_entry_that_ends_in_an_evicted_region_goes_with_it(tmp_path: Path) -> None:
    with opened(tmp_path, 32 * 1024 * KIB, carry_share=0.0) as store:
        volume = store._volume
        assert volume is not None
        size = volume.ledger.geometry.region_bytes
        data = fill(store, range(1, 8), 700 * KIB)
        regions = volume.ledger.regions
        straddlers = [r.straddler for r in regions.all() if r.straddler >= 0]
        assert straddlers, "no extent lies in two files"
        with volume.ledger.lock:
            for location in straddlers:
                entry = volume.ledger.table.at(location)
                assert entry is not None
                following = regions[entry.place // size + 1]
                assert location in dict(volume.ledger.entries_of(following))
        assert set(outcomes(store, data).values()) == {"ok"}
