"""Clusters that the client's tests share."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_store.testing import ProcessCluster
from tests.integration.client.drivers import FACES, NETWORK_DRIVERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DRIVERS = ["sync-local", "async-local", *NETWORK_DRIVERS]


@pytest.fixture(scope="session")
def memory_root() -> Iterator[str]:
    """A folder of shared memory for the nodes of this session alone."""
    with tempfile.TemporaryDirectory(prefix="mooncake-client-", dir="/dev/shm") as folder:
        yield folder


@pytest.fixture(scope="session")
def cluster(memory_root: str) -> Iterator[ProcessCluster]:
    """A master and two nodes, for tests that break nothing."""
    options = {"dram": "96MiB", "memory-root": memory_root}
    with ProcessCluster(nodes=2, node_options=options) as running:
        yield running


@pytest.fixture
def start(memory_root: str) -> Iterator[Callable[..., ProcessCluster]]:
    """Start clusters for one test, which may break them."""
    with contextlib.ExitStack() as stack:

        def begin(nodes: int = 1, **options: Any) -> ProcessCluster:  # noqa: ANN401 - passed on
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=memory_root))
            node = {"dram": "64MiB", "memory-root": folder, **options.pop("node_options", {})}
            return stack.enter_context(ProcessCluster(nodes, node_options=node, **options))

        yield begin


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    """Which client, over which path."""
    return str(request.param)


@pytest.fixture
def connect(driver: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Make clients of the driver under test, closed at the end, in a namespace of their own."""
    face, transport = driver.split("-")
    space = f"test-{uuid.uuid4().hex[:12]}"
    made: list[Any] = []

    def make(**options: Any) -> Any:  # noqa: ANN401 - either client
        if transport == "local":
            address = "local://?dram=96MiB"
        else:
            address = request.getfixturevalue("cluster").master.address
            options.setdefault("transport", transport)
        options.setdefault("namespace", space)
        options.setdefault("deadline_s", 20.0)
        made.append(FACES[face](address, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(connect: Callable[..., Any]) -> Any:  # noqa: ANN401 - either client
    """One client of the driver under test."""
    return connect()
