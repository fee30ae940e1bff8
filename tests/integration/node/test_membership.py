"""A node finds its master, stays with it, and finds it again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node.stores import Stores
from mooncake_store.errors import InvalidArgument, StaleExtent
from mooncake_store.testing import free_port, wait_until
from mooncake_store.transport import TcpDataPath
from mooncake_store.wire import control

from .fake_master import FakeMaster
from .support import MIB, get, make_thing, put, tcp_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mooncake_storage_node.app import StorageNode

    from .support import NodeUnderTest

    Start = Callable[..., StorageNode]


def test_a_node_may_start_before_its_master(start_node: Start) -> None:
    port = free_port("127.0.0.1")
    node = start_node(master=(f"127.0.0.1:{port}",))
    wait_until(lambda: "no master answers" in str(node.membership.last_problem), 20)
    assert not node.membership.wait_joined(0.0)
    with FakeMaster(port) as late:
        assert late.wait_registered().name == "n"


def test_a_node_comes_back_to_a_master_that_restarts_and_obeys_its_term(
    start_node: Start,
) -> None:
    with FakeMaster(term=1) as first:
        node = start_node(master=(f"127.0.0.1:{first.port}",))
        first.wait_registered()
        wait_until(lambda: first.beats, 20)
        port = first.port
    with FakeMaster(port, term=2) as second:
        register = second.wait_registered()
        assert register.term == 1
        wait_until(lambda: second.heartbeats and second.heartbeats[-1].term == 2, 20)
        assert node.obedience.term == 2


def test_of_several_masters_the_one_that_answers_is_found(start_node: Start) -> None:
    dead = free_port("127.0.0.1")
    with FakeMaster() as alive:
        start_node(master=(f"127.0.0.1:{dead}", f"localhost:{alive.port}"))
        alive.wait_registered()


def test_a_master_that_falls_silent_is_left_for_another_one(start_node: Start) -> None:
    with FakeMaster(term=1) as first, FakeMaster(term=2) as second:
        start_node(master=(f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"))
        first.wait_registered()
        wait_until(lambda: first.beats, 20)
        first.silent = True
        assert second.wait_registered(deadline_s=30).term == 1


def test_the_only_master_may_be_silent_for_a_while(master: FakeMaster, start_node: Start) -> None:
    start_node()
    master.wait_registered()
    master.silent = True
    count = len(master.beats)
    wait_until(lambda: len(master.beats) > count + 2, 30)
    master.silent = False
    count = len(master.beats)
    wait_until(lambda: len(master.beats) > count + 5, 30)
    assert len(master.registers) == 1
    assert master.free() == b""


def test_a_master_of_an_older_reign_is_left_alone(start_node: Start) -> None:
    with FakeMaster(term=5) as new, FakeMaster(term=4) as old:
        node = start_node(master=(f"127.0.0.1:{new.port}", f"127.0.0.1:{old.port}"))
        new.wait_registered()
        new.close()
        old.wait_registered(deadline_s=30)
        wait_until(lambda: "term 4 is over" in str(node.membership.last_problem), 20)
        assert not old.beats
        assert node.obedience.term == 5


def test_a_node_that_its_master_does_not_know_registers_again(
    master: FakeMaster, start_node: Start
) -> None:
    start_node()
    master.wait_registered()
    wait_until(lambda: master.beats, 20)
    master.known = False
    master.wait_registered(2)
    master.known = True
    count = len(master.beats)
    wait_until(lambda: len(master.beats) > count + 2, 20)


def test_what_was_said_of_a_membership_that_is_over_does_not_end_the_next_one(
    start_node: Start,
) -> None:
    """The master lost the node, and it is back before the answer to its last heartbeat arrives."""
    with ForgetfulMaster() as master:
        start_node(master=(f"127.0.0.1:{master.port}",))
        master.wait_registered(2)
        wait_until(lambda: master.answered, 30, what="it hears that it is not known")
        count = len(master.beats)
        wait_until(lambda: len(master.beats) > count + 5, 30)
        assert len(master.registers) == 2


class ForgetfulMaster(FakeMaster):
    """Takes the first heartbeat, lets the node register again, and answers that it is unknown."""

    answered = False

    def handle(self, message: control.Message) -> control.Message:
        answer = super().handle(message)
        if not isinstance(message, control.Heartbeat) or len(self.beats) > 1:
            return answer
        self.leave_last()
        self.wait_registered(2)
        self.answered = True
        return control.HeartbeatReply(self.term, known=False)


def test_news_that_comes_while_it_is_being_registered_is_not_registered_again(
    start_node: Start, master: FakeMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orders that are on their way over the connection before would be lost with it."""
    records = Stores.records
    told: list[Stores] = []

    def records_and_news(stores: Stores) -> tuple[control.SegmentRecord, ...]:
        found = records(stores)
        if not told and threading.current_thread().name == "control":
            told.append(stores)
            stores.on_change()
        return found

    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(Stores, "records", records_and_news)
    start_node(ssd=(f"{tmp_path / 'disk'}:32MiB",))
    master.wait_registered_with_stores()
    count = len(master.beats)
    wait_until(lambda: len(master.beats) > count + 5, 30)
    assert told
    # One without it came before, where it was opened late.
    assert [len(register.segments) for register in master.registers].count(2) == 1


