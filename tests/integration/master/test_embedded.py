"""The master inside a process: the same core, called directly, with its segment as the node."""

from __future__ import annotations

import mmap
import threading
import time
from typing import TYPE_CHECKING

import pytest

from mooncake_master.embedded import EmbeddedMaster
from mooncake_store.errors import (
    Closed,
    NoSpace,
    ObjectTooLarge,
    PutUnderWay,
    StoreError,
)
from mooncake_store.limits import MIB
from mooncake_store.segment import FREED, Segment, mapped_bytes
from mooncake_store.types import MissReason
from mooncake_store.wire import control

if TYPE_CHECKING:
    from collections.abc import Iterator

POOL_BYTES = 4 * MIB


@pytest.fixture
def segment() -> Iterator[Segment]:
    memory = mmap.mmap(-1, mapped_bytes(POOL_BYTES))
    view = memoryview(memory)
    made = Segment.format(view, POOL_BYTES, incarnation=4711)
    yield made
    made.release()
    view.release()
    memory.close()


@pytest.fixture
def master(segment: Segment) -> Iterator[EmbeddedMaster]:
    running = EmbeddedMaster(segment)
    yield running
    running.close()


def opened(master: EmbeddedMaster, name: str = "default") -> control.NamespaceRecord:
    space = master.request(control.OpenNamespace(name), 5.0)
    assert isinstance(space, control.NamespaceRecord)
    return space


def start(
    master: EmbeddedMaster, space: control.NamespaceRecord, key: str, length: int, deadline_s: float
) -> control.PutGrant | control.PutExists | control.Refusal:
    request = control.PutStart(space.slot, space.epoch, [control.PutItem(key, length)])
    started = master.request(request, deadline_s)
    assert isinstance(started, control.PutStarted)
    return started.items[0]


def put(
    master: EmbeddedMaster,
    segment: Segment,
    space: control.NamespaceRecord,
    key: str,
    length: int = 1000,
) -> control.PutGrant:
    grant = start(master, space, key, length, 5.0)
    assert isinstance(grant, control.PutGrant), grant
    offset = grant.replicas[0].offset
    segment.publish(offset, bytes(64), grant.version)
    master.request(control.PutCommit([control.CommitItem(grant.version, 1)]), 5.0)
    return grant


