"""Late readers and late writers over RDMA harm nobody (ADR 50)."""

from __future__ import annotations

import contextlib
import mmap
import threading
from typing import TYPE_CHECKING

import pytest

from mooncake_store.deadline import Deadline
from mooncake_store.errors import (
    DeadlineExceeded,
    PeerError,
    StaleExtent,
    StaleTerm,
    Unreachable,
)
from mooncake_store.memory import address_of
from mooncake_store.segment import Segment, mapped_bytes
from mooncake_store.testing import free_port, wait_until
from mooncake_store.testing.seeds import seeded
from mooncake_store.transport.rdma import FabricLost, RdmaDataPath
from mooncake_store.wire import control
from tests.integration.node.support import MIB, Thing, get, make_thing, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from mooncake_storage_node.app import StorageNode
    from mooncake_store.testing.verbs import FakeFabric
    from mooncake_store.transport.rdma import RdmaContext
    from mooncake_store.transport.rdma.verbs import WorkRequest
    from mooncake_store.wire.control import Register
    from tests.integration.node.fake_master import FakeMaster


class Gate:
    """Lets a number of requests through, then stops the fabric until it is opened."""

    def __init__(self, fabric: FakeFabric, after: int) -> None:
        self.reached = threading.Event()
        self._fabric = fabric
        self._left = after
        fabric.faults.before = self._before

    def _before(self, request: WorkRequest) -> str:
        del request
        self._left -= 1
        if self._left == 0:
            self._fabric.faults.is_cut = True
            self.reached.set()
        return ""

    def open(self) -> None:
        self._fabric.faults.before = lambda _: ""
        self._fabric.faults.is_cut = False
        while self._fabric.step(-1):
            pass


def incarnation_of(register: Register) -> int:
    return register.segments[0].incarnation


def test_a_writer_whose_extent_is_freed_can_write_nothing_afterwards(
    register: Register,
    path: RdmaDataPath,
    node: StorageNode,
    master: FakeMaster,
    fabric: FakeFabric,
) -> None:
    other = make_thing(incarnation_of(register), 8 * MIB, 1000)
    put(path, other)  # Opens the link, so that the gate counts the requests of the write only.
    late = make_thing(incarnation_of(register), 0, 4 * MIB)
    gate = Gate(fabric, after=2)
    task = late.write_task()
    writer = threading.Thread(target=path.write, args=([task], Deadline(60)))
    writer.start()
    assert gate.reached.wait(30)
    assert master.free(late.item) == b"\x01"
    assert node.rdma is not None
    assert node.rdma.revoked == 1

    # The room has a new owner, who writes it over TCP; then the late writer's packets arrive.
    extents = node.pool.segment.extents
    extents[: 5 * MIB] = b"\x77" * (5 * MIB)
    gate.open()
    writer.join(30)
    assert not writer.is_alive()
    assert isinstance(task.error, (Unreachable, StaleTerm))
    assert extents[: 5 * MIB] == b"\x77" * (5 * MIB)
    assert node.pool.segment.table[0] == late.identity.version | 1 << 63


def test_a_writer_between_its_bytes_and_their_publication_is_refused(
    register: Register, path: RdmaDataPath, master: FakeMaster, node: StorageNode,
    fabric: FakeFabric,
) -> None:  # fmt: skip
    """The attempt ends when all bytes are there: END comes too late."""
    put(path, make_thing(incarnation_of(register), 8 * MIB, 1000))
    late = make_thing(incarnation_of(register), 0, 1000)
    freed: list[object] = []

    def free_at_the_last_request(request: WorkRequest) -> str:
        if not request.write and not freed:
            fabric.faults.before = lambda _: ""
            freed.append(None)
            ask = threading.Thread(target=lambda: freed.append(master.free(late.item)))
            ask.start()
        return ""

    fabric.faults.before = free_at_the_last_request
    task = late.write_task()
    path.write([task], Deadline(10))
    wait_until(lambda: len(freed) == 2, 30, what="the extent is freed")
    if task.error is not None:
        assert isinstance(task.error, (Unreachable, StaleTerm))
    # Whichever came first: freed is freed.
    assert not node.pool.segment.holds(0, late.identity.version)
    with pytest.raises(StaleExtent):
        get(path, late)


