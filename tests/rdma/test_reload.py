"""The device goes and comes back. The kernel lets it go when nobody uses it: nothing else may."""

from __future__ import annotations

import subprocess
import threading

from mooncake_store.deadline import Deadline
from mooncake_store.testing import wait_until
from mooncake_store.transport.rdma import FabricLost
from mooncake_store.transport.rdma.pyverbs_device import device_names, open_devices
from tests.contract.transport.tasks import MIB, PLENTY_S, Reading, make

from .rig import make_rig


def test_a_device_that_is_taken_away_in_mid_transfer_and_comes_back() -> None:
    """The kernel waits for the end of all that use it; whoever comes later gets the new one."""
    planted = make(12 * MIB)
    buffer = memoryview(bytearray(12 * MIB))
    with make_rig() as old:
        offset = old.ground.plant(planted)
        with old.path() as path, old.context.register(buffer):
            path.read([Reading(make(10), 0).task], Deadline(PLENTY_S))  # Connects.
            reading = Reading(planted, offset)
            reading.task.targets = [buffer]
            reader = threading.Thread(target=path.read, args=([reading.task], Deadline(PLENTY_S)))
            reader.start()
            wait_until(lambda: any(buffer[MIB : MIB + 64]), PLENTY_S, what="bytes arrive")
            removal = subprocess.Popen(["rdma", "link", "delete", "rxe0"])  # noqa: S607
            subprocess.run(["ip", "link", "set", "dummy0", "down"], check=True)  # noqa: S607
            reader.join(70)
            assert not reader.is_alive()
            seen = bytes(buffer)
            if reading.task.error is None:
                assert seen == planted.payload
            else:
                assert isinstance(reading.task.error, FabricLost)
            again = Reading(planted, offset)
            path.read([again.task], Deadline(PLENTY_S))
            assert isinstance(again.task.error, FabricLost)
            assert bytes(buffer) == seen
    assert removal.wait(60) == 0
    wait_until(lambda: not device_names(), PLENTY_S, what="the device is gone")
    devices, problems = open_devices()
    assert (devices, problems) == ([], ["this host has no RDMA device"])
    for words in (
        ["ip", "link", "set", "dummy0", "up"],
        ["ip", "addr", "replace", "10.99.0.1/24", "dev", "dummy0"],
        ["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "dummy0"],
    ):
        subprocess.run(words, check=True)  # noqa: S603
    with make_rig() as new, new.path() as path:
        offset = new.ground.plant(planted)
        reading = Reading(planted, offset)
        path.read([reading.task], Deadline(PLENTY_S))
        reading.check()
