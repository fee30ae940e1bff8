"""``mooncake-store up``: ready, watched, and gone without a trace."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_client import Client
from mooncake_store.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SHM = Path("/dev/shm")  # noqa: S108 - where nodes keep their memory
FREE_PORTS = ["--port", "0", "--admin-port", "0", "--dram", "16MiB"]


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``up`` as a user does, in a process of its own; it is over when the block is left."""
    with subprocess.Popen(  # noqa: S603 - own interpreter, fixed words
        [sys.executable, "-m", "mooncake_store", "up", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def announced(process: subprocess.Popen[str]) -> Any:  # noqa: ANN401 - what it printed
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def memory_of(cluster: Any) -> Path:  # noqa: ANN401 - what it printed
    """Return the folder of shared memory that a running cluster has to itself."""
    words = Path(f"/proc/{cluster['pids']['node-1']}/cmdline").read_text().split("\0")
    folder = Path(words[words.index("--memory-root") + 1])
    assert folder.parent == SHM
    assert folder.is_dir()
    return folder


def has_ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_serves_until_it_is_told_to_stop(number: signal.Signals) -> None:
    with running(*FREE_PORTS, "--nodes", "3", "--json") as process:
        cluster = announced(process)
        folder = memory_of(cluster)
        assert [node["name"] for node in cluster["nodes"]] == ["node-1", "node-2", "node-3"]
        assert {node["dram_bytes"] for node in cluster["nodes"]} == {16 << 20}
        with Client(cluster["master"]) as client:
            assert client.put("key", b"value", replicas=3).replicas == 3
            assert client.get("key") == b"value"
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in error
    assert all(has_ended(pid) for pid in cluster["pids"].values())
    assert not folder.exists()


def test_up_prints_where_everything_is() -> None:
    with running(*FREE_PORTS, "--quiet") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(8)]
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=60)
    text = "".join(lines)
    for said in ("master", "admin", "node-1", "node-2", "16.0 MiB", "The pool has 32.0 MiB"):
        assert said in text
    assert "export MOONCAKE_STORE_MASTER=127.0.0.1:" in text
    assert error == ""


@pytest.mark.parametrize("victim", ["master", "node-2"])
def test_up_notices_a_dead_process_and_ends_the_others(victim: str) -> None:
    with running(*FREE_PORTS, "--json") as process:
        cluster = announced(process)
        os.kill(cluster["pids"][victim], signal.SIGKILL)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    last = error.splitlines()[-1]
    assert last.startswith(f"mooncake-store: {victim} was ended by SIGKILL")
    assert all(has_ended(pid) for pid in cluster["pids"].values())


def test_up_killed_outright_leaves_no_process_and_its_memory_to_the_next_one() -> None:
    with running(*FREE_PORTS, "--json") as process:
        cluster = announced(process)
        left = memory_of(cluster)
        os.kill(cluster["pids"]["node-1"], signal.SIGSTOP)
        process.kill()
        process.wait(10)
        with running(*FREE_PORTS, "--json") as other:
            announced(other)
            assert left.exists()  # node-1 is still alive
            other.terminate()
            other.wait(20)
        os.kill(cluster["pids"]["node-1"], signal.SIGKILL)
        wait_until(lambda: all(has_ended(pid) for pid in cluster["pids"].values()), 20)
        with running(*FREE_PORTS, "--json") as other:
            announced(other)
            assert not left.exists()
            other.terminate()
            other.wait(20)


def test_a_port_that_is_taken_is_one_line_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = str(sock.getsockname()[1])
        with running("--port", port, "--admin-port", "0", "--dram", "16MiB", "-q") as process:
            out, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert error.count("\n") == 1
    assert error.startswith("mooncake-store: master ended with 2")
    assert port in error


def test_memory_that_is_not_there_is_one_line_that_says_so() -> None:
    with running("--port", "0", "--admin-port", "0", "--dram", "16TiB", "-q") as process:
        out, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert error.count("\n") == 1
    assert "--dram" in error


def test_up_with_disks_proves_them_with_doctor_and_deletes_them() -> None:
    """FR-032: ``doctor`` puts an object on the disk and reads it back from there."""
    with running(*FREE_PORTS, "--nodes", "1", "--ssd", "64MiB", "--json") as process:
        cluster = announced(process)
        assert [node["ssd_bytes"] for node in cluster["nodes"]] == [64 << 20]
        found = subprocess.run(  # noqa: S603 - own interpreter, fixed words
            [sys.executable, "-m", "mooncake_store", "doctor", "--json", "--master",
             cluster["master"]],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        texts = [finding["text"] for finding in json.loads(found.stdout)["findings"]]
        assert any(text.startswith("durable put") for text in texts), texts
        assert any(text.startswith("read back from disk") and "right" in text for text in texts)
        with Client(cluster["master"]) as client:
            client.put("cold", b"value", durable=True)
            assert client.get_from_disk("cold") == b"value"
            client.put("warm", b"value")
            assert client.get_from_disk("warm") is None
            assert client.get_from_disk("nothing") is None
        shown = subprocess.run(  # noqa: S603 - own interpreter, fixed words
            [sys.executable, "-m", "mooncake_store", "nodes", "--disks", "--master",
             cluster["master"]],
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout.splitlines()  # fmt: skip
        assert shown[0].split()[:3] == ["NODE", "STORE", "STATE"]
        assert shown[1].split()[::2][:2] == ["node-1", "ready"]
        assert shown[2].startswith("since the master started: demoted ")
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in error
