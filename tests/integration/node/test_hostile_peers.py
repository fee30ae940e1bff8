"""Peers that send nonsense, stall, or come in crowds: the node lives and serves the others."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import socket
import struct
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mooncake_store.deadline import Deadline
from mooncake_store.errors import ProtocolError, StoreError, Unreachable, WrongPeer
from mooncake_store.testing import wait_until
from mooncake_store.testing.seeds import seeded
from mooncake_store.transport import ShmDataPath
from mooncake_store.wire import data

from .support import (
    MIB,
    NodeUnderTest,
    Thing,
    get,
    greeted_socket,
    make_thing,
    memory_of,
    put,
    receive,
    shm_of,
    tcp_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_storage_node.app import StorageNode
    from mooncake_store.wire.control import Register

    from .fake_master import FakeMaster

    Start = Callable[..., StorageNode]

GREETING = data.encode_greeting(data.Greeting(1, "", 0), 1, reply=False)


def header(**changes: int) -> bytes:
    fields = {
        "magic": data.MAGIC, "operation": 2, "flags": 0, "count": 1, "request_id": 1,
        "deadline_ms": 1000, "payload_bytes": 0,
    }  # fmt: skip
    return data.HEADER.pack(*(fields | changes).values())


def hostile_streams() -> list[bytes]:
    random = seeded("hostile")
    entry = data.ENTRY.pack(1, 2, 3, 4, 5)
    return [
        b"",
        b"\0",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        pickle.dumps(os.system),
        b"\xff" * 10_000,
        random.randbytes(10_000),
        GREETING[:-1],
        header(operation=1, payload_bytes=1 << 62),
        header(operation=1, payload_bytes=0),
        header(operation=2),
        data.encode_greeting(data.Greeting(1, "zz" * 16, 0), 1, reply=False),
        data.encode_greeting(data.Greeting(2, "", 0), 1, reply=False),
        data.encode_greeting(data.Greeting(1, "", 0), 1, reply=True),
        GREETING.replace(b"\0" * 32, b"\xff" * 32),
        GREETING + GREETING,
        GREETING + b"\xff" * 10_000,
        GREETING + random.randbytes(10_000),
        GREETING + header(count=0xFFFF_FFFF),
        GREETING + header(count=1025) + entry * 1025,
        GREETING + header(operation=9) + entry,
        GREETING + header(payload_bytes=1 << 40) + entry,
        GREETING
        + header(operation=3, payload_bytes=1 << 62)
        + data.ENTRY.pack(1, 2, 3, 0, 1 << 62),
        GREETING + header(operation=3, payload_bytes=4) + entry,
        GREETING + header(operation=3, payload_bytes=0) + data.ENTRY.pack(1, 2, 3, 0, 0),
        GREETING + header(flags=1) + entry,
        GREETING + header(count=1024)[:20],
        GREETING + header(count=1024) + entry * 3,
    ]


@pytest.mark.processes
def test_nonsense_on_the_data_port_costs_nobody_anything(
    master: FakeMaster, start_process: Callable[..., NodeUnderTest]
) -> None:
    node = start_process()
    register = master.wait_registered()
    thing = make_thing(register.segments[0].incarnation, 0, 100_000)
    with tcp_of(register) as tcp:
        put(tcp, thing)
        before = memory_of(node.pid)
        for stream in hostile_streams() * 3:
            with socket.create_connection((register.host, register.port), 5) as sock:
                with contextlib.suppress(OSError):
                    sock.sendall(stream)
                    sock.shutdown(socket.SHUT_WR)
                sock.settimeout(3)
                with contextlib.suppress(OSError):
                    while sock.recv(1 << 16):
                        pass
            assert get(tcp, thing) == thing.content
        assert node.is_running
        assert memory_of(node.pid) - before < 10 * MIB
    assert "Traceback" not in node.output


def test_entries_that_lie_get_their_status_and_no_bytes(
    master: FakeMaster, start_node: Start
) -> None:
    start_node()
    register = master.wait_registered()
    incarnation = register.segments[0].incarnation
    thing = make_thing(incarnation, 4096, 1000)
    with tcp_of(register) as tcp:
        put(tcp, thing)
    version = thing.identity.version
    cases = [
        ((incarnation, 4096, version, 0, 64), data.Status.OK),
        ((incarnation, 4096, version, 64, 1000), data.Status.OK),
        ((incarnation + 1, 4096, version, 0, 64), data.Status.UNKNOWN_SEGMENT),
        ((incarnation, 4097, version, 0, 64), data.Status.OUT_OF_RANGE),
        ((incarnation, 1 << 63, version, 0, 64), data.Status.OUT_OF_RANGE),
        ((incarnation, (1 << 64) - 512, version, 0, 64), data.Status.OUT_OF_RANGE),
        ((incarnation, 4608, version, 0, 64), data.Status.STALE),
        ((incarnation, 4096, version + 1, 0, 64), data.Status.STALE),
        ((incarnation, 4096, version, 0, 1 << 40), data.Status.OUT_OF_RANGE),
        ((incarnation, 4096, version, 1 << 63, 64), data.Status.OUT_OF_RANGE),
        ((incarnation, 4096, version, (1 << 64) - 1, (1 << 64) - 1), data.Status.OUT_OF_RANGE),
        ((incarnation, 4096, version, 1200, 1000), data.Status.OUT_OF_RANGE),
    ]
    with greeted_socket(register) as sock:
        entries = [entry for entry, _ in cases]
        sock.sendall(data.encode_request(data.Operation.READ, 5, entries, deadline_ms=5000))
        size = data.HEADER_BYTES + data.STATUS_BYTES * len(cases)
        raw = receive(sock, size)
        reply = data.decode_header(raw, reply=True)
        assert data.decode_statuses(raw[data.HEADER_BYTES :], len(cases)) == tuple(
            status for _, status in cases
        )
        assert reply.payload_bytes == 64 + 1000
        assert receive(sock, 64 + 1000) == thing.sealed.header + thing.content


@pytest.mark.parametrize("damage", ["magic", "check", "version", "length", "names"])
def test_a_write_whose_header_does_not_fit_it_is_not_published(
    master: FakeMaster, start_node: Start, damage: str
) -> None:
    node = start_node()
    register = master.wait_registered()
    thing = make_thing(register.segments[0].incarnation, 0, 1000)
    other = make_thing(register.segments[0].incarnation, 0, 1001)
    raw = bytearray(thing.sealed.header + thing.content + thing.sealed.tail)
    if damage in {"magic", "check"}:
        raw[{"magic": 0, "check": 63}[damage]] ^= 1
    elif damage == "version":
        raw[:64] = make_thing(thing.incarnation, 0, 1000).sealed.header
    elif damage == "length":
        raw[:64] = other.sealed.header
    else:
        raw.append(0)
    entry = (thing.incarnation, 0, thing.identity.version, 0, len(raw))
    with greeted_socket(register) as sock:
        request = data.encode_request(
            data.Operation.WRITE, 1, [entry], deadline_ms=5000, payload_bytes=len(raw)
        )
        sock.sendall(bytes(request) + raw)
        answer = receive(sock, data.HEADER_BYTES + data.STATUS_BYTES)
    assert data.decode_statuses(answer[data.HEADER_BYTES :], 1) == (data.Status.DAMAGED,)
    assert node.pool.segment.table[0] == 0
    assert not len(node._incoming)


def test_a_refused_write_larger_than_is_drained_ends_the_connection(
    master: FakeMaster, start_node: Start
) -> None:
    start_node(dram=80 * MIB)
    register = master.wait_registered()
    incarnation = register.segments[0].incarnation
    entry = (incarnation + 1, 0, 1, 0, 65 * MIB)
    with greeted_socket(register) as sock:
        request = data.encode_request(
            data.Operation.WRITE, 1, [entry], deadline_ms=5000, payload_bytes=65 * MIB
        )
        sock.sendall(request)
        with pytest.raises((EOFError, ConnectionError)):
            receive(sock, 1)


def _fill_with_streams(register: Register, thing: Thing, count: int) -> list[socket.socket]:
    """Ask for an object over ``count`` connections and read nothing of it."""
    entry = (thing.incarnation, thing.offset, thing.identity.version, 0, 64 + len(thing.content))
    sockets = []
    for _ in range(count):
        sock = greeted_socket(register)
        for number in range(4):
            sock.sendall(
                data.encode_request(data.Operation.READ, number, [entry], deadline_ms=600_000)
            )
        sockets.append(sock)
    return sockets


def test_slow_readers_are_cut_off_and_others_never_notice(
    master: FakeMaster, start_node: Start
) -> None:
    node = start_node(dram=64 * MIB, stall_timeout_s=1.0)
    register = master.wait_registered()
    incarnation = register.segments[0].incarnation
    big = make_thing(incarnation, 0, 16 * MIB, key="big")
    small = make_thing(incarnation, 32 * MIB, 4096, key="small")
    with tcp_of(register) as tcp:
        put(tcp, big, small)
        began = time.monotonic()
        slow = _fill_with_streams(register, big, 3)
        stop = threading.Event()

        def sip() -> None:
            while not stop.wait(0.1):
                for sock in slow:
                    with contextlib.suppress(OSError):
                        sock.recv(1)

        sipper = threading.Thread(target=sip)
        sipper.start()
        wait_until(lambda: _cut_off(node, "stalled") == 3, 60)
        assert time.monotonic() - began >= 0.9
        assert get(tcp, small) == small.content
        stop.set()
        sipper.join()
        for sock in slow:
            sock.close()


def _cut_off(node: StorageNode, reason: str) -> int:
    return sum(counters.cut_off.get(reason, 0) for counters in node.data.counters())


def _drip(sock: socket.socket) -> None:
    for _ in range(600):
        sock.sendall(b"x")
        time.sleep(0.1)


def test_a_peer_that_drips_its_write_is_cut_off_and_leaves_nothing(
    master: FakeMaster, start_node: Start
) -> None:
    node = start_node(stall_timeout_s=1.0)
    register = master.wait_registered()
    thing = make_thing(register.segments[0].incarnation, 0, 100_000)
    entry = (thing.incarnation, 0, thing.identity.version, 0, 64 + 100_000 + 100)
    with greeted_socket(register) as sock:
        sock.sendall(
            data.encode_request(
                data.Operation.WRITE, 1, [entry], deadline_ms=600_000, payload_bytes=entry[4]
            )
        )
        with pytest.raises(OSError):  # noqa: PT011 - reset or broken pipe
            _drip(sock)
    wait_until(lambda: _cut_off(node, "stalled") == 1, 30)
    assert not len(node._incoming)
    assert node.pool.segment.table[0] == 0


def test_a_request_that_outlives_its_own_deadline_is_given_up(
    master: FakeMaster, start_node: Start
) -> None:
    node = start_node()
    register = master.wait_registered()
    thing = make_thing(register.segments[0].incarnation, 0, 100_000)
    entry = (thing.incarnation, 0, thing.identity.version, 0, 64 + 100_000 + 100)
    with greeted_socket(register) as sock:
        sock.sendall(
            data.encode_request(
                data.Operation.WRITE, 1, [entry], deadline_ms=200, payload_bytes=entry[4]
            )
        )
        with pytest.raises((EOFError, ConnectionError)):
            receive(sock, 1)
    wait_until(lambda: _cut_off(node, "deadline") == 1, 30)


def test_strangers_that_say_nothing_make_room_for_those_who_do(
    master: FakeMaster, start_node: Start
) -> None:
    node = start_node(connections_max=16)
    register = master.wait_registered()
    thing = make_thing(register.segments[0].incarnation, 0, 1000)
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(socket.create_connection((register.host, register.port), 5))
        with tcp_of(register) as tcp:
            put(tcp, thing)
            assert get(tcp, thing) == thing.content
        wait_until(lambda: node.data.connection_count <= 16, 30)


@pytest.mark.processes
def test_a_thousand_idle_connections_cost_little(
    master: FakeMaster, start_process: Callable[..., NodeUnderTest]
) -> None:
    node = start_process()
    register = master.wait_registered()
    thing = make_thing(register.segments[0].incarnation, 0, 1000)
    with contextlib.ExitStack() as stack:
        before = memory_of(node.pid)
        for _ in range(900):
            stack.enter_context(greeted_socket(register))
        with tcp_of(register) as tcp:
            put(tcp, thing)
            assert get(tcp, thing) == thing.content
        assert memory_of(node.pid) - before < 20 * MIB
    assert node.is_running


@pytest.mark.slow
def test_small_reads_stay_fast_beside_large_streams(master: FakeMaster, start_node: Start) -> None:
    """Field report 065: p99 of small reads at most 20 ms beside four streams of 16 MiB."""
    start_node(dram=128 * MIB)
    register = master.wait_registered()
    incarnation = register.segments[0].incarnation
    bigs = [make_thing(incarnation, n * 20 * MIB, 16 * MIB, key=f"b{n}") for n in range(4)]
    small = make_thing(incarnation, 100 * MIB, 4096, key="small")
    stop = threading.Event()
    with tcp_of(register) as tcp, tcp_of(register) as own:
        put(tcp, *bigs, small)

        def stream(thing: Thing) -> None:
            while not stop.is_set():
                get(tcp, thing)

        threads = [threading.Thread(target=stream, args=(big,)) for big in bigs]
        for thread in threads:
            thread.start()
        took = []
        for _ in range(300):
            began = time.monotonic()
            assert get(own, small) == small.content
            took.append(time.monotonic() - began)
        stop.set()
        for thread in threads:
            thread.join()
    assert len(took) == 300  # How long they took is the benchmark's business (tests/bench).


# --- the local socket ---------------------------------------------------------------------------


def test_nonsense_on_the_local_socket_costs_nobody_anything(
    master: FakeMaster, start_node: Start
) -> None:
    node = start_node()
    register = master.wait_registered()
    random = seeded("local")
    messages = [
        b"x",
        random.randbytes(60),
        header(),
        GREETING[:-1],
        GREETING + b"x",
        data.encode_greeting(data.Greeting(9, "", 0), 1, reply=False),
        data.encode_greeting(data.Greeting(1, "cd" * 16, 0), 1, reply=False),
        struct.pack("<60s", b""),
    ]
    for message in messages:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(30)
            sock.connect(register.local_path)
            sock.send(message)
            answer, descriptors, _, _ = socket.recv_fds(sock, 4096, 64)
            assert not descriptors
            if answer:
                assert sock.recv(10) == b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(register.local_path)
        sock.send(GREETING)
        _, descriptors, _, _ = socket.recv_fds(sock, 4096, 64)
        assert len(descriptors) == 2
        for descriptor in descriptors:
            os.close(descriptor)
        wait_until(lambda: node.local.peer_count == 1, 30)
        sock.send(GREETING)  # Talking again ends it.
        assert sock.recv(10) == b""
    assert node.local.refused >= 4
    wait_until(lambda: node.local.peer_count == 0, 30)


def test_another_node_on_a_known_local_socket_is_noticed(
    master: FakeMaster, start_node: Start
) -> None:
    start_node()
    register = master.wait_registered()
    with pytest.raises(WrongPeer):
        ShmDataPath.connect(register.local_path, node_id="cd" * 16, node="n", deadline=Deadline(30))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_gets_no_descriptor(master: FakeMaster, start_node: Start) -> None:
    start_node()
    register = master.wait_registered()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            ShmDataPath.connect(
                register.local_path, node_id=register.node_id, node="n", deadline=Deadline(30)
            )
        except Unreachable:
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_local_socket_that_says_nothing_costs_no_more_than_the_deadline(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("s") / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(path))
        silent.listen(1)
        with pytest.raises(Exception, match="deadline"):  # and the other side says nothing, ever
            ShmDataPath.connect(str(path), node_id="ab" * 16, node="n", deadline=Deadline(0.3))
    with pytest.raises(Unreachable):
        ShmDataPath.connect(str(path), node_id="ab" * 16, node="n", deadline=Deadline(30))
    with pytest.raises(Unreachable):
        ShmDataPath.connect("/no/such", node_id="ab" * 16, node="n", deadline=Deadline(30))


def test_a_full_queue_of_a_local_socket_is_waited_for(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Many processes of a host that start at once: those who come later get the memory, too."""
    path = tmp_path_factory.mktemp("s") / "socket"
    errors: list[StoreError] = []

    def attach() -> None:
        try:
            ShmDataPath.connect(str(path), node_id="ab" * 16, node="n", deadline=Deadline(60))
        except StoreError as error:
            errors.append(error)

    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(str(path))
        listener.listen(0)
        listener.settimeout(30)
        queued = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                peer = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                peer.settimeout(0)
                peer.connect(str(path))
                queued += 1
        late = threading.Thread(target=attach, daemon=True)
        late.start()
        late.join(0.2)
        assert late.is_alive()
        for _ in range(queued):
            listener.accept()[0].close()
        mine, _ = listener.accept()
        assert mine.recv(1000)
        mine.close()  # it asked; what the answer would have been is another test's business
        late.join(30)
    assert isinstance(errors[0], (ProtocolError, Unreachable))


