"""What the leader keeps for the next one: who waits for it, and what the silence of etcd means."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, cast

import pytest

from mooncake_master.core import Forget, Master, Remember, Remembered, Reply
from mooncake_master.core.remembered import DrainJob, Entry, KnownNamespace, Limits
from mooncake_master.leadership import Office
from mooncake_master.standing import SharedKeeping, shared
from mooncake_master.standing.shared import BATCH_MAX, SHARED, Archive, Batch
from mooncake_master.switchboard import Switchboard
from mooncake_store.errors import NotLeader, Overloaded, StoreError, Unreachable
from mooncake_store.testing import VirtualClock
from mooncake_store.wire.control import Done, Exists, Message
from tests.unit.master.looptime import stop_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mooncake_master.core import Instruction

LIMIT = Remember("limits", "space", Limits(0.5))


class FakeArchive(Archive):
    """An archive whose answers a test decides."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Entry]] | None = {}
        self.candidate = "me"
        self.problem: StoreError | None = None
        self.loses_answer = False
        self.written: list[Batch] = []
        self.closed = False
        self.is_asked = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def read(self) -> dict[str, dict[str, Entry]] | None:
        assert not self.is_asked, "one call at a time"
        return self.tables

    async def write(self, candidate: str, batch: Batch) -> None:
        assert not self.is_asked, "one call at a time"
        self.is_asked = True
        try:
            await asyncio.sleep(0)
            await self.answers.wait()
        finally:
            self.is_asked = False
        if self.problem is not None:
            raise self.problem
        if candidate != self.candidate:
            raise NotLeader("the seat is not ours")
        self.written.append(batch)
        if self.loses_answer:
            self.loses_answer = False
            raise Unreachable("the answer was lost")

    async def aclose(self) -> None:
        self.closed = True


@pytest.fixture
async def archive() -> FakeArchive:
    return FakeArchive()


@pytest.fixture
async def keeping(
    archive: FakeArchive, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SharedKeeping]:
    monkeypatch.setattr(shared, "RETRY_S", 0.001)
    stop_time(monkeypatch)
    keeping = SharedKeeping(archive)
    await keeping.begin("me", Remembered(lasting=False))
    task = asyncio.create_task(keeping.run())
    yield keeping
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await keeping.aclose()
    assert archive.closed


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not condition():  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.001)


async def test_what_an_operator_decides_is_answered_when_it_is_kept(
    keeping: SharedKeeping, archive: FakeArchive
) -> None:
    archive.problem = Unreachable("etcd is away")
    promise = keeping.keep([LIMIT])
    assert promise is not None
    await until(lambda: keeping.problem == "etcd is away")
    assert not promise.done()
    archive.problem = None
    await promise
    assert [batch.changes for batch in archive.written] == [(("limits", "space", Limits(0.5)),)]
    assert not keeping.problem


async def test_nobody_waits_for_which_nodes_and_namespaces_there_are(
    keeping: SharedKeeping, archive: FakeArchive
) -> None:
    space = KnownNamespace(1, "a", 1)
    assert keeping.keep([Remember("namespaces", "a", space), Forget("nodes", "gone")]) is None
    await until(lambda: bool(archive.written))
    assert archive.written[0].changes == (("namespaces", "a", space), ("nodes", "gone", None))


async def test_what_cannot_be_kept_in_time_is_said_and_kept_later(
    keeping: SharedKeeping, archive: FakeArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "PROMISE_S", 0.01)
    archive.problem = Unreachable("etcd is away")
    promise = keeping.keep([LIMIT])
    assert promise is not None
    with pytest.raises(Overloaded, match="the change stands, but it may be forgotten"):
        await promise
    archive.problem = None
    await until(lambda: bool(archive.written))
    assert archive.written[0].changes == (("limits", "space", Limits(0.5)),)


async def test_a_write_whose_answer_was_lost_is_tried_again_as_the_same_write(
    keeping: SharedKeeping, archive: FakeArchive
) -> None:
    archive.loses_answer = True
    first = keeping.keep([LIMIT])
    await until(lambda: bool(archive.written))
    second = keeping.keep([Forget("limits", "space")])
    assert first is not None
    assert second is not None
    await asyncio.gather(first, second)
    one, again, other = archive.written
    assert one == again
    assert other.changes == (("limits", "space", None),)


