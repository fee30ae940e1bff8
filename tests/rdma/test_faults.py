"""What goes wrong with a real device: right bytes or an error that says why; nothing is late."""

from __future__ import annotations

import os
import resource
import threading
import time
from typing import TYPE_CHECKING

import pytest

from mooncake_store.deadline import Deadline
from mooncake_store.errors import ConfigError, DeadlineExceeded, StaleTerm, Unreachable
from mooncake_store.memory import address_of
from mooncake_store.testing import wait_until
from mooncake_store.transport.rdma import FabricLost
from mooncake_store.transport.rdma.pyverbs_device import open_devices
from mooncake_store.transport.rdma.verbs import Access
from mooncake_store.wire.control import FreeItem
from tests.contract.transport.tasks import INCARNATION, MIB, PLENTY_S, Reading, make, writing_of

from .rig import Rig, make_rig

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with make_rig() as rig:
        yield rig


def test_a_freed_extent_takes_no_byte_of_a_write_under_way(rig: Rig) -> None:
    """What an expired attempt leads to, in the middle of its transfer."""
    planted = make(12 * MIB)
    size = -(-len(planted.extent) // 512) * 512
    offset = rig.ground.room(size)
    rig.ground.set_entry(offset, 0)
    rig.ground.write(offset, bytes(size))
    with rig.path() as path:
        warm = make(100)
        at = rig.ground.room(4096)
        rig.ground.set_entry(at, 0)
        path.write([writing_of(warm, at)], Deadline(PLENTY_S))
        task = writing_of(planted, offset)
        writer = threading.Thread(target=path.write, args=([task], Deadline(PLENTY_S)))
        writer.start()
        wait_until(lambda: any(rig.ground.read(offset + MIB, 64)), PLENTY_S, what="bytes arrive")
        rig.incoming.cut(FreeItem(INCARNATION, offset, size, planted.version))
        seen = rig.ground.read(offset, size)
        writer.join(PLENTY_S)
        time.sleep(1)
        assert rig.ground.read(offset, size) == seen
        assert seen != planted.extent + bytes(size - len(planted.extent))
        assert isinstance(task.error, (Unreachable, StaleTerm))
        assert rig.ground.entry(offset) == 0


def test_a_read_that_ran_out_of_time_leaves_its_buffer_alone(rig: Rig) -> None:
    planted = make(12 * MIB)
    offset = rig.ground.plant(planted)
    buffer = memoryview(bytearray(12 * MIB))
    with rig.path() as path, rig.context.register(buffer):
        path.read([Reading(make(10), 0).task], Deadline(PLENTY_S))  # Connects.
        late = Reading(planted, offset)
        late.task.targets = [buffer]
        for deadline_s in (0.3, 0.1, 0.03, 0.01, 0.003):
            path.read([late.task], Deadline(deadline_s))
            if late.task.error is not None:
                break
        assert isinstance(late.task.error, DeadlineExceeded)
        seen = bytes(buffer)
        time.sleep(1)
        assert bytes(buffer) == seen
        whole = Reading(planted, offset)
        whole.task.targets = [buffer]
        path.read([whole.task], Deadline(PLENTY_S))
        assert whole.task.error is None
        assert buffer == planted.payload


def test_a_queue_pair_in_error_is_replaced_within_the_call(rig: Rig) -> None:
    planted = make(5000)
    offset = rig.ground.plant(planted)
    with rig.path() as path:
        for _ in range(2):
            reading = Reading(planted, offset)
            path.read([reading.task], Deadline(PLENTY_S))
            reading.check()
            (connection,) = path._idle
            pair = connection.link.pair  # type: ignore[attr-defined]
            enums = pair._device.enums
            attributes = pair._pair.query(enums.IBV_QP_STATE)[0]
            attributes.qp_state = enums.IBV_QPS_ERR
            pair._pair.modify(attributes, enums.IBV_QP_STATE)
        assert path.is_up


def test_a_key_that_is_gone_gives_out_nothing() -> None:
    planted = make(5000)
    with make_rig() as other, other.path() as path:
        offset = other.ground.plant(planted)
        reading = Reading(planted, offset)
        path.read([reading.task], Deadline(PLENTY_S))
        reading.check()
        for port in other.ports._ports:
            for held in port._held:
                held.close()
        again = Reading(planted, offset)
        path.read([again.task], Deadline(PLENTY_S))
        assert isinstance(again.task.error, FabricLost)
        assert again.got == b"\xa5" * 5000


def test_too_little_memory_to_lock_is_said_in_one_line() -> None:
    """In a child without root's right to lock what it likes."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.close(read_end)
        os.write(write_end, _refusal().encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as said:
        text = said.read()
    os.waitpid(child, 0)
    assert "rxe0 may not lock 4194304 bytes: raise the limit (ulimit -l" in text


def _refusal() -> str:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))
    os.setgid(65534)
    os.setuid(65534)
    buffer = memoryview(bytearray(4 << 20))
    try:
        devices, problems = open_devices()
        if not devices:
            return "; ".join(problems)
        devices[0].register(address_of(buffer), len(buffer), Access.LOCAL)
    except ConfigError as error:
        return str(error)
    return "nothing was refused"
