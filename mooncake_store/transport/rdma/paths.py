"""The blocking RDMA data path: TCP's pool of connections, each with a queue pair of its own.

A call waits for completions without sleeping for a moment, then on the completion channel and the
socket at once, so that the end of the node's process is noticed when it happens. When a connection
is closed its queue pair goes first: nothing arrives in a caller's buffer after a call has ended.
"""

from __future__ import annotations

import itertools
import select
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_store.errors import ConfigError, Overloaded, StoreError, Unreachable
from mooncake_store.transport.effects import Receive, greeting_effects
from mooncake_store.transport.rdma.flow import Await, Post
from mooncake_store.transport.rdma.link import FabricLost, Link
from mooncake_store.transport.rdma.reading import RdmaReads
from mooncake_store.transport.rdma.spreading import wants_lanes
from mooncake_store.transport.rdma.writing import RdmaWrites
from mooncake_store.transport.spinning import SPIN_S, Spinner
from mooncake_store.transport.tcp import NAP_S, TcpConnection, TcpDataPath, open_socket

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from mooncake_store.data_path import ReadTask, WriteTask
    from mooncake_store.deadline import Deadline
    from mooncake_store.transport.effects import Exchange
    from mooncake_store.transport.rdma.context import Rail, RdmaContext
    from mooncake_store.transport.rdma.flow import Moves
    from mooncake_store.transport.rdma.verbs import QueuePair

LINKS_MAX: Final = 4
"""Queue pairs to one node: one fills a link with large objects, more serve threads side by side.
Each holds a slab."""

PAUSE_S: Final = 15.0
"""Time for which RDMA is not tried again to a node where it did not work; doubled each time that
it still does not. Smaller: calls pay for vain tries (up to ``OPEN_S_MAX`` each). Larger: it stays
on TCP for longer than it must."""

PAUSE_S_MAX: Final = 240.0
"""Longest such time."""

OPEN_S_MAX: Final = 1.0
"""Time to connect a queue pair and to read a first word over it; it takes milliseconds. The rest of
the deadline is left for TCP."""