async def test_who_lost_the_seat_keeps_nothing_more_and_says_so(
    keeping: SharedKeeping, archive: FakeArchive
) -> None:
    archive.candidate = "other"
    promise = keeping.keep([LIMIT])
    assert promise is not None
    with pytest.raises(NotLeader):
        await promise
    archive.candidate = "me"
    with pytest.raises(NotLeader):
        keeping.keep([LIMIT])
    assert not archive.written


async def test_a_new_reign_owes_nothing_of_the_one_before(
    keeping: SharedKeeping, archive: FakeArchive
) -> None:
    archive.problem = Unreachable("etcd is away")
    keeping.keep([Remember("namespaces", "a", KnownNamespace(1, "a", 1))])
    await until(lambda: bool(keeping.problem))
    keeping.end()
    archive.problem = None
    job = DrainJob("id", "node", 1.0)
    archive.tables = {"drains": {"id": job}}
    await keeping.begin("me", Remembered(lasting=False))
    assert keeping.remembered.drains == {"id": job}
    assert keeping.remembered.kept == SHARED
    promise = keeping.keep([LIMIT])
    assert promise is not None
    await promise
    assert [batch.changes for batch in archive.written] == [(("limits", "space", Limits(0.5)),)]


async def test_a_new_reign_begins_with_what_a_write_under_way_has_left(
    keeping: SharedKeeping, archive: FakeArchive
) -> None:
    archive.answers.clear()
    promise = keeping.keep([LIMIT])
    assert promise is not None
    await until(lambda: archive.is_asked)
    begun = asyncio.create_task(keeping.begin("me", Remembered(lasting=False)))
    with pytest.raises(NotLeader):
        await promise
    archive.tables = {"limits": {"space": Limits(0.5)}}
    archive.answers.set()
    async with asyncio.timeout(5.0):
        await begun
    assert keeping.remembered.limits == {"space": Limits(0.5)}
    assert [batch.changes for batch in archive.written] == [(("limits", "space", Limits(0.5)),)]


async def test_an_etcd_that_knows_nothing_is_told_what_was_seen(
    keeping: SharedKeeping, archive: FakeArchive
) -> None:
    archive.tables = None
    spaces = {f"s{n}": KnownNamespace(n, f"s{n}", 1) for n in range(BATCH_MAX + 1)}
    await keeping.begin("me", Remembered({"namespaces": spaces}, lasting=False))
    assert keeping.remembered.namespaces == spaces
    await until(lambda: sum(len(batch.changes) for batch in archive.written) == len(spaces))
    assert [len(batch.changes) for batch in archive.written] == [BATCH_MAX, 1]


# --- with the switchboard ------------------------------------------------------------------------


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


class LimitingCore:
    """A core that sets a limit whatever it is asked."""

    def handle(self, peer: int, request_id: int, *_: object) -> list[Instruction]:
        return [LIMIT, Reply(peer, request_id, Done())]


@pytest.mark.parametrize("outcome", ["kept", "refused", "office lost"])
async def test_a_reply_waits_for_what_is_kept(
    keeping: SharedKeeping, archive: FakeArchive, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    monkeypatch.setattr(shared, "PROMISE_S", 0.05)
    clock, caller = VirtualClock(), Caller()
    office = Office(clock)
    office.extend(clock(), 10.0)
    switchboard = Switchboard(cast("Master", LimitingCore()), clock, office=office, keeper=keeping)
    number = switchboard.attach(caller)
    archive.problem = Unreachable("etcd is away")
    switchboard.request(number, 1, Exists(0, 1, ["key"]), clock() + 5.0, clock())
    await until(lambda: bool(keeping.problem))
    assert not caller.answers
    if outcome != "refused":
        archive.problem = None
    if outcome == "office lost":
        office.leave()
    await until(lambda: bool(caller.answers))
    kinds = {"kept": Done, "refused": Overloaded, "office lost": NotLeader}
    assert [type(answer) for answer in caller.answers] == [kinds[outcome]]
