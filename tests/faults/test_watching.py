"""What is inside can be seen, the numbers are true, and bulk questions stop nobody."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from mooncake_client import Client
from mooncake_store.testing import find_problems, payload, wait_until
from mooncake_store.types import NodeState
from tests.faults.scale import Latencies, scaled
from tests.faults.support import (
    KIB,
    QUICK,
    Background,
    fill,
    names,
    tcp,
    together,
    used_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.testing import ProcessCluster

    StartCluster = Callable[..., ProcessCluster]


# --- FR-020 -------------------------------------------------------------------------------------


def test_fr_020_ranks_that_share_a_probe_get_one_answer_and_all_of_its_bytes(
    start_cluster: StartCluster,
) -> None:
    """8 clients ask for a chain of 1,000 keys while a writer evicts; 5 rounds."""
    cluster = start_cluster(nodes=1, node_options={"dram": "24MiB"})
    chain = names("block", 1000)
    with tcp(cluster) as writer:

        def evict() -> None:
            writer.put(f"flood-{threading.get_ident()}-{next(numbers)}", bytes(64 * KIB))

        numbers = iter(range(1_000_000))

        def ask(turn: int) -> int:
            with Client(cluster.address, deadline_s=20.0) as rank:
                match = rank.match_prefix(chain, hold_s=30.0, probe_id=f"turn-{turn}")
                got = rank.get_many(chain[: match.count])
                assert got == [payload(key, 1, 16 * KIB) for key in chain[: match.count]]
                return match.count

        with Background(evict, pause_s=0.005) as evicting:
            counts = []
            for turn in range(5):
                fill(writer, chain, 16 * KIB)
                answers = together([lambda turn=turn: ask(turn)] * 8)
                failures = [answer for answer in answers if isinstance(answer, Exception)]
                assert failures == []
                assert len(set(answers)) == 1
                counts.append(answers[0])
        assert max(counts) > 100
        assert evicting.rounds > 20


def test_fr_020_answers_to_a_batch_come_in_the_order_of_the_questions(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=2, node_options={"dram": "16MiB"})
    with tcp(cluster) as client:
        there = fill(client, names("key", 200), KIB)
        asked = [key for pair in zip(there, names("absent", 200), strict=True) for key in pair]
        asked.reverse()
        assert client.exists_many(asked) == [key.startswith("key") for key in asked]
        assert client.get_many(asked) == [
            payload(key, 1, KIB) if key.startswith("key") else None for key in asked
        ]


# --- FR-030 -------------------------------------------------------------------------------------


def test_fr_030_exported_numbers_equal_a_walk_after_everything_that_happens(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(
        nodes=2, node_options={"dram": "16MiB"}, master_options={**QUICK, "lease-ttl": "0.5s"}
    )
    lowest: dict[str, float] = {}
    reign = [0]

    def compare(what: str) -> None:
        problems: list[str] = ["never compared"]

        def is_right() -> bool:
            with cluster.wire() as wire:
                problems[:] = find_problems(wire)
            return not problems

        wait_until(is_right, 30, what=f"after {what}: {problems}")
        status = cluster.status()
        if reign[0] != status.term:
            reign[0] = status.term
            lowest.clear()
        for name, value in cluster.metrics().items():
            assert value >= 0, f"after {what}: {name} is {value}"
            if "_total" in name and name.startswith("mooncake_master"):
                assert value >= lowest.get(name, 0), f"after {what}: {name} fell"
                lowest[name] = value

    with tcp(cluster) as client:
        compare("the start")
        keys = fill(client, names("key", 100), 16 * KIB)
        compare("puts")
        for key in keys[:20]:
            client.put(key, payload(key, 2, 8 * KIB), replace=True)
        compare("replaces")
        client.remove_many(keys[20:40])
        compare("removals")
        fill(client, names("two", 50), 16 * KIB, replicas=2)
        compare("puts of two copies")
        fill(client, names("flood", 700), 64 * KIB)
        compare("evictions")
        cluster.nodes[0].kill()
        wait_until(lambda: state_of(cluster, "node-1") == NodeState.DEAD, 30)
        compare("the death of a node")
        cluster.nodes[0].start()
        cluster.wait_ready()
        compare("its return")
        cluster.master.kill()
        cluster.master.start()
        cluster.wait_ready()
        compare("a restart of the master")
        client.clear(deadline_s=10.0)
        wait_until(lambda: used_bytes(cluster) == 0, 30)
        compare("a clear")


def state_of(cluster: ProcessCluster, name: str) -> NodeState | None:
    status = cluster.node_status(name)
    return None if status is None else NodeState(status.record.state)


def test_fr_030_nothing_counts_while_nothing_happens(start_cluster: StartCluster) -> None:
    """Two looks with many heartbeats in between."""
    cluster = start_cluster(nodes=1, node_options={"dram": "8MiB"})
    with tcp(cluster) as client:
        fill(client, names("key", 10), KIB)

    def counters() -> dict[str, int]:
        found: dict[str, int] = cluster.status().counters
        return {name: count for name, count in found.items() if "_total" in name}

    before = counters()
    with Background(lambda: None, pause_s=0.5) as clock:
        wait_until(lambda: clock.rounds >= scaled(10, 20), 60)
    assert counters() == before


# --- FR-031 -------------------------------------------------------------------------------------


def run(cluster: ProcessCluster, *words: str, code: int = 0) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "mooncake_store", *words, "--master", cluster.address, "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else None


def test_fr_031_the_command_line_shows_nodes_keys_and_where_copies_are(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=2, node_options={"dram": "16MiB"})
    with tcp(cluster) as client:
        fill(client, names("shown", 30), 16 * KIB, replicas=2)
        client.pin("shown-000007")
    nodes = json.dumps(run(cluster, "nodes"))
    assert "node-1" in nodes
    assert "node-2" in nodes
    assert len(keys_in(run(cluster, "ls", "shown", "--all"))) == 30
    assert len(keys_in(run(cluster, "ls", "shown", "--limit", "10"))) == 10
    stat = json.dumps(run(cluster, "stat", "shown-000007"))
    for word in ("node-1", "node-2", "hard", "16384"):
        assert word in stat, stat
    run(cluster, "put", "probe", "--value", "hello")
    assert "hello" in cli_get(cluster, "probe")
    run(cluster, "rm", "probe")
    run(cluster, "get", "probe", code=3)
    run(cluster, "stat", "absent", code=3)


def keys_in(listing: Any) -> list[str]:
    found = listing if isinstance(listing, list) else listing.get("objects", listing)
    return [item["key"] for item in found]


def cli_get(cluster: ProcessCluster, key: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "mooncake_store", "get", key, "--master", cluster.address],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


def test_fr_031_an_unreachable_master_is_exit_code_4_and_one_line() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mooncake_store",
            "nodes",
            "--master",
            "127.0.0.1:9",
            "--deadline",
            "1s",
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 4
    assert len(done.stderr.strip().splitlines()) == 1


def test_fr_031_keys_are_listed_by_pages_while_others_are_served(
    start_cluster: StartCluster,
) -> None:
    """Others are served meanwhile; how quickly is shown."""
    cluster = start_cluster(nodes=1, node_options={"dram": scaled("64MiB", "1GiB")})
    with tcp(cluster) as client, tcp(cluster) as other:
        keys = names("key", scaled(30_000, 1_000_000))
        for at in range(0, len(keys), 2000):
            client.put_many([(key, b"v") for key in keys[at : at + 2000]])

        def use() -> None:
            with latencies.call():
                value = other.get(keys[17], deadline_s=scaled(10.0, 1.0))
            assert value == b"v"
            other.forget_locations()

        with Latencies("031", "get while all are listed (<= 100 ms)") as latencies, Background(use):
            listed = [info.key for info in client.scan("key")]
        assert sorted(listed) == keys


# --- FR-039 -------------------------------------------------------------------------------------


def test_fr_039_bulk_probes_and_eviction_keep_nobody_waiting(start_cluster: StartCluster) -> None:
    """Bulk probes and eviction; single calls have a deadline, nodes stay live."""
    count, probed = scaled(30_000, 200_000), scaled(10_000, 50_000)
    dram = scaled("32MiB", "128MiB")
    # Long enough that a processor is not missed for so long, short enough for this test to see it.
    patient = {"suspect-after": "8s", "dead-after": "16s"}
    cluster = start_cluster(nodes=1, node_options={"dram": dram}, master_options=patient)
    with tcp(cluster) as loader, tcp(cluster) as prober, tcp(cluster) as user:
        keys = names("key", count)
        for at in range(0, len(keys), 2000):
            loader.put_many([(key, b"v") for key in keys[at : at + 2000]])
        user.put("mine", b"mine", pin="hard")
        numbers = iter(range(1_000_000))

        def evict() -> None:
            loader.put_many([(f"new-{next(numbers)}", bytes(4 * KIB)) for _ in range(64)])

        def probe() -> None:
            assert len(prober.exists_many(keys[:probed], deadline_s=20.0)) == probed

        states = set()
        latencies = Latencies("039", "single get and put (p99 <= 50 ms each)")
        with latencies, Background(evict) as evicting, Background(probe) as probing:
            for number in range(scaled(200, 1000)):
                with latencies.call():
                    value = user.get("mine", deadline_s=20.0)
                assert value == b"mine"
                user.forget_locations()
                with latencies.call():
                    user.put(f"small-{number}", b"s", deadline_s=20.0)
                if not number % 20:
                    states.add(state_of(cluster, "node-1"))
            wait_until(lambda: probing.rounds > 2 or probing.has_failed, 60)
        assert states == {NodeState.LIVE}
        assert evicting.rounds > 2
