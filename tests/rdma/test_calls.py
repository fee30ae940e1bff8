"""Every call of both clients, over a real device: the tests of all other ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.client import test_calls as calls
from tests.integration.client.conftest import client, connect

if TYPE_CHECKING:
    from mooncake_store.testing import ProcessCluster

__all__ = ["client", "connect"]

pytestmark = pytest.mark.processes


@pytest.fixture(params=["sync-rdma", "async-rdma"])
def driver(request: pytest.FixtureRequest, cluster: ProcessCluster) -> str:
    del cluster
    return str(request.param)


globals().update({name: test for name, test in vars(calls).items() if name.startswith("test_")})


class TestSeveralClients(calls.TestSeveralClients):
    @pytest.fixture(params=["sync-rdma", "async-rdma"])
    def driver(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)
