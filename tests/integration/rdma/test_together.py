"""Many callers of one path: queue pairs that overtake each other, cancelled reads, closed paths."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from mooncake_store.deadline import Deadline
from mooncake_store.errors import Closed, PeerError
from mooncake_store.testing import wait_until
from mooncake_store.testing.seeds import seeded
from mooncake_store.transport.rdma import AsyncRdmaDataPath
from mooncake_store.transport.rdma.paths import LINKS_MAX
from tests.integration.node.support import MIB, get, make_thing, put

if TYPE_CHECKING:
    from mooncake_store.testing.verbs import FakeFabric
    from mooncake_store.transport.rdma import RdmaContext, RdmaDataPath
    from mooncake_store.wire.control import Register


@pytest.mark.parametrize("seed", range(3))
def test_queue_pairs_that_overtake_each_other_mix_nothing_up(
    register: Register, path: RdmaDataPath, fabric: FakeFabric, seed: int
) -> None:
    """Whoever polls moves a few requests of anybody, in a seeded order between queue pairs."""
    fabric.faults.steps = 3
    problems: list[BaseException] = []

    def work(number: int) -> None:
        random = seeded(f"together {seed} {number}")
        try:
            for turn in range(6):
                size = random.choice((100, 4096, 300_000, 900_000))
                offset = (6 * number + turn) % 30 * MIB
                thing = make_thing(register.segments[0].incarnation, offset, size)
                put(path, thing)
                assert get(path, thing) == thing.content
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems
    assert len(fabric.queue_pairs) <= 2 * LINKS_MAX


async def test_a_cancelled_read_leaves_its_buffer_alone(
    register: Register, path: RdmaDataPath, context: RdmaContext, fabric: FakeFabric
) -> None:
    thing = make_thing(register.segments[0].incarnation, 0, 2 * MIB)
    put(path, thing)
    buffer = memoryview(bytearray(b"\xa5" * 2 * MIB))
    reader = AsyncRdmaDataPath(
        register.host, register.port, node_id=register.node_id, node="n", context=context
    )
    await reader.read([make_thing(1, 0, 10).read_task()], Deadline(5))  # Connects.
    with context.register(buffer):
        fabric.faults.is_cut = True
        task = thing.read_task()
        task.targets = [buffer]
        reading = asyncio.ensure_future(reader.read([task], Deadline(20)))
        await asyncio.sleep(0.2)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        fabric.faults.is_cut = False
        fabric.step(-1)
        assert bytes(buffer) == b"\xa5" * 2 * MIB
    assert get(path, thing) == thing.content
    await reader.aclose()


def test_closing_a_path_ends_calls_under_way(
    register: Register, path: RdmaDataPath, fabric: FakeFabric
) -> None:
    thing = make_thing(register.segments[0].incarnation, 0, 5000)
    put(path, thing)
    fabric.faults.is_cut = True
    task = thing.read_task()
    reader = threading.Thread(target=path.read, args=([task], Deadline(20)))
    reader.start()
    wait_until(
        lambda: len(path._places.holders()) > len(path._idle), 5, what="the call is under way"
    )
    path.close()
    reader.join(5)
    assert not reader.is_alive()
    assert isinstance(task.error, (Closed, PeerError))


def test_the_bounded_pool_of_links_makes_callers_wait_their_turn(
    register: Register, path: RdmaDataPath, fabric: FakeFabric
) -> None:
    thing = make_thing(register.segments[0].incarnation, 0, 5000)
    put(path, thing)
    tasks = [thing.read_task() for _ in range(12)]
    threads = [threading.Thread(target=path.read, args=([task], Deadline(20))) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(task.error is None for task in tasks)
    assert len(fabric.queue_pairs) <= 2 * LINKS_MAX
