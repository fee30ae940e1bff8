"""etcd slow, gone, restarted, or with a member less."""

from __future__ import annotations

import time
from typing import Final

import pytest

from mooncake_client import Client
from mooncake_master.leadership.location import NAME
from mooncake_store.errors import NotLeader, StoreError
from mooncake_store.testing import WireClient, wait_until
from mooncake_store.wire import control
from tests.integration.ha.etcd import HOST, MISSING, PROGRAM
from tests.integration.ha.pool import LEASE_S, TAKE_OVER_S_MAX, Pool, Witness

SEAT: Final = f"/{NAME}/leader"

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.xdist_group("ha")]


def test_a_restart_of_etcd_costs_nothing_while_the_lease_holds(patient_pool: Pool) -> None:
    pool = patient_pool
    leader, term = pool.leader(), pool.status().term
    (member,) = pool.etcd.members
    with Client(pool.address, location_cache=False) as client:
        member.kill()
        client.put("meanwhile", b"value")
        pool.etcd.start()
        left_s = [member.lease_left_s(SEAT)]

        def is_renewed() -> bool:
            assert client.get("meanwhile") == b"value"
            left_s.append(member.lease_left_s(SEAT))
            return left_s[-1] > left_s[-2]

        wait_until(is_renewed, 30.0, what="the leader goes on renewing its lease")
    assert pool.leader() is leader
    assert pool.status().term == term


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_without_etcd_a_leader_leaves_before_its_lease_can_end(pool: Pool, how: str) -> None:
    leader, term = pool.leader(), pool.status().term
    (member,) = pool.etcd.members
    with Client(pool.address) as client, Witness(pool) as witness:
        client.put("kept", b"value")
        if how == "killed":
            member.kill()
        else:
            member.pause()

        def has_left() -> bool:
            status, ready = leader.admin("/health/ready")
            return status == 503 and ("etcd" in ready["reason"] or "lease" in ready["reason"])

        wait_until(has_left, 60.0, ignoring=(OSError,))
        assert leader.is_running
        with WireClient(HOST, leader.port) as wire, pytest.raises(NotLeader):
            wire.ask(control.OpenNamespace("default"))
        with pytest.raises(StoreError):
            client.get("kept", deadline_s=0.5)
        member.resume()
        if not member.is_running:
            member.start()
        wait_until(lambda: client.get("kept", deadline_s=2.0) == b"value", 60.0,
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
            assert client.get("kept") == b"value"
        assert pool.leader() is leader
        leader.kill()
        # etcd itself may have to elect first, and gives every lease its full length again then.
        wait_until(lambda: client.get("kept", deadline_s=1.0) == b"value", TAKE_OVER_S_MAX,
                   ignoring=(StoreError,))  # fmt: skip
    assert not witness.problems
