"""A data port over private memory and a client's context, both on this host's RDMA devices."""

from __future__ import annotations

import socket
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mooncake_storage_node.data_server import DataLimits, DataServer
from mooncake_storage_node.node_view import NodeView
from mooncake_storage_node.rdma_ports import RdmaPorts
from mooncake_storage_node.writes import IncomingWrites
from mooncake_store.segment import Segment
from mooncake_store.transport.rdma import RdmaContext, RdmaDataPath
from mooncake_store.transport.rdma.pyverbs_device import open_devices
from tests.contract.transport.planting import Ground, format_segment
from tests.contract.transport.tasks import INCARNATION, POOL_BYTES
from tests.contract.transport.test_paths import NODE_ID, private_memory

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Rig:
    """Both ends in one process."""

    ground: Ground
    port: int
    ports: RdmaPorts
    incoming: IncomingWrites
    context: RdmaContext

    def path(self) -> RdmaDataPath:
        return RdmaDataPath("127.0.0.1", self.port, node_id=NODE_ID, node="n", context=self.context)


@contextmanager
def make_rig() -> Iterator[Rig]:
    """Serve until the block is left."""
    with ExitStack() as stack:
        whole = stack.enter_context(private_memory())
        format_segment(whole, POOL_BYTES, INCARNATION)
        segment = Segment(whole)
        devices, problems = open_devices()
        assert devices, problems
        ports = RdmaPorts(devices, [segment])
        ports.register()
        stack.callback(ports.stop)
        incoming = IncomingWrites()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(0)
        node = NodeView(NODE_ID, {INCARNATION: segment}, incoming, ports)
        server = DataServer(node, [listener], DataLimits())
        port = listener.getsockname()[1]
        server.start()
        stack.callback(server.stop)
        devices, problems = open_devices()
        assert devices, problems
        context = RdmaContext(devices)
        stack.callback(context.close)
        yield Rig(Ground(whole, POOL_BYTES, INCARNATION), port, ports, incoming, context)
