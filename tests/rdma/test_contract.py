"""The suite of every data path, over a real device."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mooncake_store.deadline import Deadline
from mooncake_store.transport.rdma import AsyncRdmaDataPath, RdmaContext, RdmaDataPath
from mooncake_store.transport.rdma.pyverbs_device import open_devices
from tests.contract.transport.suite import DataPathContract
from tests.contract.transport.tasks import MIB, PLENTY_S, Reading, make, writing_of
from tests.contract.transport.test_paths import NODE_ID, Blocking

from .rig import Rig, make_rig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_store.transport import DataPath
    from tests.contract.transport.planting import Ground

    from .conftest import Packets


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with make_rig() as rig:
        yield rig


@pytest.fixture
def ground(rig: Rig) -> Ground:
    return rig.ground


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


class TestRdma(DataPathContract):
    # An emulated processor moves 3 MB/s: these would come near their own deadlines.
    test_an_object_over_64_mib_is_read_exactly = None  # type: ignore[assignment]
    test_an_object_over_64_mib_is_written_exactly = None  # type: ignore[assignment]

    @pytest.fixture
    def make_path(self, rig: Rig) -> DataPath:
        return rig.path()

    @pytest.fixture
    def path(self, make_path: DataPath) -> Iterator[DataPath]:
        with make_path as path:
            yield path


def test_a_large_transfer_goes_over_several_queue_pairs(rig: Rig, packets: Packets) -> None:
    devices, problems = open_devices()
    assert devices, problems
    context = RdmaContext(devices, queue_pairs=3)
    planted = make(5 * MIB + 12_345)
    offset = rig.ground.room(len(planted.extent))
    rig.ground.set_entry(offset, 0)
    buffer = memoryview(bytearray(planted.payload))
    path = RdmaDataPath("127.0.0.1", rig.port, node_id=NODE_ID, node="n", context=context)
    with path, context.register(buffer):
        write = writing_of(planted, offset)
        write.parts = [buffer]
        path.write([write], Deadline(PLENTY_S))
        assert write.error is None
        for verify in (True, False):
            buffer[:] = bytes(len(buffer))
            reading = Reading(planted, offset)
            reading.task.targets = [buffer]
            reading.task.verify = verify
            path.read([reading.task], Deadline(PLENTY_S))
            assert reading.task.error is None
            assert buffer == planted.payload
        (connection,) = path._idle
        lanes = connection.link.lanes  # type: ignore[attr-defined]
        assert len(lanes) == 2
        assert all(lane.completed == lane.posted > 3 for lane in lanes)
        assert connection.copied == 0  # type: ignore[attr-defined]
    context.close()
    packets.prove(3 * len(buffer))


class TestAsyncRdma(TestRdma):
    @pytest.fixture
    def make_path(self, rig: Rig, runner: asyncio.Runner) -> DataPath:
        path = AsyncRdmaDataPath(
            "127.0.0.1", rig.port, node_id=NODE_ID, node="n", context=rig.context
        )
        return Blocking(runner, path)
