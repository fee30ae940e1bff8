"""The field reports that are about a disk, as far as one store can show them."""

from __future__ import annotations

import cProfile
import os
import pstats
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node.scrub import PIECE_BYTES, pieces_on
from mooncake_storage_node.ssd import PRESENT, Admission, Options, Span, Store
from mooncake_store.deadline import Deadline
from mooncake_store.errors import (
    ChecksumMismatch,
    ConfigError,
    ObjectTooLarge,
    Overloaded,
    StaleExtent,
    StoreError,
)
from mooncake_store.limits import GIB, KIB, MIB
from mooncake_store.testing import seeded, wait_until
from tests.faults.scale import scaled, show
from tests.faults.ssd.extents import extents, make_extent
from tests.faults.ssd.handling import (
    WAIT_S,
    check_counts,
    fill,
    opened,
    outcome,
    outcomes,
    read_whole,
)

if TYPE_CHECKING:
    from pathlib import Path

    from mooncake_storage_node.ssd import Dropped


def alive_of(store: Store, newest: int) -> list[int]:
    """Return which versions are there, in order.

    The oldest are looked at last, as they are what the store evicts meanwhile.
    """
    return [v for v in range(newest, 0, -1) if store.find(v) >= 0][::-1]


def disk_usage(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))


def test_fr_009_the_cap_holds_the_oldest_go_first_and_the_newest_are_there(
    quick_path: Path,
) -> None:
    cap = 100 * MIB
    with opened(quick_path, cap) as store:
        for version, data in extents(1024, 1 * MIB):
            store.write(memoryview(data), version).result(WAIT_S)
            if not version % 64:
                assert disk_usage(quick_path) <= cap
        alive = alive_of(store, 1024)
        assert alive == list(range(alive[0], 1025))
        newest = {v: make_extent(f"key-{v}", v, 1 * MIB) for v in range(1025 - 80, 1025)}
        assert set(outcomes(store, newest).values()) == {"ok"}
        check_counts(store.statistics())


@pytest.mark.parametrize("capacity", [0, -5, 1000, 1 << 62])
def test_fr_009_a_store_has_a_capacity_that_makes_sense(tmp_path: Path, capacity: int) -> None:
    with pytest.raises(ConfigError):
        Store.open(tmp_path, capacity)
    assert not list(tmp_path.iterdir())


def test_fr_009_more_than_the_file_system_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="file system"):
        Store.open(tmp_path, 1 << 45)


def test_fr_010_eight_writers_ten_times_over_and_nothing_is_lost_in_silence(
    quick_path: Path,
) -> None:
    size, writers, each = scaled(256 * KIB, MIB), 8, 40
    refused = [0] * writers
    acknowledged: list[dict[int, bytes]] = [{} for _ in range(writers)]

    def write(number: int) -> None:
        generator = seeded(number)
        for version in range(number * 1000 + 1, number * 1000 + 1 + each):
            data = make_extent(f"key-{version}", version, size)
            for _ in range(2 if generator.random() < 0.1 else 1):
                try:
                    store.write(memoryview(data), version).result(WAIT_S)
                except Overloaded:
                    refused[number] += 1
                    break
                acknowledged[number][version] = data

    with opened(quick_path, scaled(128 * MIB, 512 * MIB), queue_bytes_max=2 * MIB) as store:
        threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        everything = {v: data for part in acknowledged for v, data in part.items()}
        found = store.statistics()
        assert len(everything) + sum(refused) == writers * each
        assert found.refused.get("queue_full", 0) == sum(refused)
        assert found.stored == len(everything)
        assert found.present > 0
        assert not found.evicted
        assert set(outcomes(store, everything).values()) == {"ok"}
        check_counts(found)