def test_a_new_term_cuts_writers_of_the_old_one(
    register: Register, path: RdmaDataPath, node: StorageNode, master: FakeMaster,
    fabric: FakeFabric,
) -> None:  # fmt: skip
    put(path, make_thing(incarnation_of(register), 8 * MIB, 1000))
    late = make_thing(incarnation_of(register), 0, 4 * MIB)
    gate = Gate(fabric, after=2)
    task = late.write_task()
    writer = threading.Thread(target=path.write, args=([task], Deadline(60)))
    writer.start()
    assert gate.reached.wait(30)
    master.order(control.SetEpochs(9, {}), control.Done)
    gate.open()
    writer.join(30)
    assert task.error is not None
    assert not node.pool.segment.holds(0, late.identity.version)


def test_nothing_arrives_in_a_buffer_after_its_read_has_ended(
    register: Register, path: RdmaDataPath, context: RdmaContext, fabric: FakeFabric
) -> None:
    thing = make_thing(incarnation_of(register), 0, 2 * MIB)
    put(path, thing)
    buffer = memoryview(bytearray(b"\xa5" * 2 * MIB))
    with context.register(buffer):
        gate = Gate(fabric, after=2)
        task = thing.read_task()
        task.targets = [buffer]
        path.read([task], Deadline(0.4))
        assert isinstance(task.error, DeadlineExceeded)
        seen = bytes(buffer)
        gate.open()
        assert bytes(buffer) == seen
        assert not any(pair.has_work for pair in fabric.queue_pairs.values())
    assert get(path, thing) == thing.content


def test_a_restarted_node_has_other_keys_and_is_found_again(
    fabric: FakeFabric, start_node: Callable[..., StorageNode], master: FakeMaster,
    context: RdmaContext,
) -> None:  # fmt: skip
    port = free_port()
    first = start_node(on_stop="keep", port=port)
    register = master.wait_registered()
    thing = make_thing(incarnation_of(register), 0, 5000)

    def path_to(register: Register) -> RdmaDataPath:
        return RdmaDataPath(
            register.host, register.port, node_id=register.node_id, node="n", context=context
        )

    with path_to(register) as path:
        put(path, thing)
        first.stop()
        assert not fabric.queue_pairs or all(
            pair.device.name == "client0" for pair in fabric.queue_pairs.values()
        )
        start_node(on_stop="keep", port=port)
        again = master.wait_registered(2)
        assert incarnation_of(again) == incarnation_of(register)
        assert get(path, thing) == thing.content


def test_a_stale_key_ends_the_link_and_gives_out_nothing(
    register: Register, path: RdmaDataPath, node: StorageNode
) -> None:
    thing = make_thing(incarnation_of(register), 0, 5000)
    put(path, thing)
    assert node.rdma is not None
    for port in node.rdma._ports:
        for held in port._held:
            held.close()
    task = thing.read_task()
    path.read([task], Deadline(3))
    assert isinstance(task.error, FabricLost)
    assert not any(task.targets[0])
    assert not path.is_up


def test_a_queue_pair_in_error_is_replaced_within_the_call(
    register: Register, path: RdmaDataPath, fabric: FakeFabric
) -> None:
    thing = make_thing(incarnation_of(register), 0, 5000)
    put(path, thing)
    for pair in list(fabric.queue_pairs.values()):
        pair.fail("local work queue catastrophic error")
    assert get(path, thing) == thing.content
    assert path.is_up


