"""Every system that is measured. Add one here and it runs next to the others."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.adapter import Adapter

_LOOPBACK = {"MC_TCP_BIND_ADDRESS": "127.0.0.1", "GLOG_minloglevel": "1"}
_TUNED = {"MC_TCP_ENABLE_CONNECTION_POOL": "1", "MC_TCP_SLICE_SIZE": str(1 << 20)}


@dataclass(frozen=True, slots=True)
class System:
    """How to make one system's adapter.

    Attributes:
        adapter: ``module:class``; imported only in the process that measures, since each
            system's client library is in one of two environments.
        rival: The rival whose packages it needs, or "" where this store's own do.
        options: Keyword arguments of the adapter.
        environment: Set before the measuring process starts: native code reads it once.
    """

    adapter: str
    rival: str = ""
    options: Mapping[str, str | bool] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def make(self, log_directory: Path) -> Adapter:
        """Import the adapter and make one."""
        module, _, name = self.adapter.partition(":")
        adapter: Adapter = getattr(importlib.import_module(module), name)(
            log_directory, **self.options
        )
        return adapter


_MEMORY = "tests.bench.own_store:OwnStoreAdapter"
_ON_DISK = "tests.bench.own_disk:StoreOnDiskAdapter"


def _store(transport: str, *, cold: bool = False, adapter: str = _MEMORY) -> System:
    return System(adapter, options={"transport": transport, "cold": cold})


_MOONCAKE = "tests.bench.peer_mooncake:MooncakeAdapter"
_SOCKET = "tests.bench.machine:RawSocketAdapter"

SYSTEMS = {
    "store-tcp": _store("tcp"),
    "store-tcp-cold": _store("tcp", cold=True),
    "store-shm": _store("shm"),
    "store-default": _store("auto"),
    "store-disk": _store("tcp", cold=True, adapter=_ON_DISK),
    "store-disk-tcp": _store("tcp", adapter=_ON_DISK),
    "store-disk-default": _store("auto", adapter=_ON_DISK),
    "fio": System("tests.bench.peer_fio:FioAdapter"),
    "raw-socket": System(_SOCKET),
    "raw-socket-waitall": System(_SOCKET, options={"wait_all": True}),
    "memcpy": System("tests.bench.machine:MemcpyAdapter"),
    "mooncake-cpp": System(_MOONCAKE, "mooncake-cpp", environment=_LOOPBACK),
    "mooncake-cpp-tuned": System(_MOONCAKE, "mooncake-cpp", environment=_LOOPBACK | _TUNED),
    "mooncake-cpp-disk": System(
        "tests.bench.peer_mooncake:MooncakeOnDiskAdapter", "mooncake-cpp", environment=_LOOPBACK
    ),
    "redis": System("tests.bench.peer_redis:RedisAdapter", "redis"),
    "memcached": System("tests.bench.peer_memcached:MemcachedAdapter", "memcached"),
}