def test_heartbeats_go_on_while_the_node_works(master: FakeMaster, start_node: Start) -> None:
    """There is always an order that waits for the node, until it has sent some heartbeats."""
    start_node(dram=64 * MIB)
    register = master.wait_registered()
    incarnation = register.segments[0].incarnation
    things = [make_thing(incarnation, n * 512, 10, key=f"k{n}") for n in range(20_000)]
    with tcp_of(register) as tcp:
        for at in range(0, len(things), 1000):
            put(tcp, *things[at : at + 1000])
    listing = control.ListDirectory(1, incarnation)
    free = control.FreeExtents(1, [thing.item for thing in things[:5000]])
    count = len(master.beats)
    answers = master.keep_busy([listing, free], lambda: len(master.beats) > count + 5, 60)
    assert isinstance(answers[0], control.DirectoryPage)
    assert answers[0].entries
    assert answers[1] == control.Freed(b"\x01" * 5000)


def test_the_directory_is_told_in_pages_with_everything_a_new_index_needs(
    master: FakeMaster, start_node: Start
) -> None:
    start_node()
    register = master.wait_registered()
    incarnation = register.segments[0].incarnation
    things = [make_thing(incarnation, n * 4096, n, key=f"key {n}", epoch=n % 3) for n in range(50)]
    with tcp_of(register) as tcp:
        put(tcp, *things)
    master.free(things[10].item)
    entries: list[control.DirectoryEntry] = []
    cursor = 0
    while cursor >= 0:
        page = master.order(control.ListDirectory(1, incarnation, cursor, 7), control.DirectoryPage)
        assert len(page.entries) <= 7
        entries += page.entries
        cursor = page.cursor
    told = {
        (entry.offset, entry.version, entry.length, entry.epoch, entry.namespace, entry.key)
        for entry in entries
    }
    assert len(told) == len(entries) == 49
    assert told == {
        (t.offset, t.identity.version, t.identity.length, t.identity.epoch, "n", f"key {n}")
        for n, t in enumerate(things)
        if n != 10
    }


def test_an_extent_that_is_damaged_is_dropped_when_it_is_listed(
    master: FakeMaster, start_node: Start
) -> None:
    node = start_node()
    register = master.wait_registered()
    incarnation = register.segments[0].incarnation
    good, bad = make_thing(incarnation, 0, 100), make_thing(incarnation, 4096, 100)
    with tcp_of(register) as tcp:
        put(tcp, good, bad)
        node.pool.segment.extents[4096 + 30] ^= 1
        page = master.order(control.ListDirectory(1, incarnation), control.DirectoryPage)
        assert [entry.offset for entry in page.entries] == [0]
        assert node.obedience.damaged == 1
        with pytest.raises(StaleExtent):
            get(tcp, bad)


def test_a_raised_epoch_hides_older_objects_at_once_and_never_goes_back(
    master: FakeMaster, start_node: Start
) -> None:
    start_node()
    register = master.wait_registered()
    thing = make_thing(register.segments[0].incarnation, 0, 100, epoch=3)
    with tcp_of(register) as tcp:
        put(tcp, thing)
        master.order(control.SetEpochs(1, {0: 3}), control.Done)
        assert get(tcp, thing) == thing.content
        master.order(control.SetEpochs(1, {0: 4}), control.Done)
        with pytest.raises(StaleExtent):
            get(tcp, thing)
        master.order(control.SetEpochs(1, {0: 3}), control.Done)
        with pytest.raises(StaleExtent):
            get(tcp, thing)


