"""This store: one master and one node in processes of their own, and its blocking client."""

import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from mooncake_client import Client, PutResult, StoreError
from mooncake_store.types import NodeState
from tests.bench.adapter import Adapter, Region
from tests.bench.processes import ServerFailed, free_port

_HOST = "127.0.0.1"
_READY_S = 120.0
"""Taking all pages of the segment takes seconds, and many more on a busy machine."""

_MEMORY = Path("/dev/shm")  # noqa: S108 - where the node's memory has to be
_FOLDER = "mooncake-bench-"
"""Followed by the id of the measuring process: the node's memory outlives the node."""


class OwnStoreAdapter(Adapter):
    """The client with one choice of transport.

    ``transport`` is ``tcp``, ``shm``, or ``auto`` for what a client does that states nothing.
    ``cold`` makes every read ask the master, as if its location had never been seen.
    """

    has_views = True

    def __init__(self, log_directory: Path, *, transport: str, cold: bool) -> None:
        super().__init__(log_directory)
        self._transport = transport
        self._cold = cold
        self._master_flags: list[str] = []
        self._node_flags: list[str] = []

    def start(self, segment_bytes: int) -> None:
        self._master = f"{_HOST}:{free_port()}"
        store = [sys.executable, "-m", "mooncake_store"]
        bind = ["--bind", self._master, "--admin-bind", f"{_HOST}:{free_port()}"]
        self.servers.spawn("master", [*store, "master", *bind, *self._master_flags])
        node = ["--master", self._master, "--bind", f"{_HOST}:{free_port()}"]
        self._memory = _memory_folder()
        # Pages before the start is over: in the background they would take CPU from what is timed.
        memory = [f"--dram={segment_bytes >> 20}MiB", "--populate=start"]
        memory.append(f"--memory-root={self._memory}")
        flags = [*node, *memory, *self._node_flags]
        self.servers.spawn("node", [*store, "node", "--name", "bench", *flags])
        self._wait_ready()

    def connect(self) -> None:
        self._client = Client(
            self._master,
            namespace="bench",
            transport=self._transport,
            location_cache=not self._cold,
        )

    def close(self) -> None:
        self._client.close()

    def put(self, key: str, source: Region) -> None:
        _check_created([self._client.put(key, source.view)])

    def get(self, key: str) -> bytes:
        value = self._client.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def get_into(self, key: str, target: Region) -> None:
        _check_read([self._client.get_into(key, target.view)])

    def get_into_unverified(self, key: str, target: Region) -> None:
        _check_read([self._client.get_into(key, target.view, verify=False)])

    def view(self, key: str) -> int:
        with self._client.view(key) as view:
            if view is None:
                raise KeyError(key)
            return view.nbytes

    def exists(self, key: str) -> bool:
        return self._client.exists(key)

    def remove(self, keys: Sequence[str]) -> None:
        self._client.remove_many(keys)

    def put_many(self, keys: Sequence[str], sources: Sequence[Region]) -> None:
        items = [(key, source.view) for key, source in zip(keys, sources, strict=True)]
        _check_created(self._client.put_many(items))

    def get_into_many(self, keys: Sequence[str], targets: Sequence[Region]) -> None:
        _check_read(self._client.get_into_many(keys, [target.view for target in targets]))

    def exists_many(self, keys: Sequence[str]) -> list[bool]:
        return self._client.exists_many(keys)

    def master_round_trips(self) -> int:
        return self._client.statistics().master_round_trips

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self._memory, ignore_errors=True)

    def _wait_ready(self) -> None:
        """Return once the master knows the node as live."""
        deadline = time.monotonic() + _READY_S
        with Client(self._master, deadline_s=1.0) as client:
            while True:
                for name in self.servers.pids():
                    self.servers.check_alive(name)
                try:
                    nodes = client.describe_cluster().nodes
                except StoreError:
                    nodes = ()
                if any(node.record.state == NodeState.LIVE for node in nodes):
                    return
                if time.monotonic() > deadline:
                    raise ServerFailed("the node did not become live")
                time.sleep(0.02)


def _memory_folder() -> Path:
    """A fresh folder; those of measurements that were killed are removed."""
    for left in _MEMORY.glob(f"{_FOLDER}*"):
        if not Path(f"/proc/{left.name.removeprefix(_FOLDER)}").exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = _MEMORY / f"{_FOLDER}{os.getpid()}"
    folder.mkdir(mode=0o700)
    return folder


def _check_created(results: Iterable[PutResult | StoreError]) -> None:
    """A put that finds a value moves nothing, and would be timed for nothing."""
    for result in results:
        if isinstance(result, StoreError):
            raise result
        if not result.created:
            raise KeyError("a key of the benchmark was there already")


def _check_read(results: Iterable[int | StoreError | None]) -> None:
    for result in results:
        if isinstance(result, StoreError):
            raise result
        if result is None:
            raise KeyError("a key of the benchmark is not there")
