"""Writers that come too late harm nobody (ADR 2): over TCP and through shared memory."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from mooncake_store.deadline import Deadline
from mooncake_store.errors import Closed, StaleExtent, StaleTerm
from mooncake_store.testing import wait_until
from mooncake_store.wire import control, data

from .support import MIB, Thing, get, greeted_socket, make_thing, put, receive, shm_of, tcp_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mooncake_storage_node.app import StorageNode
    from mooncake_store.transport import ShmDataPath
    from mooncake_store.wire.control import Register

    from .fake_master import FakeMaster

    Start = Callable[..., StorageNode]


class Writer:
    """``local_writer`` as a process that has written its first MiB and goes on when it is told."""

    def __init__(self, register: Register, offset: int) -> None:
        incarnation = register.segments[0].incarnation
        self.offset = offset
        self.size = 4 * MIB
        order = {
            "incarnation": incarnation,
            "offset": offset,
            "size": self.size,
            "term": 1,
            "local_path": register.local_path,
            "node_id": register.node_id,
        }
        self.process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", f"{__package__}.local_writer", json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        word, pid, version = self.process.stdout.readline().split()
        assert word == "begun"
        assert int(pid) == self.process.pid
        self.version = int(version)
        self.item = control.FreeItem(incarnation, offset, self.size + MIB, self.version)

    def result(self) -> str:
        """Let it go on, and return what became of it."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def register(master: FakeMaster, start_node: Start) -> Register:
    start_node()
    return master.wait_registered()


@pytest.fixture
def writer(register: Register) -> Iterator[Writer]:
    writer = Writer(register, 8 * MIB)
    yield writer
    writer.end()


def newer(register: Register, offset: int, size: int = 4 * MIB) -> Thing:
    return make_thing(register.segments[0].incarnation, offset, size, key="new", term=2)


def test_a_stopped_local_writer_keeps_its_extent_in_quarantine_until_it_goes_on(
    master: FakeMaster, register: Register, writer: Writer
) -> None:
    os.kill(writer.process.pid, signal.SIGSTOP)
    for _ in range(3):
        assert master.free(writer.item) == b"\0"
    # Everybody else's room can be freed meanwhile.
    other = make_thing(register.segments[0].incarnation, 0, 1000)
    with tcp_of(register) as tcp:
        put(tcp, other)
    assert master.free(other.item, writer.item) == b"\x01\0"
    os.kill(writer.process.pid, signal.SIGCONT)
    assert writer.result() == "StaleTerm"
    assert master.free(writer.item) == b"\x01"
    _reuse(register, writer)


def test_the_room_of_a_killed_local_writer_returns_at_once(
    master: FakeMaster, register: Register, writer: Writer
) -> None:
    os.kill(writer.process.pid, signal.SIGSTOP)
    assert master.free(writer.item) == b"\0"
    writer.end()
    assert master.free(writer.item) == b"\x01"
    _reuse(register, writer)


def test_a_restarted_node_still_knows_who_writes(master: FakeMaster, start_node: Start) -> None:
    first = start_node(on_stop="keep")
    register = master.wait_registered()
    writer = Writer(register, 8 * MIB)
    os.kill(writer.process.pid, signal.SIGSTOP)
    first.stop()
    start_node()
    assert master.wait_registered(2).segments == register.segments
    assert master.free(writer.item) == b"\0"
    writer.end()
    assert master.free(writer.item) == b"\x01"


def test_a_new_reign_is_told_where_old_writers_still_write(
    master: FakeMaster, register: Register, writer: Writer
) -> None:
    os.kill(writer.process.pid, signal.SIGSTOP)
    incarnation = register.segments[0].incarnation
    order = control.ListDirectory(1, incarnation)
    assert master.order(order, control.DirectoryPage).writing == []
    order = control.ListDirectory(2, incarnation)
    (item,) = master.order(order, control.DirectoryPage).writing
    assert (item.offset, item.version) == (writer.offset, writer.version)
    assert writer.size <= item.bytes <= writer.size + MIB
    assert master.free(item, term=2) == b"\0"
    os.kill(writer.process.pid, signal.SIGCONT)
    assert writer.result() == "StaleTerm"
    assert master.order(order, control.DirectoryPage).writing == []
    assert master.free(item, term=2) == b"\x01"


