"""A pool with two masters that the tests of this folder break and mend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.ha.etcd import MISSING, PROGRAM
from tests.integration.ha.pool import PATIENT_LEASE_S, Pool

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


@pytest.fixture(scope="session")
def shared_pool() -> Iterator[Pool]:
    """Two masters, one node, one etcd; started once."""
    if PROGRAM is None:
        pytest.skip(MISSING)
    with Pool() as pool:
        yield pool


@pytest.fixture(scope="session")
def shared_patient_pool() -> Iterator[Pool]:
    """The same with a longer lease, for tests in which no leader is to be lost."""
    if PROGRAM is None:
        pytest.skip(MISSING)
    with Pool(lease_s=PATIENT_LEASE_S) as pool:
        yield pool


@pytest.fixture
def pool(shared_pool: Pool) -> Iterator[Pool]:
    """``shared_pool``, whole when a test begins, and audited when it has ended."""
    yield from restored(shared_pool)


@pytest.fixture
def patient_pool(shared_patient_pool: Pool) -> Iterator[Pool]:
    """``shared_patient_pool``, in the same way."""
    yield from restored(shared_patient_pool)


def restored(pool: Pool) -> Iterator[Pool]:
    """Make a pool whole, give it out, and audit it."""
    try:
        pool.restore()
        yield pool
        pool.check()
    except BaseException as error:
        pool.explain(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the pool to the report of a test that failed."""
    report = yield
    found = getattr(item, "funcargs", {})
    for pool in (found.get("shared_pool"), found.get("shared_patient_pool")):
        if report.failed and report.when == "call" and isinstance(pool, Pool):
            for process in (*pool.masters, *pool.nodes):
                report.sections.append((f"log of {process.name}", process.log_tail()))
    return report
