"""The RDMA data path for asyncio: the completion channel's descriptor is on the loop."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from mooncake_store.deadline import Deadline
from mooncake_store.errors import ConfigError, Overloaded, StoreError, Unreachable
from mooncake_store.transport.effects import Receive, greeting_effects
from mooncake_store.transport.rdma.flow import Await, Post
from mooncake_store.transport.rdma.link import FabricLost, Link
from mooncake_store.transport.rdma.paths import LINKS_MAX, OPEN_S_MAX, Outage, as_lost
from mooncake_store.transport.rdma.reading import RdmaReads
from mooncake_store.transport.rdma.spreading import wants_lanes
from mooncake_store.transport.rdma.writing import RdmaWrites
from mooncake_store.transport.tcp import NAP_S
from mooncake_store.transport.tcp_async import AsyncTcpConnection, AsyncTcpDataPath

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from mooncake_store.data_path import ReadTask, WriteTask
    from mooncake_store.transport.effects import Exchange
    from mooncake_store.transport.rdma.context import Rail, RdmaContext
    from mooncake_store.transport.rdma.flow import Moves


class AsyncRdmaConnection(AsyncTcpConnection):
    """A data connection and its queue pair.

    Attributes:
        link: The queue pair; None before ``open``.
        copied: Payload bytes that went through the slab.
    """

    __slots__ = ("_aborted", "copied", "link")

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.link: Link | None = None
        self.copied = 0
        self._aborted = False

    async def open(self, rail: Rail, node: str, number: int, deadline: Deadline) -> None:
        """As ``RdmaConnection.open``."""
        try:
            self.link = Link(rail, node, number)
        except (Overloaded, ConfigError, Unreachable) as error:
            raise FabricLost(f"RDMA to node {node}: {error}", node=node) from error
        await self.move(self.link.opening(self.ids, deadline))

    async def hold(self, exchange: Exchange, node: str) -> None:
        """As ``AsyncTcpConnection.hold``."""
        assert isinstance(exchange, (RdmaReads, RdmaWrites))
        assert self.link is not None
        if self.link.wanted and wants_lanes(exchange.tasks, self.link):
            await self._open_lanes(self.link, node)
        await self.move(exchange.moves(self.link, self.ids, node))
        self.copied += exchange.copied

    async def move(self, moves: Moves) -> None:
        """As ``perform``, with requests to the device; the caller bounds the time.

        Raises:
            FabricLost: One failed, or none is over for too long.
        """
        moved: int | None = None
        try:
            while True:
                effect = moves.send(moved)  # type: ignore[arg-type]  # None starts a generator
                moved = 0
                if isinstance(effect, Post):
                    effect.link.post(effect.requests)
                elif isinstance(effect, Await):
                    await self._await(effect.link, effect.number)
                elif isinstance(effect, Receive):
                    moved = await self._receive(effect.buffers, effect.at_least)
                else:
                    await self._send(effect.buffers)
        except StopIteration:
            return
        except OSError as error:
            raise Unreachable(f"the connection broke: {error}") from error

    def abort(self) -> None:
        """As ``AsyncTcpConnection.abort``."""
        self._aborted = True
        super().abort()

    def close(self) -> None:
        """End the queue pair, then the connection."""
        if self.link is not None:
            self.link.close()
        super().close()

    async def _open_lanes(self, link: Link, node: str) -> None:
        """As that of ``RdmaConnection``."""
        limit = Deadline(OPEN_S_MAX)
        while (lane := link.new_lane()) is not None:
            try:
                async with asyncio.timeout(limit.left_s()):
                    await self.move(lane.opening(self.ids, limit))
            except FabricLost as error:
                lane.close()
                link.without_lane(error)
            except BaseException as error:
                lane.close()
                if isinstance(error, (StoreError, TimeoutError)):
                    raise as_lost(error, node) from error
                raise
            else:
                link.lanes.append(lane)

    async def _await(self, link: Link, number: int) -> None:
        link.reap()
        if link.completed >= number:
            return
        event = asyncio.Event()
        descriptor = link.pair.fileno()
        self._loop.add_reader(descriptor, event.set)
        try:
            while True:
                event.clear()
                link.pair.arm()
                link.reap()
                if link.completed >= number:
                    return
                await self._nap(event)
                link.pair.disarm()
                if self._aborted or not self.is_idle():
                    link.reap()
                    if link.completed >= number:
                        return
                    raise Unreachable("the node closed the connection")
                link.check_progress()
        finally:
            self._loop.remove_reader(descriptor)

    @staticmethod
    async def _nap(event: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(NAP_S):
                await event.wait()
        except TimeoutError:
            return


class AsyncRdmaDataPath(AsyncTcpDataPath):
    """As ``RdmaDataPath``, for one event loop."""

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
        """As ``RdmaDataPath``."""
        super().__init__(host, port, node_id=node_id, node=node, connections_max=LINKS_MAX)
        self._context = context
        self._near = near
        self._beside: dict[tuple[int, ...], AsyncRdmaDataPath] = {}
        """{devices: the path whose connections prefer them}, for memory that is near to those."""
        self._numbers = itertools.count()
        self._outage = Outage()

    @property
    def is_up(self) -> bool:
        """As ``RdmaDataPath.is_up``."""
        return self._outage.is_over

    async def read(self, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
        """As ``DataPath.read``."""
        path = self._beside_of(tasks[0].targets) if tasks else self
        if path is not self:
            await path.read(tasks, deadline)
            return
        await super().read(tasks, deadline)
        self._learn(tasks)

    async def write(self, tasks: Sequence[WriteTask], deadline: Deadline) -> None:
        """As ``DataPath.write``."""
        path = self._beside_of(tasks[0].parts) if tasks else self
        if path is not self:
            await path.write(tasks, deadline)
            return
        await super().write(tasks, deadline)
        self._learn(tasks)

    def reaches(self, targets: Sequence[memoryview]) -> bool:
        """As ``DataPath.reaches``: targets that are registered with every device."""
        return self._context.reaches(targets)

    async def aclose(self) -> None:
        """As ``AsyncTcpDataPath.aclose``."""
        await super().aclose()
        beside, self._beside = self._beside, {}
        for path in beside.values():
            await path.aclose()

    def _beside_of(self, buffers: Sequence[memoryview]) -> AsyncRdmaDataPath:
        """As that of ``RdmaDataPath``."""
        near = self._context.near_to(buffers)
        if not near or self._near:
            return self
        path = self._beside.get(near)
        if path is None and not self._closed:
            host, port = self._address
            path = self._beside[near] = AsyncRdmaDataPath(
                host, port, node_id=self._node_id, node=self._node, context=self._context, near=near
            )
            path._outage = self._outage
        return path or self

    def _learn(self, tasks: Sequence[ReadTask] | Sequence[WriteTask]) -> None:
        self._outage.learn(failed=any(isinstance(task.error, FabricLost) for task in tasks))

    async def _connect(self, deadline: Deadline) -> AsyncTcpConnection:
        first = next(self._numbers)
        problem: FabricLost | None = None
        for step, rail in enumerate(self._context.order(first, self._near)):
            try:
                return await self._connect_over(rail, first + step, deadline)
            except FabricLost as error:
                problem = error
        assert problem is not None
        raise problem

    async def _connect_over(
        self, rail: Rail, number: int, deadline: Deadline
    ) -> AsyncTcpConnection:
        connection = AsyncRdmaConnection(await self._open(deadline))
        try:
            await connection.perform(greeting_effects(self._node_id, self._node))
            limit = deadline.within(OPEN_S_MAX)
            try:
                async with asyncio.timeout(limit.left_s()):
                    await connection.open(rail, self._node, number, limit)
            except (StoreError, TimeoutError) as error:
                raise as_lost(error, self._node) from error
            assert connection.link is not None
            connection.link.wanted = self._context.lanes(number, self._near)
        except BaseException:
            connection.close()
            raise
        return connection
