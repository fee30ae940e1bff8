"""``python -m tests.bench.fencing``: what the directory and the fences cost a put.

A put over shared memory declares its intent, looks at the fence and sets its entry in the version
table (docs/adr/0001, 0002, 0007); one over TCP enters the register of incoming writes, looks at the
fence and sets the entry, in the node. Here those steps, and nothing else, can be left out by a
switch that client and node share, so puts with and without them take turns within one run. What is
put without them cannot be read: that is looked at, so a switch that does nothing is noticed.

``ratio`` is the median over pairs of turns, with the quartiles, which say how quiet the machine is;
``share`` is the processor time of the steps alone (``steps_us``) over that of the fastest turn
without them: that is what to look at where others use the machine.

Not left out: the name block, which is written along with the payload, and what the master does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mooncake_client import Client
from mooncake_storage_node.writes import Incoming, IncomingWrites
from mooncake_store.command import main as store
from mooncake_store.extent import HEADER_BYTES, Identity
from mooncake_store.limits import KIB, MIB
from mooncake_store.segment import Segment, mapped_bytes
from mooncake_store.testing import ProcessCluster
from mooncake_store.transport.extents import ExtentMemory
from mooncake_store.transport.shm import WriterSlots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SWITCH: Final = "FENCING_SWITCH"
"""Environment variable with the name of the file whose first byte is the switch."""
SIZES: Final = {"4 KiB": 4 * KIB, "1 MiB": MIB}
PUTS: Final = {"4 KiB": 100, "1 MiB": 30}
"""Puts of one turn."""
RUN: Final = "--run"


def open_switch(path: Path) -> mmap.mmap:
    """Map the switch: 1 in its first byte means that the steps are taken."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, 1)
    finally:
        os.close(descriptor)


def plant(switch: mmap.mmap) -> None:
    """Let this process leave the steps out while the switch is off."""

    def choose(owner: type, name: str, other: Callable[..., Any]) -> None:
        real = getattr(owner, name)

        def chosen(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
            return (real if switch[0] else other)(self, *args, **kwargs)

        setattr(owner, name, chosen)

    choose(WriterSlots, "begin", lambda *_: -1)
    choose(WriterSlots, "end", lambda *_: None)
    choose(ExtentMemory, "allow", lambda *_: True)
    choose(Segment, "may_write", lambda *_: True)
    choose(Segment, "publish", _write_header)
    for name in ("add", "add_one", "remove", "remove_one"):
        choose(IncomingWrites, name, lambda *_: None)


def _write_header(self: Segment, offset: int, header: bytes | memoryview, _version: int) -> None:
    """Do the part of ``Segment.publish`` that is no directory."""
    self.extents[offset : offset + HEADER_BYTES] = header


def steps_us() -> dict[str, float]:
    """Return {path: microseconds of processor time that the steps of one put take}."""
    room = 64 * KIB
    segment = Segment.format(memoryview(bytearray(mapped_bytes(room))), room, 1)
    memory, header = ExtentMemory(segment), bytes(HEADER_BYTES)
    locks = os.memfd_create("locks")
    os.ftruncate(locks, mapped_bytes(room))
    slots = WriterSlots(segment, locks)
    incoming, guard = IncomingWrites(), threading.Lock()

    def local(version: int) -> None:
        slot = slots.begin(0, room, version)
        memory.allow(0, room, Identity(b"", version, 0, 0, 0))
        segment.publish(0, header, version)
        slots.end(slot)

    def over_tcp(version: int) -> None:
        write = Incoming((1, 0), room, version, guard)
        incoming.add_one(write)
        with guard:
            if not write.cut and segment.may_write(0, room, version):
                segment.publish(0, header, version)
        incoming.remove_one(write)

    def without(version: int) -> None:
        _write_header(segment, 0, header, version)

    taken = {}
    versions = itertools.count(1)
    for name, steps in (("none", without), ("shm", local), ("tcp", over_tcp)):
        batches = []
        for _ in range(20):
            begun_s = time.thread_time()
            for _ in range(1_000):
                steps(next(versions))
            batches.append(time.thread_time() - begun_s)
        taken[name] = min(batches) * 1e3
    return {name: taken[name] - taken["none"] for name in ("shm", "tcp")}


def turns(client: Client, switch: mmap.mmap, size: str, count: int) -> Iterator[tuple[bool, float]]:
    """Yield (with the steps, seconds of a put) of one turn after the other.

    The fastest tenth of a turn's puts ends there: what others on the machine add to the rest is
    larger than what is looked for.
    """
    value = os.urandom(SIZES[size])
    for turn in range(count):
        switch[0] = on = turn % 2
        keys = [f"{turn}/{number}" for number in range(PUTS[size])]
        took_s = []
        for key in keys:
            begun_s = time.perf_counter()
            client.put(key, value)
            took_s.append(time.perf_counter() - begun_s)
        if (client.get(keys[-1]) == value) is not bool(on):
            raise AssertionError("the switch does not do what it says")
        switch[0] = 1
        client.remove_many(keys)
        yield bool(on), sorted(took_s)[len(took_s) // 10]


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Return {path and size: medians in microseconds, and their ratio}."""
    found: dict[str, dict[str, float]] = {}
    alone_us = steps_us()
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"\1")
        file.flush()
        os.environ[SWITCH] = file.name
        switch = open_switch(Path(file.name))
        plant(switch)
        command = (sys.executable, "-m", "tests.bench.fencing", RUN)
        options = {"dram": "512MiB", "populate": "start"}
        with ProcessCluster(1, node_options=options, command=command) as cluster:
            for transport in ("shm", "tcp"):
                with Client(cluster.address, transport=transport) as client:
                    for size in SIZES:
                        row = _compare(client, switch, size, rounds)
                        row["steps_us"] = round(alone_us[transport], 2)
                        row["share"] = round(alone_us[transport] / row["without_us"], 4)
                        found[f"{transport} {size}"] = row
    return found


def _compare(client: Client, switch: mmap.mmap, size: str, rounds: int) -> dict[str, float]:
    list(turns(client, switch, size, 2))  # connections, memory, caches
    taken: dict[bool, list[float]] = {True: [], False: []}
    for is_on, took_s in turns(client, switch, size, 2 * rounds):
        taken[is_on].append(took_s)
    pairs = sorted(on / off for on, off in zip(taken[True], taken[False], strict=True))
    return {
        "with_us": round(min(taken[True]) * 1e6, 1),
        "without_us": round(min(taken[False]) * 1e6, 1),
        "ratio": round(statistics.median(pairs), 3),
        "ratio_low": round(pairs[len(pairs) // 4], 3),
        "ratio_high": round(pairs[(3 * len(pairs)) // 4], 3),
    }


def main() -> int:
    """Measure and print one JSON object; or be the store, with the switch."""
    if sys.argv[1:2] == [RUN]:
        plant(open_switch(Path(os.environ[SWITCH])))
        sys.argv = ["mooncake-store", *sys.argv[2:]]
        store()
        return 0
    parser = argparse.ArgumentParser(prog="tests.bench.fencing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60, help="turns with and without, each")
    found = measure(parser.parse_args().rounds)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
