"""A master without a core, for tests of the node alone: accepts nodes and gives them orders."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Self, TypeVar

from mooncake_store.deadline import Deadline
from mooncake_store.errors import Overloaded, StoreError
from mooncake_store.testing import free_port, wait_until
from mooncake_store.wire import control, frames

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

M = TypeVar("M", bound=control.Message)


class FakeMaster:
    """Serves one port; restart it on the same port with another term.

    Attributes:
        port: Where it listens.
        term: What it claims.
        epochs: What it tells nodes that register.
        registers: Every ``Register`` it got.
        beats: When each heartbeat came, on the monotonic clock.
        known: What heartbeats are answered.
        silent: While true, heartbeats are taken and not answered.
        dropped: Everything that nodes reported as dropped.
        beside: Of each registration, whether the connection of the one before was still open.
        refuse_reports: While true, such reports are refused, and counted in ``reports_refused``.
    """

    def __init__(self, port: int = 0, *, term: int = 1, host: str = "127.0.0.1") -> None:
        self.term = term
        self.epochs: dict[int, int] = {}
        self.registers: list[control.Register] = []
        self.beside: list[bool] = []
        self.beats: list[float] = []
        self.heartbeats: list[control.Heartbeat] = []
        self.known = True
        self.silent = False
        self.dropped: list[control.DroppedItem] = []
        self.refuse_reports = False
        self.reports_refused = 0
        self._nodes: list[_Peer] = []
        self._peers: list[_Peer] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Below the ports of outgoing connections: of a master that is away, none is taken, and no
        # node that looks for it meets itself.
        self.port = port or free_port(host)
        self._listener = socket.create_server((host, self.port), family=family)
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Go away, connections and all."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self._peers:
            peer.close()

    @property
    def connected(self) -> int:
        """How many connections of nodes are open at this moment."""
        return sum(not peer.has_ended for peer in self._peers)

    def wait_registered(self, count: int = 1, deadline_s: float = 20.0) -> control.Register:
        """Wait for the ``count``-th registration and return it."""
        wait_until(lambda: len(self.registers) >= count, deadline_s, what="a node registers")
        return self.registers[count - 1]

    def order(
        self,
        message: control.Message,
        reply: type[M],
        deadline_s: float = 10.0,
        *,
        named_s: float = 0.0,
    ) -> M:
        """Give an order to the node that registered last and return its answer.

        Args:
            message: The order.
            reply: Kind of the answer.
            deadline_s: How long to wait for it.
            named_s: Deadline that the order names; 0: none.

        Raises:
            StoreError: What the node refused it with.
        """
        peer = self._nodes[-1]
        answer = peer.wait(peer.send(message, named_s), deadline_s)
        assert isinstance(answer, reply)
        return answer

    def order_all(self, *messages: control.Message) -> list[control.Message]:
        """Give orders one right after the other; return their answers."""
        peer = self._nodes[-1]
        return [peer.wait(number, 20.0) for number in [peer.send(each) for each in messages]]

    def keep_busy(
        self, orders: list[control.Message], until: Callable[[], bool], deadline_s: float
    ) -> list[control.Message]:
        """Give orders in turn, each before the one before is answered; return their answers.

        Raises:
            AssertionError: What is waited for does not come true in time.
        """
        peer, deadline = self._nodes[-1], Deadline(deadline_s)
        answers: list[control.Message] = []
        under_way = deque([peer.send(orders[0])])
        while len(answers) < len(orders) or not until():
            assert deadline.left_s() > 0, "the node is busy, and does nothing else"
            under_way.append(peer.send(orders[(len(answers) + 1) % len(orders)]))
            answers.append(peer.wait(under_way.popleft(), 20.0))
        answers.append(peer.wait(under_way.popleft(), 20.0))
        return answers

    def free(self, *items: control.FreeItem, term: int = 0) -> bytes:
        """Tell the node to free extents; return its answers."""
        return self.order(control.FreeExtents(term or self.term, list(items)), control.Freed).freed

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            peer = _Peer(self, sock)
            self._peers.append(peer)
            threading.Thread(target=peer.serve, daemon=True).start()

    def handle(self, peer: _Peer, message: control.Message) -> control.Message:
        """Answer a request of a node."""
        if isinstance(message, control.Hello):
            return control.Welcome(message.protocol, "fake", self.term, "fake", 5.0, 10.0)
        if isinstance(message, control.Register):
            self.beside.append(bool(self._nodes) and not self._nodes[-1].has_ended)
            self._nodes.append(peer)
            return control.Registered(0, self.term, 0.1, self.epochs)
        if isinstance(message, control.Drain):  # the node stops; nobody else needs what it has
            return control.DrainStatus(message.node, "drained")
        if isinstance(message, control.ReportDropped):
            self.dropped += message.items
            return control.Done()
        assert isinstance(message, control.Heartbeat)
        self.beats.append(time.monotonic())
        self.heartbeats.append(message)
        return control.HeartbeatReply(self.term, self.known)


class _Peer:
    """One connection of a node."""

    def __init__(self, master: FakeMaster, sock: socket.socket) -> None:
        self._master = master
        self._socket = sock
        self._decoder = frames.FrameDecoder(1 << 23)
        self._answers: dict[int, control.Message | StoreError] = {}
        self._answered = threading.Condition()
        self._request_id = 0
        self.has_ended = False

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def send(self, message: control.Message, named_s: float = 0.0) -> int:
        self._request_id += 1
        kind = control.KINDS[type(message)]
        self._socket.sendall(
            frames.encode_frame(
                kind, message, request_id=self._request_id, deadline_ms=int(named_s * 1000)
            )
        )
        return self._request_id

    def wait(self, number: int, deadline_s: float) -> control.Message:
        with self._answered:
            assert self._answered.wait_for(lambda: number in self._answers, deadline_s)
            answer = self._answers.pop(number)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def serve(self) -> None:
        try:
            with contextlib.suppress(OSError):
                while got := self._socket.recv_into(self._decoder.buffer()):
                    self._decoder.received(got)
                    for frame in self._decoder:
                        self._take(frame)
        finally:
            self.has_ended = True

    def _take(self, frame: frames.Frame) -> None:
        if frame.flags & frames.REPLY:
            answer = (
                frames.decode_error(frame.body)
                if frame.flags & frames.ERROR
                else control.REPLY_DECODERS[frame.kind].decode(frame.body)
            )
            with self._answered:
                self._answers[frame.request_id] = answer
                self._answered.notify_all()
            return
        message = control.REQUEST_DECODERS[frame.kind].decode(frame.body)
        if isinstance(message, control.ReportDropped) and self._master.refuse_reports:
            self._master.reports_refused += 1
            refusal = Overloaded("not now")
            self._socket.sendall(frames.encode_error(refusal, frame.kind, frame.request_id))
            return
        answer = self._master.handle(self, message)
        if self._master.silent and isinstance(message, control.Heartbeat):
            return
        self._socket.sendall(
            frames.encode_frame(frame.kind, answer, request_id=frame.request_id, flags=frames.REPLY)
        )
        if isinstance(message, control.Register):
            self._master.registers.append(message)