def test_opening_and_closing_leaves_nothing_behind(master: FakeMaster, start_node: Start) -> None:
    start_node()
    register = master.wait_registered()
    thing = make_thing(register.segments[0].incarnation, 0, 1000)

    def once() -> None:
        shm = ShmDataPath.connect(
            register.local_path, node_id=register.node_id, node="n", deadline=Deadline(30)
        )
        with shm, tcp_of(register) as tcp:
            put(shm, thing)
            assert get(tcp, thing) == thing.content
            shm.view(thing.incarnation, thing.offset, thing.identity)

    once()
    # Both of the node's connections to its master, with both of their ends in this process.
    wait_until(lambda: master.beats, 20, what="the node's heart beats")
    before = _resources()
    for _ in range(100):
        once()
    wait_until(lambda: _resources() <= before, 30, what="files and mappings are given back")


def _resources() -> tuple[int, int]:
    maps = Path("/proc/self/maps").read_text()
    return len(list(Path("/proc/self/fd").iterdir())), maps.count("segment")


@pytest.mark.parametrize("room", [0, 1, 2, 3, 5, 8])
def test_a_client_without_descriptors_left_gets_an_error_not_a_crash(
    master: FakeMaster, start_node: Start, room: int
) -> None:
    start_node()
    register = master.wait_registered()
    thing = make_thing(register.segments[0].incarnation, 0, 1000)
    with tcp_of(register) as tcp:
        put(tcp, thing)
    child = os.fork()
    if child == 0:
        highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, highest + 1))
        taken = []
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for descriptor in taken[:room]:
            os.close(descriptor)
        os._exit(_use_what_is_left(register, thing))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _use_what_is_left(register: Register, thing: Thing) -> int:
    for number, connect in enumerate((tcp_of, shm_of)):
        try:
            path = connect(register)
            if get(path, thing) != thing.content:
                return 10 + number
        except StoreError:
            continue
        except BaseException:  # noqa: BLE001 - what must not happen
            traceback.print_exc()
            return 20 + number
    return 0
