"""A pool with two masters that the tests of this folder break and mend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.ha.etcd import MISSING, PROGRAM
from tests.integration.ha.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


@pytest.fixture(scope="session")
def shared_pool() -> Iterator[Pool]:
    """Two masters, one node, one etcd; started once."""
    if PROGRAM is None:
        pytest.skip(MISSING)
    with Pool() as pool:
        yield pool


@pytest.fixture
def pool(shared_pool: Pool) -> Iterator[Pool]:
    """The same, whole when a test begins, and audited when it has ended."""
    try:
        shared_pool.restore()
        yield shared_pool
        shared_pool.check()
    except BaseException as error:
        shared_pool.explain(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the pool to the report of a test that failed."""
    report = yield
    pool = getattr(item, "funcargs", {}).get("shared_pool")
    if report.failed and report.when == "call" and isinstance(pool, Pool):
        for process in (*pool.masters, *pool.nodes):
            report.sections.append((f"log of {process.name}", process.log_tail()))
    return report
