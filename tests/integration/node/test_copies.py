"""``CopyExtents`` between running nodes: what arrives, and all that never may."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mooncake_store.deadline import Deadline
from mooncake_store.errors import StaleExtent, StaleTerm, StoreError
from mooncake_store.testing import BlackHole, CloseAfter, DropAfter, FaultProxy, wait_until
from mooncake_store.testing.faults import Direction
from mooncake_store.wire import control

from .fake_master import FakeMaster
from .support import MIB, Thing, get, make_thing, put, shm_of, tcp_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mooncake_storage_node.app import StorageNode
    from mooncake_store.transport import DataPath

    from .support import NodeUnderTest

    Start = Callable[..., StorageNode]

NEW_NUMBER = 1 << 40 | 1 << 30
"""An attempt of term 1 that is later than all that the tests put."""


class Pair:
    """A source and a target, each with a master of its own that orders it about."""

    def __init__(self, start: Start, source_master: FakeMaster, master: FakeMaster) -> None:
        self.source_node = start(name="source")
        self.source = source_master.wait_registered()
        self.target_node = start(name="target", master=(f"127.0.0.1:{master.port}",))
        self.target = master.wait_registered()
        self.source_master = source_master
        self.master = master
        self.number = NEW_NUMBER

    def thing(self, size: int, *, key: str = "k", offset: int = 0) -> Thing:
        """Put an object on the source."""
        thing = make_thing(self.source.segments[0].incarnation, offset, size, key=key)
        with tcp_of(self.source) as path:
            put(path, thing)
        return thing

    def item(
        self, thing: Thing, offset: int = MIB, *, port: int = 0, here: bool = False
    ) -> control.CopyItem:
        self.number += 1
        return control.CopyItem(
            "" if here else self.source.node_id,
            self.source.host,
            port or self.source.port,
            thing.incarnation,
            thing.offset,
            0,
            thing.identity.version,
            thing.bytes,
            (self.source if here else self.target).segments[0].incarnation,
            offset,
            self.number,
        )

    def copy(self, *items: control.CopyItem, term: int = 0) -> list[control.CopyResult]:
        order = control.CopyExtents(term or self.master.term, list(items))
        return self.master.order(order, control.Copied, 60.0).items

    def read(self, item: control.CopyItem, thing: Thing, path: DataPath) -> bytes:
        """Read a copy as a client does that the master told of it."""
        task = replace(thing.read_task(), incarnation=item.incarnation, offset=item.offset)
        task.attempt = item.attempt
        path.read([task], Deadline(30))
        if task.error is not None:
            raise task.error
        return bytes(task.targets[0])

    def listed(self) -> list[tuple[int, int, int]]:
        """Return (offset, version, attempt) of all that the target's directory names."""
        order = control.ListDirectory(self.master.term, self.target.segments[0].incarnation)
        page = self.master.order(order, control.DirectoryPage)
        return [(entry.offset, entry.version, entry.attempt) for entry in page.entries]


@pytest.fixture
def pair(start_node: Start, master: FakeMaster) -> Iterator[Pair]:
    with FakeMaster() as second:
        yield Pair(start_node, master, second)


def test_a_copy_is_read_under_its_number_by_every_path(pair: Pair) -> None:
    things = [
        pair.thing(size, key=f"k{size}", offset=offset)
        for size, offset in ((0, 0), (1000, 512 << 4), (300_000, MIB), (5 * MIB, 2 * MIB))
    ]
    items = [pair.item(thing, 8 * MIB + thing.offset) for thing in things]
    results = pair.copy(*items)
    assert [(result.offset, result.code) for result in results] == [
        (item.offset, "") for item in items
    ]
    with tcp_of(pair.target) as tcp, shm_of(pair.target) as shm:
        for item, thing in zip(items, things, strict=True):
            assert pair.read(item, thing, tcp) == thing.content
            assert pair.read(item, thing, shm) == thing.content
            with pytest.raises(StaleExtent):
                get(tcp, replace(thing, incarnation=item.incarnation, offset=item.offset))
    assert pair.listed() == [(item.offset, item.version, item.attempt) for item in items]
    assert pair.copy(*items) == results  # The answer was lost: asked again, it is the same.


