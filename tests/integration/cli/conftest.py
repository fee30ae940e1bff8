"""A cluster of processes for the commands, and the commands themselves."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_client._cli.local_cluster import ClusterPlan, LocalCluster
from mooncake_store.command import COMMAND_GROUP, run
from mooncake_store.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:  # noqa: ANN401 - whatever the command printed
        return json.loads(self.out)


class Commands:
    """Runs commands in this process, as ``mooncake-store`` does in one of its own."""

    def __init__(self, capture: pytest.CaptureFixture[bytes]) -> None:
        self._capture = capture

    def __call__(self, *words: str) -> Result:
        self._capture.readouterr()
        code = run(list(words), entry_points(group=COMMAND_GROUP))
        out, err = self._capture.readouterr()
        return Result(code, out, err.decode())


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """One master and two nodes, empty at first, shared by tests that do not break them."""
    with LocalCluster(ClusterPlan(nodes=2, dram_bytes=64 * MIB), lambda _name, _line: None) as own:
        own.start(threading.Event())
        yield own


@pytest.fixture
def cli(
    cluster: LocalCluster,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> Commands:
    """Commands that work on the shared cluster."""
    monkeypatch.setenv("MOONCAKE_STORE_MASTER", cluster.master)
    monkeypatch.setenv("COLUMNS", "200")
    return Commands(capfdbinary)
