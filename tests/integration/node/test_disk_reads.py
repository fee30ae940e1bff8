"""Extents on a node's disk are read over its data port as those in its memory are."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from mooncake_store.deadline import Deadline
from mooncake_store.errors import ChecksumMismatch, Overloaded, StaleExtent
from mooncake_store.testing import wait_until
from mooncake_store.transport import ReadTask
from mooncake_store.wire import control, data

from .support import MIB, greeted_socket, tcp_of
from .test_stores import Rig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mooncake_storage_node.app import StorageNode

    from .fake_master import FakeMaster
    from .support import Thing

    Start = Callable[..., StorageNode]


@pytest.fixture
def rig(start_node: Start, master: FakeMaster, tmp_path: Path) -> Rig:
    directory = tmp_path / "disk"
    directory.mkdir()
    return Rig(start_node, master, directory)


def on_disk(rig: Rig, thing: Thing, location: int, start: int = 0, length: int = -1) -> ReadTask:
    size = len(thing.content) - start if length < 0 else length
    target = memoryview(bytearray(size))
    return ReadTask(rig.store, location, thing.identity, start, size, [target])


def read(rig: Rig, *tasks: ReadTask) -> None:
    with tcp_of(rig.register) as path:
        path.read(list(tasks), Deadline(20))


def demoted(rig: Rig, size: int, key: str = "k") -> tuple[Thing, int]:
    thing = rig.thing(size, key=key)
    location = rig.demote(thing)
    rig.master.free(thing.item)
    return thing, location


SIZES = [0, 1, 4095, 4096, 4097, (256 << 10) + 1, 2 * MIB - 1, (2 * MIB) + (64 << 10), 7 * MIB + 5]


@pytest.mark.parametrize("size", SIZES)
def test_fr_052_any_size_is_read_exactly(
    start_node: Start, master: FakeMaster, tmp_path: Path, size: int
) -> None:
    directory = tmp_path / "disk"
    directory.mkdir()
    rig = Rig(start_node, master, directory, size="256MiB")
    thing, location = demoted(rig, size)
    whole = on_disk(rig, thing, location)
    read(rig, whole)
    assert whole.error is None
    assert whole.verified
    assert bytes(whole.targets[0]) == thing.content


def test_rows_and_ranges_and_memory_come_in_one_request(rig: Rig) -> None:
    things = [demoted(rig, 300_000 + n, key=f"k{n}") for n in range(20)]
    memory = rig.thing(5000, key="memory", offset=8 * MIB)
    tasks = [on_disk(rig, thing, at) for thing, at in things]
    tasks.insert(7, memory.read_task())
    ranges = [
        on_disk(rig, thing, at, start, length)
        for thing, at in things[:4]
        for start, length in ((0, 10), (262_143, 2), (299_000, 1000), (100_000, 0))
    ]
    unverified = [on_disk(rig, thing, at, 1000, 200_000) for thing, at in things[:4]]
    for task in unverified:
        task.verify = False
    read(rig, *tasks, *ranges, *unverified)
    for task in (*tasks, *ranges, *unverified):
        assert task.error is None
    contents = [thing.content for thing, _ in things]
    contents.insert(7, memory.content)
    assert [bytes(task.targets[0]) for task in tasks] == contents
    assert [bytes(task.targets[0]) for task in ranges[:4]] == [
        contents[0][:10], contents[0][262_143:262_145], contents[0][299_000:300_000], b""
    ]  # fmt: skip
    assert bytes(unverified[0].targets[0]) == contents[0][1000:201_000]


def test_a_range_reads_little_of_the_disk(rig: Rig) -> None:
    thing, at = demoted(rig, 2 * MIB)
    before = rig.status().counters["read_bytes"]
    task = on_disk(rig, thing, at, MIB, 100)
    read(rig, task)
    assert bytes(task.targets[0]) == thing.content[MIB : MIB + 100]
    assert rig.status().counters["read_bytes"] - before < MIB


def test_what_is_gone_is_stale_and_the_others_are_served(rig: Rig) -> None:
    gone, gone_at = demoted(rig, 1000, key="gone")
    kept, kept_at = demoted(rig, 1000, key="kept")
    rig.free_on_disk(gone_at, gone.identity.version)
    tasks = [
        on_disk(rig, gone, gone_at),
        on_disk(rig, kept, kept_at),
        on_disk(rig, kept, 12_345),
        on_disk(rig, gone, kept_at),
    ]
    read(rig, *tasks)
    assert [type(task.error) for task in tasks] == [
        StaleExtent, type(None), StaleExtent, StaleExtent
    ]  # fmt: skip
    assert bytes(tasks[1].targets[0]) == kept.content


def test_a_cleared_namespace_is_not_read(rig: Rig) -> None:
    thing, at = demoted(rig, 1000)
    rig.master.order(control.SetEpochs(1, {0: 2}), control.Done)
    task = on_disk(rig, thing, at)
    read(rig, task)
    assert isinstance(task.error, StaleExtent)


def damage(rig: Rig, thing: Thing, at: int) -> None:
    """Flip a bit of a payload in its region file."""
    for file in sorted(rig.directory.rglob("*.region")):
        raw = file.read_bytes()
        begin = raw.find(thing.sealed.header)
        if begin >= 0:
            place = begin + len(thing.sealed.header) + at
            with file.open("r+b") as opened:
                opened.seek(place)
                opened.write(bytes([raw[place] ^ 8]))
            return
    raise AssertionError("the extent is in no region file")


def test_fr_038_a_flipped_bit_on_disk_is_never_served(rig: Rig) -> None:
    thing, at = demoted(rig, 600_000)
    damage(rig, thing, 300_010)
    for start, length in ((0, 600_000), (299_000, 2000)):
        task = on_disk(rig, thing, at, start, length)
        read(rig, task)
        assert isinstance(task.error, ChecksumMismatch)
    good = on_disk(rig, thing, at, 550_000, 100)
    read(rig, good)
    assert good.error is None
    assert bytes(good.targets[0]) == thing.content[550_000:550_100]


def test_fr_053_a_disk_that_is_gone_is_a_typed_error_and_memory_is_served(
    rig: Rig, tmp_path: Path
) -> None:
    thing, at = demoted(rig, 1000)
    memory = rig.thing(1000, key="memory", offset=MIB)
    rig.directory.rename(tmp_path / "away")
    wait_until(lambda: rig.status().state == "degraded", 30, what="the store is degraded")
    tasks = [on_disk(rig, thing, at), memory.read_task()]
    read(rig, *tasks)
    assert isinstance(tasks[0].error, Overloaded)
    assert tasks[1].error is None
    assert bytes(tasks[1].targets[0]) == memory.content


def test_readers_that_do_not_take_their_bytes_do_not_stop_others(rig: Rig) -> None:
    """Each holds a bounded part of the memory that reads go through, until it is cut off."""
    thing, at = demoted(rig, 2 * MIB)
    stuck = []
    for _ in range(6):
        sock = greeted_socket(rig.register)
        entries = [(rig.store, at, thing.identity.version, 0, 2 * MIB)] * 8
        sock.sendall(_request(entries))
        stuck.append(sock)
    task = on_disk(rig, thing, at)
    read(rig, task)
    assert task.error is None
    assert bytes(task.targets[0]) == thing.content
    for sock in stuck:
        sock.close()
    again = on_disk(rig, thing, at)
    read(rig, again)
    assert again.error is None


def _request(entries: list[tuple[int, int, int, int, int]]) -> bytearray:
    return data.encode_request(data.Operation.READ, 2, entries, deadline_ms=20_000)


def test_many_readers_at_once(rig: Rig) -> None:
    things = [demoted(rig, 100_000 + n, key=f"k{n}") for n in range(16)]
    wrong: list[object] = []

    def work() -> None:
        with tcp_of(rig.register) as path:
            for _ in range(10):
                tasks = [on_disk(rig, thing, at) for thing, at in things]
                path.read(tasks, Deadline(30))
                wrong.extend(task.error for task in tasks if task.error is not None)
                wrong.extend(
                    "other bytes"
                    for task, (thing, _) in zip(tasks, things, strict=True)
                    if bytes(task.targets[0]) != thing.content
                )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert rig.status().counters["reads"] >= 640
