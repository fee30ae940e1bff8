"""The office, the campaign for it, and what the switchboard does without it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, cast

import pytest

from mooncake_master.core import Master, Reply
from mooncake_master.leadership import (
    Campaign,
    Coordinator,
    Lease,
    Location,
    Office,
    Reign,
    Seat,
    campaign,
    parse_location,
)
from mooncake_master.leadership.office import SURE_SHARE
from mooncake_master.switchboard import Switchboard
from mooncake_store.errors import NotLeader, StoreError, Unreachable
from mooncake_store.testing import VirtualClock
from mooncake_store.wire.address import Address
from mooncake_store.wire.control import DescribeCluster, Done, Exists, Message
from tests.unit.master.looptime import stop_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

LEASE_S = 0.2


# --- where ---------------------------------------------------------------------------------------


def test_a_location_names_members_and_a_pool() -> None:
    assert parse_location("etcd://a") == Location((Address("a", 2379),), "mooncake-store")
    found = parse_location("etcd://a:1,[::1]:2/pool.one-x")
    assert found == Location((Address("a", 1), Address("::1", 2)), "pool.one-x")
    assert str(found) == "etcd://a:1,[::1]:2/pool.one-x"
    assert parse_location(str(found)) == found


@pytest.mark.parametrize(
    "text",
    ["a:2379", "http://a", "etcd://", "etcd://a,", "etcd://a:0", "etcd://a:x", "etcd://a/",
     "etcd://a/b/c", "etcd://a/ü", "etcd://" + "a," * 16 + "a"],
)  # fmt: skip
def test_what_is_no_location_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"[a-z]"):
        parse_location(text)


# --- the office ----------------------------------------------------------------------------------


def test_the_office_ends_before_the_lease_can() -> None:
    clock = VirtualClock()
    office = Office(clock)
    assert not office.holds()
    asked_s = clock()
    clock.advance(1.0)  # The request took that long; the lease may have begun at once.
    office.extend(asked_s, 10.0)
    assert office.left_s == pytest.approx(10.0 * SURE_SHARE - 1.0)
    clock.advance(office.left_s - 0.001)
    assert office.holds()
    clock.advance(0.002)
    assert not office.holds()


def test_an_old_answer_does_not_shorten_the_office_and_leaving_ends_it() -> None:
    clock = VirtualClock()
    office = Office(clock)
    office.extend(5.0, 10.0)
    office.extend(0.0, 10.0)
    assert office.left_s == pytest.approx(5.0 + 10.0 * SURE_SHARE)
    office.leave()
    assert not office.holds()
    assert office.ended == 1


def test_a_standby_names_the_leader_where_it_knows_one() -> None:
    office = Office(VirtualClock())
    office.problem = "etcd is silent"
    assert office.refusal().node is None
    assert "etcd is silent" in str(office.refusal())
    assert office.reason() == "standby; no leader is known: etcd is silent"
    office.leader = "b:1"
    assert office.refusal().node == "b:1"
    assert office.reason() == "standby of b:1"
    office.extend(0.0, 10.0)
    assert not office.reason()


# --- the switchboard -----------------------------------------------------------------------------


class Caller:
    def __init__(self) -> None:
        self.answers: list[Message | StoreError] = []

    def reply(self, request_id: int, message: Message) -> None:
        del request_id
        self.answers.append(message)

    def fail(self, request_id: int, error: StoreError) -> None:
        del request_id
        self.answers.append(error)

    def instruct(self, token: int, message: Message) -> None:
        raise AssertionError(f"{token} {message}")

    def close(self, reason: str) -> None:
        raise AssertionError(reason)


class SlowCore:
    """A core during whose handling the process is stopped."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.pause_s = 0.0
        self.handled = 0

    def handle(self, peer: int, request_id: int, *_: object) -> list[Reply]:
        self.handled += 1
        self.clock.advance(self.pause_s)
        return [Reply(peer, request_id, Done())]


def test_nothing_is_handled_or_answered_without_the_office() -> None:
    clock = VirtualClock()
    office, core, caller = Office(clock), SlowCore(clock), Caller()
    switchboard = Switchboard(cast("Master", core), clock, office=office)
    number = switchboard.attach(caller)

    def ask() -> Message | StoreError:
        switchboard.request(number, 1, Exists(0, 1, ["key"]), clock() + 5.0, clock())
        return caller.answers.pop()

    assert isinstance(ask(), NotLeader)
    handled = [core.handled]
    office.extend(clock(), 10.0)
    assert isinstance(ask(), Done)
    core.pause_s = 60.0  # It is stopped after it decided and before it answers.
    assert isinstance(ask(), NotLeader)
    handled.append(core.handled)
    assert isinstance(ask(), NotLeader)
    assert [*handled, core.handled] == [0, 2, 2]


def test_operators_may_look_at_a_standby() -> None:
    clock = VirtualClock()
    core, operator = SlowCore(clock), Caller()
    switchboard = Switchboard(cast("Master", core), clock, office=Office(clock))
    number = switchboard.attach(operator)
    switchboard.request(number, 1, DescribeCluster(), 5.0, clock())
    assert isinstance(operator.answers.pop(), NotLeader)
    switchboard.look(number, 2, DescribeCluster(), clock())
    assert isinstance(operator.answers.pop(), Done)


# --- the campaign --------------------------------------------------------------------------------


class FakeEtcd(Coordinator):
    """A coordinator whose answers a test decides."""

    def __init__(self) -> None:
        self.seat: Seat | None = None
        self.term = 0
        self.cluster_id = ""
        self.silent: set[str] = set()
        self.steps: list[str] = []
        self.ttl_s = LEASE_S
        self.leases = 0

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if name in self.silent or "all" in self.silent:
            raise Unreachable(f"{name} has no answer")

    async def read(self) -> Reign:
        self._step("read")
        return Reign(self.seat, self.term, self.cluster_id)

    async def grant(self, ttl_s: float) -> Lease:
        self._step("grant")
        self.leases += 1
        return Lease(self.leases, ttl_s)

    async def renew(self, lease: Lease) -> float:
        self._step("renew")
        del lease
        return self.ttl_s

    async def revoke(self, lease: Lease) -> None:
        del lease
        self._step("revoke")

    async def take(self, lease: Lease, seat: Seat, before: Reign, cluster_id: str) -> bool:
        del lease
        self._step("take")
        if self.seat is not None or self.term != before.term:
            return False
        self.seat, self.term, self.cluster_id = seat, seat.term, cluster_id
        return True

    async def update(self, lease: Lease, seat: Seat) -> bool:
        del lease
        self._step("update")
        if self.seat is None or self.seat.candidate != seat.candidate:
            return False
        self.seat, self.term = seat, max(self.term, seat.term)
        return True

    async def aclose(self) -> None:
        self.steps.append("aclose")


class Stage:
    """An actor that notes what it was told."""

    def __init__(self, etcd: FakeEtcd) -> None:
        self.etcd = etcd
        self.current = 0
        self.leads = False
        self.announced_early = False
        self.prepared = 0
        self.unprepared = False
        """Led without having asked what was kept."""
        self.problem: StoreError | None = None

    async def prepare(self, candidate: str) -> None:
        assert self.etcd.seat is not None
        assert self.etcd.seat.candidate == candidate  # Nobody else writes from now on.
        if self.problem is not None:
            raise self.problem
        self.prepared += 1

    def lead(self, term: int, cluster_id: str) -> None:
        assert cluster_id == "pool"
        assert self.etcd.seat is not None
        self.announced_early |= self.etcd.seat.serving
        self.unprepared |= not self.prepared
        self.prepared = 0
        self.current, self.leads = term, True

    def follow(self, cluster_id: str) -> None:
        assert cluster_id == "pool"
        self.leads = False

    def term(self) -> int:
        return self.current

    def next_term(self, used: int) -> int:
        return max(used, self.current) + 1


class Play:
    """One campaign under way."""

    def __init__(self) -> None:
        self.etcd = FakeEtcd()
        self.stage = Stage(self.etcd)
        self.office = Office(asyncio.get_running_loop().time)
        self.task: asyncio.Task[None] | None = None
        self.campaign = Campaign(
            self.etcd, self.office, self.stage, address="me:1", cluster_id="pool", lease_s=LEASE_S
        )

    def start(self) -> None:
        self.task = asyncio.create_task(self.campaign.run())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5.0):
            while not condition():  # noqa: ASYNC110 - the campaign has no event to wait for
                await asyncio.sleep(0.001)

    async def leading(self) -> None:
        etcd = self.etcd
        await self.until(lambda: etcd.seat is not None and etcd.seat.serving)


@pytest.fixture
async def play(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Play]:
    monkeypatch.setattr(campaign, "LOOK_S", 0.002)
    stop_time(monkeypatch)
    running = Play()
    yield running
    assert running.task is not None
    running.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running.task
    await running.campaign.resign()
    assert running.etcd.steps[-1] == "aclose"


async def test_a_free_seat_is_taken_and_announced_when_requests_are_answered(play: Play) -> None:
    play.start()
    await play.leading()
    assert play.stage.leads
    assert play.office.holds()
    assert not play.stage.announced_early
    assert (play.etcd.term, play.stage.current) == (1, 1)
    assert not play.stage.unprepared


async def test_who_cannot_read_what_was_kept_serves_nobody_and_leaves_the_seat(play: Play) -> None:
    play.stage.problem = Unreachable("no answer about what was kept")
    play.start()
    await play.until(lambda: play.etcd.steps.count("revoke") >= 1)
    assert not play.stage.leads
    assert not play.office.holds()
    assert "what was kept" in play.office.problem
    play.stage.problem, play.etcd.seat = None, None
    await play.leading()


async def test_a_seat_that_is_taken_is_left_alone(play: Play) -> None:
    play.etcd.seat = Seat("other:1", "other", 7, serving=True)
    play.start()
    await play.until(lambda: play.office.leader == "other:1")
    play.etcd.seat = Seat("third:1", "third", 8)  # It leads and does not serve yet.
    await play.until(lambda: not play.office.leader)
    assert "grant" not in play.etcd.steps
    assert not play.stage.leads


async def test_the_term_is_above_every_one_that_was_used(play: Play) -> None:
    play.etcd.term = 41
    play.start()
    await play.leading()
    assert play.stage.current == 42
    play.stage.current = 99  # A node had obeyed term 98.
    await play.until(lambda: play.etcd.term == 99)
    play.etcd.seat = None  # Somebody deleted the key.
    await play.until(lambda: play.stage.current == 100)


async def test_an_etcd_that_lost_its_data_does_not_bring_old_terms_back(play: Play) -> None:
    play.etcd.seat = Seat("other:1", "other", 41, serving=True)
    play.etcd.term = 41
    play.start()
    await play.until(lambda: play.office.leader == "other:1")
    play.etcd.seat, play.etcd.term, play.etcd.cluster_id = None, 0, ""
    await play.leading()
    assert play.stage.current == play.etcd.term == 42


@pytest.mark.parametrize("step", ["renew", "read", "all"])
async def test_without_a_confirmed_renewal_the_office_ends_in_time(play: Play, step: str) -> None:
    play.start()
    await play.leading()
    loop = asyncio.get_running_loop()
    play.etcd.silent.add(step)
    end_s = loop.time() + play.office.left_s
    await play.until(lambda: not play.office.holds())
    await play.until(lambda: not play.stage.leads)
    assert loop.time() > end_s - 0.001
    assert play.office.ended == 1
    assert "has no answer" in play.office.problem
    play.etcd.seat = None
    play.etcd.silent.clear()
    await play.leading()


async def test_a_lease_that_has_ended_at_etcd_ends_the_office_at_once(play: Play) -> None:
    play.start()
    await play.leading()
    play.etcd.ttl_s = 0.0
    await play.until(lambda: "revoke" in play.etcd.steps)
    assert not play.stage.leads


async def test_a_seat_that_another_one_holds_ends_the_office(play: Play) -> None:
    play.start()
    await play.leading()
    play.etcd.seat = Seat("other:1", "other", 5, serving=True)
    await play.until(lambda: not play.stage.leads)
    await play.until(lambda: play.office.leader == "other:1")


async def test_an_election_without_an_answer_is_not_won(play: Play) -> None:
    play.etcd.silent.add("take")
    play.start()
    await play.until(lambda: play.etcd.steps.count("take") > 2)
    assert not play.stage.leads
    assert play.etcd.steps.count("revoke") >= 2
