"""What operators decided goes on under the next leader, and no former one can change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import aetcd  # type: ignore[import-untyped] # it has no annotations that are exported
import pytest

from mooncake_client import Client
from mooncake_master.core.remembered import DrainJob, KnownNamespace, Limits
from mooncake_master.leadership import Lease, Reign, Seat, members, parse_location
from mooncake_master.leadership.archive import READ_MAX, EtcdArchive
from mooncake_master.leadership.etcd import EtcdCoordinator
from mooncake_master.standing.shared import PROMISE_S, Batch
from mooncake_store.errors import NotLeader, Overloaded, ProtocolError, StoreError, Unreachable
from mooncake_store.testing import WireClient, payload, wait_until
from mooncake_store.wire import control
from tests.integration.ha.etcd import HOST, MISSING, PROGRAM
from tests.integration.ha.pool import Pool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from mooncake_store.wire.control import DrainStatus, Message, PinLimits
    from tests.integration.ha.pool import HaMaster

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.xdist_group("ha")]

LEASE_S: Final = 60.0
"""No test waits for its end, and requests have their longest time."""
KEYS: Final = 40


# --- processes -----------------------------------------------------------------------------------


@pytest.fixture
def wide_pool() -> Iterator[Pool]:
    """Two masters, two nodes."""
    if PROGRAM is None:
        pytest.skip(MISSING)
    with Pool(nodes=2) as pool:
        yield pool


def ask(master: HaMaster, message: Message) -> Any:  # noqa: ANN401 - belongs to the request
    with WireClient(HOST, master.port, deadline_s=10.0) as wire:
        return wire.ask(message)


def drain_of(pool: Pool, node: str) -> DrainStatus:
    status: DrainStatus = ask(pool.leader(), control.DescribeDrain(node))
    return status


def limits_of(pool: Pool) -> dict[str, float]:
    limits: PinLimits = ask(pool.leader(), control.ListPinLimits())
    return {limit.namespace: limit.pinned_share_max for limit in limits.limits if limit.is_set}


def test_drains_and_limits_outlive_the_leader_and_then_all_masters(wide_pool: Pool) -> None:
    pool = wide_pool
    drained = pool.nodes[0].name
    stored = {f"k{n}": payload(f"k{n}", 1, 64 * 1024) for n in range(KEYS)}
    with Client(pool.address, namespace="kept", manifest={"layout": "a"}) as client:
        for key, value in stored.items():
            client.put(key, value)
        leader = pool.leader()
        ask(leader, control.SetPinLimit("", 0.25))
        ask(leader, control.SetPinLimit("kept", 0.125))
        ask(leader, control.Drain(drained, 600.0))
        leader.kill()  # At once: what was answered is kept.

        wait_until(
            lambda: client.get("k0", deadline_s=1.0) == stored["k0"], 60.0, ignoring=(StoreError,)
        )
        assert pool.leader() is not leader
        assert limits_of(pool) == {"": 0.25, "kept": 0.125}
        wait_until(lambda: drain_of(pool, drained).state == "drained", 60.0,
                   ignoring=(StoreError,))  # fmt: skip

        for master in pool.masters:
            master.kill()
        for master in pool.masters:
            master.start()
        pool.leader()
        wait_until(lambda: drain_of(pool, drained).state == "drained", 60.0,
                   ignoring=(StoreError,))  # fmt: skip
        assert limits_of(pool) == {"": 0.25, "kept": 0.125}
        ask(pool.leader(), control.SetPinLimit("kept", None))
        ask(pool.leader(), control.Undrain(drained))
        pool.leader().kill()
        assert drain_of(pool, drained).state == "none"
        assert limits_of(pool) == {"": 0.25}
        wait_until(  # The nodes may come back later than misses wait for them.
            lambda: client.get_many(list(stored)) == list(stored.values()), 60.0,
            ignoring=(StoreError,),
        )  # fmt: skip


def test_while_etcd_is_silent_reads_go_on_and_changes_are_not_called_kept(
    patient_pool: Pool,
) -> None:
    pool = patient_pool
    leader, (member,) = pool.leader(), pool.etcd.members
    with Client(pool.address) as client:
        client.put("kept", b"value")
        member.pause()
        with WireClient(HOST, leader.port, deadline_s=PROMISE_S + 5.0) as wire:
            request = wire.send(control.SetPinLimit("silent", 0.5))
            assert client.get("kept") == b"value"
            client.put("meanwhile", b"value")
            # Or, where this took very long, the lease is over before: no leader any more.
            with pytest.raises((NotLeader, Overloaded, Unreachable)):
                wire.reply(request)
        member.resume()


# --- etcd itself ---------------------------------------------------------------------------------


class Place:
    """A name of its own in the etcd of the pool, and who sits there."""

    def __init__(self, pool: Pool, name: str) -> None:
        port = pool.etcd.members[0].port
        self.port = port
        self.location = parse_location(f"etcd://{HOST}:{port}/{name}")
        self.coordinator = EtcdCoordinator(self.location, LEASE_S)
        self.archives: list[EtcdArchive] = []
        self.lease: Lease | None = None

    async def sit(self, candidate: str) -> EtcdArchive:
        """Take the seat from whoever has it, and return the archive of the new leader."""
        if self.lease is not None:
            await self.coordinator.revoke(self.lease)
        self.lease = await self.coordinator.grant(LEASE_S)
        before: Reign = await self.coordinator.read()
        seat = Seat("here:1", candidate, before.term + 1)
        assert await self.coordinator.take(self.lease, seat, before, "pool")
        archive = EtcdArchive(self.location, LEASE_S)
        self.archives.append(archive)
        return archive

    async def announce(self, candidate: str) -> None:
        """Change the words of the seat."""
        assert self.lease is not None
        reign = await self.coordinator.read()
        assert await self.coordinator.update(
            self.lease, Seat("here:1", candidate, reign.term, serving=True)
        )

    async def close(self) -> None:
        if self.lease is not None:
            await self.coordinator.revoke(self.lease)
        for archive in self.archives:
            await archive.aclose()
        await self.coordinator.aclose()


@pytest.fixture
async def place(
    pool: Pool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    monkeypatch.setattr(members, "ASKED_S_MAX", LEASE_S)  # A third of a lease is long enough.
    found = Place(pool, request.node.name[-60:])
    yield found
    await found.close()


def limit(share: float) -> tuple[str, str, Limits]:
    return ("limits", "a/b", Limits(share))


async def test_what_was_written_is_read_by_the_next_leader(place: Place) -> None:
    first = await place.sit("first")
    assert await first.read() is None
    spaces = {
        f"space {n}": KnownNamespace(n, f"space {n}", 1, {"of": "x" * 1000})
        for n in range(2 * READ_MAX + 3)
    }
    entries = [("namespaces", name, space) for name, space in spaces.items()]
    await first.write("first", Batch("1", (limit(0.5), ("drains", "", DrainJob("", "n", 2.5)))))
    await place.announce("first")
    for at in range(0, len(entries), READ_MAX):
        await first.write("first", Batch(f"2-{at}", tuple(entries[at : at + READ_MAX])))
    await first.write("first", Batch("3", (("drains", "", None),)))
    second = await place.sit("second")
    found = await second.read()
    assert found == {"limits": {"a/b": Limits(0.5)}, "namespaces": spaces}


async def test_a_former_leader_changes_nothing(place: Place) -> None:
    old = await place.sit("old")
    await old.read()
    await old.write("old", Batch("1", (limit(0.5),)))
    new = await place.sit("new")
    await new.read()
    with pytest.raises(NotLeader):
        await old.write("old", Batch("2", (limit(0.1),)))
    await new.write("new", Batch("3", (limit(0.75),)))
    with pytest.raises(NotLeader):
        await old.write("old", Batch("4", (limit(0.1),)))
    assert await new.read() == {"limits": {"a/b": Limits(0.75)}}


async def test_a_write_that_arrives_late_undoes_nothing(place: Place) -> None:
    """A write that was given up may be carried out at any later time, in the same reign, too."""
    archive, late = await place.sit("me"), EtcdArchive(place.location, LEASE_S)
    place.archives.append(late)
    await archive.read()
    await late.read()
    one, two = Batch("1", (limit(0.5),)), Batch("2", (limit(0.75),))
    await archive.write("me", one)
    await late.write("me", one)  # Its answer was lost: it is there, and is not made again.
    await archive.write("me", two)
    with pytest.raises(ProtocolError):
        await late.write("me", one)
    assert await archive.read() == {"limits": {"a/b": Limits(0.75)}}


async def test_a_record_that_makes_no_sense_is_left_out_and_said(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    archive = await place.sit("me")
    await archive.read()
    await archive.write("me", Batch("1", (limit(0.5),)))
    root = f"/{place.location.name}/standing"
    async with aetcd.Client(HOST, place.port) as client:
        await client.put(f"{root}/limits/bad".encode(), b"no json")
        await client.put(f"{root}/tomorrow/x".encode(), b"[]")
        assert await archive.read() == {"limits": {"a/b": Limits(0.5)}}
        assert f"{root}/limits/bad" in caplog.text
        assert "tomorrow" in caplog.text
        await client.put(root.encode(), b'{"format":9,"write":""}')
        with pytest.raises(ProtocolError, match="layout 9"):
            await archive.read()
