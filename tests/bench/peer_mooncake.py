"""Mooncake Store, the C++ peer, from its wheel: a client without memory of its own, one storage
process that holds the objects, one master, all over TCP.

Run as a module, this is the storage process.
"""

import argparse
import importlib
import importlib.util
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tests.bench.adapter import Adapter, Region
from tests.bench.disk import IN_FLIGHT, DiskAdapter
from tests.bench.processes import free_port

_LOCAL_BUFFER_BYTES = 512 << 20
"""Staging memory of the reading client: the library's own default."""

_NODE_BUFFER_BYTES = 16 << 20
_FULL_PAUSE_S = 0.05
_FILL_S = 60.0
_NODE_READY = "storage process is ready"


class Replica(Protocol):
    """Where one copy is."""

    def is_local_disk_replica(self) -> bool: ...


class MooncakeClient(Protocol):
    """What is used of ``mooncake.store.MooncakeDistributedStore``; negative results are errors."""

    def setup(  # noqa: PLR0913, PLR0917 - the library's signature
        self,
        host: str,
        metadata: str,
        segment_bytes: int,
        buffer_bytes: int,
        protocol: str,
        devices: str,
        master: str,
        /,
        **more: object,
    ) -> int: ...
    def close(self) -> int: ...
    def register_buffer(self, address: int, size: int, /) -> int: ...
    def put_from(self, key: str, address: int, size: int, /) -> int: ...
    def get(self, key: str, /) -> bytes: ...
    def get_into(self, key: str, address: int, size: int, /) -> int: ...
    def is_exist(self, key: str, /) -> int: ...
    def batch_put_from(
        self, keys: list[str], addresses: list[int], sizes: list[int], /
    ) -> list[int]: ...
    def batch_get_into(
        self, keys: list[str], addresses: list[int], sizes: list[int], /
    ) -> list[int]: ...
    def batch_is_exist(self, keys: list[str], /) -> list[int]: ...
    def get_replica_desc(self, key: str, /) -> Sequence[Replica]: ...
    def batch_remove(self, keys: list[str], force: bool, /) -> list[int]: ...  # noqa: FBT001 - theirs


class MooncakeError(RuntimeError):
    """A call returned an error code."""


class MooncakeAdapter(Adapter):
    """The C++ client through its Python binding, with registered buffers."""

    def __init__(self, log_directory: Path) -> None:
        super().__init__(log_directory)
        self._registered: list[Region] = []
        """Kept, since new memory at the address of a freed registered one would be refused."""
        self._master_flags: list[str] = []
        self._node_flags: list[str] = []

    def start(self, segment_bytes: int) -> None:
        self.port = free_port()
        self.servers.spawn(
            "master",
            [
                _package_directory() / "mooncake_master",
                f"--rpc_port={self.port}",
                "--rpc_address=127.0.0.1",
                "--metrics_host=127.0.0.1",
                f"--metrics_port={free_port()}",
                "--logtostderr",
                *self._master_flags,
            ],
        )
        self.servers.wait_listening("master", self.port)
        module = ["-m", "tests.bench.peer_mooncake"]
        self.servers.spawn(
            "node",
            [
                sys.executable,
                *module,
                f"--master=127.0.0.1:{self.port}",
                *self._node_flags,
                str(segment_bytes),
            ],
        )
        self.servers.wait_logged("node", _NODE_READY)

    def connect(self) -> None:
        self._store = _connected(0, _LOCAL_BUFFER_BYTES, f"127.0.0.1:{self.port}")

    def close(self) -> None:
        self._store.close()

    def region(self, size: int, payload: bytes = b"") -> Region:
        region = super().region(size, payload)
        self._registered.append(region)
        _checked("register_buffer", self._store.register_buffer(region.address, size))
        return region

    def put(self, key: str, source: Region) -> None:
        _checked("put_from", self._store.put_from(key, source.address, source.size))

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def get_into(self, key: str, target: Region) -> None:
        _checked("get_into", self._store.get_into(key, target.address, target.size))

    def exists(self, key: str) -> bool:
        return _checked("is_exist", self._store.is_exist(key)) == 1

    def remove(self, keys: Sequence[str]) -> None:
        # By force: reads have leased the objects.
        for code in self._store.batch_remove(list(keys), True):  # noqa: FBT003 - positional only
            _checked("batch_remove", code)

    def put_many(self, keys: Sequence[str], sources: Sequence[Region]) -> None:
        addresses, sizes = [s.address for s in sources], [s.size for s in sources]
        for code in self._store.batch_put_from(list(keys), addresses, sizes):
            _checked("batch_put_from", code)

    def get_into_many(self, keys: Sequence[str], targets: Sequence[Region]) -> None:
        addresses, sizes = [t.address for t in targets], [t.size for t in targets]
        for code in self._store.batch_get_into(list(keys), addresses, sizes):
            _checked("batch_get_into", code)

    def exists_many(self, keys: Sequence[str]) -> list[bool]:
        return [code == 1 for code in self._store.batch_is_exist(list(keys))]


