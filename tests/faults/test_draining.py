"""Nodes are taken out of use while the cluster serves (field report 027)."""

from __future__ import annotations

import json
import random
import signal
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import httpx

from mooncake_client import StoreError
from mooncake_store.command import COMMAND_GROUP, run
from mooncake_store.errors import DrainIncomplete
from mooncake_store.testing import payload, wait_until
from mooncake_store.types import NodeState
from tests.faults.support import KIB, MIB, QUICK, Background, counter, fill, names, tcp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from mooncake_client import Client
    from mooncake_store.testing import ProcessCluster

    StartCluster = Callable[..., ProcessCluster]

SIZE = 100 * KIB


def command(capture: pytest.CaptureFixture[str], cluster: ProcessCluster, *words: str) -> Any:
    """Run a command with ``--json``; return its exit code, what it printed, and its complaint."""
    capture.readouterr()
    code = run([*words, "--master", cluster.address, "--json"], entry_points(group=COMMAND_GROUP))
    out, err = capture.readouterr()
    return code, json.loads(out), err


def state_of(cluster: ProcessCluster, name: str) -> NodeState | None:
    status = cluster.node_status(name)
    return None if status is None else NodeState(status.record.state)


def objects_on(cluster: ProcessCluster, name: str) -> int:
    status = cluster.node_status(name)
    assert status is not None
    return status.objects


def holders(client: Client, key: str) -> set[str]:
    found = client.stat(key)
    assert found is not None
    return {replica.node for replica in found.replicas}


class Readers:
    """Reads keys at random, and counts what fails."""

    def __init__(self, client: Client, keys: list[str]) -> None:
        self.failed: list[str] = []
        self._client = client
        self._keys = keys
        self._chance = random.Random(27)  # noqa: S311 - a schedule, no secret

    def read(self) -> None:
        key = self._chance.choice(self._keys)
        if self._chance.random() < 0.3:
            self._client.forget_locations()
        try:
            value = self._client.get(key)
        except StoreError as error:
            self.failed.append(f"{key}: {error!r}")
            return
        if value != payload(key, 1, SIZE):
            self.failed.append(f"{key}: {value!r:.60}")


