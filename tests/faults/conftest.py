"""Fixtures of the fault tests: clusters of processes and clients that are closed in the end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_client import Client
from mooncake_store.testing.fixtures import (
    pytest_runtest_makereport,  # noqa: F401 - a hook: being here is its use
    start_cluster,  # noqa: F401 - a fixture: being here is its use
)
from tests.faults import scale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mooncake_store.testing import ProcessCluster

    Connect = Callable[..., Client]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here: it starts processes and takes its time."""
    for item in items:
        if "tests/faults" in str(item.path):
            item.add_marker(pytest.mark.processes)
            item.add_marker(pytest.mark.slow)
            if scale.FULL:
                item.add_marker(pytest.mark.timeout(scale.TIMEOUT_S))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what was measured at full scale."""
    if scale.FULL and scale.measured:
        terminalreporter.section("figures of the field reports")
        for line in scale.measured:
            terminalreporter.write_line(line)


@pytest.fixture
def connect() -> Iterator[Connect]:
    """A function that returns a client of a cluster, closed after the test."""
    with contextlib.ExitStack() as stack:

        def open_client(cluster: ProcessCluster, **options: Any) -> Client:
            return stack.enter_context(Client(cluster.address, **options))

        yield open_client