def test_a_copy_within_a_node_moves_an_extent(pair: Pair) -> None:
    thing = pair.thing(2 * MIB)
    item = pair.item(thing, 8 * MIB, here=True)
    order = control.CopyExtents(1, [item])
    assert pair.source_master.order(order, control.Copied).items[0].code == ""
    with shm_of(pair.source) as path:
        assert pair.read(item, thing, path) == thing.content


def test_a_copy_can_be_copied_further(pair: Pair) -> None:
    thing = pair.thing(1000)
    first = pair.item(thing, 8 * MIB, here=True)
    pair.source_master.order(control.CopyExtents(1, [first]), control.Copied)
    second = pair.item(thing, MIB)
    fields = {name: getattr(second, name) for name in second.__struct_fields__}
    moved = {"source_offset": first.offset, "source_attempt": first.attempt}
    second = control.CopyItem(**{**fields, **moved})
    assert pair.copy(second)[0].code == ""
    with tcp_of(pair.target) as path:
        assert pair.read(second, thing, path) == thing.content


@pytest.mark.parametrize("here", [False, True])
def test_orders_with_numbers_of_no_extent_end_no_thread(pair: Pair, here: bool) -> None:  # noqa: FBT001 - pytest passes it
    """FR-050: each is answered, and the node copies on."""
    thing = pair.thing(1000)
    nasty = (-1, -(1 << 63), 1 << 63, (1 << 64) - 1)
    fields = ("source_incarnation", "source_offset", "source_attempt", "version", "bytes")
    for name in (*fields, "source_port", "offset", "attempt"):
        for number in nasty:
            order = pair.item(thing, here=here)
            values = {each: getattr(order, each) for each in order.__struct_fields__}
            master = pair.source_master if here else pair.master
            message = control.CopyExtents(1, [control.CopyItem(**{**values, name: number})])
            (result,) = master.order(message, control.Copied, 60.0).items
            assert result.code or (here and name == "source_port"), (name, number)
    item = pair.item(thing, 8 * MIB)
    assert pair.copy(item)[0].code == ""


def flip(pair: Pair, at: int) -> None:
    segment = pair.source_node.pool.segment
    segment.extents[at] ^= 16


def test_a_flipped_byte_is_never_published(pair: Pair) -> None:
    """Payload, chunk table, name block: each is verified before anybody can read the copy."""
    for number, at in enumerate((64, 64 + 299_999, 64 + 300_000 + 8, 64 + 300_000 + 16 + 37)):
        thing = pair.thing(300_000, key=f"k{number}", offset=number * MIB)
        flip(pair, thing.offset + at)
        assert pair.copy(pair.item(thing, number * MIB))[0].code == "checksum_mismatch"
    assert pair.listed() == []


def test_a_source_that_was_freed_or_reused_is_stale(pair: Pair) -> None:
    thing = pair.thing(300_000)
    pair.source_master.free(thing.item)
    assert pair.copy(pair.item(thing))[0].code == "stale_extent"
    pair.thing(300_000, key="other")
    assert pair.copy(pair.item(thing))[0].code == "stale_extent"
    assert pair.listed() == []


def test_a_source_that_breaks_off_costs_its_own_copies_only(pair: Pair) -> None:
    thing = pair.thing(8 * MIB)
    small = pair.thing(1000, key="small", offset=16 * MIB)
    with FaultProxy(pair.source.host, pair.source.port) as proxy:
        proxy.set(CloseAfter(MIB), Direction.DOWN)
        broken = pair.item(thing, MIB, port=proxy.port)
        good = pair.item(small, 16 * MIB)
        results = pair.copy(broken, good)
    assert [result.code for result in results] == ["unreachable", ""]
    assert pair.listed() == [(good.offset, good.version, good.attempt)]


def test_a_source_that_is_killed_is_unreachable(
    pair: Pair, start_process: Callable[..., NodeUnderTest]
) -> None:
    process = start_process("victim")
    victim = pair.source_master.wait_registered(2)
    thing = make_thing(victim.segments[0].incarnation, 0, 16 * MIB)
    with tcp_of(victim) as path:
        put(path, thing)
    pair.source = victim
    with FaultProxy(victim.host, victim.port) as proxy:
        proxy.set(DropAfter(4 * MIB), Direction.DOWN)
        item = pair.item(thing, MIB, port=proxy.port)
        answers = start_copy(pair, item)
        wait_until(lambda: proxy.passed_bytes(Direction.DOWN) > MIB, 20, what="the copy runs")
        process.kill()
        results = answers()
    assert results[0].code in {"unreachable", "deadline_exceeded"}
    assert pair.copy(pair.item(thing, MIB))[0].code == "unreachable"
    assert pair.listed() == []


