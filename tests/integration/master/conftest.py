"""One running master for the tests that only talk to it, and ways to start others."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from mooncake_store.errors import StoreError
from mooncake_store.testing import MasterProcess, WireClient, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COMMAND = (sys.executable, "-m", "mooncake_store")
START_S_MAX = 30.0


def wait_serving(master: MasterProcess) -> None:
    """Wait until a master answers."""

    def answers() -> bool:
        assert master.is_running, master.log_tail()
        WireClient("127.0.0.1", master.port).close()
        return True

    wait_until(answers, START_S_MAX, ignoring=(StoreError,))


@pytest.fixture
def start_master(tmp_path: Path) -> Iterator[Callable[..., MasterProcess]]:
    """Start masters with options, and end them after the test."""
    started: list[MasterProcess] = []

    def start(**options: object) -> MasterProcess:
        words = {name.replace("_", "-"): value for name, value in options.items()}
        directory = tmp_path / str(len(started))
        directory.mkdir()
        master = MasterProcess(directory, COMMAND, words)
        started.append(master)
        master.start()
        wait_serving(master)
        return master

    yield start
    for master in started:
        master.kill()


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MasterProcess]:
    """One master for all tests of a module, with short times."""
    options = {
        "recovery-grace": "0s",
        "handshake-timeout": "1s",
        "lease-ttl": "200ms",
        "instruct-timeout": "1s",
        "ramp": "0s",
    }
    running = MasterProcess(tmp_path_factory.mktemp("master"), COMMAND, options)
    running.start()
    try:
        wait_serving(running)
        yield running
        assert running.is_running, running.log_tail()
        assert "Traceback" not in running.log(), running.log_tail()
    finally:
        running.kill()


@pytest.fixture
def wire(master: MasterProcess) -> Iterator[WireClient]:
    """A client's connection to it."""
    with WireClient("127.0.0.1", master.port) as connection:
        yield connection
