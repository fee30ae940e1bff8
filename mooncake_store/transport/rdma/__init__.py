"""RDMA: one-sided reads and writes of a node's memory (ADR 50).

* ``RdmaDataPath(host, port, node_id=..., node=..., context=...)``, ``AsyncRdmaDataPath``: lazy
* ``RdmaContext(devices)``: what the paths of a process share; ``register(memory)`` for no copies
* ``FabricLost``: RDMA does not work to a node now, other ways may
"""

from mooncake_store.transport.rdma.context import RdmaContext, RegisteredBuffer
from mooncake_store.transport.rdma.link import FabricLost
from mooncake_store.transport.rdma.paths import RdmaDataPath
from mooncake_store.transport.rdma.paths_async import AsyncRdmaDataPath

__all__ = ["AsyncRdmaDataPath", "FabricLost", "RdmaContext", "RdmaDataPath", "RegisteredBuffer"]