class MooncakeOnDiskAdapter(DiskAdapter, MooncakeAdapter):
    """The C++ store with its disk offload, asked once a second for what it may write."""

    def start(self, segment_bytes: int) -> None:
        self.prepare()
        self._master_flags = ["--enable_offload=true"]
        self._node_flags = [f"--offload={self.folder}"]
        os.environ["MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS"] = "1"
        MooncakeAdapter.start(self, segment_bytes // 4)
        self._memory_bytes = segment_bytes // 4

    def stop(self) -> None:
        MooncakeAdapter.stop(self)
        shutil.rmtree(self.folder, ignore_errors=True)

    def fill(self, source: Region, total: int) -> float:
        began = time.perf_counter()
        self._keys: list[str] = []
        while len(self._keys) * source.size < total + self._memory_bytes:
            key = f"disk/{source.size}/{len(self._keys)}"
            if self._store.put_from(key, source.address, source.size) == 0:
                self._keys.append(key)
            else:  # full until what is in memory has been written
                time.sleep(_FULL_PAUSE_S)
            if time.perf_counter() - began > _FILL_S:
                break
        return len(self._keys) * source.size / (time.perf_counter() - began)

    def read_back(self, target: Region, total: int) -> float:
        size = target.size // IN_FLIGHT
        keys = self._only_on_disk(total // size // 2)
        targets = target.split(IN_FLIGHT)
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        began = time.perf_counter()
        for at in range(0, len(keys) - IN_FLIGHT + 1, IN_FLIGHT):
            self.get_into_many(keys[at : at + IN_FLIGHT], targets)
        took = time.perf_counter() - began
        # Some are gone already: evicted before they were written.
        self._store.batch_remove(self._keys, True)  # noqa: FBT003 - positional only
        return len(keys) // IN_FLIGHT * IN_FLIGHT * size / took

    def _only_on_disk(self, wanted: int) -> list[str]:
        """Wait until objects have left the memory; return their keys."""
        deadline = time.monotonic() + _FILL_S
        while True:
            keys = [key for key in self._keys if self._is_on_disk_only(key)]
            if len(keys) >= max(wanted, IN_FLIGHT) or time.monotonic() > deadline:
                return keys
            time.sleep(1)

    def _is_on_disk_only(self, key: str) -> bool:
        replicas = self._store.get_replica_desc(key)
        return bool(replicas) and all(replica.is_local_disk_replica() for replica in replicas)


def _checked(call: str, code: int) -> int:
    if code < 0:
        raise MooncakeError(f"{call} returned {code}")
    return code


def _connected(
    segment_bytes: int, buffer_bytes: int, master: str, offload: str = ""
) -> MooncakeClient:
    module = importlib.import_module("mooncake.store")
    store: MooncakeClient = module.MooncakeDistributedStore()
    more = {"enable_ssd_offload": True, "ssd_offload_path": offload} if offload else {}
    code = store.setup(
        "127.0.0.1", "P2PHANDSHAKE", segment_bytes, buffer_bytes, "tcp", "", master, **more
    )
    _checked("setup", -abs(code))
    return store


def _package_directory() -> Path:
    spec = importlib.util.find_spec("mooncake")
    if spec is None or not spec.submodule_search_locations:
        raise MooncakeError("the mooncake package is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def main() -> None:
    """Hold a segment until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--master", required=True)
    parser.add_argument("--offload", default="")
    parser.add_argument("segment_bytes", type=int)
    arguments = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    store = _connected(
        arguments.segment_bytes, _NODE_BUFFER_BYTES, arguments.master, arguments.offload
    )
    os.write(1, f"{_NODE_READY}\n".encode())
    signal.sigwait({signal.SIGTERM})
    store.close()


if __name__ == "__main__":
    main()