def test_fr_010_what_is_there_is_not_written_twice(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        data = fill(store, range(1, 5), 256 * KIB)
        written = store.statistics().written_bytes
        again = [store.write(memoryview(source), version) for version, source in data.items()]
        assert {future.result(WAIT_S).outcome for future in again} == {PRESENT}
        assert store.statistics().written_bytes == written
        source = memoryview(make_extent("key-9", 9, 1 * MIB))
        twice = [store.write(source, 9) for _ in range(5)]
        assert len({future.result(WAIT_S).location for future in twice}) == 1
        assert store.statistics().stored == 5


def test_fr_011_a_restart_finds_everything_where_it_was(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        data = fill(store, range(1, 301), 64 * KIB)
        before = {version: store.find(version) for version in data}
        incarnation, usage = store.incarnation, store.statistics().disk_bytes
    with opened(tmp_path) as store:
        assert store.incarnation == incarnation
        assert store.statistics().disk_bytes == usage
        assert {version: store.find(version) for version in data} == before
        assert set(outcomes(store, data).values()) == {"ok"}


EDGES = [0, 1, 447, 448, 4095, 4096, 4097, 256 * KIB - 1, 256 * KIB, 256 * KIB + 1, 2 * MIB,
         2 * MIB + 64 * KIB - 700, 2 * MIB + 64 * KIB, 4 * MIB + 17]  # fmt: skip


@pytest.mark.parametrize("direct", [True, False])
def test_fr_052_every_size_comes_back_exactly(tmp_path: Path, direct: bool) -> None:  # noqa: FBT001 - pytest passes it
    from tests.faults.ssd.faulty import FaultyFiles  # noqa: PLC0415 - only here

    with opened(tmp_path, 256 * MIB, files=FaultyFiles(direct=direct)) as store:
        data = {v: make_extent(f"key-{v}", v, size) for v, size in enumerate(EDGES, 1)}
        for version, source in data.items():
            store.write(memoryview(source), version).result(WAIT_S)
        assert set(outcomes(store, data).values()) == {"ok"}
        for version, source in data.items():
            for start, length in ((0, 64), (0, len(source)), (63, 1), (len(source) - 1, 1),
                                  (len(source) // 2, len(source) // 3)):  # fmt: skip
                target = memoryview(bytearray(length))
                span = Span(store.find(version), version, start, length)
                store.read_into(span, [target], Deadline(WAIT_S)).result(WAIT_S)
                assert target == source[start : start + length]


def test_fr_052_a_large_object_is_stored_or_refused_by_name(tmp_path: Path) -> None:
    with opened(tmp_path, 2 * GIB) as store:
        size = 62 * MIB + 1
        data = fill(store, [1], size)
        assert outcomes(store, data) == {1: "ok"}
        with pytest.raises(ObjectTooLarge, match="larger than a region"):
            fill(store, [2], 70 * MIB)
        assert store.statistics().refused == {"too_large": 1}


def test_fr_054_what_was_just_written_outlives_what_is_old_and_unread(quick_path: Path) -> None:
    with opened(quick_path) as store:
        for version, data in extents(400, 512 * KIB):
            store.write(memoryview(data), version).result(WAIT_S)
            alive = alive_of(store, version)
            assert alive == list(range(alive[0], version + 1)), "a younger one went first"


def test_fr_054_what_is_read_is_carried_over_within_the_bounds(quick_path: Path) -> None:
    hot = list(range(1, 6))
    with opened(quick_path, carry_share=0.25) as store:
        data = fill(store, hot, 128 * KIB)
        for version in range(100, 700):
            fill(store, [version], 256 * KIB)
            for other in hot:
                assert outcome(store, other, data[other]) == "ok", (other, version)
        found = store.statistics()
        assert found.carried > 0
        assert found.write_amplification < 1.4
        check_counts(found)


def test_carrying_over_is_off_at_share_zero_and_works_for_large_extents(quick_path: Path) -> None:
    for share in (0.0, 0.75):
        place = quick_path / str(share)
        place.mkdir()
        with opened(place, carry_share=share, batch_bytes=64 * KIB) as store:
            data = fill(store, [1], 1 * MIB)
            for version in range(2, 100):
                if store.find(1) >= 0:
                    assert outcome(store, 1, data[1]) == "ok"
                fill(store, [version], 1 * MIB)
            assert (store.find(1) >= 0) == bool(share)
            assert bool(store.statistics().carried) == bool(share)


def test_fr_056_many_small_objects_are_few_files(quick_path: Path) -> None:
    count, capacity = scaled((20_000, 256 * MIB), (200_000, GIB + 512 * MIB))
    options = {"index_bytes": scaled(32, 256) * MIB}
    with opened(quick_path, capacity, **options) as store:
        fill(store, range(1, 1001), 4 * KIB)
        early = calls_of_finding(store)
        for first in range(1001, count + 1, 1000):
            fill(store, range(first, min(first + 1000, count + 1)), 4 * KIB)
        assert store.statistics().entries == count
        assert calls_of_finding(store) == early
        for folder in [quick_path, *(p for p in quick_path.rglob("*") if p.is_dir())]:
            assert len(list(folder.iterdir())) < 100
        wanted = {v: make_extent(f"key-{v}", v, 4 * KIB) for v in range(1, count, 997)}
        assert set(outcomes(store, wanted).values()) == {"ok"}
    began_s = time.monotonic()
    with opened(quick_path, capacity, **options) as store:
        show("056", f"open a store of {count} (< 20 s)", f"{time.monotonic() - began_s:.1f} s")
        assert set(outcomes(store, wanted).values()) == {"ok"}


def calls_of_finding(store: Store) -> int:
    """Return how many functions are called to find one: no machine is too busy for this."""
    rounds = []
    for _ in range(5):  # Some versions of Python count the calls of other threads, too.
        profile = cProfile.Profile()
        profile.enable()
        found = store.find(500)
        profile.disable()
        assert found >= 0
        rounds.append(sum(count for count, *_ in pstats.Stats(profile).stats.values()))  # type: ignore[attr-defined]
    return min(rounds)


def test_fr_056_an_index_that_is_full_forgets_the_oldest(quick_path: Path) -> None:
    with opened(quick_path, 32 * MIB) as store:
        fill(store, range(1, 20_001), 0)
        found = store.statistics()
        assert found.evicted > 0
        assert found.index_bytes <= 1.1 * store._volume.ledger.index_bytes_max  # type: ignore[union-attr]  # it is open
        assert store.find(20_000) >= 0
        assert store.find(1) == -1
        check_counts(found)
    assert disk_usage(quick_path) <= 32 * MIB


def test_fr_057_replacing_hot_keys_under_eviction_revives_nothing(quick_path: Path) -> None:
    keys, cold, rewritten = 20, *scaled((50, 1_500), (1_000, 50_000))
    lock = threading.Lock()
    latest: dict[int, int] = {}
    stop = threading.Event()
    problems: list[str] = []

    def read() -> None:
        generator = seeded("reader")
        while not stop.wait(0.001):  # Else the readers would keep the writer from the interpreter.
            key = generator.randrange(keys)
            with lock:
                version = latest.get(key, 0)
                location = store.find(version)
            if location < 0:
                continue
            target = bytearray(make_size)
            span = Span(location, version, 0, make_size)
            try:
                store.read_into(span, [memoryview(target)], Deadline(WAIT_S)).result(WAIT_S)
            except StaleExtent:
                with lock:
                    if latest.get(key) == version and store.find(version) >= 0:
                        problems.append(f"{version} is refused although it is the latest")
            else:
                if target != make_extent(f"key-{key}", version, 40 * KIB):
                    problems.append(f"{version} was read wrong")

    make_size = len(make_extent("key-10", 1 << 20, 40 * KIB))
    with opened(quick_path, 32 * MIB, carry_share=0.5) as store:
        quiet = fill(store, range(1, cold + 1), 4 * KIB)
        unread = deque(quiet.items())
        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        version = 1 << 20
        for count in range(rewritten):
            version += 1
            key = count % keys
            data = make_extent(f"key-{key}", version, 40 * KIB)
            if len(data) == make_size:
                store.write(memoryview(data), version).result(WAIT_S)
                with lock:
                    old, latest[key] = latest.get(key), version
                if old is not None:
                    store.remove([(-1, old)]).result(WAIT_S)
                    assert store.find(old) == -1
            for _ in range(scaled(2, 4)):  # Each of the cold ones once in 250 rounds, or sooner.
                assert outcome(store, *unread[0]) == "ok"
                unread.rotate()
        stop.set()
        for reader in readers:
            reader.join()
        assert not problems
        assert set(outcomes(store, quiet).values()) == {"ok"}
        assert store.statistics().evicted + store.statistics().removed > 1000


def test_fr_067_cleared_objects_are_gone_whatever_was_under_way(tmp_path: Path) -> None:
    stop = threading.Event()
    late: list[int] = []

    def keep_writing(number: int) -> None:
        version = number * 100_000
        while not stop.is_set():
            version += 1
            try:
                data = make_extent(f"key-{version}", version, 16 * KIB)
                store.write(memoryview(data), version).result(WAIT_S)
            except StoreError:
                late.append(version)

    with opened(tmp_path, 64 * MIB) as store:
        data = fill(store, range(1, 501), 16 * KIB)
        other = fill(store, range(1001, 1011), 16 * KIB, slot=2)
        writers = [threading.Thread(target=keep_writing, args=(n,)) for n in range(1, 5)]
        for writer in writers:
            writer.start()
        wait_until(lambda: store.statistics().stored > 600, WAIT_S)
        store.set_epochs({1: 2}).result(WAIT_S)
        assert set(outcomes(store, data).values()) == {StaleExtent.code}
        wait_until(lambda: len(late) > 20, WAIT_S, what="old writers are refused")
        stop.set()
        for writer in writers:
            writer.join()
        wait_until(lambda: store.statistics().entries == 10, WAIT_S, what="all are swept")
        assert set(outcomes(store, other).values()) == {"ok"}
        new = fill(store, range(2001, 2011), 16 * KIB, epoch=2)
        assert set(outcomes(store, new).values()) == {"ok"}
        check_counts(store.statistics())
    with opened(tmp_path, 64 * MIB) as store:
        assert store.statistics().entries == 20
        assert set(outcomes(store, data).values()) == {StaleExtent.code}
        assert set(outcomes(store, new | other).values()) == {"ok"}
        with pytest.raises(StaleExtent):
            fill(store, [3000], 16 * KIB)


def test_a_removal_catches_a_write_that_is_under_way(tmp_path: Path) -> None:
    with opened(tmp_path, 64 * MIB) as store:
        futures = {}
        for version, data in extents(60, 256 * KIB):
            futures[version] = store.write(memoryview(data), version)
        store.remove([(-1, version) for version in futures]).result(WAIT_S)
        assert all(store.find(version) == -1 for version in futures)
        for future in futures.values():
            error = future.exception(WAIT_S)
            assert error is None or isinstance(error, StaleExtent)
        check_counts(store.statistics())
        assert store.statistics().entries == 0
    with opened(tmp_path, 64 * MIB) as store:
        assert store.statistics().entries == 0


def test_second_hit_admission_writes_what_comes_twice(tmp_path: Path) -> None:
    with opened(tmp_path, admission=Admission.SECOND_HIT) as store:
        assert not fill(store, range(1, 51), 4 * KIB)
        assert store.statistics().refused == {"not_admitted": 50}
        assert len(fill(store, range(1, 51), 4 * KIB)) >= 49
        wanted = store.write(memoryview(make_extent("durable", 99, 10)), 99, wanted=True)
        assert wanted.result(WAIT_S).location >= 0


def test_a_budget_of_writes_is_kept_restarts_included(tmp_path: Path) -> None:
    budget = 8 * MIB
    for _ in range(2):
        with opened(tmp_path, write_budget_bytes_per_day=budget) as store:
            fill(store, range(1, 100), 128 * KIB)
            found = store.statistics()
            assert found.refused["over_budget"] > 0
            assert found.written_today_bytes < budget
            assert found.write_budget_bytes == budget
    assert Options().write_budget_bytes_per_day == 0


def test_a_smaller_capacity_gives_room_back_and_a_larger_one_uses_it(quick_path: Path) -> None:
    with opened(quick_path, 128 * MIB) as store:
        fill(store, range(1, 150), 512 * KIB)
        before = store.statistics().entries
    with opened(quick_path, 80 * MIB) as store:
        found = store.statistics()
        assert found.disk_bytes <= 80 * MIB
        assert disk_usage(quick_path) <= 80 * MIB
        assert found.entries < before
        assert found.lost == {"capacity": before - found.entries - found.evicted}
        assert store.find(149) >= 0
        check_counts(found)
    with opened(quick_path, 256 * MIB) as store:
        fill(store, range(200, 500), 512 * KIB)
        assert disk_usage(quick_path) > 120 * MIB
        assert outcome(store, 499, make_extent("key-499", 499, 512 * KIB)) == "ok"
    with opened(quick_path, 32 * MIB) as store:
        assert store.statistics().entries == 0
        assert store.statistics().lost == {"capacity": 1}
        assert disk_usage(quick_path) <= 32 * MIB


def test_what_the_store_gives_up_is_reported_with_its_location(quick_path: Path) -> None:
    dropped: list[Dropped] = []
    with opened(quick_path, on_dropped=dropped.extend) as store:
        locations = {}
        for version, data in extents(300, 512 * KIB):
            locations[version] = store.write(memoryview(data), version).result(WAIT_S).location
        wait_until(lambda: len(dropped) == store.statistics().evicted > 100, WAIT_S)
        for one in dropped:
            assert (one.location, one.reason) == (locations[one.version], "evicted")
            with pytest.raises(StaleExtent):
                store.size_of(one.location, one.version)
        assert read_whole(store, 300, len(make_extent("key-300", 300, 512 * KIB)))


def test_a_look_whether_an_extent_is_well_makes_it_no_hotter(quick_path: Path) -> None:
    """Else everything would be carried over after one round of scrubbing."""
    with opened(quick_path, 32 * MIB) as store:
        data = fill(store, range(1, 6), 40 * KIB)
        for version in range(1, 6):
            assert sum(pieces_on(store, store.find(version), version)) == len(data[version])
        assert store.statistics().reads == 0


def test_fr_038_a_look_drops_what_is_damaged_and_takes_it_in_pieces(quick_path: Path) -> None:
    with opened(quick_path) as store:
        fill(store, [1], 2 * MIB + 1)
        location = store.find(1)
        assert max(pieces_on(store, location, 1)) == PIECE_BYTES
        (path,) = set(quick_path.rglob("00000.region"))
        with path.open("r+b") as file:  # in the second piece
            file.seek(PIECE_BYTES + 5000)
            file.write(b"flipped")
            os.fsync(file.fileno())
        with pytest.raises(ChecksumMismatch):
            list(pieces_on(store, location, 1))
        assert store.find(1) == -1
        assert store.statistics().lost == {"checksum_mismatch": 1}