def test_the_end_of_a_client_ends_its_queue_pairs_at_the_node(
    register: Register, path: RdmaDataPath, fabric: FakeFabric
) -> None:
    put(path, make_thing(incarnation_of(register), 0, 5000))
    assert len(fabric.queue_pairs) == 2
    path.close()
    wait_until(lambda: not fabric.queue_pairs, 30, what="the node's queue pair is gone")


def faults_of(fabric: FakeFabric, random: Random) -> None:
    """Let one request in 33 fail, one in 100 with another queue pair than its own."""
    errors = ("retry exceeded error", "remote access error", "local protection error")

    def before(request: WorkRequest) -> str:
        del request
        roll = random.random()
        if roll < 0.01:
            next(iter(fabric.queue_pairs.values())).fail("port went away")
        return random.choice(errors) if roll < 0.03 else ""

    fabric.faults.before = before
    fabric.faults.steps = 5


@pytest.mark.parametrize("seed", range(8))
def test_with_random_faults_bytes_are_right_or_an_error_says_why(
    register: Register, path: RdmaDataPath, fabric: FakeFabric, context: RdmaContext, seed: int
) -> None:
    random = seeded(f"rdma faults {seed}")
    faults_of(fabric, random)
    landed: list[Thing] = []
    for number in range(15):
        size = random.choice((0, 100, 5000, 300_000, 700_000))
        thing = make_thing(incarnation_of(register), number * 2 * MIB, size)
        task = thing.write_task()
        path.write([task], Deadline(5))
        if task.error is None:
            landed.append(thing)
        else:
            assert isinstance(task.error, PeerError)
    assert landed
    for thing in landed:
        reading = thing.read_task()
        with contextlib.ExitStack() as stack:
            if thing.content and random.random() < 0.5:
                stack.enter_context(context.register(reading.targets[0]))
            path.read([reading], Deadline(5))
        if reading.error is None:
            assert bytes(reading.targets[0]) == thing.content
        else:  # Never: that another object lies there, or damaged bytes.
            assert isinstance(reading.error, Unreachable)


def test_memory_is_registered_whatever_its_address(context: RdmaContext) -> None:
    buffers = [memoryview(bytearray(5000)) for _ in range(20)]
    rail = context.rails[0]
    held = [context.register(buffer) for buffer in buffers]
    for buffer in buffers:
        address = address_of(buffer)
        assert rail.key_of(address, 5000) >= 0
        assert rail.key_of(address + 10, 4990) >= 0
        assert rail.key_of(address + 10, 4991) < 0 or rail.key_of(address + 5000, 1) >= 0
    for each in held:
        each.close()
        each.close()
    assert all(rail.key_of(address_of(buffer), 1) < 0 for buffer in buffers)


def test_what_is_in_no_registered_memory_is_read_over_the_connection_itself(
    register: Register, path: RdmaDataPath, node: StorageNode, fabric: FakeFabric
) -> None:
    """As everything on a disk is: the node sends it, and the suite's promises hold."""
    memory = memoryview(mmap.mmap(-1, mapped_bytes(4 * MIB)))
    other = Segment.format(memory, 4 * MIB, 77)
    segments = node.obedience._segments  # What the data port serves.
    assert isinstance(segments, dict)
    segments[77] = other
    there = make_thing(77, 0, 300_000)
    raw = there.sealed.header + there.content + there.sealed.tail
    other.extents[: len(raw)] = raw
    other.table[0] = there.identity.version
    here = make_thing(incarnation_of(register), 0, 5000)
    put(path, here)
    fabric.counts.clear()
    tasks = [thing.read_task() for thing in (there, here)]
    tasks.append(make_thing(77, 0, 300_000).read_task())
    path.read(tasks, Deadline(10))
    assert bytes(tasks[0].targets[0]) == there.content
    assert bytes(tasks[1].targets[0]) == here.content
    assert isinstance(tasks[2].error, StaleExtent)
    assert fabric.counts["bytes_read"] < 10_000
    del segments[77]
