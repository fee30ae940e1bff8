"""A disk that hangs costs what is on it, for as long; nothing else of its node waits (FR-053)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node.app import StorageNode
from mooncake_storage_node.settings import NodeSettings
from mooncake_store.deadline import Deadline
from mooncake_store.errors import DeadlineExceeded, Overloaded
from mooncake_store.testing import wait_until
from mooncake_store.wire import control
from tests.faults.ssd.faulty import FaultyFiles

from .support import MIB, tcp_of
from .test_disk_reads import on_disk
from .test_stores import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .fake_master import FakeMaster


@pytest.fixture
def files() -> Iterator[FaultyFiles]:
    files = FaultyFiles()
    yield files
    files.faults.mend()


@pytest.fixture
def rig(master: FakeMaster, root: Path, tmp_path: Path, files: FaultyFiles) -> Iterator[Rig]:
    nodes: list[StorageNode] = []

    def start(**options: object) -> StorageNode:
        words = {
            "name": "n",
            "dram": 32 << 20,
            "master": (f"127.0.0.1:{master.port}",),
            "memory_root": str(root),
            "stop_timeout_s": 0.0,
            "populate": "no",
        }
        node = StorageNode(NodeSettings(**{**words, **options}))  # type: ignore[arg-type]  # checked at run time
        nodes.append(node)
        node.stores.files = files
        node.start()
        return node

    directory = tmp_path / "disk"
    directory.mkdir()
    yield Rig(start, master, directory)
    files.faults.mend()
    for node in nodes:
        node.stop()


def memory_works(rig: Rig, offset: int) -> None:
    """Write, read, free, list and beat, as if there were no disk."""
    thing = rig.thing(100_000, key=f"memory-{offset}", offset=offset)
    task = thing.read_task()
    with tcp_of(rig.register) as path:
        path.read([task], Deadline(20))
    assert task.error is None
    order = control.ListDirectory(1, rig.dram)
    keys = [entry.key for entry in rig.master.order(order, control.DirectoryPage).entries]
    assert f"memory-{offset}" in keys
    assert rig.master.free(thing.item) == b"\x01"
    beats = len(rig.master.beats)
    wait_until(lambda: len(rig.master.beats) > beats + 2, 30, what="heartbeats go on")


def test_a_copy_to_a_disk_that_hangs_is_given_up_and_never_lands(
    rig: Rig, files: FaultyFiles
) -> None:
    thing = rig.thing(300_000)
    files.faults.hold("write")
    order = control.CopyExtents(1, [rig.demotion(thing)])
    (result,) = rig.master.order(order, control.Copied, 20.0, named_s=1.0).items
    assert result.code == "deadline_exceeded"
    memory_works(rig, 8 * MIB)
    files.faults.mend()
    wait_until(lambda: rig.status().counters["waiting_bytes"] == 0, 20, what="the disk is done")
    assert rig.listed() == []
    assert rig.demote(thing) >= 0


def test_a_removal_is_not_confirmed_before_the_disk_has_it(rig: Rig, files: FaultyFiles) -> None:
    thing = rig.thing(1000)
    location = rig.demote(thing)
    files.faults.hold("commit")
    free = control.FreeExtents(
        1, [control.FreeItem(rig.store, location, 512, thing.identity.version)]
    )
    freed = rig.master.order(free, control.Freed, 20.0, named_s=1.0)
    assert freed.freed == b"\x00"
    task = on_disk(rig, thing, location)
    with tcp_of(rig.register) as path:
        path.read([task], Deadline(20))
    assert task.error is not None  # It is unreadable at once.
    memory_works(rig, 8 * MIB)
    files.faults.mend()
    wait_until(
        lambda: rig.master.order(free, control.Freed, 20.0).freed == b"\x01", 20,
        what="the removal is confirmed",
    )  # fmt: skip


def test_a_read_of_a_disk_that_hangs_ends_in_time_and_others_do_not_wait(
    rig: Rig, files: FaultyFiles
) -> None:
    thing = rig.thing(300_000)
    location = rig.demote(thing)
    files.faults.hold("read")
    with tcp_of(rig.register) as path:

        def is_refused() -> bool:
            """The node answers in the last tenth of the time, if it gets a processor then."""
            tasks = [on_disk(rig, thing, location) for _ in range(3)]
            path.read(tasks, Deadline(1.5))
            kinds = {type(task.error) for task in tasks}
            assert kinds <= {Overloaded, DeadlineExceeded}
            return kinds == {Overloaded}

        wait_until(is_refused, 60)
        memory = rig.thing(1000, key="memory", offset=8 * MIB)
        task = memory.read_task()
        path.read([task], Deadline(20))
        assert task.error is None
    memory_works(rig, 16 * MIB)
    files.faults.mend()
    again = on_disk(rig, thing, location)
    with tcp_of(rig.register) as path:
        path.read([again], Deadline(20))
    assert again.error is None


def test_a_new_epoch_is_answered_although_the_disk_hangs(rig: Rig, files: FaultyFiles) -> None:
    thing = rig.thing(1000)
    location = rig.demote(thing)
    files.faults.hold("commit")
    rig.master.order(control.SetEpochs(1, {0: 2}), control.Done, 10.0)
    task = on_disk(rig, thing, location)
    with tcp_of(rig.register) as path:
        path.read([task], Deadline(20))
    assert task.error is not None
    files.faults.mend()
    wait_until(lambda: rig.listed() == [], 20, what="the disk has swept it")
