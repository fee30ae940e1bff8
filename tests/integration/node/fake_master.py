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
        self._lock = threading.Lock()
        self._closed = False
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
        with self._lock:
            self._closed = True  # One that is being accepted ends, too.
            peers = list(self._peers)
        for peer in peers:
            peer.close()

    def leave_last(self) -> None:
        """End the control connection of the node that registered last."""
        self._nodes[-1].close()

    @property
    def connected(self) -> int:
        """How many connections of nodes are open at this moment."""
        return sum(not peer.has_ended for peer in self._peers)

    def wait_registered(self, count: int = 1, deadline_s: float = 60.0) -> control.Register:
        """Wait for the ``count``-th registration and return it."""
        wait_until(lambda: len(self.registers) >= count, deadline_s, what="a node registers")
        return self.registers[count - 1]

    def wait_registered_with_stores(self, *, replaced: bool = False) -> control.Register:
        """Wait until a node registers its disks as well, which it may open late; return that.

        Args:
            replaced: Wait until it also says which stores are gone.
        """

        def found() -> list[control.Register]:
            registers = [each for each in self.registers if len(each.segments) > 1]
            return [each for each in registers if each.replaced or not replaced]

        return wait_until(found, 60.0, what="a node registers with its disks")[0]

    def forget(self) -> None:
        """Forget what nodes said, once all have gone: the next one is the first again."""
        wait_until(lambda: not self.connected, 30.0, what="the nodes have gone")
        self.registers.clear()
        self.heartbeats.clear()

    def order(
        self,
        message: control.Message,
        reply: type[M],
        deadline_s: float = 30.0,
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
        return [peer.wait(number, 30.0) for number in [peer.send(each) for each in messages]]

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
            answers.append(peer.wait(under_way.popleft(), 30.0))
        answers.append(peer.wait(under_way.popleft(), 30.0))
        return answers

    def free(self, *items: control.FreeItem, term: int = 0) -> bytes:
        """Tell the node to free extents; return its answers."""
        return self.order(control.FreeExtents(term or self.term, list(items)), control.Freed).freed

    def registered(self, peer: _Peer, message: control.Register) -> None:
        """Take it that a node was told that it is registered: it reads orders from now on."""
        self._nodes.append(peer)
        self.registers.append(message)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            peer = _Peer(self, sock)
            with self._lock:
                self._peers.append(peer)
                closed = self._closed
            if closed:
                peer.close()
                return
            threading.Thread(target=peer.serve, daemon=True).start()

    def handle(self, message: control.Message) -> control.Message:
        """Answer a request of a node."""
        if isinstance(message, control.Hello):
            return control.Welcome(message.protocol, "fake", self.term, "fake", 5.0, 10.0)
        if isinstance(message, control.Register):
            self.beside.append(bool(self._nodes) and not self._nodes[-1].has_ended)
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
        self._sending = threading.Lock()
        self.has_ended = False

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def send(self, message: control.Message, named_s: float = 0.0) -> int:
        kind, deadline_ms = control.KINDS[type(message)], int(named_s * 1000)
        with self._sending:  # Several threads of a test give orders.
            self._request_id += 1
            number = self._request_id
            self._socket.sendall(
                frames.encode_frame(kind, message, request_id=number, deadline_ms=deadline_ms)
            )
        return number

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
        answer = self._master.handle(message)
        if self._master.silent and isinstance(message, control.Heartbeat):
            return
        self._socket.sendall(
            frames.encode_frame(frame.kind, answer, request_id=frame.request_id, flags=frames.REPLY)
        )
        if isinstance(message, control.Register):
            self._master.registered(self, message)
