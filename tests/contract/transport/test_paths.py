"""The suite, run by every data path."""

from __future__ import annotations

import asyncio
import mmap
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node.data_server import DataLimits, DataServer
from mooncake_storage_node.dram import Pool
from mooncake_storage_node.local_server import LocalServer
from mooncake_storage_node.node_view import NodeView
from mooncake_storage_node.writes import IncomingWrites
from mooncake_store import memory
from mooncake_store.deadline import Deadline
from mooncake_store.segment import Segment
from mooncake_store.transport import (
    AsyncDataPath,
    AsyncMemoryDataPath,
    AsyncShmDataPath,
    AsyncTcpDataPath,
    DataPath,
    MemoryDataPath,
    ReadTask,
    ShmDataPath,
    TcpDataPath,
    WriteTask,
)
from mooncake_store.transport.extents import MOVE_BYTES_MIN

from .planting import Ground, file_bytes, format_segment
from .suite import DataPathContract
from .tasks import INCARNATION, PLENTY_S, POOL_BYTES, identity_of, make

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_store.extent import Identity
    from mooncake_store.transport import Reservation, View

NODE_ID = "5e" * 16


class Blocking(DataPath):
    """An asyncio path, run to the end of each call."""

    def __init__(self, runner: asyncio.Runner, path: AsyncDataPath) -> None:
        self._runner = runner
        self._path = path
        self.name = path.name  # type: ignore[misc]  # the wrapped path's own
        self.has_views = path.has_views  # type: ignore[misc]  # the wrapped path's own

    def read(self, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
        self._runner.run(self._path.read(tasks, deadline))

    def write(self, tasks: Sequence[WriteTask], deadline: Deadline) -> None:
        self._runner.run(self._path.write(tasks, deadline))

    def view(self, incarnation: int, offset: int, identity: Identity, *, attempt: int = 0) -> View:
        return self._path.view(incarnation, offset, identity, attempt=attempt)

    def reserve(self, incarnation: int, offset: int, identity: Identity) -> Reservation:
        return self._path.reserve(incarnation, offset, identity)

    def close(self) -> None:
        self._runner.run(self._path.aclose())


@contextmanager
def private_memory() -> Iterator[memoryview]:
    mapping = mmap.mmap(-1, file_bytes(POOL_BYTES))
    yield memoryview(mapping)


@pytest.fixture(scope="module")
def own_ground() -> Iterator[Ground]:
    """Memory of this process."""
    with private_memory() as whole:
        format_segment(whole, POOL_BYTES, INCARNATION)
        yield Ground(whole, POOL_BYTES, INCARNATION)


@pytest.fixture(scope="module")
def port(own_ground: Ground) -> Iterator[int]:
    """A data port of this process over that memory."""
    segments = {INCARNATION: Segment(own_ground.memory)}
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0)
    node = NodeView(NODE_ID, segments, IncomingWrites())
    server = DataServer(node, [listener], DataLimits())
    number = listener.getsockname()[1]
    server.start()
    yield number
    server.stop()


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ground, str]]:
    """Memory of a file, and a local socket that hands it over."""
    folder = tmp_path_factory.mktemp("node")
    size = file_bytes(POOL_BYTES)
    descriptor = memory.create_file(folder / "segment", size)
    mapping = memory.map_file(descriptor, size)
    memory.close_file(descriptor)
    format_segment(memoryview(mapping), POOL_BYTES, INCARNATION)
    pool = Pool(folder / "segment", mapping, attached=True)
    server = LocalServer(folder / "socket", NODE_ID, pool)
    server.start()
    yield Ground(memoryview(mapping), POOL_BYTES, INCARNATION), str(folder / "socket")
    server.stop()


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


class OnOwnMemory(DataPathContract):
    @pytest.fixture
    def ground(self, own_ground: Ground) -> Ground:
        return own_ground

    @pytest.fixture
    def path(self, make_path: DataPath) -> Iterator[DataPath]:
        with make_path as path:
            yield path


class TestMemory(OnOwnMemory):
    @pytest.fixture
    def make_path(self, ground: Ground) -> DataPath:
        return MemoryDataPath({INCARNATION: Segment(ground.memory)})


class TestAsyncMemory(OnOwnMemory):
    @pytest.fixture
    def make_path(self, ground: Ground, runner: asyncio.Runner) -> DataPath:
        return Blocking(runner, AsyncMemoryDataPath({INCARNATION: Segment(ground.memory)}))


class TestTcp(OnOwnMemory):
    @pytest.fixture
    def make_path(self, port: int) -> DataPath:
        return TcpDataPath("127.0.0.1", port, node_id=NODE_ID, node="n")


class TestAsyncTcp(OnOwnMemory):
    @pytest.fixture
    def make_path(self, port: int, runner: asyncio.Runner) -> DataPath:
        return Blocking(runner, AsyncTcpDataPath("127.0.0.1", port, node_id=NODE_ID, node="n"))


class OnSharedMemory(DataPathContract):
    @pytest.fixture
    def ground(self, shared_place: tuple[Ground, str]) -> Ground:
        return shared_place[0]

    @pytest.fixture
    def shm(self, shared_place: tuple[Ground, str]) -> ShmDataPath:
        return ShmDataPath.connect(
            shared_place[1], node_id=NODE_ID, node="n", deadline=Deadline(PLENTY_S)
        )

    @pytest.fixture
    def path(self, make_path: DataPath, ground: Ground) -> Iterator[DataPath]:
        with make_path as path:
            yield path
        assert not ground.intents()


class TestShm(OnSharedMemory):
    @pytest.fixture
    def make_path(self, shm: ShmDataPath) -> DataPath:
        return shm

    def test_small_values_are_taken_and_large_ones_are_not(
        self, ground: Ground, path: DataPath
    ) -> None:
        for size in (0, 4096, MOVE_BYTES_MIN, MOVE_BYTES_MIN + 1):
            planted = make(size)
            taken = path.take(INCARNATION, ground.plant(planted), identity_of(planted))
            assert taken == (planted.payload if size <= MOVE_BYTES_MIN else None)


class TestAsyncShm(OnSharedMemory):
    @pytest.fixture
    def make_path(self, shm: ShmDataPath, runner: asyncio.Runner) -> DataPath:
        return Blocking(runner, AsyncShmDataPath(shm))
