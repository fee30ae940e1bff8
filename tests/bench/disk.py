"""The tier on disk: what leaves the memory, reads of what is only there, and what both cost others.

Directories lie under ``build``, on whatever disk holds the repository. Every figure of a store is
that of the whole way, from the client's call on; fio's is that of the disk alone.
"""

import os
import random
import shutil
import statistics
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from tests.bench.adapter import Adapter, Region
from tests.bench.scale import BATCH_VALUE_BYTES, BULK_BYTES, MIB, Scale

FOLDER = Path(__file__).resolve().parents[2] / "build" / "bench-disk"
IN_FLIGHT = 8
"""Objects that are read at a time."""
_HOT_KEYS = 64


def _bytes_written(scale: Scale) -> int:
    """Bytes that go to disk in one measurement: some seconds' worth."""
    return scale.kept_bytes * 4


class DiskAdapter(Adapter):
    """Something that keeps objects on disk."""

    folder: Path
    has_bytes = True
    """Whether what is read are the bytes that were written."""

    def prepare(self) -> None:
        """Make an empty directory on the disk."""
        self.folder = FOLDER / str(os.getpid())
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @abstractmethod
    def fill(self, source: Region, total: int) -> float:
        """Write objects until ``total`` bytes are on disk only; return bytes per second."""

    @abstractmethod
    def read_back(self, target: Region, total: int) -> float:
        """Read what is on disk only, ``IN_FLIGHT`` at a time; return bytes per second."""

    def keep(self, source: Region, count: int) -> list[str]:
        """Put objects that stay in memory."""
        raise NotImplementedError

    def slowest(self, keys: Sequence[str], target: Region, seconds: float) -> float:
        """Read for a while and return the 99th percentile of the calls' seconds."""
        took: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            self.get_into(keys[len(took) % len(keys)], target)
            took.append(time.perf_counter() - began)
        return statistics.quantiles(took, n=100)[98]

    def slowest_under_writes(self, keys: Sequence[str], target: Region, seconds: float) -> float:
        """As ``slowest``, while another client writes more than memory holds."""
        raise NotImplementedError


def disk(adapter: Adapter, scale: Scale) -> dict[str, float]:
    """Objects of 1 and 16 MiB to disk and back."""
    assert isinstance(adapter, DiskAdapter)
    total = _bytes_written(scale)
    values: dict[str, float] = {}
    for size in BULK_BYTES:
        source = adapter.region(size, random.Random(size).randbytes(size))  # noqa: S311
        target = adapter.region(size * IN_FLIGHT)
        values[f"to disk {size // MIB} MiB"] = adapter.fill(source, total) / 1e9
        values[f"from disk {size // MIB} MiB"] = adapter.read_back(target, total // 2) / 1e9
        if adapter.has_bytes and target.view[:size] != source.view:
            raise AssertionError("other bytes came back from disk")
    return values


def interference(adapter: Adapter, scale: Scale) -> dict[str, float]:
    """The slowest reads from memory, alone and while the disk is written."""
    assert isinstance(adapter, DiskAdapter)
    source = adapter.region(BATCH_VALUE_BYTES, random.Random(1).randbytes(BATCH_VALUE_BYTES))  # noqa: S311
    target = adapter.region(BATCH_VALUE_BYTES)
    keys = adapter.keep(source, _HOT_KEYS)
    seconds = scale.call_s * 4
    idle_s = adapter.slowest(keys, target, seconds)
    busy_s = adapter.slowest_under_writes(keys, target, seconds)
    return {"p99 idle": idle_s * 1e6, "p99 writing": busy_s * 1e6}
