"""Processes of a cluster whose bytes go over a real device; its own counters prove it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mooncake_client import AsyncClient, Client, PeerError
from mooncake_store.testing.payload import payload

if TYPE_CHECKING:
    from mooncake_store.testing import ProcessCluster

    from .conftest import Packets

pytestmark = pytest.mark.processes

SIZE = 100_000


def test_objects_go_there_and_back(cluster: ProcessCluster, packets: Packets) -> None:
    values = {f"k{number}": payload(f"k{number}", 1, SIZE) for number in range(8)}
    buffer = bytearray(SIZE)
    with Client(cluster.address, transport="rdma", deadline_s=60) as client:
        assert all(client.put_many(values))
        assert client.get_many(list(values)) == list(values.values())
        with client.register(buffer) as memory:
            assert memory.is_registered
            assert client.get_into("k3", buffer) == SIZE
        assert buffer == values["k3"]
        assert client.get("k4", start=10, length=50) == values["k4"][10:60]
        moved = client.statistics()
    assert moved.bytes_written == {"rdma": 8 * SIZE}
    assert moved.bytes_read == {"rdma": 9 * SIZE + 50}
    packets.prove(17 * SIZE)


async def test_the_asyncio_client_too(cluster: ProcessCluster, packets: Packets) -> None:
    async with AsyncClient(cluster.address, transport="rdma", deadline_s=60) as client:
        await client.put("async", payload("async", 1, SIZE))
        found = await asyncio.gather(*(client.get("async") for _ in range(6)))
        assert found == [payload("async", 1, SIZE)] * 6
        assert client.statistics().bytes_read == {"rdma": 6 * SIZE}
    packets.prove(7 * SIZE)


def test_a_slice_of_a_trace_is_replayed(cluster: ProcessCluster, packets: Packets) -> None:
    words = ["replay", "conversation", "--requests", "6", "--block-bytes", "16KiB", "--json"]
    done = subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-m", "mooncake_store", *words, "--transport", "rdma", "--deadline", "60s",
         "--master", cluster.master.address],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["wrong_bytes"] == 0
    assert list(seen["bytes_by_path"]) == ["rdma"]
    packets.prove(seen["bytes_by_path"]["rdma"])


def test_a_lost_link_costs_no_call_and_no_byte(cluster: ProcessCluster) -> None:
    """With TCP beside it: the call ends right, within its deadline."""
    for socket in Path(cluster.memory).rglob("socket"):
        socket.unlink()  # A client that comes now does not get shared memory.
    value = payload("lost", 1, SIZE)
    with Client(cluster.address, deadline_s=20) as client:
        client.put("lost", value)
        assert client.get("lost") == value
        assert list(client.statistics().bytes_read) == ["rdma"]
        subprocess.run(["ip", "link", "set", "dummy0", "down"], check=True)  # noqa: S607
        try:
            client.forget_locations()
            assert client.get("lost") == value
            assert client.statistics().bytes_read["tcp"] == SIZE
        finally:
            subprocess.run(["ip", "link", "set", "dummy0", "up"], check=True)  # noqa: S607
            address = ["ip", "addr", "replace", "10.99.0.1/24", "dev", "dummy0"]
            subprocess.run(address, check=True)  # noqa: S603


def test_a_forked_child_leaves_its_parents_device_alone(cluster: ProcessCluster) -> None:
    value = payload("fork", 1, SIZE)
    with Client(cluster.address, transport="rdma", deadline_s=60) as client:
        client.put("fork", value)
        child = os.fork()
        if not child:
            right = client.get("fork") == value
            os._exit(0 if right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.get("fork") == value


def test_a_node_that_is_killed_in_mid_transfer_gives_errors_and_comes_back(
    cluster: ProcessCluster,
) -> None:
    """Last, as the others want their node alive."""
    value = payload("killed", 1, 6 << 20)
    node = cluster.nodes[0]
    with Client(cluster.address, transport="rdma", deadline_s=60) as client:
        client.put("killed", value)
        buffer = bytearray(len(value))
        killer = threading.Timer(0.3, node.kill)
        killer.start()

        try:
            while (got := client.get_into("killed", buffer, deadline_s=10)) == len(value):
                pass
        except PeerError:
            pass
        else:
            assert got is None  # The master knew before a read was under way.
        killer.join()
        seen = bytes(buffer)
        node.start()
        cluster.wait_ready()
        assert bytes(buffer) == seen
        assert client.get("killed", deadline_s=60) == value