def start_copy(pair: Pair, *items: control.CopyItem) -> Callable[[], list[control.CopyResult]]:
    """Order a copy without waiting; the result waits."""
    answers: list[list[control.CopyResult] | Exception] = []

    def order() -> None:
        try:
            answers.append(pair.copy(*items))
        except StoreError as error:
            answers.append(error)

    thread = threading.Thread(target=order)
    thread.start()

    def wait() -> list[control.CopyResult]:
        thread.join(60)
        assert answers, "the order was not answered"
        answer = answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return wait


def test_a_target_that_is_freed_while_the_copy_runs_stays_free(pair: Pair) -> None:
    """The room has a new owner at once: not a byte of the copy may come after the answer."""
    thing = pair.thing(8 * MIB)
    with FaultProxy(pair.source.host, pair.source.port) as proxy:
        proxy.set(DropAfter(4 * MIB), Direction.DOWN)
        item = pair.item(thing, MIB, port=proxy.port)
        answer = start_copy(pair, item)
        wait_until(lambda: proxy.passed_bytes(Direction.DOWN) > 2 * MIB, 20, what="it runs")
        target = control.FreeItem(item.incarnation, item.offset, item.bytes, item.attempt)
        assert pair.master.free(target) == b"\x01"
        before = bytes(pair.target_node.pool.segment.extents[MIB : 9 * MIB])
        proxy.drop_connections()
        assert answer()[0].code in {"stale_term", "unreachable"}
    assert bytes(pair.target_node.pool.segment.extents[MIB : 9 * MIB]) == before
    assert pair.copy(item)[0].code == "stale_term"
    assert pair.listed() == []


def test_orders_and_heartbeats_do_not_wait_for_copies(pair: Pair) -> None:
    thing = pair.thing(MIB)
    with FaultProxy(pair.source.host, pair.source.port) as proxy:
        proxy.set(BlackHole(), Direction.BOTH)
        items = [pair.item(thing, offset * MIB, port=proxy.port) for offset in range(12)]
        answer = start_copy(pair, *items)
        wait_until(proxy.accepted, 20, what="a copy begins")
        beats = len(pair.master.beats)
        assert pair.listed() == []
        wait_until(lambda: len(pair.master.beats) > beats + 3, 20, what="heartbeats go on")
        assert pair.listed() == []
        results = answer()
    assert {result.code for result in results} <= {"deadline_exceeded", "unreachable"}


def test_an_order_of_an_old_term_is_refused_and_a_new_reign_ends_old_copies(
    pair: Pair,
) -> None:
    thing = pair.thing(8 * MIB)
    with FaultProxy(pair.source.host, pair.source.port) as proxy:
        proxy.set(DropAfter(4 * MIB), Direction.DOWN)
        item = pair.item(thing, MIB, port=proxy.port)
        answer = start_copy(pair, item)
        wait_until(lambda: proxy.passed_bytes(Direction.DOWN) > 2 * MIB, 20, what="it runs")
        pair.target_node.obedience.adopt(2)
        proxy.heal()
        proxy.drop_connections()
        assert answer()[0].code in {"stale_term", "unreachable"}
    pair.master.term = 2
    with pytest.raises(StaleTerm):
        pair.copy(pair.item(thing, MIB), term=1)
    pair.master.wait_registered(2)
    assert pair.copy(pair.item(thing, MIB))[0].code == "stale_term"
    assert pair.listed() == []


def test_a_place_that_cannot_be_is_refused_by_name(pair: Pair) -> None:
    thing = pair.thing(1000)
    item = pair.item(thing)
    fields = {name: getattr(item, name) for name in item.__struct_fields__}
    for changes in ({"incarnation": 1}, {"offset": 100}, {"bytes": 1 << 50}, {"attempt": 1}):
        result = pair.copy(control.CopyItem(**{**fields, **changes}))[0]
        assert (result.offset, result.code) == (-1, "invalid_argument")
        assert result.message
    assert pair.copy() == []
