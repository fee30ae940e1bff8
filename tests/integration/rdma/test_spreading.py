"""A large transfer of registered memory goes over several queue pairs and devices (ADR 53)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from mooncake_client import AsyncClient, Client, InvalidArgument
from mooncake_storage_node import rdma_ports
from mooncake_store.deadline import Deadline
from mooncake_store.errors import (
    ChecksumMismatch,
    DeadlineExceeded,
    StaleTerm,
    Unreachable,
)
from mooncake_store.limits import QUEUE_PAIRS_MAX
from mooncake_store.testing.verbs import FakeDevice, FakeFabric, FakeQueuePair
from mooncake_store.transport.rdma import AsyncRdmaDataPath, RdmaContext, RdmaDataPath
from mooncake_store.transport.rdma.flow import SIGNAL_EVERY
from mooncake_store.wire import data
from mooncake_store.wire.rdma import encode_open
from tests.integration.node.support import MIB, Thing, get, greeted_socket, make_thing, receive

from .test_client import cluster
from .test_client import node as joined_node
from .test_fences import Gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_storage_node.app import StorageNode
    from mooncake_store.data_path import ReadTask
    from mooncake_store.testing import ProcessCluster
    from mooncake_store.transport.rdma.verbs import WorkRequest
    from mooncake_store.wire.control import Register
    from tests.integration.node.fake_master import FakeMaster

__all__ = ["cluster", "joined_node"]

SIZE = 12 * MIB


@pytest.fixture
def fabric(fabric: FakeFabric, monkeypatch: pytest.MonkeyPatch) -> FakeFabric:
    """Nodes that start in the test have two devices on it, whose keys differ."""
    monkeypatch.setattr(
        rdma_ports,
        "open_devices",
        lambda _: ([FakeDevice(fabric, "node0"), FakeDevice(fabric, "node1")], []),
    )
    return fabric


@pytest.fixture
def context(fabric: FakeFabric) -> RdmaContext:
    devices = [FakeDevice(fabric, "client0"), FakeDevice(fabric, "client1")]
    return RdmaContext(devices, queue_pairs=4)


@pytest.fixture
def buffer(context: RdmaContext) -> Iterator[memoryview]:
    memory = memoryview(bytearray(SIZE))
    with context.register(memory):
        yield memory


def ours(fabric: FakeFabric) -> list[FakeQueuePair]:
    """The client's queue pairs, in the order in which they were made."""
    pairs = sorted(fabric.queue_pairs.items())
    return [pair for _, pair in pairs if pair.device.name.startswith("client")]


def thing_of(register: Register, offset: int = 0, size: int = SIZE) -> Thing:
    return make_thing(register.segments[0].incarnation, offset, size)


def write(path: RdmaDataPath, thing: Thing, buffer: memoryview, deadline_s: float = 20) -> None:
    buffer[: len(thing.content)] = thing.content
    task = thing.write_task()
    task.parts = [buffer[: len(thing.content)]]
    path.write([task], Deadline(deadline_s))
    if task.error is not None:
        raise task.error