class RdmaConnection(TcpConnection):
    """A data connection and its queue pair.

    Attributes:
        link: The queue pair; None before ``open``.
        copied: Payload bytes that went through the slab.
    """

    __slots__ = ("_aborted", "_pairs", "_patience", "_poll", "copied", "link")

    def __init__(self, sock: socket.socket, spinner: Spinner) -> None:
        super().__init__(sock, spinner)
        self.link: Link | None = None
        self.copied = 0
        self._aborted = False
        self._patience = Spinner()
        self._pairs: dict[int, QueuePair] = {}
        """{descriptor of a completion channel: its queue pair}"""
        self._poll = select.poll()
        self._poll.register(sock, select.POLLRDHUP)

    def open(self, rail: Rail, node: str, number: int, deadline: Deadline) -> None:
        """Connect a queue pair.

        Raises:
            FabricLost: RDMA does not work to this node, or not now.
        """
        try:
            self.link = Link(rail, node, number)
        except (Overloaded, ConfigError, Unreachable) as error:
            raise FabricLost(f"RDMA to node {node}: {error}", node=node) from error
        self._watch(self.link)
        self.move(self.link.opening(self.ids, deadline), deadline)

    def hold(self, exchange: Exchange, node: str, deadline: Deadline) -> None:
        """As ``TcpConnection.hold``."""
        assert isinstance(exchange, (RdmaReads, RdmaWrites))
        assert self.link is not None
        if self.link.wanted and wants_lanes(exchange.tasks, self.link):
            self._open_lanes(self.link, node, deadline.within(OPEN_S_MAX))
        self.move(exchange.moves(self.link, self.ids, node), deadline)
        self.copied += exchange.copied

    def move(self, moves: Moves, deadline: Deadline) -> None:
        """As ``perform``, with requests to the device.

        Raises:
            FabricLost: One failed, or none is over for too long.
        """
        moved: int | None = None
        try:
            while True:
                effect = moves.send(moved)  # type: ignore[arg-type]  # None starts a generator
                moved = 0
                if isinstance(effect, Post):
                    deadline.check("moving bytes over RDMA")
                    effect.link.post(effect.requests)
                elif isinstance(effect, Await):
                    self._await(effect.link, effect.number, deadline)
                elif isinstance(effect, Receive):
                    moved = self._receive(effect.buffers, effect.at_least, deadline)
                else:
                    self._send(effect.buffers, deadline)
        except StopIteration:
            return

    def abort(self) -> None:
        """As ``TcpConnection.abort``."""
        self._aborted = True
        super().abort()

    def close(self) -> None:
        """End the queue pair, then the connection."""
        if self.link is not None:
            self.link.close()
        super().close()

    def _open_lanes(self, link: Link, node: str, deadline: Deadline) -> None:
        """Open those lanes that can be; the transfer goes on with what there is.

        Raises:
            FabricLost: The connection broke meanwhile, or time ran out in the middle of an answer.
        """
        while (lane := link.new_lane()) is not None:
            self._watch(lane)
            try:
                self.move(lane.opening(self.ids, deadline), deadline)
            except FabricLost as error:
                self._forget(lane)
                link.without_lane(error)
            except BaseException as error:
                self._forget(lane)
                if isinstance(error, StoreError):
                    raise as_lost(error, node) from error
                raise
            else:
                link.lanes.append(lane)

    def _watch(self, link: Link) -> None:
        descriptor = link.pair.fileno()
        self._pairs[descriptor] = link.pair
        self._poll.register(descriptor, select.POLLIN)

    def _forget(self, link: Link) -> None:
        descriptor = link.pair.fileno()
        del self._pairs[descriptor]
        self._poll.unregister(descriptor)
        link.close()

    def _await(self, link: Link, number: int, deadline: Deadline) -> None:
        if link.completed >= number:
            return
        if self._patience.wanted():
            end = time.perf_counter() + SPIN_S
            while time.perf_counter() < end:
                if link.reap() and link.completed >= number:
                    self._patience.learn(paid=True)
                    return
            self._patience.learn(paid=False)
        while True:
            link.pair.arm()
            link.reap()
            if link.completed >= number:
                return
            self._sleep(link, deadline)

    def _sleep(self, link: Link, deadline: Deadline) -> None:
        left_s = deadline.check("moving bytes over RDMA")
        for descriptor, _ in self._poll.poll(1000 * min(NAP_S, left_s)):
            if descriptor in self._pairs:
                self._pairs[descriptor].disarm()
            elif not link.reap():
                raise Unreachable("the node closed the connection")
        if self._aborted:
            raise Unreachable("the data path was closed")
        link.check_progress()


class Outage:
    """For how long RDMA to one node is left alone. Wrong only in speed, so not locked."""

    __slots__ = ("_pause_s", "_until_s")

    def __init__(self) -> None:
        self._until_s = 0.0
        self._pause_s = PAUSE_S

    @property
    def is_over(self) -> bool:
        """Whether it is worth trying."""
        return time.monotonic() >= self._until_s

    def learn(self, *, failed: bool) -> None:
        """Say how a call ended."""
        if not failed:
            self._pause_s = PAUSE_S
        elif self.is_over:
            self._until_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)


class LinkReport(NamedTuple):
    """What a link is like, for people.

    Attributes:
        device: On this side.
        mtu_bytes: What this side's port carries in a packet.
        peer_mtu_bytes: What the node's does; the smaller one is used.
        segments: How many of the node's segments were reached and proved right.
    """

    device: str
    mtu_bytes: int
    peer_mtu_bytes: int
    segments: int


