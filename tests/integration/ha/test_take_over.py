"""What clients see when the leader is lost, in every way in which it can be lost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest

from mooncake_client import AsyncClient, Client
from mooncake_master.leadership.location import NAME
from mooncake_store.errors import ManifestMismatch, NotLeader, StoreError, Unreachable
from mooncake_store.testing import BlackHole, WireClient, payload, wait_until
from mooncake_store.wire import control
from tests.faults.scale import scaled, show
from tests.integration.ha.etcd import HOST, MISSING, PROGRAM
from tests.integration.ha.journal import Journal
from tests.integration.ha.pool import TAKE_OVER_S_MAX, Pool, Witness

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.ha.pool import HaMaster

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.xdist_group("ha")]

KEYS: Final = 200
BYTES: Final = 4096


def kill(master: HaMaster) -> None:
    master.kill()


def stop(master: HaMaster) -> None:
    master.pause()


def cut(master: HaMaster) -> None:
    master.vanish()


def swallow(master: HaMaster) -> None:
    """End it so that nobody is told: what is sent to it is never answered nor refused."""
    master.front.set(BlackHole())
    master.kill()


def wait_read(client: Client, key: str, value: bytes) -> None:
    """Wait until a key is read again; wrong bytes fail."""
    began_s = time.monotonic()

    def read() -> bool:
        found = client.get(key, deadline_s=1.0)
        assert found in {None, value}
        return found is not None

    wait_until(read, TAKE_OVER_S_MAX, ignoring=(StoreError,))
    took_s = time.monotonic() - began_s
    show("017", "first read after a take-over (<= 10 s)", f"{took_s:.1f} s")


def values(prefix: str) -> dict[str, bytes]:
    return {f"{prefix}-{n}": payload(f"{prefix}-{n}", 1, BYTES) for n in range(KEYS)}


@pytest.mark.parametrize("lose", [kill, stop, cut, swallow], ids=lambda lose: lose.__name__)
def test_another_master_takes_over_and_nothing_acknowledged_is_lost(
    pool: Pool, lose: Callable[[HaMaster], None]
) -> None:
    leader = pool.leader()
    term = pool.status().term
    stored = values(lose.__name__)
    with Client(pool.address, location_cache=False) as client, Witness(pool) as witness:
        for key, value in stored.items():
            client.put(key, value)
        removed = [key for at, key in enumerate(stored) if at % 10 == 0]
        client.remove_many(removed)
        lose(leader)
        kept = next(key for key in stored if key not in removed)
        wait_read(client, kept, stored[kept])
        for key, value in stored.items():
            assert client.get(key) == (None if key in removed else value), key
        assert client.put("afterwards", b"new").version
    assert not witness.problems
    assert pool.status().term > term
    assert pool.leader() is not leader


def test_a_leader_that_was_stopped_answers_nothing_of_before(pool: Pool) -> None:
    leader = pool.leader()
    with WireClient(HOST, leader.port, deadline_s=20.0) as wire:
        name = wire.ask(control.OpenNamespace("default"))
        leader.pause()
        asked = [
            wire.send(control.Remove(name.slot, name.epoch, ["kill-1"])),
            wire.send(control.PutStart(name.slot, name.epoch, [control.PutItem("k", 10)])),
        ]
        other = pool.others(leader)[0]
        wait_until(other.leads, TAKE_OVER_S_MAX, what="the other one leads")
        leader.resume()
        for request in asked:
            # Or nothing at all: the connection may end before the request is looked at.
            with pytest.raises((NotLeader, Unreachable)) as refused:
                wire.reply(request)
            assert "in time" not in str(refused.value)
    wait_until(lambda: leader.admin("/api/v1/cluster")[1]["leader"] == other.address, 30.0)


def test_a_standby_says_who_leads_and_that_it_does_not(pool: Pool) -> None:
    leader = pool.leader()
    (standby,) = pool.others(leader)
    assert standby.admin("/health/live")[0] == 200
    # Not while one of its looks at etcd came to nothing.
    standby_of = (503, f"standby of {leader.address}")

    def says_so() -> bool:
        status, ready = standby.admin("/health/ready")
        return (status, ready.get("reason")) == standby_of

    wait_until(says_so, 30.0)
    cluster = standby.admin("/api/v1/cluster")[1]
    assert (cluster["role"], cluster["leader"]) == ("standby", leader.address)
    for path in ("objects?namespace=default", "nodes", "segments", "node?name=node-1"):
        status, problem = standby.admin(f"/api/v1/{path}")
        assert (status, problem.get("code")) == (421, NotLeader.code), path
    cluster = leader.admin("/api/v1/cluster")[1]
    assert (cluster["role"], cluster["term"]) == ("leader", pool.status().term)
    with WireClient(HOST, standby.port) as wire, pytest.raises(NotLeader) as refused:
        wire.ask(control.OpenNamespace("default"))
    assert refused.value.node == leader.address


def test_a_leader_that_ends_hands_over_at_once(pool: Pool) -> None:
    leader = pool.leader()
    with Client(pool.address) as client:
        client.put("handed over", b"value")
        leader.terminate()
        wait_read(client, "handed over", b"value")


def test_what_a_namespace_holds_is_still_stated_after_a_take_over(pool: Pool) -> None:
    (member,) = pool.etcd.members
    with Client(pool.address, namespace="stated", manifest={"layout": "a"}) as client:
        client.put("key", b"value")
        # It is kept a moment later, and nobody waits for that.
        wait_until(lambda: member.find(f"/{NAME}/standing/namespaces/stated"), 30.0)
        kill(pool.leader())
        wait_read(client, "key", b"value")
    with (
        Client(pool.address, namespace="stated", manifest={"layout": "b"}) as other,
        pytest.raises(ManifestMismatch),
    ):
        other.get("key")


def test_writers_lose_nothing_while_leaders_come_and_go(pool: Pool) -> None:
    with Journal(pool.address) as journal, Witness(pool) as witness:
        for lose in (kill, stop):
            journal.wait_for(50)
            lose(pool.leader())
            journal.wait_for(50)
            for master in pool.masters:
                master.resume()
                if not master.is_running:
                    master.start()
    assert not witness.problems
    pool.wait_ready()
    journal.check()


async def test_an_asyncio_client_turns_from_a_silent_leader(pool: Pool) -> None:
    async with AsyncClient(pool.address, location_cache=False) as client:
        await client.put("async", b"value")
        leader = pool.leader()
        leader.pause()
        # One call: it finds the next by itself.
        assert await client.get("async", deadline_s=TAKE_OVER_S_MAX) == b"value"
    assert pool.leader() is not leader


def test_one_call_outlasts_a_take_over(pool: Pool) -> None:
    with Client(pool.address, location_cache=False) as client:
        client.put("one call", b"value")
        pool.leader().vanish()
        assert client.get("one call", deadline_s=TAKE_OVER_S_MAX) == b"value"


def test_fr_004_and_fr_017_standbys_know_everything_and_old_clients_find_them() -> None:
    """Each time the leader is behind a black hole when it ends: nobody is told."""
    if PROGRAM is None:
        pytest.skip(MISSING)
    stored = {f"k{n}": payload(f"k{n}", 1, BYTES) for n in range(scaled(200, 500))}
    with Pool(nodes=3) as pool, Client(pool.address, location_cache=False) as client:
        for key, value in stored.items():
            client.put(key, value)
        used = sorted(node.used_bytes for node in pool.status().nodes)
        for _ in range(scaled(2, 5)):
            leader = pool.leader()
            swallow(leader)
            wait_read(client, "k0", stored["k0"])
            wait_until(  # The nodes may come back later than misses wait for them.
                lambda: client.get_many(list(stored), deadline_s=20.0) == list(stored.values()),
                60.0,
                ignoring=(StoreError,),
                what="everything is read again",
            )
            assert pool.leader() is not leader
            leader.front.heal()
            leader.start()
            pool.wait_ready()
            wait_until(
                lambda: sorted(node.used_bytes for node in pool.status().nodes) == used, 30.0,
                ignoring=(StoreError,),
            )  # fmt: skip
