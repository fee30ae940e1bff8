"""pytest fixtures around the kit; the only module of it that needs pytest.

Load it in a ``conftest.py``:

    pytest_plugins = ["mooncake_store.testing.fixtures"]
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_store.testing.clock import VirtualClock
from mooncake_store.testing.cluster import ProcessCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    StartCluster = Callable[..., ProcessCluster]

_clusters = pytest.StashKey[list[ProcessCluster]]()


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """A clock that stands at 0 until the test moves it."""
    return VirtualClock()


@pytest.fixture
def start_cluster(request: pytest.FixtureRequest) -> Iterator[StartCluster]:
    """A function that starts a ``ProcessCluster``, ended and audited after the test.

    It takes what ``ProcessCluster`` takes. When the test fails, its report shows the ends of the
    logs of all processes.
    """
    clusters = request.node.stash.setdefault(_clusters, [])
    with contextlib.ExitStack() as stack:

        def start(*args: Any, **kwargs: Any) -> ProcessCluster:  # noqa: ANN401 - passed on
            cluster = ProcessCluster(*args, **kwargs)
            clusters.append(cluster)
            return stack.enter_context(cluster)

        yield start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the test's clusters to the report of its failure."""
    report = yield
    if report.failed and report.when == "call":
        for cluster in item.stash.get(_clusters, []):
            for process in (cluster.master, *cluster.nodes):
                report.sections.append((f"log of {process.name}", process.log_tail()))
    return report
