"""Masters that refuse, redirect, lie, drip or say nothing: each call ends well and in time."""

from __future__ import annotations

# ruff: noqa: ANN401 - either client, whatever it returns
import contextlib
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import pytest

from mooncake_client import (
    DeadlineExceeded,
    ManifestMismatch,
    NotLeader,
    PeerError,
    ProtocolError,
    ProtocolMismatch,
    StoreError,
    Unreachable,
)
from mooncake_store import limits
from mooncake_store.testing import free_port, wait_until
from mooncake_store.wire import control, frames
from tests.integration.client.drivers import FACES
from tests.stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Answer = Callable[["FakeMaster", frames.Frame, socket.socket], bytes | bytearray | None]


class FakeMaster:
    """A server that answers each frame as it is told to.

    Attributes:
        accepted: Connections so far.
        seen: Kinds of the frames received.
    """

    def __init__(self, answer: Answer | None = None, port: int = 0) -> None:
        self.answer = answer or FakeMaster.usual
        self.accepted = 0
        self.seen: list[int] = []
        self.term = 1
        self._sockets: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def usual(self, frame: frames.Frame, _: socket.socket) -> bytes | bytearray | None:
        """Answer like a master with no nodes and no objects."""
        message = control.REQUEST_DECODERS[frame.kind].decode(frame.body)
        replies: dict[type, Any] = {
            control.Hello: control.Welcome(1, "fake", self.term, "fake-cluster", 5.0, 30.0),
            control.OpenNamespace: control.NamespaceRecord(0, "default", 1, {}),
            control.Locate: control.Located(
                5.0, [0] * len(getattr(message, "keys", ())), control.Membership(1, ())
            ),
            control.Exists: control.ExistsReply(b"\1" * len(getattr(message, "keys", ()))),
        }
        return reply_to(frame, replies[type(message)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._accepting.join(30.0)  # else it takes one more connection, which nobody closes
        self._server.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            self.accepted += 1
            self._sockets.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        decoder = frames.FrameDecoder(limits.FRAME_BYTES_MAX)
        with contextlib.suppress(OSError):
            while got := sock.recv_into(decoder.buffer()):
                decoder.received(got)
                for frame in decoder:
                    self.seen.append(frame.kind)
                    reply = self.answer(self, frame, sock)
                    if reply is not None:
                        sock.sendall(reply)


def reply_to(frame: frames.Frame, message: Any, flags: int = frames.REPLY) -> bytearray:
    return frames.encode_frame(frame.kind, message, request_id=frame.request_id, flags=flags)


def refuse(error: StoreError) -> Answer:
    return lambda _, frame, __: frames.encode_error(error, frame.kind, frame.request_id)


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(address: str, **options: Any) -> Any:
        made.append(FACES[request.param](address, **{"deadline_s": 1.0, **options}))
        return made[-1]

    yield make
    for client in made:
        client.close()


def timed(call: Callable[[], object], *kinds: type[StoreError], most_s: float = 1.5) -> StoreError:
    """Expect an error within a time."""
    watch = Stopwatch()
    with pytest.raises(kinds) as caught:
        call()
    assert watch.spent_s() < most_s
    return caught.value


def test_a_port_where_nobody_listens(connect: Callable[..., Any]) -> None:
    client = connect(f"127.0.0.1:{free_port()}")
    error = timed(lambda: client.exists("k"), Unreachable)
    assert "[Errno 111]" in str(error)
    # From then on an outage costs little, until somebody names a deadline.
    timed(lambda: client.exists("k"), Unreachable, most_s=0.6)
    began_s = time.monotonic()
    timed(lambda: client.exists("k", deadline_s=0.8), Unreachable)
    assert time.monotonic() - began_s > 0.5


def test_a_master_that_starts_late(connect: Callable[..., Any]) -> None:
    port = free_port()
    client = connect(f"127.0.0.1:{port}", deadline_s=20.0)
    started: list[FakeMaster] = []
    timer = threading.Timer(0.5, lambda: started.append(FakeMaster(port=port)))
    timer.start()
    assert client.exists("k") is True
    timer.join()
    started[0].__exit__()


def test_a_master_that_takes_connections_and_says_nothing(connect: Callable[..., Any]) -> None:
    with FakeMaster(answer=lambda *_: None) as silent:
        client = connect(silent.address)
        for _ in range(3):
            timed(lambda: client.exists("k"), Unreachable)
        error = timed(lambda: client.exists("k", deadline_s=0.3), Unreachable)
        assert silent.address in str(error)


def test_a_name_that_does_not_resolve(connect: Callable[..., Any]) -> None:
    client = connect("no-such-host.invalid:1")
    timed(lambda: client.exists("k"), Unreachable, DeadlineExceeded)


@pytest.mark.parametrize("silent", [True, False])
def test_a_server_that_accepts_and_says_nothing_or_drips(
    connect: Callable[..., Any],
    silent: bool,  # noqa: FBT001
) -> None:
    def drip(_: FakeMaster, frame: frames.Frame, sock: socket.socket) -> None:
        reply = FakeMaster.usual(_, frame, sock)
        for at in range(0 if silent else 5):
            sock.sendall(bytes((reply or b"")[at : at + 1]))
            time.sleep(0.2)

    with FakeMaster(drip) as master:
        client = connect(master.address)
        timed(lambda: client.exists("k"), Unreachable, DeadlineExceeded)
        timed(lambda: client.get("k"), Unreachable, DeadlineExceeded)
        master.answer = FakeMaster.usual
        wait_until(lambda: client.exists("k"), 30.0, what="it works", ignoring=(StoreError,))


def test_silence_after_the_handshake(connect: Callable[..., Any]) -> None:
    def mute(master: FakeMaster, frame: frames.Frame, sock: socket.socket) -> Any:
        return None if frame.kind == control.KINDS[control.Exists] else master.usual(frame, sock)

    with FakeMaster(mute) as master:
        client = connect(master.address)
        timed(lambda: client.exists("k"), DeadlineExceeded)
        master.answer = FakeMaster.usual
        assert client.exists("k", deadline_s=20.0) is True
        assert client.get("k") is None


def test_the_second_master_is_tried_where_the_first_is_dead(connect: Callable[..., Any]) -> None:
    with FakeMaster() as master:
        client = connect(f"127.0.0.1:{free_port()},{master.address}", deadline_s=5.0)
        assert client.exists("k") is True


def test_a_redirect_is_followed(connect: Callable[..., Any]) -> None:
    with FakeMaster() as leader:
        refusal = refuse(NotLeader("standby", node=leader.address))
        with FakeMaster(refusal) as standby:
            client = connect(standby.address, deadline_s=5.0)
            assert client.exists("k") is True
            assert leader.accepted == 1


def test_a_leader_that_steps_down_during_a_call(connect: Callable[..., Any]) -> None:
    with FakeMaster() as first, FakeMaster() as second:
        client = connect(f"{first.address},{second.address}", deadline_s=5.0)
        assert client.exists("k") is True
        first.answer = refuse(NotLeader("stepped down", node=second.address))
        second.term = 2
        assert client.exists("k") is True
        assert second.seen[:2] == [1, control.KINDS[control.OpenNamespace]]


def test_masters_that_redirect_to_each_other_end_by_the_deadline(
    connect: Callable[..., Any],
) -> None:
    with FakeMaster() as one, FakeMaster() as two:
        one.answer = refuse(NotLeader("no", node=two.address))
        two.answer = refuse(NotLeader("no", node=one.address))
        timed(lambda: connect(one.address).exists("k"), Unreachable, NotLeader)
        assert one.accepted + two.accepted < 200


def test_another_protocol_is_told_at_once(connect: Callable[..., Any]) -> None:
    with FakeMaster(refuse(ProtocolMismatch("version 9 here; upgrade the client"))) as master:
        client = connect(master.address, deadline_s=30.0)  # which it would take to try again
        error = timed(lambda: client.exists("k"), ProtocolMismatch, most_s=15.0)
        assert "upgrade" in str(error)

    def newer(_: FakeMaster, frame: frames.Frame, __: socket.socket) -> bytearray:
        return reply_to(frame, control.Welcome(9, "9.0", 1, "c", 5.0, 30.0))

    with FakeMaster(newer) as master:
        client = connect(master.address, deadline_s=30.0)  # which it would take to try again
        error = timed(lambda: client.exists("k"), ProtocolMismatch, most_s=15.0)
        assert "9.0" in str(error)


HEADER = frames.HEADER
GARBAGE: dict[str, Callable[[frames.Frame], bytes]] = {
    "noise": lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10,
    "huge": lambda f: HEADER.pack(1 << 31, f.kind, frames.REPLY, f.request_id, 0),
    "not msgpack": lambda f: HEADER.pack(4, f.kind, frames.REPLY, f.request_id, 0) + b"\xc1" * 4,
    "wrong types": lambda f: (
        HEADER.pack(3, f.kind, frames.REPLY, f.request_id, 0) + b"\x92\x01\x02"
    ),
    "wrong kind": lambda f: HEADER.pack(1, 99, frames.REPLY, f.request_id, 0) + b"\x90",
    "a request": lambda f: HEADER.pack(1, f.kind, 0, f.request_id, 0) + b"\x90",
    "bad error": lambda f: HEADER.pack(1, f.kind, 3, f.request_id, 0) + b"\xc1",
    "cut": lambda f: struct.pack("<I", f.kind),
}


@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("when", ["greeting", "later"])
def test_bytes_that_are_no_answer(connect: Callable[..., Any], kind: str, when: str) -> None:
    def lie(master: FakeMaster, frame: frames.Frame, sock: socket.socket) -> Any:
        if when == "later" and frame.kind != control.KINDS[control.Exists]:
            return master.usual(frame, sock)
        sock.sendall(GARBAGE[kind](frame))
        sock.shutdown(socket.SHUT_RDWR)
        return None

    with FakeMaster(lie) as master:
        client = connect(master.address, deadline_s=0.5)
        error = timed(lambda: client.exists("k"), PeerError, most_s=1.2)
        assert isinstance(error, (ProtocolError, Unreachable, DeadlineExceeded))
        master.answer = FakeMaster.usual
        assert client.exists("k", deadline_s=20.0) is True


def test_an_answer_to_nothing_is_ignored(connect: Callable[..., Any]) -> None:
    def chatty(master: FakeMaster, frame: frames.Frame, sock: socket.socket) -> Any:
        for other in (0, 7, 0xFFFFFFFF):
            sock.sendall(reply_to(frame._replace(request_id=other), control.Done()))
        return master.usual(frame, sock)

    with FakeMaster(chatty) as master:
        assert connect(master.address).exists("k") is True


def test_the_masters_own_words_arrive_before_the_deadline(connect: Callable[..., Any]) -> None:
    told_s: list[float] = []

    def slow(master: FakeMaster, frame: frames.Frame, sock: socket.socket) -> Any:
        if frame.kind != control.KINDS[control.Exists]:
            return master.usual(frame, sock)
        told_s.append(frame.deadline_ms / 1000)
        time.sleep(0.2)  # The rest is for what a busy machine does in between.
        return frames.encode_error(ManifestMismatch("my word"), frame.kind, frame.request_id)

    with FakeMaster(slow) as master:
        client = connect(master.address, deadline_s=20.0)
        timed(lambda: client.exists("k"), ManifestMismatch, most_s=20.0)
    assert told_s[0] <= 19.95
