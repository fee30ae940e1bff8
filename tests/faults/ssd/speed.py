"""How fast the store is, against what the disk gives to fio, dd and aiofiles in the same minutes.

    python -m tests.faults.ssd.speed DIRECTORY [write] [read] [open] [files]

Rounds of the store and of its rival alternate, since a disk that others use changes by the second;
the median of the rounds' ratios is what counts. What would make a figure false: data in the page
cache (all reads and writes are O_DIRECT), a rival that writes less, or does not sync at its end.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from mooncake_storage_node.ssd import Options, Span, Store, Transfer
from mooncake_storage_node.ssd.core import records
from mooncake_storage_node.ssd.core.records import EntryRecord
from mooncake_storage_node.ssd.core.table import Entry
from mooncake_store import extent
from mooncake_store.deadline import Deadline
from mooncake_store.extent import Identity, Names
from mooncake_store.fingerprint import fingerprint
from mooncake_store.limits import CHUNK_BYTES, GIB, MIB
from mooncake_store.testing import seeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


ROUNDS = 9
TOTAL_BYTES = 256 * MIB
IN_FLIGHT = 8
GENERATOR = seeded("speed")


def sealed_extents(count: int, size: int, first: int = 1) -> dict[int, memoryview]:
    """Return {version: extent} with one random payload, hashed once."""
    body = os.urandom(size)
    view = memoryview(body)
    digests = [
        xxhash.xxh3_64_intdigest(view[at : at + CHUNK_BYTES]) for at in range(0, size, CHUNK_BYTES)
    ]
    made = {}
    for version in range(first, first + count):
        names = Names("bench", f"model/layer/{version:032x}")
        identity = Identity(fingerprint(names.namespace, names.key), version, 1, 1, size)
        sealed = extent.seal(identity, digests, names)
        whole = bytearray(extent.extent_bytes(size, len(extent.pack_names(names))))
        whole[: len(sealed.header)] = sealed.header
        whole[extent.HEADER_BYTES : extent.HEADER_BYTES + size] = body
        tail = extent.HEADER_BYTES + size
        whole[tail : tail + len(sealed.tail)] = sealed.tail
        made[version] = memoryview(whole)
    return made


def fio(files: list[Path], mode: str, size: int, jobs: int) -> float:
    """Return bytes per second of fio, O_DIRECT, one system call at a time per job."""
    words = [
        "fio", "--name=x", f"--filename={':'.join(map(str, files))}", f"--bs={size}", "--direct=1",
        f"--rw={mode}", "--ioengine=psync", f"--numjobs={jobs}", "--group_reporting",
        "--output-format=json",
    ]  # fmt: skip
    if mode == "write":
        words += [f"--size={TOTAL_BYTES}", "--end_fsync=1"]
    else:
        whole = sum(path.stat().st_size for path in files)
        words += [f"--size={whole}", f"--io_size={TOTAL_BYTES // jobs}", "--norandommap",
                  "--randrepeat=0"]  # fmt: skip
    done = subprocess.run(words, capture_output=True, check=True, text=True)
    job = json.loads(done.stdout)["jobs"][0]
    part = job["write" if mode == "write" else "read"]
    return float(part["io_bytes"]) / (float(part["runtime"]) / 1000)


def dd(folder: Path, size: int) -> float:
    """Return bytes per second of dd writing with O_DIRECT and a sync at the end."""
    target = folder / "dd.bin"
    began = time.perf_counter()
    words = ["dd", "if=/dev/zero", f"of={target}", f"bs={size}", f"count={TOTAL_BYTES // size}"]
    subprocess.run([*words, "oflag=direct", "conv=fsync"], capture_output=True, check=True)
    took = time.perf_counter() - began
    target.unlink()
    return TOTAL_BYTES / took


def write_all(store: Store, data: dict[int, memoryview]) -> float:
    """Store extents; return bytes per second until the last is durable."""
    began = time.perf_counter()
    futures = [store.write(source, version) for version, source in data.items()]
    for future in futures:
        future.result(120)
    return sum(map(len, data.values())) / (time.perf_counter() - began)


def read_all(store: Store, versions: list[int], size: int) -> float:
    """Read extents with ``IN_FLIGHT`` at a time; return bytes per second."""
    free = deque(memoryview(bytearray(size)) for _ in range(IN_FLIGHT))
    room = threading.Semaphore(IN_FLIGHT)
    running: list[Transfer] = []

    def ended(buffer: memoryview) -> None:
        free.append(buffer)
        room.release()

    began = time.perf_counter()
    for version in versions:
        room.acquire()
        buffer = free.popleft()
        span = Span(store.find(version), version, 0, size)
        transfer = store.read_into(span, [buffer], Deadline(60))
        transfer.add_done_callback(lambda _, buffer=buffer: ended(buffer))
        running.append(transfer)
    for transfer in running:
        transfer.result(60)
    return len(versions) * size / (time.perf_counter() - began)


def compare(name: str, ours: Callable[[], float], theirs: Callable[[], float]) -> None:
    """Alternate, and say the medians."""
    ratios, mine, other = [], [], []
    for _ in range(ROUNDS):
        other.append(theirs())
        mine.append(ours())
        ratios.append(mine[-1] / other[-1])
    print(
        f"{name}: store {statistics.median(mine) / 1e6:.0f} MB/s,"
        f" rival {statistics.median(other) / 1e6:.0f} MB/s,"
        f" ratio {statistics.median(ratios):.2f} (rounds {', '.join(f'{r:.2f}' for r in ratios)})"
    )


def measure_writes(folder: Path) -> None:
    """Store extents in a row: into new files, and into files that were written before."""
    for size in (1 * MIB, 16 * MIB):
        versions = iter(range(1, 1 << 40, 1 << 20))
        count = TOTAL_BYTES // size

        def into_new(
            size: int = size, count: int = count, versions: Iterator[int] = versions
        ) -> float:
            data = sealed_extents(count, size, next(versions))
            with fresh_store(folder, 2 * GIB) as store:
                return write_all(store, data)

        def fio_new(size: int = size) -> float:
            (folder / "fio.bin").unlink(missing_ok=True)
            return fio([folder / "fio.bin"], "write", size, 1)

        label = f"write {size // MIB} MiB"
        compare(f"{label}, new files, vs dd", into_new, lambda size=size: dd(folder, size))
        compare(f"{label}, new files, vs fio", into_new, fio_new)
        with fresh_store(folder, 1 * GIB) as store:

            def over_old(
                size: int = size,
                count: int = count,
                versions: Iterator[int] = versions,
                store: Store = store,
            ) -> float:
                return write_all(store, sealed_extents(count, size, next(versions)))

            for _ in range(5):
                over_old()
            compare(
                f"{label}, evicting, vs fio over its old file",
                over_old,
                lambda size=size: fio([folder / "fio.bin"], "write", size, 1),
            )


def measure_reads(folder: Path) -> None:
    """Read extents that no cache of this machine holds; fio reads the same files."""
    for size in (1 * MIB, 16 * MIB):
        data = sealed_extents(4 * TOTAL_BYTES // size, size)
        with fresh_store(folder, 3 * GIB, Options(queue_bytes_max=4 * GIB)) as store:
            write_all(store, data)
            stored = len(data[1])
            files = sorted(folder.rglob("*.region"))[: len(data) * size // (64 * MIB)]
            versions = sorted(data)

            def ours(
                store: Store = store, stored: int = stored, versions: list[int] = versions
            ) -> float:
                chosen = GENERATOR.sample(versions, len(versions) // 4)
                return read_all(store, chosen, stored)

            compare(
                f"read {size // MIB} MiB vs fio",
                ours,
                lambda size=size, files=files: fio(files, "randread", size, IN_FLIGHT),
            )


def measure_open(folder: Path, count: int = 1_000_000) -> None:
    """Open a directory of a million entries, made by writing records straight into an index."""
    options = Options(index_bytes=1 * GIB)
    with fresh_store(folder, 40 * GIB, options) as store:
        write_all(store, sealed_extents(1, 4096))
        volume = store._volume
        assert volume is not None
        index, geometry = volume._index, volume.ledger.geometry
        room = geometry.region_bytes * geometry.region_count // count // 512 * 512
        began = time.perf_counter()
        puts = []
        for location in range(1, count + 1):
            names = extent.pack_names(Names("bench", f"model/layer/{location:032x}"))
            entry = Entry(1 << 40 | location, (location - 1) * room, room, 1, 1, len(names))
            record = EntryRecord(entry, 4096, location, location.to_bytes(16, "little"), names)
            puts.append(records.pack_entry(location, record))
            if len(puts) == 16_384:
                index.commit(puts, [])
                puts = []
        index.commit(puts, [])
        print(f"made {count} records in {time.perf_counter() - began:.1f} s")
    for number in range(geometry.region_count):
        with (folder / "store/mooncake-ssd/regions" / f"{number:05d}.region").open("ab") as file:
            file.truncate(geometry.region_bytes)
    for _ in range(3):
        began = time.perf_counter()
        with Store.open(folder / "store", 40 * GIB, options) as store:
            took = time.perf_counter() - began
            found = store.statistics()
            print(
                f"open: {took:.2f} s for {found.entries} entries,"
                f" {found.memory_bytes / max(1, found.entries):.1f} bytes of memory each,"
                f" lost {found.lost}"
            )


def measure_files(folder: Path) -> None:
    """Compare threads that call preadv themselves with aiofiles, which has a thread per call."""
    import aiofiles  # noqa: PLC0415 - the only place that needs it

    path = folder / "aio.bin"
    size, count = 1 * MIB, 256
    path.write_bytes(bytes(size * count))
    os.sync()

    def cold() -> None:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)

    async def by_aiofiles(length: int) -> float:
        cold()
        handles = [await aiofiles.open(path, "rb", buffering=0) for _ in range(IN_FLIGHT)]
        buffers = [bytearray(length) for _ in range(IN_FLIGHT)]

        async def worker(number: int) -> None:
            for at in range(number, count, IN_FLIGHT):
                await handles[number].seek(at * size)
                await handles[number].readinto(buffers[number])

        began = time.perf_counter()
        await asyncio.gather(*map(worker, range(IN_FLIGHT)))
        took = time.perf_counter() - began
        for handle in handles:
            await handle.close()
        return count * length / took

    def by_threads(length: int) -> float:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - only here

        cold()
        descriptor = os.open(path, os.O_RDONLY)
        buffers = [memoryview(bytearray(length)) for _ in range(IN_FLIGHT)]

        def worker(number: int) -> None:
            for at in range(number, count, IN_FLIGHT):
                os.preadv(descriptor, [buffers[number]], at * size)

        began = time.perf_counter()
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            list(pool.map(worker, range(IN_FLIGHT)))
        took = time.perf_counter() - began
        os.close(descriptor)
        return count * length / took

    for length in (4096, size):
        compare(
            f"aiofiles (rival) and threads with preadv, {length} bytes a read",
            lambda length=length: by_threads(length),
            lambda length=length: asyncio.run(by_aiofiles(length)),
        )
    path.unlink()


def fresh_store(folder: Path, capacity: int, options: Options | None = None) -> Store:
    """Return an empty store."""
    place = folder / "store"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    return Store.open(place, capacity, options)


def main() -> None:
    """Measure what the command line names, or everything."""
    folder, *what = sys.argv[1:]
    parts = {
        "write": measure_writes,
        "read": measure_reads,
        "open": measure_open,
        "files": measure_files,
    }
    for name in what or parts:
        parts[name](Path(folder))


if __name__ == "__main__":
    main()
