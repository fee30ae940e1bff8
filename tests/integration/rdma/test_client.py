"""Clients over RDMA, and over TCP where it fails; a master, and a node in this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mooncake_client import AsyncClient, Client, ConfigError, StoreError
from mooncake_client import _rdma as client_rdma
from mooncake_storage_node.app import StorageNode
from mooncake_storage_node.settings import NodeSettings
from mooncake_store.testing import ProcessCluster
from mooncake_store.testing.payload import payload
from mooncake_store.testing.verbs import FakeDevice, FakeFabric
from mooncake_store.transport.rdma import paths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.processes

SIZE = 300_000
VALUE = payload("k", 1, SIZE)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    """A master alone."""
    with ProcessCluster(nodes=0) as running:
        yield running


@pytest.fixture
def node(
    cluster: ProcessCluster, fabric: FakeFabric, root: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StorageNode]:
    """A node that offers RDMA and TCP; shared memory is not for clients that come later."""
    monkeypatch.setattr(client_rdma, "open_devices", lambda: ([FakeDevice(fabric, "client0")], []))
    node = StorageNode(
        NodeSettings(
            name="rdma",
            dram=32 << 20,
            master=(cluster.address,),
            memory_root=str(root),
            stop_timeout_s=0.0,
            populate="no",
        )
    )
    node.start()
    assert node.membership.wait_joined(20)
    node.folder.socket_path.unlink()
    yield node
    node.stop()


def test_bytes_go_over_rdma_where_both_have_it(
    cluster: ProcessCluster, node: StorageNode, fabric: FakeFabric
) -> None:
    with Client(cluster.address, namespace="plain") as client:
        client.put("k", VALUE)
        assert client.get("k") == VALUE
        assert client.get("k") == VALUE  # by its leased location
        buffer = bytearray(SIZE)
        with client.register(buffer) as memory:
            assert memory.is_registered
            client.forget_locations()
            assert client.get_into("k", buffer) == SIZE
        assert buffer == VALUE
        moved = client.statistics()
    assert moved.bytes_written == {"rdma": SIZE}
    assert moved.bytes_read == {"rdma": 3 * SIZE}
    assert fabric.counts["bytes_read"] >= 3 * SIZE
    assert "1 writes" in node.summary()


async def test_the_asyncio_client_does_the_same(cluster: ProcessCluster, node: StorageNode) -> None:
    del node
    async with AsyncClient(cluster.address, namespace="async") as client:
        await client.put("k", VALUE)
        assert await asyncio.gather(*(client.get("k") for _ in range(10))) == [VALUE] * 10
        assert client.statistics().bytes_read == {"rdma": 10 * SIZE}


@pytest.mark.parametrize("fault", ["refuse", "is_cut", "memlock"])
def test_where_rdma_does_not_work_the_same_call_ends_over_tcp(
    cluster: ProcessCluster, node: StorageNode, fabric: FakeFabric, fault: str
) -> None:
    del node
    with Client(cluster.address, namespace=fault) as client:
        if fault == "memlock":
            fabric.faults.memlock_bytes = 0
        else:
            setattr(fabric.faults, fault, True)
        client.put("k", VALUE)
        assert client.get("k") == VALUE
        moved = client.statistics()
    assert moved.bytes_written == moved.bytes_read == {"tcp": SIZE}


def test_a_device_that_is_taken_away_costs_no_call(
    cluster: ProcessCluster,
    node: StorageNode,
    fabric: FakeFabric,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del node
    device = FakeDevice(fabric, "client0")
    monkeypatch.setattr(client_rdma, "open_devices", lambda: ([device], []))
    with Client(cluster.address, namespace="gone") as client:
        client.put("k", VALUE)
        assert client.get("k") == VALUE
        device.is_gone = True
        client.forget_locations()
        assert client.get("k") == VALUE
        client.put("k2", VALUE)
        moved = client.statistics()
    assert moved.bytes_read == {"rdma": SIZE, "tcp": SIZE}
    assert moved.bytes_written == {"rdma": SIZE, "tcp": SIZE}
    assert not any(pair.device is device for pair in fabric.queue_pairs.values())


def test_the_master_is_asked_as_often_as_over_tcp(
    cluster: ProcessCluster, node: StorageNode
) -> None:
    del node
    asked = {}
    for transport in ("rdma", "tcp"):
        keys = [f"{transport}{number}" for number in range(40)]
        with Client(cluster.address, namespace="asked", transport=transport) as client:
            client.put_many(dict.fromkeys(keys, VALUE[:1000]))
            client.get_many(keys)
            client.get_many(keys)
            client.get(keys[0])
            client.put(f"{transport} alone", VALUE)
            client.forget_locations()
            client.get(keys[0])
            asked[transport] = client.statistics().master_round_trips
            assert list(client.statistics().bytes_read) == [transport]
    assert asked["rdma"] == asked["tcp"]


def test_a_link_that_dies_costs_no_read_and_comes_back(
    cluster: ProcessCluster, node: StorageNode, fabric: FakeFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    del node
    monkeypatch.setattr(paths, "PAUSE_S", 0.0)
    with Client(cluster.address, namespace="dies") as client:
        client.put("k", VALUE)
        assert client.get("k") == VALUE
        fabric.faults.before = lambda _: "retry exceeded error"
        client.forget_locations()
        assert client.get("k") == VALUE
        assert client.statistics().bytes_read == {"rdma": SIZE, "tcp": SIZE}
        fabric.faults.before = lambda _: ""
        client.forget_locations()
        assert client.get("k") == VALUE
        assert client.statistics().bytes_read == {"rdma": 2 * SIZE, "tcp": SIZE}


async def test_the_asyncio_client_falls_back_too(
    cluster: ProcessCluster, node: StorageNode, fabric: FakeFabric
) -> None:
    del node
    async with AsyncClient(cluster.address, namespace="async-dies") as client:
        await client.put("k", VALUE)
        fabric.faults.before = lambda _: "retry exceeded error"
        assert await client.get("k") == VALUE
        await client.put("k2", VALUE)
        moved = client.statistics()
        assert moved.bytes_read == {"tcp": SIZE}
        assert moved.bytes_written == {"rdma": SIZE, "tcp": SIZE}


def test_rdma_alone_says_what_is_wrong(
    cluster: ProcessCluster, node: StorageNode, fabric: FakeFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    del node
    fabric.faults.refuse = True
    with (
        Client(cluster.address, namespace="alone", transport="rdma", deadline_s=2) as client,
        pytest.raises(StoreError),
    ):
        client.put("k", VALUE)
    monkeypatch.setattr(client_rdma, "open_devices", lambda: ([], ["this host has no RDMA device"]))
    with (
        Client(cluster.address, namespace="alone", transport="rdma") as client,
        pytest.raises(ConfigError, match="transport rdma cannot be used: this host has no RDMA"),
    ):
        client.put("k", VALUE)


def test_without_devices_registering_is_nothing(cluster: ProcessCluster) -> None:
    with Client(cluster.address, transport="tcp") as client:
        memory = client.register(bytearray(100))
        assert not memory.is_registered
        memory.close()
