"""The workload: what every system is asked to do, and how it is timed.

A part runs in fresh processes and returns its metrics by name, in the units of ``METRICS``.
Every system runs the very same sequence of calls. The clock runs around a call and nothing
else: keys, removals and the check of the bytes lie outside.
"""

import hashlib
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from tests.bench.adapter import Adapter, Region
from tests.bench.disk import disk, interference
from tests.bench.processes import (
    TICK_S,
    cpu_seconds,
    loopback_bytes,
    tree_cpu_seconds,
    tree_resident_bytes,
)
from tests.bench.scale import (
    BATCH_KEYS,
    BATCH_VALUE_BYTES,
    BULK_BYTES,
    EXISTS_BATCHES,
    EXISTS_VALUE_BYTES,
    LARGE_BYTES,
    MEMORY_BATCH_KEYS,
    MEMORY_KEY_CHARACTERS,
    MEMORY_VALUE_BYTES,
    MIB,
    SMALL_BYTES,
    Scale,
)

_SETTLE_S = 1.0
"""Time a master gets to finish what it does after its answers, before its memory is read."""


_FIRST_CALLS = 50
"""Calls that are not timed: the first ones connect, and may wait until a new master has its nodes,
which would use up the time that is there for the others."""


class WrongAnswer(AssertionError):
    """A system returned other bytes than were put, or denied a key: its timings are void."""


class Better(Enum):
    """Which of two values of a metric is the better one."""

    MORE = "more"
    LESS = "less"


@dataclass(frozen=True, slots=True)
class Metric:
    """How the values of one metric are read."""

    part: str
    unit: str
    better: Better


def bulk_metric(operation: str, size: int) -> str:
    return f"{operation} {size // MIB} MiB"


_BULK = {
    bulk_metric(operation, size): Metric("bulk", "GB/s", Better.MORE)
    for operation in ("put", "get_into")
    for size in BULK_BYTES
}
_DISK = {
    f"{way} disk {size // MIB} MiB": Metric("disk", "GB/s", Better.MORE)
    for way in ("to", "from")
    for size in BULK_BYTES
}
_EXISTS = {
    f"exists x{count}": Metric("exists", "keys/CPU s", Better.MORE) for count in EXISTS_BATCHES
}
METRICS = {
    **_BULK,
    "loopback": Metric("bulk", "B/B", Better.LESS),
    "copy": Metric("local", "GB/s", Better.MORE),
    "copy unverified": Metric("local", "GB/s", Better.MORE),
    "copy time": Metric("local", "us", Better.LESS),
    "view": Metric("local", "us", Better.LESS),
    "put 4 KiB": Metric("small", "us", Better.LESS),
    "get 4 KiB": Metric("small", "us", Better.LESS),
    "put batch": Metric("batch", "GB/s", Better.MORE),
    "get batch": Metric("batch", "GB/s", Better.MORE),
    "round trips": Metric("batch", "calls", Better.LESS),
    "exists": Metric("exists", "calls/s", Better.MORE),
    **_EXISTS,
    "cpu": Metric("cpu", "CPU s/GB", Better.LESS),
    "memory": Metric("memory", "B/key", Better.LESS),
    **_DISK,
    "p99 idle": Metric("interference", "us", Better.LESS),
    "p99 writing": Metric("interference", "us", Better.LESS),
}
"""{metric: what it is}; docs/performance.md defines each in a sentence."""


def _payload(size: int) -> bytes:
    """Bytes that no layer can compress or find equal."""
    return hashlib.shake_128(b"payload").digest(size)


def _timed(
    scale: Scale, call: Callable[[int], object], after: Callable[[int], object] | None = None
) -> float:
    """Median seconds of ``call(0)``, ``call(1)`` and so on; ``after`` is not timed."""
    durations: list[float] = []
    end = time.perf_counter() + scale.call_s
    while len(durations) < scale.calls_min or (
        len(durations) < scale.calls_max and time.perf_counter() < end
    ):
        index = len(durations)
        started = time.perf_counter()
        call(index)
        durations.append(time.perf_counter() - started)
        if after is not None:
            after(index)
    return statistics.median(durations)


def _gigabytes_per_s(size: int, seconds: float) -> float:
    return size / seconds / 1e9


def _check(target: Region, source: Region) -> None:
    if target.view != source.view:
        raise WrongAnswer("the bytes that were read are not those that were put")


