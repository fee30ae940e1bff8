"""Writers that die, race, come late, or are told no."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from mooncake_client import Client, StoreError
from mooncake_store.testing import payload, seeded, wait_until
from mooncake_store.wire import control
from mooncake_store.wire.data import Status
from tests.faults.raw import RawPut
from tests.faults.scale import scaled
from tests.faults.support import KIB, MIB, Background, together, used_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.testing import ProcessCluster

    StartCluster = Callable[..., ProcessCluster]

PUT_TTL = {"put-ttl": "1s"}


def test_fr_015_a_writer_that_dies_half_way_leaves_nothing_and_its_room_returns(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "32MiB"}, master_options=PUT_TTL)
    value = payload("half", 1, MIB)
    with Client(cluster.address) as client:
        before = used_bytes(cluster)
        for _ in range(50):
            with cluster.wire() as wire:
                put = RawPut(wire, "half", value)
                put.write(0.5)
            put.close()
            assert client.get("half") is None
        result = client.put("half", payload("half", 2, MIB), deadline_s=5.0)
        assert result.created
        assert client.get("half") == payload("half", 2, MIB)
        client.remove("half")
        wait_until(lambda: used_bytes(cluster) == before, 30)
        assert cluster.master.is_running


KILLED_IN_PLACE = """
import os, sys
from mooncake_client import Client
with Client(sys.argv[1], transport="shm") as client:
    with client.reserve("half", 1 << 20) as room:
        room.buffer[: 1 << 19] = bytes(1 << 19)
        os.kill(os.getpid(), 9)
"""


def test_fr_015_a_local_writer_that_is_killed_gives_its_room_back(
    start_cluster: StartCluster,
) -> None:
    """Processes that die with half an extent written through shared memory."""
    cluster = start_cluster(nodes=1, node_options={"dram": "32MiB"}, master_options=PUT_TTL)
    with Client(cluster.address) as client:
        before = used_bytes(cluster)
        for _ in range(scaled(10, 50)):
            done = subprocess.run(
                [sys.executable, "-c", KILLED_IN_PLACE, cluster.address],
                check=False,
                timeout=60,
                capture_output=True,
                text=True,
            )
            assert done.returncode == -9, done.stderr
            assert client.get("half") is None
        assert client.put("half", payload("half", 2, MIB), deadline_s=5.0).created
        client.remove("half")
        wait_until(lambda: used_bytes(cluster) == before, 30)


RACER = """
import json, sys
from mooncake_client import Client, StoreError
address, number = sys.argv[1], int(sys.argv[2])
client = Client(address, name=f"racer-{number}")
print("ready", flush=True)
for line in sys.stdin:
    key, size, action = json.loads(line)
    try:
        if action == "remove":
            outcome = {"removed": client.remove(key)}
        else:
            outcome = {"created": client.put(key, bytes([number]) * size, deadline_s=60.0).created}
    except StoreError as error:
        outcome = {"error": error.code}
    print(json.dumps(outcome), flush=True)
