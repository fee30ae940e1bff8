"""Missing, empty and failed are three things; exists and get agree; remove is easy to use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mooncake_client import Client, StoreError
from mooncake_store.testing import ProcessCluster, payload, seeded, wait_until
from mooncake_store.types import MissReason
from tests.faults.scale import scaled
from tests.faults.support import KIB, MIB, QUICK, Background, fill, names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with ProcessCluster(nodes=1, node_options={"dram": "32MiB"}) as running:
        yield running


@pytest.fixture
def client(cluster: ProcessCluster, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(cluster.address, namespace=request.node.name[:60]) as opened:
        yield opened


# --- FR-048 -------------------------------------------------------------------------------------


def test_fr_048_an_absent_key_is_none_and_an_empty_value_is_empty_bytes(client: Client) -> None:
    client.put("empty", b"")
    assert client.get("absent") is None
    assert client.get("empty") == b""
    assert client.get_many(["empty", "absent"]) == [b"", None]
    assert client.get_into("absent", bytearray(4)) is None
    assert client.get_into("empty", bytearray(4)) == 0
    assert client.get("empty", start=0, length=10) == b""
    assert client.exists_many(["empty", "absent"]) == [True, False]
    assert client.stat("absent") is None


def test_fr_048_a_lost_copy_is_counted_under_its_reason(
    start_cluster: Callable[..., ProcessCluster],
) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "8MiB"}, master_options=QUICK)
    with Client(cluster.address) as client:
        client.put("k", b"value")
        cluster.nodes[0].kill()
        wait_until(lambda: client.why("k").reason is not None, 30)
        try:
            assert client.get("k") is None
        except StoreError as error:
            assert error.code in {"replicas_unavailable", "unreachable"}
        reason = client.why("k").reason
        assert reason is not None
        assert reason.name in {"NODE_DOWN", "LOST"}


def test_a_miss_keeps_its_reason_when_the_node_is_back_before_anybody_asks(
    start_cluster: Callable[..., ProcessCluster],
) -> None:
    cluster = start_cluster(nodes=1, node_options={"dram": "8MiB"}, master_options=QUICK)
    node = cluster.nodes[0]
    with Client(cluster.address, location_cache=False) as client:
        client.put("k", b"value")
        node.kill()
        wait_until(lambda: client.why("k").reason is MissReason.NODE_DOWN, 10)
        assert client.get("k") is None
        node.start()
        wait_until(lambda: client.why("k").readable, 60)
        assert client.last_miss("k") is MissReason.NODE_DOWN
        assert client.get("k") == b"value"


# --- FR-047 -------------------------------------------------------------------------------------


def test_fr_047_a_value_that_was_just_read_can_be_removed_at_once(client: Client) -> None:
    client.put("k", b"value")
    assert client.get("k") == b"value"
    assert client.remove("k")
    assert client.get("k") is None


def test_fr_047_removing_what_is_absent_is_no_failure(client: Client) -> None:
    client.put("there", b"value")
    assert client.remove("absent") is False
    assert client.remove_many(["absent", "there", "absent too"]) == [False, True, False]
    assert client.remove("there") is False


def test_fr_047_asking_whether_a_key_exists_delays_no_remove(
    start_cluster: Callable[..., ProcessCluster],
) -> None:
    """A read lease would last longer than the remove has."""
    options = {"lease-ttl": "600s"}
    cluster = start_cluster(nodes=1, node_options={"dram": "8MiB"}, master_options=options)
    with Client(cluster.address) as client:
        client.put("k", b"value")
        with Background(lambda: client.exists("k")):
            assert client.remove("k", deadline_s=30.0)
            assert not client.exists("k")


def test_fr_047_room_of_a_removed_value_returns_when_its_readers_end(
    cluster: ProcessCluster,
) -> None:
    with Client(cluster.address, namespace="room") as client:
        before = cluster.status().nodes[0].used_bytes
        client.put("large", bytes(4 * MIB))
        assert client.get("large") is not None
        client.remove("large")
        # What earlier tests left behind may go meanwhile.
        wait_until(lambda: cluster.status().nodes[0].used_bytes <= before, 60)


# --- FR-002 -------------------------------------------------------------------------------------


def test_fr_002_keys_whose_only_holder_died_stop_existing_and_can_be_put_again(
    start_cluster: Callable[..., ProcessCluster],
) -> None:
    cluster = start_cluster(nodes=2, node_options={"dram": "16MiB"}, master_options=QUICK)
    with Client(cluster.address) as client:
        keys = fill(client, names("key", 50), 4 * KIB, preferred=["node-1"])
        assert len(keys) == 50
        cluster.nodes[0].kill()
        for key in keys:
            try:
                # Until its end is known, the memory that outlives it may be read, and is right.
                assert client.get(key, deadline_s=2.0) in {None, payload(key, 1, 4 * KIB)}
            except StoreError as error:
                assert error.retryable
        wait_until(lambda: not any(client.exists_many(keys)), 30)
        for key in keys:
            assert client.put(key, payload(key, 2, 4 * KIB)).created
        assert client.get_many(keys) == [payload(key, 2, 4 * KIB) for key in keys]


def test_fr_002_what_a_probe_holds_is_there_when_it_is_fetched(
    start_cluster: Callable[..., ProcessCluster],
) -> None:
    """Rounds of probe and get while a writer overwrites the pool."""
    cluster = start_cluster(nodes=1, node_options={"dram": "16MiB"})
    generator = seeded("probe then get")
    written: list[str] = []
    with Client(cluster.address) as writer, Client(cluster.address) as reader:

        def write() -> None:
            key = f"key-{len(written)}"
            writer.put(key, payload(key, 1, 32 * KIB))
            written.append(key)

        with Background(write) as writing:
            wait_until(lambda: len(written) > 400 or writing.has_failed, 60)
            found = rounds = 0
            while rounds < scaled(2_000, 10_000) or writing.rounds <= 600:
                rounds += 1
                key = generator.choice(written[-600:])
                if reader.probe(key, hold_s=5.0).readable:
                    found += 1
                    assert reader.get(key) == payload(key, 1, 32 * KIB)
                    reader.forget_locations()
                assert not writing.has_failed
        assert found > 200
