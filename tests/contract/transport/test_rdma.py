"""The suite over RDMA, on a fabric without hardware."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node.data_server import DataLimits, DataServer
from mooncake_storage_node.node_view import NodeView
from mooncake_storage_node.rdma_ports import RdmaPorts
from mooncake_storage_node.writes import IncomingWrites
from mooncake_store.limits import CHUNK_BYTES
from mooncake_store.segment import Segment
from mooncake_store.testing.verbs import FakeDevice, FakeFabric
from mooncake_store.transport import DataPath
from mooncake_store.transport.rdma import AsyncRdmaDataPath, RdmaContext, RdmaDataPath, spreading

from .planting import Ground, format_segment
from .suite import DataPathContract
from .tasks import INCARNATION, POOL_BYTES
from .test_paths import NODE_ID, Blocking, private_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mooncake_store.deadline import Deadline
    from mooncake_store.transport import ReadTask, WriteTask


@pytest.fixture(scope="module")
def fabric() -> FakeFabric:
    return FakeFabric(seed=5)


@pytest.fixture(scope="module")
def rdma_ground() -> Iterator[Ground]:
    with private_memory() as whole:
        format_segment(whole, POOL_BYTES, INCARNATION)
        yield Ground(whole, POOL_BYTES, INCARNATION)


@pytest.fixture(scope="module")
def rdma_port(rdma_ground: Ground, fabric: FakeFabric) -> Iterator[int]:
    """A data port that offers RDMA."""
    segment = Segment(rdma_ground.memory)
    ports = RdmaPorts([FakeDevice(fabric, "node0"), FakeDevice(fabric, "node1")], [segment])
    ports.register()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0)
    node = NodeView(NODE_ID, {INCARNATION: segment}, IncomingWrites(), ports)
    server = DataServer(node, [listener], DataLimits())
    number = listener.getsockname()[1]
    server.start()
    yield number
    server.stop()
    ports.stop()
    assert not fabric.queue_pairs


@pytest.fixture(scope="module")
def context(fabric: FakeFabric) -> RdmaContext:
    return RdmaContext([FakeDevice(fabric, "client0"), FakeDevice(fabric, "client1")])


class OnFabric(DataPathContract):
    @pytest.fixture
    def ground(self, rdma_ground: Ground) -> Ground:
        return rdma_ground

    @pytest.fixture
    def path(self, make_path: DataPath) -> Iterator[DataPath]:
        with make_path as path:
            yield path


class TestRdma(OnFabric):
    @pytest.fixture
    def make_path(self, rdma_port: int, context: RdmaContext) -> DataPath:
        return RdmaDataPath("127.0.0.1", rdma_port, node_id=NODE_ID, node="n", context=context)


class TestAsyncRdma(OnFabric):
    @pytest.fixture
    def make_path(self, rdma_port: int, context: RdmaContext, runner: asyncio.Runner) -> DataPath:
        path = AsyncRdmaDataPath("127.0.0.1", rdma_port, node_id=NODE_ID, node="n", context=context)
        return Blocking(runner, path)


REGISTERED_BYTES_MIN = 512
"""Smaller ones go through the slab, beside others of the same object that do not."""


class Registering(DataPath):
    """A path whose callers register their buffers."""

    name = "rdma"

    def __init__(self, path: DataPath, context: RdmaContext) -> None:
        self._path = path
        self._context = context

    def read(self, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
        with self._registered(view for task in tasks for view in task.targets):
            self._path.read(tasks, deadline)

    def write(self, tasks: Sequence[WriteTask], deadline: Deadline) -> None:
        with self._registered(view for task in tasks for view in task.parts):
            self._path.write(tasks, deadline)

    def close(self) -> None:
        self._path.close()

    @contextmanager
    def _registered(self, views: Iterable[memoryview]) -> Iterator[None]:
        with ExitStack() as stack:
            for view in views:
                if view.nbytes >= REGISTERED_BYTES_MIN:
                    stack.enter_context(self._context.register(view.cast("B")))
            yield


class TestRdmaOverSeveralQueuePairs(OnFabric):
    """Every exchange is spread, over devices that keep different keys."""

    @pytest.fixture(autouse=True)
    def _spread_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spreading, "SPREAD_BYTES", 1)
        monkeypatch.setattr(spreading, "STRIPE_BYTES", CHUNK_BYTES)

    @pytest.fixture
    def wide(self, fabric: FakeFabric) -> RdmaContext:
        devices = [FakeDevice(fabric, f"client{number}") for number in range(2)]
        return RdmaContext(devices, queue_pairs=3)

    @pytest.fixture
    def make_path(self, rdma_port: int, wide: RdmaContext) -> DataPath:
        path = RdmaDataPath("127.0.0.1", rdma_port, node_id=NODE_ID, node="n", context=wide)
        return Registering(path, wide)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner
