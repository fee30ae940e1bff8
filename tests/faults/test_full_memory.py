"""Others take the memory that a pool has not touched yet: no process of the store ends by that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from mooncake_client import Client
from mooncake_store.limits import MIB
from mooncake_store.testing import ProcessCluster, payload, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.processes

ENGINE: Final = """
import sys
from mooncake_client import Client, StoreError
from mooncake_store.testing import payload
with Client(sys.argv[1], transport=sys.argv[2], deadline_s=60.0) as client:
    for number in range(20):
        key = f"{sys.argv[2]}-{number}"
        value = payload(key, 1, 1 << 20)
        try:
            if number % 2:
                with client.reserve(key, len(value)) as room:
                    room.buffer[:] = value
            else:
                client.put(key, value)
        except StoreError as error:
            print(error.code)
            assert client.get(key) is None
        else:
            assert client.get(key) == value
"""
"""Puts more than there is memory for; it must live to the end."""


@pytest.fixture
def memory_root() -> Iterator[Path]:
    """A file system in memory, of 64 MiB; its name is short, as nodes have a socket in it."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a file system needs root")
    place = Path(tempfile.mkdtemp(prefix="mooncake-"))
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)],  # noqa: S607
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        place.rmdir()
        pytest.skip(f"nothing can be mounted here: {error}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)  # noqa: S607
    place.rmdir()


def fill(place: Path) -> Path:
    """Take all memory of a file system that is left."""
    path = place / "foreign"
    with path.open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return path


def test_others_that_take_the_memory_end_neither_engines_nor_nodes(memory_root: Path) -> None:
    options = {"dram": "32MiB", "populate": "no", "memory-root": memory_root}
    with ProcessCluster(nodes=1, node_options=options) as cluster:
        node = cluster.nodes[0]
        with Client(cluster.address) as client:
            client.put("before", b"value")
            foreign = fill(memory_root)
            for transport in ("shm", "tcp"):
                engine = subprocess.run(
                    [sys.executable, "-c", ENGINE, cluster.address, transport],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert engine.returncode == 0, (transport, engine.returncode, engine.stderr)
                assert engine.stdout, "there was memory for everything"
                assert node.is_running, node.exit_code
            assert client.get("before") == b"value"
            foreign.unlink()
            value = payload("after", 1, 8 * MIB)
            wait_until(lambda: client.put("after", value).created, 60, what="there is room again")
            assert client.get("after") == value