@pytest.mark.parametrize(
    "order",
    [
        control.SetEpochs(1, {-1: 1}),
        control.SetEpochs(1, {4096: 1}),
        control.SetEpochs(1, {0: 1 << 32}),
        control.SetEpochs(-1, {}),
        control.SetEpochs(1 << 23, {}),
        control.SetEpochs((1 << 64) - 1, {}),
        control.ListDirectory(1, 12345),
        control.FreeExtents(1, [control.FreeItem(0, 0, 512, 1)]),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_and_changes_nothing(
    master: FakeMaster, start_node: Start, order: control.Message
) -> None:
    start_node()
    register = master.wait_registered()
    if isinstance(order, control.FreeExtents):
        # Memory that is gone holds nothing: it is free.
        assert master.order(order, control.Freed).freed == b"\x01"
        incarnation = register.segments[0].incarnation
        for offset, size in ((-512, 512), (7, 512), (0, 0), (0, 1 << 60), (1 << 60, 512)):
            with pytest.raises(InvalidArgument):
                master.free(control.FreeItem(incarnation, offset, size, 1))
        for version in (-1, 1 << 63, (1 << 64) - 1):
            with pytest.raises(InvalidArgument):
                master.free(control.FreeItem(incarnation, 0, 512, version))
    else:
        with pytest.raises(InvalidArgument):
            master.order(order, control.Done)
    assert master.free() == b""


def test_ipv6_and_several_addresses_share_one_port(master: FakeMaster, start_node: Start) -> None:
    try:
        node = start_node(bind=("127.0.0.1", "::1"))
    except Exception as error:  # noqa: BLE001 - whatever this machine says
        pytest.skip(f"no IPv6 here: {error}")
    if len(node.bound) < 2:
        pytest.skip("this machine has no IPv6 loopback")
    register = master.wait_registered()
    thing = make_thing(register.segments[0].incarnation, 0, 1000)
    for host in ("127.0.0.1", "::1"):
        where = (host, register.port)
        with TcpDataPath(*where, node_id=register.node_id, node="n") as tcp:
            put(tcp, thing)
            assert get(tcp, thing) == thing.content


def test_a_wildcard_bind_advertises_the_way_to_the_master(
    master: FakeMaster, start_node: Start
) -> None:
    start_node(bind=("0.0.0.0",))  # noqa: S104 - what is tested
    assert master.wait_registered().host == "127.0.0.1"


def test_what_is_advertised_is_what_clients_are_told(master: FakeMaster, start_node: Start) -> None:
    node = start_node(advertise="node.example:7777", labels=("rack=r1", "zone=z2"))
    register = master.wait_registered()
    assert (register.host, register.port) == ("node.example", 7777)
    assert register.labels == {"rack": "r1", "zone": "z2"}
    assert node.bound[0].port != 7777


@pytest.mark.processes
def test_without_a_master_a_bounded_wait_ends_with_one_line(
    start_process: Callable[..., NodeUnderTest],
) -> None:
    port = free_port("127.0.0.1")
    node = start_process(master=f"127.0.0.1:{port}", register_timeout="1s")
    wait_until(lambda: not node.is_running, 20)
    assert node.exit_code == 4
    last = node.output.strip().splitlines()[-1]
    assert f"127.0.0.1:{port}" in last
    assert "1 s" in last


@pytest.mark.processes
def test_a_clean_stop_leaves_the_master_at_once(
    master: FakeMaster, start_process: Callable[..., NodeUnderTest]
) -> None:
    node = start_process()
    master.wait_registered()
    wait_until(lambda: master.beats, 20)
    assert node.terminate() == 0
    wait_until(lambda: not master.connected, 20, what="the node has left")
    assert "Traceback" not in node.output


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dram": "0"}, "dram"),
        ({"dram": "17"}, "dram"),
        ({"dram": "63TiB"}, "does not fit"),
        ({"advertise": "::"}, "advertise"),
        ({"bind": "203.0.113.7"}, "bind"),
        ({"bind": "no.such.host.invalid"}, "bind"),
        ({"labels": "rack"}, "labels"),
        ({"numa_node": "900"}, "numa"),
        ({"memory_root": "/proc/nowhere"}, "memory-root"),
        ({"memory_root": "/proc"}, "no memory but a file system of type proc"),
        ({"name": "../x"}, "name"),
        ({"master": "a:b:c:d"}, "master"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    start_process: Callable[..., NodeUnderTest], options: dict[str, str], words: str
) -> None:
    node = start_process(**options)
    wait_until(lambda: not node.is_running, 20)
    assert node.exit_code == 2
    lines = [line for line in node.output.splitlines() if line.startswith("mooncake-store:")]
    assert len(lines) == 1
    assert words in lines[0]
    assert "Traceback" not in node.output
