"""Nodes for tests: as objects of this process where that shows enough, as processes elsewhere."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node.app import StorageNode
from mooncake_storage_node.settings import NodeSettings

from .fake_master import FakeMaster
from .support import NodeUnderTest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def root() -> Iterator[Path]:
    """A memory root with a path short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="mooncake-node-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    with FakeMaster() as master:
        yield master


@pytest.fixture
def start_node(root: Path, master: FakeMaster) -> Iterator[Callable[..., StorageNode]]:
    """Start nodes inside this process."""
    nodes: list[StorageNode] = []

    def start(**options: object) -> StorageNode:
        words = {
            "name": "n",
            "dram": 32 << 20,
            "master": (f"127.0.0.1:{master.port}",),
            "memory_root": str(root),
            "stop_timeout_s": 0.0,
            "populate": "no",
        }
        node = StorageNode(NodeSettings(**{**words, **options}))  # type: ignore[arg-type]  # checked at run time
        nodes.append(node)
        node.start()
        return node

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture
def start_process(
    root: Path, tmp_path: Path, master: FakeMaster
) -> Iterator[Callable[..., NodeUnderTest]]:
    """Start nodes as processes; all are killed in the end."""
    started: list[NodeUnderTest] = []

    def start(name: str = f"t{os.getpid()}", **options: object) -> NodeUnderTest:
        words = {
            "master": f"127.0.0.1:{master.port}",
            "memory_root": root,
            "populate": "no",
            **options,
        }
        node = NodeUnderTest(tmp_path, name, **words)
        started.append(node)
        node.start()
        return node

    yield start
    for node in started:
        node.kill()