def test_a_late_order_to_free_an_old_attempt_does_not_wait_for_its_newer_owner(
    master: FakeMaster, register: Register, writer: Writer
) -> None:
    del register
    os.kill(writer.process.pid, signal.SIGSTOP)
    older = control.FreeItem(
        writer.item.incarnation, writer.offset, writer.item.bytes, writer.version - 1
    )
    assert master.free(older) == b"\x01"
    os.kill(writer.process.pid, signal.SIGCONT)
    assert writer.result() == "landed"


def _reuse(register: Register, writer: Writer) -> None:
    """Give the extent to a new owner; its bytes stay what they are."""
    thing = newer(register, writer.offset)
    with tcp_of(register) as tcp:
        put(tcp, thing)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            assert get(tcp, thing) == thing.content
            time.sleep(0.1)


# --- TCP ----------------------------------------------------------------------------------------


class SlowWrite:
    """A TCP write that has sent some of its bytes."""

    def __init__(self, register: Register, thing: Thing, sent: int) -> None:
        self.thing = thing
        header, tail = thing.sealed
        self._raw = header + thing.content + tail
        self.socket = greeted_socket(register)
        entry = (thing.incarnation, thing.offset, thing.identity.version, 0, len(self._raw))
        self.socket.sendall(
            data.encode_request(
                data.Operation.WRITE, 7, [entry], deadline_ms=60_000, payload_bytes=len(self._raw)
            )
        )
        self._sent = sent
        self.socket.sendall(self._raw[:sent])

    def finish(self) -> int:
        """Send the rest and return the status."""
        self.socket.sendall(self._raw[self._sent :])
        raw = receive(self.socket, data.HEADER_BYTES + data.STATUS_BYTES)
        (status,) = data.decode_statuses(raw[data.HEADER_BYTES :], 1)
        return status


@pytest.mark.parametrize("sent", [0, 10, 64, 100_000, 4 * MIB + 64])
def test_a_write_over_tcp_is_cut_off_before_its_extent_is_free(
    master: FakeMaster, start_node: Start, sent: int
) -> None:
    node = start_node(stall_timeout_s=60.0)
    register = master.wait_registered()
    old = make_thing(register.segments[0].incarnation, 8 * MIB, 4 * MIB, key="old")
    slow = SlowWrite(register, old, sent)
    if sent:
        wait_until(lambda: len(node._incoming) == 1, 30)
    assert master.free(old.item) == b"\x01"
    new = newer(register, 8 * MIB)
    with tcp_of(register) as tcp:
        put(tcp, new)
        assert slow.finish() == data.Status.FENCED
        assert get(tcp, new) == new.content
        with pytest.raises(StaleExtent):
            get(tcp, old)
        # The connection goes on: it was drained, not cut.
        assert slow.socket.getpeername()
    slow.socket.close()


