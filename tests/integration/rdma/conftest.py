"""A node with fake RDMA devices, in this process, so that both ends share a fabric."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node import rdma_ports
from mooncake_store.testing.verbs import FakeDevice, FakeFabric
from mooncake_store.transport.rdma import RdmaContext, RdmaDataPath
from tests.integration.node.conftest import master, root, start_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mooncake_storage_node.app import StorageNode
    from mooncake_store.wire.control import Register
    from tests.integration.node.fake_master import FakeMaster

__all__ = ["master", "root", "start_node"]


@pytest.fixture
def fabric(monkeypatch: pytest.MonkeyPatch) -> FakeFabric:
    """A fabric; nodes that start in the test have a device on it."""
    fabric = FakeFabric(seed=11)
    monkeypatch.setattr(
        rdma_ports, "open_devices", lambda _names: ([FakeDevice(fabric, "node0")], [])
    )
    return fabric


@pytest.fixture
def node(fabric: FakeFabric, start_node: Callable[..., StorageNode]) -> StorageNode:
    del fabric
    return start_node()


@pytest.fixture
def register(node: StorageNode, master: FakeMaster) -> Register:
    del node
    return master.wait_registered()


@pytest.fixture
def context(fabric: FakeFabric) -> RdmaContext:
    return RdmaContext([FakeDevice(fabric, "client0")])


@pytest.fixture
def path(register: Register, context: RdmaContext) -> Iterator[RdmaDataPath]:
    with RdmaDataPath(
        register.host,
        register.port,
        node_id=register.node_id,
        node=register.name,
        context=context,
    ) as path:
        yield path
