"""Transfers go over the device that is nearest to their buffer, and over others where it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mooncake_store.deadline import Deadline
from mooncake_store.testing.verbs import FakeDevice, FakeFabric
from mooncake_store.transport.rdma import AsyncRdmaDataPath, RdmaContext, RdmaDataPath
from mooncake_store.transport.rdma import context as context_module
from mooncake_store.transport.rdma.nearness import Spot
from tests.integration.node.support import MIB, Thing, make_thing, put

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_store.data_path import ReadTask
    from mooncake_store.wire.control import Register

SIZE = MIB


@pytest.fixture
def context(fabric: FakeFabric) -> RdmaContext:
    """Two devices, one on each of two NUMA nodes; this process runs on the first."""
    devices = [FakeDevice(fabric, "client0"), FakeDevice(fabric, "client1")]
    devices[0].spot, devices[1].spot = Spot(0), Spot(1)
    devices[1].is_near = False
    return RdmaContext(devices)


@pytest.fixture
def far(context: RdmaContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[memoryview]:
    """Registered memory on the second node."""
    monkeypatch.setattr(context_module, "numa_node_of", lambda *_: 1)
    memory = memoryview(bytearray(SIZE))
    with context.register(memory):
        yield memory


def moved(fabric: FakeFabric, name: str) -> int:
    return sum(pair.moved for pair in fabric.queue_pairs.values() if pair.device.name == name)


def into(thing: Thing, buffer: memoryview) -> ReadTask:
    task = thing.read_task()
    task.targets = [buffer]
    return task


def test_the_device_of_the_buffer_s_node_is_used(
    register: Register, path: RdmaDataPath, fabric: FakeFabric, far: memoryview
) -> None:
    thing = make_thing(register.segments[0].incarnation, 0, SIZE)
    put(path, thing)
    assert moved(fabric, "client1") == 0
    task = into(thing, far)
    path.read([task], Deadline(10))
    assert task.error is None
    assert far == thing.content
    assert moved(fabric, "client1") >= SIZE
    before = moved(fabric, "client1")
    again = make_thing(register.segments[0].incarnation, 4 * MIB, SIZE)
    far[:] = again.content
    writing = again.write_task()
    writing.parts = [far]
    path.write([writing], Deadline(10))
    assert writing.error is None
    assert moved(fabric, "client1") >= before + SIZE
    path.close()
    assert not any(pair.device.name != "node0" for pair in fabric.queue_pairs.values())


def test_another_device_is_used_where_the_nearest_fails(
    register: Register, path: RdmaDataPath, context: RdmaContext, fabric: FakeFabric,
    far: memoryview,
) -> None:  # fmt: skip
    thing = make_thing(register.segments[0].incarnation, 0, SIZE)
    put(path, thing)
    before = moved(fabric, "client0")
    nearest = context.rails[1].device
    assert isinstance(nearest, FakeDevice)
    nearest.refuse = True
    task = into(thing, far)
    path.read([task], Deadline(10))
    assert task.error is None
    assert far == thing.content
    assert moved(fabric, "client0") >= before + SIZE
    assert path.is_up


async def test_asyncio_does_the_same(
    register: Register, path: RdmaDataPath, context: RdmaContext, fabric: FakeFabric,
    far: memoryview,
) -> None:  # fmt: skip
    thing = make_thing(register.segments[0].incarnation, 0, SIZE)
    put(path, thing)
    async with AsyncRdmaDataPath(
        register.host, register.port, node_id=register.node_id, node="n", context=context
    ) as reader:
        task = into(thing, far)
        await reader.read([task], Deadline(10))
        assert task.error is None
        assert far == thing.content
        assert moved(fabric, "client1") >= SIZE
        fabric.faults.is_cut = True
        late = into(thing, far)
        await reader.read([late], Deadline(0.2))
        assert late.error is not None
        fabric.faults.is_cut = False
    assert moved(fabric, "client1") == 0