def test_a_new_reign_cuts_off_the_writes_of_the_old_one(
    master: FakeMaster, start_node: Start
) -> None:
    node = start_node(stall_timeout_s=60.0)
    register = master.wait_registered()
    old = make_thing(register.segments[0].incarnation, 0, MIB)
    slow = SlowWrite(register, old, MIB // 2)
    wait_until(lambda: len(node._incoming) == 1, 30)
    master.order(control.SetEpochs(2, {}), control.Done)
    assert slow.finish() == data.Status.FENCED
    slow.socket.close()


def test_a_writer_that_goes_away_half_way_leaves_nothing(
    master: FakeMaster, start_node: Start
) -> None:
    node = start_node()
    register = master.wait_registered()
    thing = make_thing(register.segments[0].incarnation, 0, MIB)
    slow = SlowWrite(register, thing, MIB // 2)
    wait_until(lambda: len(node._incoming) == 1, 30)
    slow.socket.close()
    wait_until(lambda: not len(node._incoming), 30)
    page = master.order(control.ListDirectory(1, thing.incarnation), control.DirectoryPage)
    assert page.entries == []
    with tcp_of(register) as tcp:
        with pytest.raises(StaleExtent):
            get(tcp, thing)
        put(tcp, thing)
        assert get(tcp, thing) == thing.content


def test_a_free_between_a_local_writers_checks_and_its_publication_wins(
    master: FakeMaster, register: Register
) -> None:
    """The writer publishes over the fence: the answer "free" comes only after that is undone."""
    thing = make_thing(register.segments[0].incarnation, 0, 3 * MIB)
    with shm_of(register) as shm, tcp_of(register) as tcp:
        loan = shm.reserve(thing.incarnation, thing.offset, thing.identity)
        loan.payload[:] = thing.content
        # What a publication does, with the order to free in the middle of it.
        segment = shm._segment(thing.incarnation).memory.segment
        index = thing.offset // 512
        assert not segment.table[index]
        assert master.free(thing.item) == b"\0"
        segment.extents[thing.offset : thing.offset + 64] = thing.sealed.header
        tail = thing.offset + 64 + len(thing.content)
        segment.extents[tail : tail + len(thing.sealed.tail)] = thing.sealed.tail
        segment.table[index] = thing.identity.version
        loan.abandon()
        assert master.free(thing.item) == b"\x01"
        for path in (shm, tcp):
            with pytest.raises(StaleExtent):
                get(path, thing)
        with pytest.raises(StaleTerm):
            put(shm, thing)


# --- forks --------------------------------------------------------------------------------------


def test_a_forked_child_has_no_access_and_takes_none_from_its_parent(
    master: FakeMaster, register: Register
) -> None:
    thing = make_thing(register.segments[0].incarnation, 0, MIB)
    reserved = make_thing(register.segments[0].incarnation, 4 * MIB, MIB, key="reserved")
    with shm_of(register) as shm:
        put(shm, thing)
        view = shm.view(thing.incarnation, thing.offset, thing.identity)
        loan = shm.reserve(reserved.incarnation, reserved.offset, reserved.identity)
        child = os.fork()
        if child == 0:
            os._exit(_in_child(shm, thing, view.payload))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert get(shm, thing) == thing.content
        assert view.payload == thing.content
        # The parent's declared write still counts, though the child closed its files.
        assert master.free(reserved.item) == b"\0"
        loan.abandon()
        assert master.free(reserved.item) == b"\x01"
        view.release()


def test_a_forked_child_has_tcp_connections_of_its_own(
    master: FakeMaster, register: Register
) -> None:
    del master
    incarnation = register.segments[0].incarnation
    things = [make_thing(incarnation, n * MIB, 500_000, key=f"k{n}") for n in range(4)]
    with tcp_of(register) as tcp:
        put(tcp, *things)
        child = os.fork()
        if child == 0:
            right = all(get(tcp, thing) == thing.content for thing in things * 20)
            os._exit(0 if right else 1)
        for thing in things * 20:
            assert get(tcp, thing) == thing.content
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert get(tcp, things[0]) == things[0].content


def _in_child(shm: ShmDataPath, thing: Thing, payload: memoryview) -> int:
    try:
        get(shm, thing)
    except Closed:
        pass
    else:
        return 1
    try:
        bytes(payload)
    except ValueError:  # The view was released.
        return 0
    return 2


def test_a_child_that_outlives_its_parent_does_not_keep_the_extent(
    master: FakeMaster, register: Register
) -> None:
    thing = make_thing(register.segments[0].incarnation, 0, MIB)
    out, into = socket.socketpair()
    parent = os.fork()
    if parent == 0:
        shm = shm_of(register)
        loan = shm.reserve(thing.incarnation, thing.offset, thing.identity)
        if os.fork() == 0:
            into.sendall(b"grandchild")
            time.sleep(30)
            os._exit(0)
        into.recv(1)
        del loan
        os._exit(0)
    assert receive(out, 10) == b"grandchild"
    assert master.free(thing.item) == b"\0"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert master.free(thing.item) == b"\x01"
    out.close()
    into.close()


def test_many_threads_write_through_slots_of_their_own(
    master: FakeMaster, register: Register
) -> None:
    incarnation = register.segments[0].incarnation
    things = [
        make_thing(incarnation, number * MIB // 2, 400_000, key=f"k{number}")
        for number in range(40)
    ]
    with shm_of(register) as shm:
        threads = [threading.Thread(target=put, args=(shm, thing)) for thing in things]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for thing in things:
            assert get(shm, thing) == thing.content
    assert set(master.free(*(thing.item for thing in things))) == {1}


def test_a_path_that_is_closed_during_a_write_keeps_the_write_declared(
    master: FakeMaster, register: Register
) -> None:
    thing = make_thing(register.segments[0].incarnation, 0, 4 * MIB)
    shm = shm_of(register)
    task = thing.write_task()
    steps = shm.writing([task], Deadline(30))
    next(steps)
    shm.close()
    assert master.free(thing.item) == b"\0"
    for _ in steps:
        pass
    assert isinstance(task.error, StaleTerm)
    assert master.free(thing.item) == b"\x01"
