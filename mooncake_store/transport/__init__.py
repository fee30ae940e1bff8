"""Data paths: how bytes move between a client and the memory of one node.

* ``TcpDataPath(host, port, node_id=..., node=...)``, ``AsyncTcpDataPath``: from any host; lazy
* ``ShmDataPath.connect(local_path, node_id=..., node=..., deadline=...)``: exchanges descriptors
  and maps the node's segments at once; raises where this is another host, user or node
* ``AsyncShmDataPath(shm)``: the same mapping for an event loop
* ``MemoryDataPath({incarnation: segment}, faults)``, ``AsyncMemoryDataPath(...)``: one process
"""

from mooncake_store.data_path import (
    AsyncDataPath,
    DataPath,
    ReadTask,
    Reservation,
    View,
    WriteTask,
)
from mooncake_store.transport.in_process import AsyncMemoryDataPath, Faults, MemoryDataPath
from mooncake_store.transport.shm import AsyncShmDataPath, ShmDataPath
from mooncake_store.transport.tcp import TcpDataPath
from mooncake_store.transport.tcp_async import AsyncTcpDataPath

__all__ = [
    "AsyncDataPath",
    "AsyncMemoryDataPath",
    "AsyncShmDataPath",
    "AsyncTcpDataPath",
    "DataPath",
    "Faults",
    "MemoryDataPath",
    "ReadTask",
    "Reservation",
    "ShmDataPath",
    "TcpDataPath",
    "View",
    "WriteTask",
]
