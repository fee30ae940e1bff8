"""Many threads, many coroutines, cancellation, closing under way, memory that is reused."""

from __future__ import annotations

# ruff: noqa: ANN401 - either client, whatever it returns
import asyncio
import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_client import (
    AsyncClient,
    Client,
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    PutUnderWay,
    ReplicasUnavailable,
    StaleExtent,
    StoreError,
    Unreachable,
)
from mooncake_store.testing import Direction, Pass, Throttle, identify, payload, wait_until
from tests.integration.client.drivers import FACES
from tests.stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.testing import ProcessCluster

    Start = Callable[..., ProcessCluster]

pytestmark = pytest.mark.processes


KEYS = [f"k{at}" for at in range(8)]
SIZE = 30_000
TURNS = 40


class Worker(threading.Thread):
    """Puts, removes and reads a few keys at random through a client that it shares."""

    def __init__(self, client: Client, seed: int) -> None:
        super().__init__()
        self.problems: list[str] = []
        self._client = client
        self._seed = seed
        self._chance = random.Random(seed)  # noqa: S311 - a schedule, no secret

    def run(self) -> None:
        try:
            for turn in range(TURNS):
                self._turn(turn)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.problems.append(repr(error))

    def _turn(self, turn: int) -> None:
        key = self._chance.choice(KEYS)
        match self._chance.randrange(5):
            case 0:
                value = payload(key, self._seed * 1000 + turn, SIZE)
                self._client.put(key, value, replace=True)
            case 1:
                self._client.remove(key)
            case 2:
                for name, found in zip(KEYS, self._client.get_many(KEYS), strict=True):
                    self._check(name, found)
            case _:
                self._check(key, self._client.get(key))

    def _check(self, key: str, value: Any) -> None:
        versions = (seed * 1000 + turn for seed in range(8) for turn in range(TURNS))
        if value is not None and identify(value, key, versions) is None:
            self.problems.append(f"{key}: no version of it, {value!r:.80}")


@pytest.mark.parametrize("transport", ["local", "tcp", "shm"])
def test_threads_share_a_client(cluster: ProcessCluster, transport: str) -> None:
    if transport == "local":
        client = Client("local://?dram=64MiB", deadline_s=20.0)
    else:
        client = Client(
            cluster.master.address,
            transport=transport,
            namespace=f"threads-{transport}",
            connections_max=4,
            deadline_s=20.0,
        )
    with client:
        workers = [Worker(client, seed) for seed in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(90)
        assert [problem for worker in workers for problem in worker.problems] == []
        assert client.statistics().checksum_failures == 0
        client.clear()


def test_closing_ends_the_calls_of_other_threads(start: Start) -> None:
    cluster = start(1, proxied=True)
    assert cluster.nodes[0].data is not None
    client = Client(cluster.address, transport="tcp", deadline_s=30.0)
    client.put("k", bytes(4 << 20))
    cluster.nodes[0].data.set(Throttle(1e5), Direction.DOWN)
    outcome: list[object] = []

    def read() -> None:
        try:
            outcome.append(client.get("k"))
        except StoreError as error:
            outcome.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.5)
    client.close()
    reader.join(20.0)
    assert not reader.is_alive()
    assert isinstance(outcome[0], (Closed, Unreachable, ReplicasUnavailable))


def test_a_cancelled_read_leaves_the_buffer_alone(start: Start) -> None:
    cluster = start(1, proxied=True)
    data = cluster.nodes[0].data
    assert data is not None

    async def main() -> None:
        async with AsyncClient(cluster.address, transport="tcp", deadline_s=30.0) as client:
            await client.put("k", bytes([7]) * (4 << 20))
            data.set(Throttle(1e5), Direction.DOWN)
            buffer = bytearray(4 << 20)
            call = asyncio.create_task(client.get_into("k", buffer))
            await asyncio.sleep(0.5)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            seen = bytes(buffer)
            data.set(Pass(), Direction.BOTH)
            await asyncio.sleep(0.5)
            assert bytes(buffer) == seen
            assert await client.get("k") == bytes([7]) * (4 << 20)

    asyncio.run(main())


def test_a_cancelled_put_is_given_up(start: Start) -> None:
    cluster = start(1, proxied=True)
    data = cluster.nodes[0].data
    assert data is not None

    async def main() -> None:
        async with AsyncClient(cluster.address, transport="tcp", deadline_s=30.0) as client:
            assert not await client.exists("k")
            data.set(Throttle(1e5), Direction.UP)
            call = asyncio.create_task(client.put("k", bytes(4 << 20)))
            await asyncio.sleep(0.5)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            data.set(Pass(), Direction.BOTH)
            assert (await client.put("k", b"other", deadline_s=10.0)).created
            assert await client.get("k") == b"other"

    asyncio.run(main())


def test_coroutines_share_one_connection(cluster: ProcessCluster) -> None:
    async def main() -> None:
        async with AsyncClient(cluster.master.address, namespace="coroutines") as client:
            keys = [f"k{at}" for at in range(60)]
            results = await asyncio.gather(*(client.put(key, key.encode() * 99) for key in keys))
            assert all(result.created for result in results)
            values = await asyncio.gather(*(client.get(key) for key in keys))
            assert values == [key.encode() * 99 for key in keys]
            assert client.statistics().master_connections == 1
            await client.clear()

    asyncio.run(main())


