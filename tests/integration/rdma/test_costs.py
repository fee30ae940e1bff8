"""What a transfer costs beside its bytes: the issue's numbers, counted where no clock lies."""

from __future__ import annotations

import cProfile
import pstats
from typing import TYPE_CHECKING

from mooncake_store.deadline import Deadline
from mooncake_store.transport.rdma.flow import SIGNAL_EVERY
from tests.integration.node.support import make_thing, put

if TYPE_CHECKING:
    from mooncake_store.testing.verbs import FakeFabric
    from mooncake_store.transport.rdma import RdmaContext, RdmaDataPath
    from mooncake_store.wire.control import Register

COUNT = 128
SIZE = 4096


def copied(path: RdmaDataPath) -> int:
    return sum(connection.copied for connection in path._idle)  # type: ignore[attr-defined]


def test_a_registered_batch_of_128_gets(
    register: Register, path: RdmaDataPath, fabric: FakeFabric, context: RdmaContext
) -> None:
    incarnation = register.segments[0].incarnation
    things = [make_thing(incarnation, 8192 * n, SIZE, key=f"k{n}") for n in range(COUNT)]
    put(path, *things)
    memory = memoryview(bytearray(COUNT * SIZE))
    tasks = [thing.read_task() for thing in things]
    for number, task in enumerate(tasks):
        task.targets = [memory[SIZE * number : SIZE * (number + 1)]]
    with context.register(memory):
        fabric.counts.clear()
        before = copied(path)
        path.read(tasks, Deadline(10))
    assert all(task.error is None and task.verified for task in tasks)
    assert memory == b"".join(thing.content for thing in things)
    assert copied(path) == before, "payload was copied in user space"
    assert fabric.counts["doorbells"] == 1
    assert fabric.counts["requests"] <= 2 * COUNT + 1
    assert fabric.counts["completions"] <= fabric.counts["requests"] // SIGNAL_EVERY + 1


def test_a_single_registered_get_and_put(
    register: Register, path: RdmaDataPath, fabric: FakeFabric, context: RdmaContext
) -> None:
    thing = make_thing(register.segments[0].incarnation, 0, SIZE)
    put(path, make_thing(register.segments[0].incarnation, 1 << 20, SIZE))
    task = thing.write_task()
    with context.register(memoryview(bytearray(thing.content))) as registered:
        assert registered is not None
        memory = registered._memory
        assert memory is not None
        task.parts = [memory]
        fabric.counts.clear()
        before = copied(path)
        path.write([task], Deadline(10))
        assert task.error is None
        assert fabric.counts["doorbells"] == fabric.counts["completions"] == 1
        assert fabric.counts["requests"] == 2  # payload and tail; the read that pushes them
        reading = thing.read_task()
        reading.targets = [memory]
        fabric.counts.clear()
        path.read([reading], Deadline(10))
        assert reading.error is None
        assert fabric.counts["doorbells"] == fabric.counts["completions"] == 1
        assert fabric.counts["requests"] == 3  # the extent, its entry, the epoch
        assert copied(path) == before


def test_python_calls_for_each_get_of_a_batch(
    register: Register, path: RdmaDataPath, context: RdmaContext
) -> None:
    """Calls, not time: no machine is too busy for this."""
    incarnation = register.segments[0].incarnation
    things = [make_thing(incarnation, 8192 * n, SIZE, key=f"k{n}") for n in range(COUNT)]
    put(path, *things)
    memory = memoryview(bytearray(COUNT * SIZE))
    tasks = [thing.read_task() for thing in things]
    for number, task in enumerate(tasks):
        task.targets = [memory[SIZE * number : SIZE * (number + 1)]]
    with context.register(memory):
        profile = cProfile.Profile(builtins=False)
        profile.enable()
        path.read(tasks, Deadline(10))
        profile.disable()
    assert all(task.error is None for task in tasks)
    calls = 0
    for (file, _, _), (count, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if not file.endswith("testing/verbs.py"):
            calls += count
    assert calls / COUNT <= CALLS_PER_GET


CALLS_PER_GET = 36
"""Python functions called for one get of a batch, the fake device's own left out."""
