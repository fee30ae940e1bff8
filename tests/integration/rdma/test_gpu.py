"""Buffers on a GPU: over RDMA straight where nothing has to be hashed, else through the host.

The GPU is a fake whose addresses kill a process that touches them, so a wrong way is not missed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mooncake_client import AsyncClient, Client, InvalidArgument, Memory, NotSupported
from mooncake_client import _rdma as client_rdma
from mooncake_store import device_memory
from mooncake_store.limits import CHUNK_BYTES
from mooncake_store.testing.gpu import FakeGpu
from mooncake_store.testing.payload import payload
from mooncake_store.testing.verbs import FakeDevice, FakeFabric
from mooncake_store.transport.rdma import paths

from .test_client import cluster, node

if TYPE_CHECKING:
    from mooncake_storage_node.app import StorageNode
    from mooncake_store.testing import ProcessCluster

__all__ = ["cluster", "node"]

pytestmark = pytest.mark.processes

SIZE = 2 * CHUNK_BYTES + 12_345
VALUE = payload("gpu", 1, SIZE)
AT = 5000
"""Where the buffer lies in the GPU's allocation: not at a page's start."""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu(8 << 20)
    monkeypatch.setattr(device_memory, "driver", lambda: gpu)
    return gpu


def held(gpu: FakeGpu, size: int = SIZE) -> bytes:
    return bytes(gpu.contents[AT : AT + size])


def test_an_unverified_get_goes_straight_into_registered_memory(
    cluster: ProcessCluster, node: StorageNode, gpu: FakeGpu, fabric: FakeFabric
) -> None:
    del node
    buffer = gpu.tensor(AT, SIZE)
    with Client(cluster.address, namespace="straight") as client:
        client.put("k", VALUE)
        with client.register(gpu.tensor(0, gpu.size)) as memory:
            assert memory.is_registered
            assert not memory.problem
            assert client.get_into("k", buffer, verify=False) == SIZE
            assert held(gpu) == VALUE
            # By its leased location, and a range of it.
            gpu.contents[:] = bytes(gpu.size)
            assert client.get_into("k", buffer, verify=False) == SIZE
            assert held(gpu) == VALUE
            assert client.get_into("k", buffer[:100], start=7, length=100, verify=False) == 100
            assert held(gpu, 100) == VALUE[7:107]
            pair = [gpu.tensor(AT, 1000), gpu.tensor(1 << 20, SIZE - 1000)]
            assert client.get_into("k", pair, verify=False) == SIZE
            assert bytes(gpu.contents[1 << 20 :][: SIZE - 1000]) == VALUE[1000:]
        assert gpu.copied_in == 0
        assert list(client.statistics().bytes_read) == ["rdma"]
    assert fabric.counts["bytes_read"] >= 3 * SIZE
    assert not device_memory.is_any_known()
    assert gpu.exports_made
    assert gpu.exports_open() == 0


def test_a_verified_get_is_hashed_on_the_host_first(
    cluster: ProcessCluster, node: StorageNode, gpu: FakeGpu
) -> None:
    del node
    with Client(cluster.address, namespace="verified") as client:
        client.put("k", VALUE)
        with client.register(gpu.tensor(0, gpu.size)):
            assert client.get_into("k", gpu.tensor(AT, SIZE)) == SIZE
            assert client.get_into("k", gpu.tensor(AT, SIZE)) == SIZE
            assert held(gpu) == VALUE
            assert client.get_into("k", Memory(gpu.address, SIZE)) == SIZE
        assert gpu.copied_in == 3 * SIZE
        assert list(client.statistics().bytes_read) == ["rdma"]


def test_a_put_is_hashed_on_the_host_and_needs_no_registering(
    cluster: ProcessCluster, node: StorageNode, gpu: FakeGpu
) -> None:
    del node
    gpu.contents[AT : AT + SIZE] = VALUE
    with Client(cluster.address, namespace="put") as client:
        client.put("k", gpu.tensor(AT, SIZE))
        assert client.get("k") == VALUE
        client.put("two", [b"head", gpu.tensor(AT, 10)])
        assert client.get("two") == b"head" + VALUE[:10]
        with client.register(gpu.tensor(0, gpu.size)):
            client.put("three", Memory(gpu.address + AT, SIZE))
        assert client.get("three") == VALUE


@pytest.mark.parametrize("fault", ["no dma-buf in the device", "no dma-buf in the GPU"])
def test_a_device_that_cannot_leaves_the_way_through_the_host(
    cluster: ProcessCluster,
    node: StorageNode,
    gpu: FakeGpu,
    fabric: FakeFabric,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    del node
    device = FakeDevice(fabric, "old")
    monkeypatch.setattr(client_rdma, "open_devices", lambda: ([device], []))
    if fault == "no dma-buf in the device":
        device.has_dma_buf = False
    else:
        gpu.exports = False
    with Client(cluster.address, namespace=fault) as client:
        client.put("k", VALUE)
        with client.register(gpu.tensor(0, gpu.size)) as memory:
            assert not memory.is_registered
            assert "dma-buf" in memory.problem
            assert client.get_into("k", gpu.tensor(AT, SIZE), verify=False) == SIZE
        assert held(gpu) == VALUE
        assert gpu.copied_in == SIZE
    assert device.registered == 0


@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_where_rdma_is_not_or_fails_bytes_go_through_the_host(
    cluster: ProcessCluster,
    node: StorageNode,
    gpu: FakeGpu,
    fabric: FakeFabric,
    monkeypatch: pytest.MonkeyPatch,
    transport: str,
) -> None:
    del node
    monkeypatch.setattr(paths, "PAUSE_S", 0.0)
    with Client(cluster.address, namespace=f"via-{transport}", transport=transport) as client:
        client.put("k", VALUE)
        with client.register(gpu.tensor(0, gpu.size)) as memory:
            assert memory.is_registered is (transport == "auto")
            fabric.faults.before = lambda _: "retry exceeded error"
            assert client.get_into("k", gpu.tensor(AT, SIZE), verify=False) == SIZE
        assert held(gpu) == VALUE
        assert client.statistics().bytes_read == {"tcp": SIZE}


def test_a_cluster_in_this_process_serves_gpus_too(gpu: FakeGpu) -> None:
    with Client("local://?dram=16MiB") as client:
        client.put("k", VALUE)
        with client.register(gpu.tensor(0, gpu.size)) as memory:
            assert memory.problem == "this host has no RDMA"
            assert client.get_into("k", gpu.tensor(AT, SIZE)) == SIZE
        assert held(gpu) == VALUE


async def test_the_asyncio_client_does_the_same(
    cluster: ProcessCluster, node: StorageNode, gpu: FakeGpu
) -> None:
    del node
    async with AsyncClient(cluster.address, namespace="async-gpu") as client:
        await client.put("k", gpu.tensor(AT, SIZE))
        gpu.contents[AT : AT + SIZE] = VALUE
        await client.put("k2", gpu.tensor(AT, SIZE))
        with client.register(gpu.tensor(0, gpu.size)):
            gpu.contents[:] = bytes(gpu.size)
            assert await client.get_into("k2", gpu.tensor(AT, SIZE), verify=False) == SIZE
            assert held(gpu) == VALUE
            assert gpu.copied_in == 0
            assert await client.get_into("k", gpu.tensor(AT, SIZE)) == SIZE
            assert held(gpu) == bytes(SIZE)
            assert gpu.copied_in == SIZE


def test_what_is_not_registered_is_refused_and_says_what_to_do(
    cluster: ProcessCluster, node: StorageNode, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    del node
    with Client(cluster.address, namespace="refused") as client:
        client.put("k", VALUE)
        with pytest.raises(
            InvalidArgument, match=r"on a GPU and is not registered: Client\.register"
        ):
            client.get_into("k", gpu.tensor(AT, SIZE))
        with (
            client.register(gpu.tensor(0, AT + 10)),
            pytest.raises(InvalidArgument, match="not registered"),
        ):
            client.get_into("k", gpu.tensor(AT, SIZE))
        with pytest.raises(InvalidArgument, match="no allocation has"):
            client.register(gpu.tensor(gpu.size - 10, 20))
        assert not device_memory.is_any_known()
        monkeypatch.undo()
        with pytest.raises(NotSupported, match="no CUDA driver"):
            client.put("k", gpu.tensor(AT, SIZE))