def test_fr_027_a_drain_under_load_loses_nothing_and_takes_no_new_writes(
    start_cluster: StartCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = start_cluster(
        nodes=3, node_options={"dram": "64MiB"}, master_options={**QUICK, "lease-ttl": "1s"}
    )
    with tcp(cluster) as client, tcp(cluster) as writer:
        keys = fill(client, names("k", 100), SIZE, preferred=("node-1",))
        assert all(holders(client, key) == {"node-1"} for key in keys)
        client.pin(keys[0])
        readers = Readers(client, keys)
        written: list[str] = []

        def write() -> None:
            key = f"new-{len(written)}"
            writer.put(key, bytes(10 * KIB), preferred=("node-1",))
            written.append(key)

        with Background(readers.read), Background(write, pause_s=0.005):
            wait_until(lambda: len(written) > 5, 60.0)
            code, shown, _ = command(capsys, cluster, "drain", "node-1", "--timeout", "60s")
            assert (code, shown["state"], shown["left"]["objects"]) == (0, "drained", 0)
            assert shown["moved"]["objects"] >= 100
            since = len(written)
            wait_until(lambda: len(written) > since + 20, 60.0)
            assert all("node-1" not in holders(writer, key) for key in written[since:])
            assert state_of(cluster, "node-1") is NodeState.DRAINED
            cluster.nodes[0].kill()
            wait_until(lambda: state_of(cluster, "node-1") is NodeState.DEAD, 60.0)
        assert readers.failed == []
        client.forget_locations()
        assert client.get_many(keys) == [payload(key, 1, SIZE) for key in keys]
        assert client.get_many(written) == [bytes(10 * KIB)] * len(written)
        pinned = client.stat(keys[0])
        assert pinned is not None
        assert pinned.pin == "hard"


def test_fr_027_what_lies_on_the_disk_of_a_drained_node_is_not_left_behind(
    start_cluster: StartCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = start_cluster(
        nodes=1, node_options={"dram": "64MiB"}, master_options={**QUICK, "lease-ttl": "200ms"}
    )
    cluster.add_node({"dram": "14MiB", "ssd": f"{tmp_path}:256MiB"})
    cluster.wait_ready()
    with tcp(cluster) as client:
        keys: list[str] = []

        def tiers(key: str) -> set[str]:
            found = client.stat(key)
            return set() if found is None else {replica.tier for replica in found.replicas}

        def put_some() -> bool:
            """Put what pushes others out of memory; return whether enough lies on disk alone."""
            for key in names(f"k{len(keys)}", 10):
                client.put(key, payload(key, 1, SIZE), preferred=("node-2",), deadline_s=20.0)
                keys.append(key)
            return sum(tiers(key) == {"ssd"} for key in keys) >= 100

        wait_until(put_some, 120.0, what="100 objects lie on disk alone")
        # A disk that is busy may have refused some of them, which went then.
        keys = [key for key in keys if client.exists(key) and holders(client, key) == {"node-2"}]
        assert sum(tiers(key) == {"ssd"} for key in keys) >= 90
        readers = Readers(client, keys)
        with Background(readers.read):
            code, shown, _ = command(capsys, cluster, "drain", "node-2", "--timeout", "60s")
            assert (code, shown["state"]) == (0, "drained")
            cluster.nodes[1].kill()
            wait_until(lambda: state_of(cluster, "node-2") is NodeState.DEAD, 60.0)
        assert readers.failed == []
        client.forget_locations()
        found = dict(zip(keys, client.get_many(keys), strict=True))
        lost = [f"{key}: {client.why(key)}" for key in keys if found[key] != payload(key, 1, SIZE)]
        assert lost == []


def test_fr_027_where_room_is_short_the_drain_says_so_and_is_not_done(
    start_cluster: StartCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = start_cluster(
        nodes=1, node_options={"dram": "32MiB"}, master_options={"pinned-share-max": "1.0"}
    )
    cluster.add_node({"dram": "8MiB"})
    cluster.wait_ready()
    with tcp(cluster) as client:
        keys = fill(client, names("k", 200), SIZE, preferred=("node-1",), pin="hard")
        here = [key for key in keys if holders(client, key) == {"node-1"}]
        code, shown, complaint = command(capsys, cluster, "drain", "node-1", "--timeout", "8s")
        assert (code, shown["state"]) == (DrainIncomplete.exit_code, "incomplete")
        assert "node 'node-1' is not drained" in complaint
        left = shown["left"]["objects"]
        assert 0 < left < len(here)
        assert shown["moved"]["objects"] == len(here) - left
        assert shown["reasons"] == {"no_space": left}
        assert {item["reason"] for item in shown["examples"]} == {"no_space"}
        base = f"http://127.0.0.1:{cluster.master.admin_port}/api/v1/nodes"
        found = httpx.get(f"{base}/node-1/drain").json()
        assert (found["state"], found["left"]) == ("incomplete", left)
        assert httpx.post(f"{base}/node-9/drain").status_code == 404
        assert httpx.post(f"{base}/node-1/drain", params={"timeout_s": 0}).status_code == 400
        assert httpx.post(f"{base}/node-1/drain", params={"timeout_s": 60}).json()["state"] == (
            "draining"
        )
        code, shown, _ = command(capsys, cluster, "undrain", "node-1")
        assert (code, shown["state"]) == (0, "none")
        assert state_of(cluster, "node-1") is NodeState.LIVE
        assert httpx.delete(f"{base}/node-1/drain").json()["state"] == "none"
        assert client.get_many(keys) == [payload(key, 1, SIZE) for key in keys]
    assert command(capsys, cluster, "drain", "nobody")[0] == 3
    code, shown, _ = command(capsys, cluster, "drain", "node-2", "--no-wait")
    assert (code, shown["state"]) == (0, "draining")


def test_fr_027_a_node_that_gets_sigterm_hands_over_what_only_it_holds(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(nodes=2, node_options={"dram": "64MiB"}, master_options=QUICK)
    with tcp(cluster) as client:
        keys = fill(client, names("k", 100), SIZE, preferred=("node-1",))
        readers = Readers(client, keys)
        with Background(readers.read):
            assert cluster.nodes[0].terminate() == 0
        assert "drained: 100 objects" in cluster.nodes[0].log()
        assert readers.failed == []
        client.forget_locations()
        assert client.get_many(keys) == [payload(key, 1, SIZE) for key in keys]
        assert counter(cluster, "mooncake_master_drained_objects_total") == 100
        assert counter(cluster, "mooncake_master_drained_bytes_total") == 100 * SIZE
        # It comes back as a node like any other.
        cluster.nodes[0].start()
        wait_until(lambda: state_of(cluster, "node-1") is NodeState.LIVE, 60.0)
        client.put("new", b"value", preferred=("node-1",))
        assert holders(client, "new") == {"node-1"}


def test_fr_027_the_drain_of_a_node_that_is_stopped_is_bounded(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(
        nodes=2,
        node_options={"dram": "64MiB", "drain-timeout": "1s"},
        master_options={"copy-rate": "1MiB"},
    )
    with tcp(cluster) as client:
        fill(client, names("k", 100), SIZE, preferred=("node-1",))
    assert cluster.nodes[0].terminate(60.0) == 0
    log = cluster.nodes[0].log()
    assert "stops before it is drained" in log
    # A second signal ends the wait at once.
    cluster.nodes[0].start()
    cluster.wait_ready()
    cluster.nodes[1].signal(signal.SIGTERM)
    cluster.nodes[1].signal(signal.SIGINT)
    assert cluster.nodes[1].wait(60.0) == 0


def test_fr_027_a_drain_goes_on_after_a_restart_of_the_master(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(
        nodes=2,
        node_options={"dram": "64MiB"},
        master_options={**QUICK, "copy-rate": "4MiB"},
    )
    with tcp(cluster) as client:
        keys = fill(client, names("k", 100), SIZE, preferred=("node-1",))
        client.drain("node-1", 60.0)
        cluster.master.kill()
        cluster.master.start()
        wait_until(
            lambda: client.describe_drain("node-1").state == "drained", 60.0, ignoring=(StoreError,)
        )
        assert all("node-2" in holders(client, key) for key in keys)
        assert state_of(cluster, "node-1") is NodeState.DRAINED
        assert objects_on(cluster, "node-2") >= 100 - 2 * MIB // SIZE