"""


class Racers:
    """Processes that do the same thing at the same time."""

    def __init__(self, address: str, count: int) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", RACER, address, str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(count)
        ]
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready"

    def race(self, orders: list[tuple[str, int, str]]) -> list[dict[str, object]]:
        """Give each process its order; return their answers."""
        for process, order in zip(self._processes, orders, strict=True):
            assert process.stdin is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            answers.append(json.loads(process.stdout.readline()))
        return answers

    def __enter__(self) -> Racers:  # noqa: PYI034 - never a subclass
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def test_fr_016_of_writers_of_one_key_one_wins_and_the_others_learn_it(
    start_cluster: StartCluster,
) -> None:
    """Processes that put the same key at the same time, round by round."""
    writers, largest = scaled(8, 16), scaled(4 * MIB, 64 * MIB)
    cluster = start_cluster(nodes=2, node_options={"dram": scaled("64MiB", "256MiB")})
    with Racers(cluster.address, writers) as racers, Client(cluster.address) as client:
        for number in range(scaled(40, 200)):
            key = f"raced-{number}"
            size = (1, 100, 4 * KIB, 300 * KIB, largest)[number % 5]
            answers = racers.race([(key, size, "put")] * writers)
            assert [answer.get("created") for answer in answers].count(True) == 1, answers
            assert all("error" not in answer for answer in answers), answers
            value = client.get(key)
            assert value is not None
            assert len(value) == size
            winner = next(at for at, answer in enumerate(answers) if answer["created"])
            assert value.count(bytes([winner])) == size
            client.remove(key)
        wait_until(lambda: used_bytes(cluster) == 0, 30)


def test_fr_016_removing_while_others_write_mixes_nothing(start_cluster: StartCluster) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "64MiB"})
    with Racers(cluster.address, 6) as racers, Client(cluster.address) as client:
        for number in range(scaled(40, 200)):
            key = f"raced-{number % 4}"
            size = 64 * KIB
            answers = racers.race([(key, size, "put")] * 5 + [(key, size, "remove")])
            assert all("error" not in answer for answer in answers), answers
            value = client.get(key)
            assert value is None or (len(value) == size and len(set(value)) == 1)
        client.remove_many([f"raced-{number}" for number in range(4)])
        wait_until(lambda: used_bytes(cluster) == 0, 30)


def test_fr_037_an_old_end_of_a_put_completes_no_newer_one(start_cluster: StartCluster) -> None:
    # Each of the two has so long; the steps of the second come one right after the other.
    options = {"put-ttl": "4s"}
    cluster = start_cluster(nodes=1, node_options={"dram": "8MiB"}, master_options=options)
    with cluster.wire(deadline_s=30) as wire, Client(cluster.address) as client:
        first = RawPut(wire, "k", payload("k", 1, 1000))
        assert first.write() == Status.OK
        second = RawPut(wire, "k", payload("k", 2, 1000), deadline_s=30.0)
        assert second.version > first.version
        refusal = first.commit()
        assert isinstance(refusal, control.Refusal)
        assert refusal.code == "attempt_expired"
        assert client.get("k") is None
        first.abort()
        assert client.get("k") is None
        assert second.write() == Status.OK
        assert client.get("k") is None
        assert isinstance(second.commit(), control.Committed)
        assert client.get("k") == payload("k", 2, 1000)
        first.abort()
        assert isinstance(first.commit(), control.Refusal)
        assert client.get("k") == payload("k", 2, 1000)


def test_fr_037_bytes_that_come_after_their_attempt_are_refused(
    start_cluster: StartCluster,
) -> None:
    """The first writer has sent half its bytes; its attempt ends; the pool is filled; then the
    rest comes."""
    cluster = start_cluster(nodes=1, node_options={"dram": "8MiB"}, master_options=PUT_TTL)
    with cluster.wire(deadline_s=10) as wire, Client(cluster.address) as client:
        late = RawPut(wire, "late", payload("late", 1, MIB))
        late.write(0.5)
        assert client.put("late", payload("late", 2, MIB), deadline_s=8.0).created
        keys = [f"new-{number}" for number in range(20)]
        for key in keys:
            client.put(key, payload(key, 1, 300 * KIB), deadline_s=8.0)
        assert late.write_rest(0.5) in {None, Status.FENCED}
        assert isinstance(late.commit(), control.Refusal)
        assert client.get("late") in {None, payload("late", 2, MIB)}
        present = [key for key in keys if client.get(key) is not None]
        assert len(present) > 10
        for key in present:
            assert client.get(key) == payload(key, 1, 300 * KIB)


def test_fr_069_a_replace_that_dies_leaves_the_old_value_or_the_new_one(
    start_cluster: StartCluster,
) -> None:
    """100 replaces that die after a random share of their bytes, half of them in a full pool."""
    cluster = start_cluster(nodes=1, node_options={"dram": "8MiB"}, master_options=PUT_TTL)
    generator = seeded("replaces that die")
    with Client(cluster.address) as client:
        client.put("k", payload("k", 0, 100 * KIB), pin="hard")
        allowed = {payload("k", 0, 100 * KIB)}

        def read() -> None:
            assert client.get("k") in allowed
            client.forget_locations()

        with Background(read) as reading:
            for version in range(1, 101):
                if version == 50:
                    for number in range(100):
                        client.put(f"fill-{number}", bytes(100 * KIB))
                value = payload("k", version, 100 * KIB)
                allowed.add(value)
                with cluster.wire(deadline_s=10) as wire:
                    put = RawPut(wire, "k", value, replace=True, deadline_s=8.0)
                    share = generator.choice((0.0, 0.3, 0.9, 1.0))
                    if share:
                        put.write(share)
                put.close()
        assert reading.rounds > 20


def test_fr_067_after_a_clear_nobody_reads_what_was_there_or_was_being_put(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=2, node_options={"dram": "32MiB"})
    with Client(cluster.address) as client, Client(cluster.address) as cleaner:
        keys = [f"old-{number}" for number in range(500)]
        client.put_many([(key, payload(key, 1, 4 * KIB)) for key in keys])
        client.get_many(keys[:20])  # leased

        counts = [0] * 4

        def write(number: int) -> None:
            with Client(cluster.address) as writer:
                for at in range(100_000):
                    try:
                        writer.put(f"flight-{number}-{at}", bytes(4 * KIB))
                    except StoreError as error:
                        assert error.code == "stale_epoch"
                        return
                    counts[number] += 1
            raise AssertionError("nothing was cleared")

        def clear() -> None:
            wait_until(lambda: min(counts) > 20, 60)  # Who begins later begins in the new epoch.
            cleaner.clear()

        results = together([*(lambda n=n: write(n) for n in range(4)), clear])
        assert results == [None] * 5
        assert list(cleaner.scan()) == []
        assert cleaner.get_many(keys) == [None] * 500
        with pytest.raises(StoreError, match="cleared"):
            client.get(keys[400])
        client.reopen()
        assert client.get_many(keys) == [None] * 500
        cluster.master.kill()
        cluster.master.start()
        cluster.wait_ready()
        with Client(cluster.address) as fresh:
            assert fresh.get_many(keys, deadline_s=15.0) == [None] * 500
