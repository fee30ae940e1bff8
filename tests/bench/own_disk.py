"""This store with little memory and a disk behind it.

Run as a module, this is the other client, which writes more than memory holds.
"""

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mooncake_client import Client, StoreError
from mooncake_store.limits import MIB
from mooncake_store.types import Presence
from tests.bench.adapter import Region
from tests.bench.disk import IN_FLIGHT, DiskAdapter
from tests.bench.own_store import OwnStoreAdapter
from tests.bench.processes import ServerFailed

_BEGIN_S = 60.0
"""Time in which the other client's objects must reach the disk."""
_PUT_S = 60.0
_STEP_BYTES = 32 * MIB
"""Put between two looks at how much is on disk."""


class StoreOnDiskAdapter(DiskAdapter, OwnStoreAdapter):
    """This store, with little memory and a directory for what leaves it."""

    def __init__(self, log_directory: Path, *, transport: str, cold: bool) -> None:
        OwnStoreAdapter.__init__(self, log_directory, transport=transport, cold=cold)

    def start(self, segment_bytes: int) -> None:
        self.prepare()
        self._master_flags = ["--promote-reads=0"]
        self._node_flags = [f"--ssd={self.folder}:8GiB"]
        super().start(segment_bytes // 2)

    def connect(self) -> None:
        super().connect()
        self._writer = Client(self._master, namespace="bench")

    def close(self) -> None:
        self._writer.close()
        super().close()

    def stop(self) -> None:
        OwnStoreAdapter.stop(self)
        shutil.rmtree(self.folder, ignore_errors=True)

    def fill(self, source: Region, total: int) -> float:
        """Put objects into full memory; only bytes count that a disk had for good by the end."""
        self._keys: list[str] = []
        begun = self._on_disk()
        while self._on_disk() == begun:
            self._put_some(source)
        before = self._on_disk()
        began = time.perf_counter()
        while (written := self._on_disk() - before) < total:
            self._put_some(source)
        return written / (time.perf_counter() - began)

    def _put_some(self, source: Region) -> None:
        """Put new objects, one batch, so large that asking for the count costs little."""
        first = len(self._keys)
        keys = [f"disk/{source.size}/{first + at}" for at in range(_STEP_BYTES // source.size)]
        items = [(key, source.view) for key in keys]
        for result in self._writer.put_many(items, deadline_s=_PUT_S):
            if isinstance(result, StoreError):
                raise result
        self._keys += keys

    def read_back(self, target: Region, total: int) -> float:
        probes = self._client.probe_many(self._keys)
        keys = [
            key
            for key, probe in zip(self._keys, probes, strict=True)
            if probe.presence is Presence.SSD
        ]
        size = target.size // IN_FLIGHT
        random.Random(0).shuffle(keys)  # noqa: S311 - an order, no secret
        keys = keys[: total // size // IN_FLIGHT * IN_FLIGHT]
        targets = target.split(IN_FLIGHT)
        began = time.perf_counter()
        for at in range(0, len(keys) - IN_FLIGHT + 1, IN_FLIGHT):
            self.get_into_many(keys[at : at + IN_FLIGHT], targets)
        took = time.perf_counter() - began
        self._client.remove_many(self._keys)
        return len(keys) // IN_FLIGHT * IN_FLIGHT * size / took

    def _on_disk(self) -> int:
        """Return the bytes that went to disk so far; what was removed since counts, too."""
        counters = self._client.describe_cluster().counters
        return counters.get('mooncake_master_copied_bytes_total{purpose="demotion"}', 0)

    def slowest_under_writes(self, keys: Sequence[str], target: Region, seconds: float) -> float:
        """As ``slowest``, while another client writes more than memory holds."""
        command = [sys.executable, "-m", "tests.bench.own_disk", self._master]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603 - ours
        try:
            before, deadline = self._on_disk(), time.monotonic() + _BEGIN_S
            while self._on_disk() == before:
                if writer.poll() is not None or time.monotonic() > deadline:
                    raise ServerFailed("nothing is being written to disk")
                time.sleep(0.05)
            slowest = self.slowest(keys, target, seconds)
            if writer.poll() is not None:
                raise ServerFailed("the writer ended before the reads did")
            return slowest
        finally:
            writer.kill()
            writer.wait()

    def keep(self, source: Region, count: int) -> list[str]:
        """Put objects that stay in memory."""
        keys = [f"hot/{index}" for index in range(count)]
        for key in keys:
            self._client.put(key, source.view, pin="hard")
        return keys


def main() -> None:
    """Write to the cluster at the address given until killed, politely."""
    os.nice(10)
    value = random.Random(2).randbytes(4 * MIB)  # noqa: S311
    with Client(sys.argv[1], namespace="bench-writer", deadline_s=_PUT_S) as client:
        for index in range(1 << 30):
            try:
                client.put(f"{index}", value)
            except StoreError as error:
                sys.exit(f"the writer cannot go on: {error}")


if __name__ == "__main__":
    main()