def reading(thing: Thing, buffer: memoryview, *, verify: bool = True) -> ReadTask:
    task = thing.read_task()
    task.targets = [buffer[: len(thing.content)]]
    task.verify = verify
    return task


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_all_queue_pairs_carry_their_share_in_whatever_order(
    register: Register,
    path: RdmaDataPath,
    fabric: FakeFabric,
    buffer: memoryview,
    verify: bool,  # noqa: FBT001 - a parameter of the test
    seed: int,
) -> None:
    fabric.faults.steps = 2 + seed
    fabric.shuffle(seed)
    thing = thing_of(register)
    write(path, thing, buffer)
    pairs = ours(fabric)
    assert [pair.device.name for pair in pairs] == ["client0", "client1", "client0", "client1"]
    assert [pair.peer_device.name for pair in pairs] == ["node0", "node1", "node0", "node1"]
    assert all(pair.moved >= SIZE // 4 for pair in pairs)
    before = [pair.moved for pair in pairs]
    buffer[:] = bytes(SIZE)
    task = reading(thing, buffer, verify=verify)
    path.read([task], Deadline(20))
    assert task.error is None
    assert task.verified is verify
    assert buffer == thing.content
    assert all(pair.moved - old >= SIZE // 4 for pair, old in zip(pairs, before, strict=True))


def test_a_spread_read_rings_each_doorbell_once(
    register: Register, path: RdmaDataPath, fabric: FakeFabric, buffer: memoryview
) -> None:
    thing = thing_of(register)
    write(path, thing, buffer)
    fabric.counts.clear()
    task = reading(thing, buffer)
    path.read([task], Deadline(20))
    assert task.error is None
    assert fabric.counts["doorbells"] == 4
    assert fabric.counts["requests"] <= SIZE // MIB + 4  # header, table, entry, epoch
    assert fabric.counts["completions"] <= 4 + fabric.counts["requests"] // SIGNAL_EVERY
    assert not any(connection.copied for connection in path._idle)  # type: ignore[attr-defined]


def test_every_queue_pair_that_wrote_is_followed_by_a_read_of_its_own(
    register: Register, path: RdmaDataPath, fabric: FakeFabric, buffer: memoryview
) -> None:
    write(path, thing_of(register, 16 * MIB), buffer)
    seen: list[tuple[int, bool]] = []

    def note(pair: FakeQueuePair, request: WorkRequest) -> str:
        seen.append((pair.endpoint.number, request.write))
        return ""

    fabric.faults.before_on = note
    write(path, thing_of(register), buffer)
    for pair in ours(fabric):
        kinds = [is_write for number, is_write in seen if number == pair.endpoint.number]
        assert kinds.count(True) >= 3
        assert kinds[-1] is False


def test_little_or_unregistered_memory_stays_on_one_queue_pair(
    register: Register, path: RdmaDataPath, fabric: FakeFabric, buffer: memoryview
) -> None:
    write(path, thing_of(register, 16 * MIB, MIB), buffer)
    thing = thing_of(register)
    task = thing.write_task()
    path.write([task], Deadline(20))
    assert task.error is None
    assert get(path, thing) == thing.content
    assert len(ours(fabric)) == 1


def test_a_freed_extent_cuts_all_queue_pairs_of_its_writer(
    register: Register, path: RdmaDataPath, fabric: FakeFabric, buffer: memoryview,
    master: FakeMaster, node: StorageNode,
) -> None:  # fmt: skip
    write(path, thing_of(register, 16 * MIB), buffer)
    late = thing_of(register)
    buffer[:] = late.content
    gate = Gate(fabric, after=6)
    task = late.write_task()
    task.parts = [buffer]
    writer = threading.Thread(target=path.write, args=([task], Deadline(60)))
    writer.start()
    assert gate.reached.wait(30)
    assert all(pair.has_work for pair in ours(fabric))
    assert master.free(late.item) == b"\x01"
    extents = node.pool.segment.extents
    extents[: 13 * MIB] = b"\x77" * (13 * MIB)
    gate.open()
    writer.join(30)
    assert not writer.is_alive()
    assert isinstance(task.error, (Unreachable, StaleTerm))
    assert extents[: 13 * MIB] == b"\x77" * (13 * MIB)


def test_nothing_arrives_over_any_queue_pair_after_the_end_of_a_read(
    register: Register, path: RdmaDataPath, fabric: FakeFabric, buffer: memoryview
) -> None:
    thing = thing_of(register)
    write(path, thing, buffer)
    gate = Gate(fabric, after=6)
    task = reading(thing, buffer)
    path.read([task], Deadline(0.3))
    assert isinstance(task.error, DeadlineExceeded)
    buffer[:] = b"\xa5" * SIZE
    gate.open()
    assert buffer == b"\xa5" * SIZE
    assert not ours(fabric)


def test_damage_in_any_stripe_is_found(
    register: Register, path: RdmaDataPath, buffer: memoryview, node: StorageNode
) -> None:
    thing = thing_of(register)
    write(path, thing, buffer)
    for stripe in range(5):
        at = 64 + stripe * MIB + 1000
        node.pool.segment.extents[at] ^= 1
        task = reading(thing, buffer)
        path.read([task], Deadline(20))
        assert isinstance(task.error, ChecksumMismatch)
        node.pool.segment.extents[at] ^= 1
        path.read([task], Deadline(20))
        assert task.error is None


def test_a_queue_pair_that_dies_in_mid_transfer_ends_the_connection_s_work(
    register: Register, path: RdmaDataPath, fabric: FakeFabric, buffer: memoryview
) -> None:
    thing = thing_of(register)
    write(path, thing, buffer)
    victim = ours(fabric)[2].endpoint.number
    fabric.faults.before_on = lambda pair, _: (
        "retry exceeded error" if pair.endpoint.number == victim else ""
    )
    task = reading(thing, buffer)
    path.read([task], Deadline(20))  # A kept connection that failed is replaced within the call.
    assert task.error is None
    assert buffer == thing.content
    assert victim not in fabric.queue_pairs


@pytest.mark.parametrize("trouble", ["memlock", "connect", "proof"])
def test_a_queue_pair_that_cannot_be_had_leaves_the_others(
    register: Register, path: RdmaDataPath, fabric: FakeFabric, buffer: memoryview,
    context: RdmaContext, trouble: str,
) -> None:  # fmt: skip
    thing = thing_of(register)
    bad = context.rails[1].device
    assert isinstance(bad, FakeDevice)
    if trouble == "memlock":
        bad.memlock_bytes = bad.registered
    elif trouble == "connect":
        bad.refuse = True
    else:
        fabric.faults.before_on = lambda pair, _: (
            "retry exceeded error" if pair.device is bad else ""
        )
    write(path, thing, buffer)
    assert [pair.device.name for pair in ours(fabric)] == ["client0", "client0"]
    task = reading(thing, buffer)
    path.read([task], Deadline(20))
    assert task.error is None
    assert buffer == thing.content


async def test_asyncio_spreads_too(
    register: Register, path: RdmaDataPath, fabric: FakeFabric, buffer: memoryview,
    context: RdmaContext,
) -> None:  # fmt: skip
    thing = thing_of(register)
    write(path, thing, buffer)
    path.close()
    fabric.faults.steps = 3
    async with AsyncRdmaDataPath(
        register.host, register.port, node_id=register.node_id, node="n", context=context
    ) as reader:
        buffer[:] = bytes(SIZE)
        task = reading(thing, buffer)
        await reader.read([task], Deadline(20))
        assert task.error is None
        assert buffer == thing.content
        pairs = ours(fabric)
        assert len(pairs) == 4
        assert all(pair.moved >= SIZE // 4 for pair in pairs)
        again = thing_of(register, 16 * MIB)
        buffer[:] = again.content
        writing = again.write_task()
        writing.parts = [buffer]
        await reader.write([writing], Deadline(20))
        assert writing.error is None
        fabric.faults.before_on = lambda pair, _: "retry exceeded error" if pair is pairs[3] else ""
        retried = reading(thing, buffer)
        await reader.read([retried], Deadline(20))  # Over a new connection.
        assert retried.error is None
        assert buffer == thing.content
    assert not ours(fabric)


def test_a_node_gives_a_connection_so_many_queue_pairs(
    register: Register, fabric: FakeFabric
) -> None:
    device = FakeDevice(fabric, "stranger")
    with greeted_socket(register) as sock:
        for number in range(QUEUE_PAIRS_MAX + 1):
            pair = device.create_queue_pair(1)
            sock.sendall(encode_open(pair.endpoint, number + 1, 1000))
            header = data.decode_header(receive(sock, data.HEADER_BYTES), reply=True)
            rest = receive(sock, data.STATUS_BYTES + header.payload_bytes)
            refused = f"at most {QUEUE_PAIRS_MAX} queue pairs".encode() in rest
            assert refused is (number == QUEUE_PAIRS_MAX)


@pytest.mark.processes
@pytest.mark.parametrize(("wanted", "expected"), [(0, 1), (3, 3)])
def test_the_client_s_option(
    cluster: ProcessCluster,
    joined_node: StorageNode,
    fabric: FakeFabric,
    wanted: int,
    expected: int,
) -> None:
    del joined_node
    memory = bytearray(SIZE)
    with Client(cluster.address, namespace=f"option {wanted}", rdma_queue_pairs=wanted) as client:
        client.put("k", bytes(SIZE))
        with client.register(memory):
            assert client.get_into("k", memory) == SIZE
            assert len(ours(fabric)) == expected
    for wrong in (-1, QUEUE_PAIRS_MAX + 1, True, "2"):
        with pytest.raises(InvalidArgument, match="rdma_queue_pairs is a number from 0 to 8"):
            Client(cluster.address, rdma_queue_pairs=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="rdma_queue_pairs"):
            AsyncClient(cluster.address, rdma_queue_pairs=wrong)  # type: ignore[arg-type]


def test_near_devices_share_a_transfer_by_default() -> None:
    fabric = FakeFabric()
    devices = [FakeDevice(fabric, f"d{number}") for number in range(4)]
    devices[2].is_near = False
    context = RdmaContext(devices)
    names = [[rail.device.name for rail in context.lanes(number)] for number in range(3)]
    assert names == [["d1", "d3"], ["d3", "d0"], ["d0", "d1"]]
    assert RdmaContext(devices[:1]).lanes(0) == []
    assert len(RdmaContext(devices, queue_pairs=QUEUE_PAIRS_MAX).lanes(0)) == QUEUE_PAIRS_MAX - 1