def test_a_view_of_memory_that_was_reused_is_refused_at_its_end(cluster: ProcessCluster) -> None:
    with (
        Client(cluster.master.address, namespace="view", transport="shm") as client,
        Client(cluster.master.address, namespace="view") as other,
    ):
        client.put("k", b"value" * 1000)
        with pytest.raises(StaleExtent), client.view("k"):
            other.remove("k")
        with client.view("k") as data:
            assert data is None
        counted = client.statistics()
        assert counted.stale_locations >= 1


def test_an_exception_inside_a_view_passes_as_it_is(cluster: ProcessCluster) -> None:
    with (
        Client(cluster.master.address, namespace="view2", transport="shm") as client,
        Client(cluster.master.address, namespace="view2") as other,
    ):
        client.put("k", b"value" * 1000)

        def fail() -> None:
            with client.view("k"):
                other.remove("k")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_second_writer_waits_for_the_first_one(cluster: ProcessCluster, transport: str) -> None:
    space = f"two-{transport}"
    with (
        Client(cluster.master.address, namespace=space, transport=transport) as one,
        Client(cluster.master.address, namespace=space, transport=transport) as two,
    ):
        assert not two.exists("k")  # so that it is connected, however long that takes
        with one.reserve("k", 5) as room:
            with pytest.raises((PutUnderWay, DeadlineExceeded)):
                two.put("k", b"mine", deadline_s=0.5)  # ended before the first writer has
            assert room.buffer is not None
            room.buffer[:] = b"first"
        assert two.put("k", b"mine").created is False
        assert two.get("k") == b"first"


def test_a_commit_gets_through_where_all_connections_wait_for_it(cluster: ProcessCluster) -> None:
    with Client(cluster.master.address, namespace="full", connections_max=1) as client:
        outcome: list[bool] = []
        waiter = threading.Thread(
            target=lambda: outcome.append(client.put("k", b"x", deadline_s=60.0).created)
        )
        with client.reserve("k", 5) as room:
            waiter.start()
            time.sleep(0.3)
            assert room.buffer is not None
            room.buffer[:] = b"first"
        waiter.join(30.0)  # less than it has by itself
        assert outcome == [False]
        assert client.get("k") == b"first"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_call_that_runs_out_of_time_does_not_cost_others_their_puts(
    cluster: ProcessCluster, kind: str
) -> None:
    options = {"connections_max": 1} if kind == "sync" else {}
    client = FACES[kind](cluster.master.address, namespace=f"short-{kind}", **options)
    with client, client.reserve("k", 5) as room:
        for _ in range(20):
            with contextlib.suppress(DeadlineExceeded):
                client.get("k", wait_s=1.0, deadline_s=0.01)
        room.buffer[:] = b"value"
    with FACES[kind](cluster.master.address, namespace=f"short-{kind}") as other:
        assert other.get("k") == b"value"
        other.clear()


def test_a_hundred_puts_of_one_key_by_threads_create_it_once(cluster: ProcessCluster) -> None:
    with Client(cluster.master.address, namespace="once", deadline_s=20.0) as client:
        created: list[bool] = []

        def put(number: int) -> None:
            created.append(client.put("k", bytes([number]) * 10_000).created)

        threads = [threading.Thread(target=put, args=(number,)) for number in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(created) == [False] * 29 + [True]
        value = client.get("k")
        assert value is not None
        assert len(set(value)) == 1


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_closing_ends_a_transfer_under_way(start: Start, kind: str) -> None:
    cluster = start(1, proxied=True)
    data = cluster.nodes[0].data
    assert data is not None
    size = 4 << 20
    with Client(cluster.address, transport="tcp", deadline_s=20.0) as writer:
        writer.put("k", payload("k", 0, size))
    data.set(Throttle(1e5), Direction.DOWN)  # so that it takes longer than any halt
    outcome: list[Any] = []
    watch = Stopwatch()
    if kind == "sync":
        client = Client(cluster.address, transport="tcp", deadline_s=60.0)

        def read() -> None:
            try:
                outcome.append(client.get("k"))
            except StoreError as error:
                outcome.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: data.passed_bytes(Direction.DOWN) > 10_000, 20.0, what="bytes come")
        client.close()
        reader.join(20.0)
    else:

        async def read_and_close() -> None:
            client = AsyncClient(cluster.address, transport="tcp", deadline_s=60.0)
            read = asyncio.create_task(client.get("k"))
            while data.passed_bytes(Direction.DOWN) < 10_000:  # noqa: ASYNC110 - another thread counts them
                await asyncio.sleep(0.01)
            await client.aclose()
            outcome.extend(await asyncio.gather(read, return_exceptions=True))

        asyncio.run(read_and_close())
    assert [type(each) for each in outcome] == [Closed]
    assert watch.spent_s() < 20.0


def test_an_asyncio_client_stays_with_its_event_loop() -> None:
    client = AsyncClient("local://?dram=16MiB")

    async def put() -> None:
        await client.put("k", b"value")

    asyncio.run(put())
    with pytest.raises(InvalidArgument, match="event loop"):
        asyncio.run(put())
    asyncio.run(client.aclose())