def test_a_put_is_readable_and_a_remove_reaches_the_memory(
    master: EmbeddedMaster, segment: Segment
) -> None:
    space = opened(master)
    grant = put(master, segment, space, "k")
    assert grant.replicas[0].incarnation == 4711
    located = master.request(control.Locate(space.slot, space.epoch, ["k", "absent"]), 1.0)
    assert isinstance(located, control.Located)
    found, missing = located.items
    assert isinstance(found, control.Location)
    assert (found.version, found.length) == (grant.version, 1000)
    assert missing == MissReason.ABSENT
    removed = master.request(control.Remove(space.slot, space.epoch, ["k"]), 5.0)
    assert removed == control.Removed(b"\1")
    offset = grant.replicas[0].offset
    assert not segment.holds(offset, grant.version)
    assert segment.table[offset // 512] == grant.version | FREED


def test_clearing_a_namespace_reaches_the_epoch_table(
    master: EmbeddedMaster, segment: Segment
) -> None:
    space = opened(master)
    put(master, segment, space, "k")
    cleared = master.request(control.Clear("default"), 5.0)
    assert isinstance(cleared, control.NamespaceRecord)
    assert cleared.epoch == space.epoch + 1
    assert segment.epochs[space.slot] == cleared.epoch


def test_room_is_made_for_more_than_fits(master: EmbeddedMaster, segment: Segment) -> None:
    master_leases_s = master.welcome.lease_ttl_s
    assert master_leases_s > 0
    space = opened(master)
    for number in range(64):
        put(master, segment, space, f"k{number}", MIB // 4)
    status = master.request(control.DescribeCluster(), 1.0)
    assert isinstance(status, control.ClusterStatus)
    assert status.nodes[0].used_bytes <= POOL_BYTES


def test_what_can_never_fit_fails_at_once(master: EmbeddedMaster) -> None:
    space = opened(master)
    answer = start(master, space, "k", 2 * POOL_BYTES, 3600.0)  # longer than a test may take
    assert isinstance(answer, control.Refusal)
    assert answer.code == ObjectTooLarge.code


def test_a_request_that_waits_ends_at_its_deadline(
    master: EmbeddedMaster, segment: Segment
) -> None:
    space = opened(master)
    assert isinstance(start(master, space, "k", 1, 60.0), control.PutGrant)
    begun_s = time.monotonic()
    answer = start(master, space, "k", 1, 0.3)  # the first put has the room for longer
    assert time.monotonic() - begun_s > 0.25
    assert isinstance(answer, control.Refusal)
    assert answer.code == PutUnderWay.code
    del segment


def test_a_get_waits_for_a_put_of_another_thread(master: EmbeddedMaster, segment: Segment) -> None:
    space = opened(master)
    grant = start(master, space, "k", 1000, 5.0)
    assert isinstance(grant, control.PutGrant)
    answers: list[control.Message] = []

    def wait() -> None:
        ask = control.Locate(space.slot, space.epoch, ["k"], wait_ms=600_000)
        answers.append(master.request(ask, 600.0))

    waiting = threading.Thread(target=wait)
    waiting.start()
    segment.publish(grant.replicas[0].offset, bytes(64), grant.version)
    master.request(control.PutCommit([control.CommitItem(grant.version, 1)]), 5.0)
    waiting.join(60.0)
    assert not waiting.is_alive()
    (located,) = answers
    assert isinstance(located, control.Located)
    assert isinstance(located.items[0], control.Location)


def test_a_put_waits_until_a_hold_ends(master: EmbeddedMaster, segment: Segment) -> None:
    space = opened(master)
    put(master, segment, space, "held", POOL_BYTES * 3 // 4)
    begun_s = time.monotonic()
    master.request(control.Probe(space.slot, space.epoch, ["held"], hold_s=0.4), 5.0)
    answer = start(master, space, "next", POOL_BYTES * 3 // 4, 30.0)
    assert isinstance(answer, control.PutGrant), answer
    assert time.monotonic() - begun_s >= 0.3


def test_no_room_is_said_at_the_deadline(master: EmbeddedMaster, segment: Segment) -> None:
    space = opened(master)
    put(master, segment, space, "held", POOL_BYTES * 3 // 4)
    master.request(control.Probe(space.slot, space.epoch, ["held"], hold_s=60.0), 1.0)
    answer = start(master, space, "next", POOL_BYTES * 3 // 4, 0.3)
    assert isinstance(answer, control.Refusal)
    assert answer.code == NoSpace.code


def test_a_long_pause_between_calls_loses_nothing(
    master: EmbeddedMaster, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = opened(master)
    put(master, segment, space, "k")
    now_s = time.monotonic() + 100_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(master._switchboard, "clock", lambda: now_s)
    found = master.request(control.Exists(space.slot, space.epoch, ["k"]), 5.0)
    assert found == control.ExistsReply(b"\1")


def test_errors_are_raised(master: EmbeddedMaster) -> None:
    master.request(control.OpenNamespace("strict", {"model": "a"}), 1.0)
    with pytest.raises(StoreError, match="manifest"):
        master.request(control.OpenNamespace("strict", {"model": "b"}), 1.0)


def test_many_threads_share_it(master: EmbeddedMaster, segment: Segment) -> None:
    space = opened(master)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(30):
                put(master, segment, space, f"{number}-{turn}", 4096)
                found = master.request(
                    control.Exists(space.slot, space.epoch, [f"{number}-{turn}"]), 5.0
                )
                assert found == control.ExistsReply(b"\1")
                master.tick()
        except BaseException as error:  # noqa: BLE001 - carried to the test's thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert failures == []


def test_after_close_calls_fail(master: EmbeddedMaster) -> None:
    master.close()
    with pytest.raises(Closed):
        master.request(control.ListNamespaces(), 1.0)
    with pytest.raises(Closed):
        master.tick()
    master.close()


def test_two_embedded_masters_know_nothing_of_each_other(
    master: EmbeddedMaster, segment: Segment
) -> None:
    memory = mmap.mmap(-1, mapped_bytes(MIB))
    view = memoryview(memory)
    other_segment = Segment.format(view, MIB, incarnation=1)
    other = EmbeddedMaster(other_segment)
    space = opened(master)
    put(master, segment, space, "k")
    theirs = opened(other)
    found = other.request(control.Exists(theirs.slot, theirs.epoch, ["k"]), 1.0)
    assert found == control.ExistsReply(b"\0")
    other.close()
    other_segment.release()
    view.release()
    memory.close()
