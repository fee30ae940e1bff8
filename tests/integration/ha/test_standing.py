"""What a master with a data directory still knows after a restart."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mooncake_client import Client
from mooncake_store.errors import ManifestMismatch, StaleEpoch, StoreError
from mooncake_store.testing import ProcessCluster, free_port, wait_until
from mooncake_store.testing.cluster import COMMAND, HOST
from mooncake_store.types import MissReason, NodeState

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STANDING = "standing.mdb"


def start(directory: Path, memory: Path, nodes: int = 1) -> ProcessCluster:
    return ProcessCluster(
        nodes,
        master_options={"data-dir": directory, "recovery-grace": "0.5s", "lease-ttl": "0.3s"},
        node_options={"dram": "16MiB", "memory-root": memory},
    )


def restart_master(cluster: ProcessCluster) -> None:
    cluster.master.kill()
    cluster.master.start()
    wait_until(cluster.status, 30.0, ignoring=(StoreError,))


@pytest.fixture
def memory() -> Iterator[Path]:
    """Shared memory of this test alone; its path has to stay short, for a socket lies in it."""
    with tempfile.TemporaryDirectory(prefix="mooncake-", dir="/dev/shm") as folder:
        yield Path(folder)


def test_namespaces_nodes_and_the_term_outlive_the_master(tmp_path: Path, memory: Path) -> None:
    with start(tmp_path / "data", memory) as cluster:
        (node,) = cluster.nodes
        before = cluster.status()
        with contextlib.ExitStack() as stack:

            def client(layout: str = "a") -> Client:
                manifest = {"layout": layout}
                return stack.enter_context(
                    Client(cluster.address, namespace="kept", manifest=manifest, deadline_s=10.0)
                )

            old = client()
            old.put("key", b"value")
            old.clear()
            old.put("key", b"newer")
            node.kill()
            restart_master(cluster)

            status = cluster.status()
            assert status.term > before.term
            assert status.cluster_id == before.cluster_id
            (away,) = status.nodes
            assert away.record.name == node.name
            assert away.record.state in {NodeState.SUSPECT, NodeState.DEAD}
            with pytest.raises(ManifestMismatch):
                client("b").get("key")
            fresh = client()
            assert fresh.get("key") is None
            assert fresh.why("key").reason in {MissReason.NODE_DOWN, MissReason.RECOVERING}
            fresh.clear()
            with pytest.raises(StaleEpoch):
                old.get("never put")

            node.start()
            cluster.wait_ready()
            wait_until(lambda: fresh.why("never put").reason is MissReason.ABSENT, 30.0)


def test_a_second_master_on_one_data_directory_is_refused(tmp_path: Path) -> None:
    with start(tmp_path / "data", tmp_path, nodes=0) as cluster:
        refused = run_master(tmp_path / "data")
        assert refused.returncode == 2
        line = refused.stderr.strip().splitlines()[-1]
        assert "belongs to another master" in line
        assert str(cluster.master.pid) in line


def test_a_damaged_file_ends_the_start_with_one_line(tmp_path: Path) -> None:
    (tmp_path / STANDING).write_bytes(b"no database" * 1000)
    refused = run_master(tmp_path)
    assert refused.returncode == 2
    (line,) = [line for line in refused.stderr.splitlines() if "--data-dir" in line]
    assert f"{STANDING} is damaged" in line
    assert "Traceback" not in refused.stderr


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("not a directory")
    refused = run_master(taken / "data")
    assert refused.returncode == 2
    assert "--data-dir" in refused.stderr


def test_without_a_data_directory_a_line_says_what_is_forgotten(tmp_path: Path) -> None:
    with ProcessCluster(
        0, master_options={"data-dir": None}, node_options={"memory-root": tmp_path}
    ) as cluster:
        assert "no --data-dir" in cluster.master.log_path.read_text()


def run_master(data: Path) -> subprocess.CompletedProcess[str]:
    """Run a master that is expected to end by itself."""
    ports = {"bind": f"{HOST}:{free_port(HOST)}", "admin-bind": f"{HOST}:{free_port(HOST)}"}
    words = [word for option, value in ports.items() for word in (f"--{option}", value)]
    return subprocess.run(  # noqa: S603 - our own command
        [*COMMAND, "master", *words, "--data-dir", str(data)],
        capture_output=True, text=True, timeout=120.0, check=False,
    )  # fmt: skip