def _warm(adapter: Adapter, scale: Scale) -> None:
    """Touch the store's memory, then free it."""
    source = adapter.region(LARGE_BYTES, _payload(LARGE_BYTES))
    keys = [f"warm/{index}" for index in range(scale.warm_bytes // LARGE_BYTES)]
    for key in keys:
        adapter.put(key, source)
    adapter.remove(keys)


def _keep(adapter: Adapter, scale: Scale, source: Region) -> list[str]:
    """Put the objects that the read phases go round, and read each of them once."""
    count = max(2, min(scale.kept_max, scale.kept_bytes // source.size))
    keys = [f"kept/{source.size}/{index}" for index in range(count)]
    target = adapter.region(source.size)
    for key in keys:
        adapter.put(key, source)
    for key in keys:
        target.view[:] = bytes(source.size)
        adapter.get_into(key, target)
        _check(target, source)
    return keys


def _put_seconds(adapter: Adapter, scale: Scale, source: Region) -> float:
    """Median time of a put of a new key; each is removed again."""
    name = f"put/{source.size}"
    return _timed(
        scale,
        lambda index: adapter.put(f"{name}/{index}", source),
        lambda index: adapter.remove([f"{name}/{index}"]),
    )


def bulk(adapter: Adapter, scale: Scale) -> dict[str, float]:
    """Put and get_into of large values, one at a time."""
    _warm(adapter, scale)
    values: dict[str, float] = {}
    for size in BULK_BYTES:
        values |= _bulk_of(size, adapter, scale)
    return values


def _bulk_of(size: int, adapter: Adapter, scale: Scale) -> dict[str, float]:
    source, target = adapter.region(size, _payload(size)), adapter.region(size)
    put_s = _put_seconds(adapter, scale, source)
    keys = _keep(adapter, scale, source)
    carried, calls = loopback_bytes(), list[int]()
    get_s = _timed(
        scale, lambda index: adapter.get_into(keys[index % len(keys)], target), calls.append
    )
    carried = loopback_bytes() - carried
    adapter.remove(keys)
    return {
        bulk_metric("put", size): _gigabytes_per_s(size, put_s),
        bulk_metric("get_into", size): _gigabytes_per_s(size, get_s),
        "loopback": carried / (len(calls) * size),
    }


def local(adapter: Adapter, scale: Scale) -> dict[str, float]:
    """Ways to the bytes of a large object within one host."""
    _warm(adapter, scale)
    source, target = adapter.region(LARGE_BYTES, _payload(LARGE_BYTES)), adapter.region(LARGE_BYTES)
    keys = _keep(adapter, scale, source)

    def median(call: Callable[[str], object]) -> float:
        return _timed(scale, lambda index: call(keys[index % len(keys)]))

    copy_s = median(lambda key: adapter.get_into(key, target))
    values = {"copy": _gigabytes_per_s(LARGE_BYTES, copy_s), "copy time": copy_s * 1e6}
    if adapter.has_views:
        unverified_s = median(lambda key: adapter.get_into_unverified(key, target))
        values["copy unverified"] = _gigabytes_per_s(LARGE_BYTES, unverified_s)
        for key in keys:
            adapter.view(key)  # The first view of an object verifies its payload.
        values["view"] = median(adapter.view) * 1e6
    return values


def small(adapter: Adapter, scale: Scale) -> dict[str, float]:
    """Put and get of 4 KiB: the fixed cost of a call."""
    source = adapter.region(SMALL_BYTES, _payload(SMALL_BYTES))
    first = [f"first/{index}" for index in range(_FIRST_CALLS)]
    for key in first:
        adapter.put(key, source)
    adapter.remove(first)
    put_s = _put_seconds(adapter, scale, source)
    keys = _keep(adapter, scale, source)
    get_s = _timed(scale, lambda index: adapter.get(keys[index % len(keys)]))
    if adapter.get(keys[0]) != source.view:
        raise WrongAnswer("get returned other bytes than were put")
    return {"put 4 KiB": put_s * 1e6, "get 4 KiB": get_s * 1e6}


def batch(adapter: Adapter, scale: Scale) -> dict[str, float]:
    """Put and get of 128 objects of 64 KiB in one call."""
    size = BATCH_KEYS * BATCH_VALUE_BYTES
    source, target = adapter.region(size, _payload(size)), adapter.region(size)
    sources, targets = source.split(BATCH_KEYS), target.split(BATCH_KEYS)
    _warm(adapter, scale)

    def keys(index: int) -> list[str]:
        return [f"batch/{index}/{member}" for member in range(BATCH_KEYS)]

    current = keys(0)

    def renew(index: int) -> None:
        adapter.remove(current)
        current[:] = keys(index + 1)

    put_s = _timed(scale, lambda _: adapter.put_many(current, sources), renew)
    adapter.put_many(current, sources)
    adapter.get_into_many(current, targets)
    _check(target, source)
    before, calls = adapter.master_round_trips(), list[int]()
    get_s = _timed(scale, lambda _: adapter.get_into_many(current, targets), calls.append)
    after = adapter.master_round_trips()
    values = {
        "put batch": _gigabytes_per_s(size, put_s),
        "get batch": _gigabytes_per_s(size, get_s),
    }
    if before is not None and after is not None:
        values["round trips"] = (after - before) / len(calls)
    return values


def exists(adapter: Adapter, scale: Scale) -> dict[str, float]:
    """Questions about keys that are there: one by one, and in batches by master CPU."""
    source = adapter.region(EXISTS_VALUE_BYTES, _payload(EXISTS_VALUE_BYTES))
    keys = [f"exists/{index:06d}" for index in range(scale.exists_keys)]
    for start in range(0, len(keys), EXISTS_BATCHES[0]):
        group = keys[start : start + EXISTS_BATCHES[0]]
        adapter.put_many(group, [source] * len(group))
    adapter.reconnect()
    calls, wall_s, _ = _ask(adapter, scale, [[key] for key in keys])
    values = {"exists": calls / wall_s}
    for count in EXISTS_BATCHES:
        groups = [keys[start : start + count] for start in range(0, len(keys), count)]
        calls, _, master_s = _ask(adapter, scale, groups)
        values[f"exists x{count}"] = calls * count / max(master_s, TICK_S)
    return values


def _ask(adapter: Adapter, scale: Scale, groups: list[list[str]]) -> tuple[int, float, float]:
    """Ask about the groups in turn; calls made, wall seconds, CPU seconds of the master."""
    master = adapter.servers.pids()["master"]
    calls, master_s, started = 0, tree_cpu_seconds(master), time.perf_counter()
    while time.perf_counter() - started < scale.exists_s:
        group = groups[calls % len(groups)]
        answers = [adapter.exists(group[0])] if len(group) == 1 else adapter.exists_many(group)
        if not all(answers):
            raise WrongAnswer("exists denied a key that was put")
        calls += 1
    return calls, time.perf_counter() - started, tree_cpu_seconds(master) - master_s


def cpu(adapter: Adapter, scale: Scale) -> dict[str, float]:
    """CPU of the client and of all servers for reads of large values."""
    _warm(adapter, scale)
    source, target = adapter.region(LARGE_BYTES, _payload(LARGE_BYTES)), adapter.region(LARGE_BYTES)
    keys = _keep(adapter, scale, source)

    def spent() -> float:
        servers = sum(tree_cpu_seconds(pid) for pid in adapter.servers.pids().values())
        return cpu_seconds(os.getpid()) + servers

    calls, before = scale.cpu_bytes // LARGE_BYTES, spent()
    for index in range(calls):
        adapter.get_into(keys[index % len(keys)], target)
    return {"cpu": (spent() - before) / (calls * LARGE_BYTES / 1e9)}


def memory(adapter: Adapter, scale: Scale) -> dict[str, float]:
    """Growth of the master's resident memory by small objects, per key."""
    source = adapter.region(MEMORY_VALUE_BYTES, _payload(MEMORY_VALUE_BYTES))
    sources = [source] * MEMORY_BATCH_KEYS
    master = adapter.servers.pids()["master"]

    def key(index: int) -> str:
        return hashlib.sha256(str(index).encode()).hexdigest()[:MEMORY_KEY_CHARACTERS]

    firsts = range(0, scale.memory_keys, MEMORY_BATCH_KEYS)
    before = 0
    for first in firsts:
        adapter.put_many([key(first + more) for more in range(MEMORY_BATCH_KEYS)], sources)
        # What the first put costs belongs to no key.
        before = before or tree_resident_bytes(master)
    time.sleep(_SETTLE_S)
    grown = tree_resident_bytes(master) - before
    if not all(adapter.exists_many([key(first) for first in firsts])):
        raise WrongAnswer("keys were evicted: what remains says nothing about their cost")
    return {"memory": grown / (scale.memory_keys - MEMORY_BATCH_KEYS)}


PARTS: dict[str, Callable[[Adapter, Scale], dict[str, float]]] = {
    "bulk": bulk,
    "local": local,
    "small": small,
    "batch": batch,
    "exists": exists,
    "cpu": cpu,
    "memory": memory,
    "disk": disk,
    "interference": interference,
}
"""{part: the function}, in the order of a round."""
