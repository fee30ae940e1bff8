"""etcd slow, gone, restarted, or with a member less."""

from __future__ import annotations

import time

import pytest

from mooncake_client import Client
from mooncake_store.errors import NotLeader, StoreError
from mooncake_store.testing import WireClient, wait_until
from mooncake_store.wire import control
from tests.integration.ha.etcd import HOST, MISSING, PROGRAM
from tests.integration.ha.pool import LEASE_S, TAKE_OVER_S, Pool, Witness

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.xdist_group("ha")]


def test_a_restart_of_etcd_costs_nothing_while_the_lease_holds(pool: Pool) -> None:
    leader, term = pool.leader(), pool.status().term
    with Client(pool.address) as client:
        pool.etcd.members[0].kill()
        client.put("meanwhile", b"value")
        pool.etcd.start()
        end_s = time.monotonic() + LEASE_S
        while time.monotonic() < end_s:
            assert client.get("meanwhile", deadline_s=1.0) == b"value"
    assert pool.leader() is leader
    assert pool.status().term == term


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_without_etcd_a_leader_leaves_before_its_lease_can_end(pool: Pool, how: str) -> None:
    leader, term = pool.leader(), pool.status().term
    (member,) = pool.etcd.members
    with Client(pool.address) as client, Witness(pool) as witness:
        client.put("kept", b"value")
        lost_s = time.monotonic()
        if how == "killed":
            member.kill()
        else:
            member.pause()
        wait_until(lambda: not leader.leads(), 10.0)
        assert time.monotonic() - lost_s < LEASE_S + 1.0
        assert leader.is_running
        status, ready = leader.admin("/health/ready")
        assert status == 503
        assert "etcd" in ready["reason"] or "lease" in ready["reason"]
        with WireClient(HOST, leader.port) as wire, pytest.raises(NotLeader):
            wire.ask(control.OpenNamespace("default"))
        with pytest.raises(StoreError):
            client.get("kept", deadline_s=0.5)
        member.resume()
        if not member.is_running:
            member.start()
        wait_until(lambda: client.get("kept", deadline_s=2.0) == b"value", 20.0,
                   ignoring=(StoreError,))  # fmt: skip
    assert not witness.problems
    assert pool.status().term > term


def test_of_three_members_of_etcd_one_may_be_lost() -> None:
    if PROGRAM is None:
        pytest.skip(MISSING)
    with Pool(members=3) as pool, Client(pool.address) as client, Witness(pool) as witness:
        leader = pool.leader()
        client.put("kept", b"value")
        pool.etcd.members[0].kill()
        end_s = time.monotonic() + LEASE_S
        while time.monotonic() < end_s:
            assert client.get("kept", deadline_s=1.0) == b"value"
        assert pool.leader() is leader
        leader.kill()
        lost_s = time.monotonic()
        wait_until(lambda: client.get("kept", deadline_s=1.0) == b"value", 30.0,
                   ignoring=(StoreError,))  # fmt: skip
        # etcd itself may have to elect first, and gives every lease its full length again then.
        assert time.monotonic() - lost_s < TAKE_OVER_S + LEASE_S + 2.0
    assert not witness.problems
