"""What needs an RDMA device. Without one everything here is skipped: `make test-rdma` has one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mooncake_store.testing import ProcessCluster
from mooncake_store.testing.verbs import has_devices
from mooncake_store.transport.rdma.pyverbs_device import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name != "test_reload.py")  # Others keep it in use.
    if has_devices():
        return
    skip = pytest.mark.skip(reason="no RDMA device here: `make test-rdma` runs this in a guest")
    for item in items:
        if "tests/rdma/" in item.path.as_posix():
            item.add_marker(skip)


class Packets:
    """How many packets the device has sent since this was made, as the kernel counts."""

    PAYLOAD_BYTES = 4096

    def __init__(self) -> None:
        self._files = list(SYSTEM.glob("*/ports/*/hw_counters/sent_pkts"))
        self._before = self._count()

    def prove(self, size: int) -> None:
        """Assert that so many bytes can have gone through it."""
        sent = self._count() - self._before
        assert sent * self.PAYLOAD_BYTES >= size, f"{sent} packets cannot hold {size} bytes"

    def _count(self) -> int:
        return sum(int(file.read_text()) for file in self._files)


@pytest.fixture
def packets() -> Packets:
    return Packets()


class PatientCluster(ProcessCluster):
    """An emulated processor takes most of a minute to start one, and minutes on a busy host."""

    def wait_ready(self, deadline_s: float = 280.0) -> None:
        super().wait_ready(deadline_s)


@pytest.fixture(scope="session")
def cluster() -> Iterator[ProcessCluster]:
    """One for all tests of a session."""
    with PatientCluster(nodes=1, node_options={"dram": "64MiB"}, audited=False) as running:
        yield running