class RdmaDataPath(TcpDataPath):
    """One-sided reads and writes of one node's memory.

    ``is_up`` says whether it is worth trying: it is False for a while after it failed where TCP
    might work. What failed so has a ``FabricLost`` as its error.
    """

    name = "rdma"
    _reads: Callable[[Sequence[ReadTask], Deadline], Exchange] = RdmaReads
    _writes: Callable[[Sequence[WriteTask], Deadline], Exchange] = RdmaWrites

    def __init__(
        self,
        host: str,
        port: int,
        *,
        node_id: str,
        node: str,
        context: RdmaContext,
        near: tuple[int, ...] = (),
    ) -> None:
        """As ``TcpDataPath``: the first call connects.

        Args:
            host: Name or address of the node's data port.
            port: Its number.
            node_id: Identity that the node must prove.
            node: Its name, for messages.
            context: The devices to use, which stay the caller's.
            near: Places of those to try first; empty: those near this process's processors.
        """
        super().__init__(host, port, node_id=node_id, node=node, connections_max=LINKS_MAX)
        self._context = context
        self._near = near
        self._beside: dict[tuple[int, ...], RdmaDataPath] = {}
        """{devices: the path whose connections prefer them}, for memory that is near to those."""
        self._numbers = itertools.count()
        self._outage = Outage()

    @property
    def is_up(self) -> bool:
        """Whether RDMA to this node did not fail just now."""
        return self._outage.is_over

    def examine(self, deadline: Deadline) -> LinkReport:
        """Connect, if nothing is connected, and say what came of it.

        Raises:
            FabricLost: RDMA does not work to this node; the message says why.
            PeerError: The node itself is not there, or not what it should be.
        """
        connection, _ = self._acquire(deadline)
        self._release(connection, usable=True)
        assert isinstance(connection, RdmaConnection)
        link = connection.link
        assert link is not None
        assert link.peer is not None
        return LinkReport(
            link.rail.device.name,
            link.pair.endpoint.mtu_bytes,
            link.peer.mtu_bytes,
            len(link.regions),
        )

    def read(self, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
        """As ``DataPath.read``."""
        path = self._beside_of(tasks[0].targets) if tasks else self
        if path is not self:
            path.read(tasks, deadline)
            return
        super().read(tasks, deadline)
        self._learn(tasks)

    def write(self, tasks: Sequence[WriteTask], deadline: Deadline) -> None:
        """As ``DataPath.write``."""
        path = self._beside_of(tasks[0].parts) if tasks else self
        if path is not self:
            path.write(tasks, deadline)
            return
        super().write(tasks, deadline)
        self._learn(tasks)

    def reaches(self, targets: Sequence[memoryview]) -> bool:
        """As ``DataPath.reaches``: targets that are registered with every device."""
        return self._context.reaches(targets)

    def close(self) -> None:
        """As ``TcpDataPath.close``."""
        super().close()
        with self._places.lock:
            beside, self._beside = self._beside, {}
        for path in beside.values():
            path.close()

    def _beside_of(self, buffers: Sequence[memoryview]) -> RdmaDataPath:
        """Return the path whose connections go over the devices nearest to the first buffer."""
        near = self._context.near_to(buffers)
        if not near or self._near:
            return self
        with self._places.lock:
            path = self._beside.get(near)
            if path is None and not self._closed:
                host, port = self._address
                path = self._beside[near] = RdmaDataPath(
                    host,
                    port,
                    node_id=self._node_id,
                    node=self._node,
                    context=self._context,
                    near=near,
                )
                path._outage = self._outage
        return path or self

    def _learn(self, tasks: Sequence[ReadTask] | Sequence[WriteTask]) -> None:
        self._outage.learn(failed=any(isinstance(task.error, FabricLost) for task in tasks))

    def _open(self, deadline: Deadline) -> TcpConnection:
        """Connect over each device in turn until one works."""
        first = next(self._numbers)
        problem: FabricLost | None = None
        for step, rail in enumerate(self._context.order(first, self._near)):
            try:
                return self._open_over(rail, first + step, deadline)
            except FabricLost as error:
                problem = error
        assert problem is not None
        raise problem

    def _open_over(self, rail: Rail, number: int, deadline: Deadline) -> TcpConnection:
        sock = open_socket(self._address, self._node, deadline)
        connection = RdmaConnection(sock, self._spinner)
        try:
            connection.perform(greeting_effects(self._node_id, self._node), deadline)
            limit = deadline.within(OPEN_S_MAX)
            try:
                connection.open(rail, self._node, number, limit)
            except StoreError as error:
                raise as_lost(error, self._node) from error
            assert connection.link is not None
            connection.link.wanted = self._context.lanes(number, self._near)
        except BaseException:
            connection.close()
            raise
        return connection


def as_lost(error: StoreError | TimeoutError, node: str) -> FabricLost:
    """Say that what failed while a queue pair was opened is RDMA's trouble, not the node's."""
    if isinstance(error, FabricLost):
        return error
    what = str(error) or f"no answer in {OPEN_S_MAX:g} s"
    return FabricLost(f"RDMA to node {node}: {what}", node=node)
