"""Performs the effects of operations on an event loop: against servers, or inside the process."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from mooncake_client._async_connections import AsyncLines
from mooncake_client._backend import ATTACH_S, share_of
from mooncake_client._core import effects
from mooncake_client._core.cluster import Reach
from mooncake_client._embedded import TELL_S, EmbeddedCluster
from mooncake_client._rdma import Fabric, RegisteredMemory, register
from mooncake_store import device_memory
from mooncake_store.deadline import Deadline
from mooncake_store.errors import (
    Closed,
    DeadlineExceeded,
    NotLeader,
    StoreError,
    Unreachable,
)
from mooncake_store.transport.in_process import AsyncMemoryDataPath
from mooncake_store.transport.rdma import AsyncRdmaDataPath, FabricLost
from mooncake_store.transport.shm import AsyncShmDataPath, ShmDataPath
from mooncake_store.transport.tcp_async import AsyncTcpDataPath
from mooncake_store.wire.control import Locate, OpenNamespace, PutStart

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from mooncake_client._async_connections import AsyncLine
    from mooncake_client._core.effects import Operation
    from mooncake_client._core.session import Session
    from mooncake_client._line import CallDeadline
    from mooncake_client._memory import Registrable
    from mooncake_store.data_path import ReadTask, WriteTask
    from mooncake_store.transport import AsyncDataPath, Reservation, View
    from mooncake_store.wire.address import Address
    from mooncake_store.wire.control import Message, NodeRecord

R = TypeVar("R")


async def read_over(path: AsyncDataPath, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
    """As that of the blocking backend; copies to a GPU hold up the loop."""
    if not device_memory.is_any_known():
        await path.read(tasks, deadline)
        return
    with device_memory.staged(tasks, path.reaches):
        await path.read(tasks, deadline)


class AsyncBackend(ABC):
    """Runs operations for any number of coroutines of one event loop.

    Attributes:
        session: State of the client.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    @abstractmethod
    async def run(self, operation: Operation[R], deadline: CallDeadline) -> R:
        """Drive an operation to its end and return its result."""

    @abstractmethod
    async def aclose(self) -> None:
        """Release everything. Idempotent."""

    @abstractmethod
    def after_fork(self) -> None:
        """In a forked child: let go of what is the parent's."""

    def register(self, pieces: Sequence[Registrable]) -> RegisteredMemory:
        """Let the devices of this client use memory of the caller; there are none here."""
        return register(None, pieces)


class AsyncRun(ABC):
    """One operation under way."""

    __slots__ = ("deadline",)

    def __init__(self, deadline: CallDeadline) -> None:
        self.deadline = deadline

    async def drive(self, operation: Operation[R]) -> R:
        """Perform effects until the operation ends."""
        try:
            effect = operation.send(None)
            while True:
                try:
                    result = await getattr(self, effect.verb)(effect)
                except BaseException as error:  # noqa: BLE001 - the operation passes it on
                    effect = operation.throw(error)
                else:
                    effect = operation.send(result)
        except StopIteration as stop:
            ended: R = stop.value
            return ended

    @abstractmethod
    def path_to(self, node: NodeRecord) -> AsyncDataPath:
        """Return the data path to a node."""

    def path_for(self, node: NodeRecord, tasks: Sequence[ReadTask]) -> AsyncDataPath:
        """Return the data path to what tasks of one node read, all in memory or all on disk."""
        del tasks
        return self.path_to(node)

    @abstractmethod
    async def ask(self, effect: effects.Ask) -> Any:  # noqa: ANN401 - see effects
        """Perform ``Ask``."""

    @abstractmethod
    async def ask_many(self, effect: effects.AskMany) -> list[Any]:
        """Perform ``AskMany``."""

    @abstractmethod
    async def tell(self, effect: effects.Tell) -> None:
        """Perform ``Tell``; never suspends, so that a cancelled operation can."""

    @abstractmethod
    async def attach(self, effect: effects.Attach) -> bool:
        """Perform ``Attach``."""

    async def read(self, effect: effects.Read) -> list[AsyncDataPath]:
        """Perform ``Read``, for all nodes at the same time."""
        deadline = share_of(self.deadline, effect.limit_s, 1)
        return await _together(
            [self.read_from(node, tasks, deadline) for node, tasks in effect.groups]
        )

    async def write(self, effect: effects.Write) -> list[AsyncDataPath]:
        """Perform ``Write``, as ``read``."""
        deadline = share_of(self.deadline, effect.limit_s, 1)
        return await _together(
            [self.write_to(node, tasks, deadline) for node, tasks in effect.groups]
        )

    async def read_from(
        self, node: NodeRecord, tasks: Sequence[ReadTask], deadline: Deadline
    ) -> AsyncDataPath:
        """Read from one node; return the path that did."""
        path = self.path_for(node, tasks)
        await read_over(path, tasks, deadline)
        return path

    async def write_to(
        self, node: NodeRecord, tasks: Sequence[WriteTask], deadline: Deadline
    ) -> AsyncDataPath:
        """Write to one node; return the path that did."""
        path = self.path_to(node)
        await path.write(tasks, deadline)
        return path

    async def view(self, effect: effects.View) -> tuple[AsyncDataPath, View]:
        """Perform ``View``."""
        path, replica = self.path_to(effect.node), effect.replica
        return path, path.view(
            replica.incarnation, replica.offset, effect.identity, attempt=replica.attempt
        )

    async def reserve(self, effect: effects.Reserve) -> tuple[AsyncDataPath, Reservation]:
        """Perform ``Reserve``."""
        path, replica = self.path_to(effect.node), effect.replica
        return path, path.reserve(replica.incarnation, replica.offset, effect.identity)

    async def wait(self, effect: effects.Wait) -> bool:
        """Perform ``Wait``."""
        return await self.pause(effect.seconds)

    async def retry(self, effect: effects.Retry) -> bool:
        """Perform ``Retry``."""
        return await self.pause(effect.seconds)

    async def pause(self, seconds: float) -> bool:
        """Let time pass if the deadline leaves that much."""
        if self.deadline.left_s() <= seconds:
            return False
        if seconds:
            await asyncio.sleep(seconds)
        return True


async def _together(
    moves: list[Coroutine[Any, Any, AsyncDataPath]],
) -> list[AsyncDataPath]:
    """Await all of them; a task each only where there are several."""
    if len(moves) == 1:
        return [await moves[0]]
    return list(await asyncio.gather(*moves))


class AsyncNetworkBackend(AsyncBackend):
    """Talks to a master and to nodes of their own."""

    def __init__(
        self, session: Session, masters: Sequence[Address], name: str, fabric: Fabric
    ) -> None:
        super().__init__(session)
        self.fabric = fabric
        self.lines = AsyncLines(masters, name, session.counters)
        self.shared: dict[str, AsyncDataPath] = {}
        """{node id: path through shared memory}"""
        self._network: dict[tuple[str, str, int], AsyncTcpDataPath] = {}
        """{(node id, host, port): path through the network}"""
        self._rdma: dict[tuple[str, str, int], AsyncRdmaDataPath] = {}
        """The same for nodes that RDMA was tried to."""
        self._pruned = -1
        self._closed = False
        self._forked = False

    async def run(self, operation: Operation[R], deadline: CallDeadline) -> R:
        """As ``AsyncBackend.run``."""
        if self._forked:
            raise Closed("an AsyncClient belongs to the process that made it, not to its children")
        return await _AsyncNetworkRun(self, deadline).drive(operation)

    async def aclose(self) -> None:
        """As ``AsyncBackend.aclose``."""
        self._closed = True
        if self._forked:
            return
        paths: list[AsyncDataPath] = [
            *self.shared.values(), *self._rdma.values(), *self._network.values()
        ]  # fmt: skip
        self.shared = {}
        self._rdma = {}
        self._network = {}
        self.lines.close()
        for path in paths:
            await path.aclose()
        self.fabric.close()

    def after_fork(self) -> None:
        """As ``AsyncBackend.after_fork``: an event loop does not survive a fork."""
        self._forked = True

    async def attach(self, node: NodeRecord, deadline: Deadline) -> bool:
        """Try to reach a node through shared memory; the exchange is local and short."""
        limit = Deadline(min(deadline.left_s(), ATTACH_S))
        try:
            path = await asyncio.to_thread(
                ShmDataPath.connect,
                node.local_path,
                node_id=node.node_id,
                node=node.name,
                deadline=limit,
            )
        except StoreError:
            return False
        if self._closed:
            path.close()
            return False
        old = self.shared.get(node.node_id)
        self.shared[node.node_id] = AsyncShmDataPath(path)
        if old is not None:
            await old.aclose()
        return True

    def register(self, pieces: Sequence[Registrable]) -> RegisteredMemory:
        """As the base class, with the devices of ``fabric``."""
        return self.fabric.register(pieces)

    def network_path(self, node: NodeRecord) -> AsyncDataPath:
        """Return the path to a node through the network; it connects when it is used.

        Raises:
            ConfigError: It is to be RDMA, and this host has none.
        """
        context = self.fabric.context()
        if context is None:
            return self.tcp_path(node)
        key = (node.node_id, node.host, node.port)
        path = self._rdma.get(key)
        if path is None:
            if self._closed:
                raise Closed("the client was closed")
            path = self._rdma[key] = AsyncRdmaDataPath(
                node.host, node.port, node_id=node.node_id, node=node.name, context=context
            )
        return path if path.is_up or self.fabric.is_alone else self.tcp_path(node)

    def tcp_path(self, node: NodeRecord) -> AsyncDataPath:
        """Return the path that always is."""
        key = (node.node_id, node.host, node.port)
        path = self._network.get(key)
        if path is None:
            if self._closed:
                raise Closed("the client was closed")
            path = self._network[key] = AsyncTcpDataPath(
                node.host, node.port, node_id=node.node_id, node=node.name
            )
        return path

    async def prune(self) -> None:
        """Close the paths to nodes that are gone."""
        number = self.session.cluster.number
        if number == self._pruned:
            return
        self._pruned = number
        known = {(node.node_id, node.host, node.port) for node in self.session.cluster.nodes}
        for paths in (self._rdma, self._network):
            for key in [key for key in paths if key not in known]:
                await paths.pop(key).aclose()


class _AsyncNetworkRun(AsyncRun):
    """One operation under way."""

    __slots__ = ("_backend",)

    def __init__(self, backend: AsyncNetworkBackend, deadline: CallDeadline) -> None:
        self.deadline = deadline
        self._backend = backend

    def path_to(self, node: NodeRecord) -> AsyncDataPath:
        """As ``AsyncRun.path_to``."""
        backend = self._backend
        if backend.session.cluster.reach(node) is Reach.SHARED:
            path = backend.shared.get(node.node_id)
            if path is not None:
                return path
        return backend.network_path(node)

    def path_for(self, node: NodeRecord, tasks: Sequence[ReadTask]) -> AsyncDataPath:
        """As ``AsyncRun.path_for``: no memory that is mapped or registered holds a disk."""
        if tasks[0].incarnation in self._backend.session.cluster.disks:
            return self._backend.tcp_path(node)
        return self.path_to(node)

    async def ask(self, effect: effects.Ask) -> Any:  # noqa: ANN401  # whatever the effect yields
        """As ``AsyncRun.ask``."""
        line = await self._ready_line(effect.message)
        try:
            reply = await line.ask(effect.message, self.deadline, effect.meanwhile)
        except StoreError as error:
            self._failed(line, error)
            raise
        self._backend.session.counters.master_round_trips += 1
        return reply

    async def ask_many(self, effect: effects.AskMany) -> list[Any]:
        """As ``AsyncRun.ask_many``."""
        messages = effect.messages
        line = await self._ready_line(messages[0])
        try:
            replies = await line.ask_many(messages, self.deadline)
        except StoreError as error:
            self._failed(line, error)
            raise
        self._backend.session.counters.master_round_trips += 1
        for reply in replies:
            if isinstance(reply, NotLeader):
                self._failed(line, reply)
                raise reply
        return replies

    async def tell(self, effect: effects.Tell) -> None:
        """As ``AsyncRun.tell``."""
        line = self._backend.lines.idle()
        if line is not None and line.reign == self._backend.session.reign:
            line.tell(effect.message)

    async def _ready_line(self, message: Message) -> AsyncLine:
        """Return a connection to the master whose namespace is open."""
        backend = self._backend
        line = await backend.lines.take(self.deadline)
        session = backend.session
        if line.reign != session.reign:
            session.reign_seen = line.reign
            if type(message) is not OpenNamespace and hasattr(message, "slot"):
                raise effects.NewReign
        return line

    def _failed(self, line: AsyncLine, error: StoreError) -> None:
        """Decide what an error says about the connection it came over."""
        lines = self._backend.lines
        if isinstance(error, NotLeader):
            lines.redirect(line, error.node)
        elif isinstance(error, Unreachable):
            lines.distrust(line)
        elif isinstance(error, DeadlineExceeded) and not line.outlives_deadline():
            lines.masters.is_lost = True
            lines.distrust(line)

    async def attach(self, effect: effects.Attach) -> bool:
        """As ``AsyncRun.attach``."""
        return await self._backend.attach(effect.node, self.deadline)

    async def read(self, effect: effects.Read) -> list[AsyncDataPath]:
        """As ``AsyncRun.read``."""
        await self._backend.prune()
        return await super().read(effect)

    async def read_from(
        self, node: NodeRecord, tasks: Sequence[ReadTask], deadline: Deadline
    ) -> AsyncDataPath:
        """As ``AsyncRun.read_from``: over TCP, where RDMA failed."""
        path = await super().read_from(node, tasks, deadline)
        rest = [task for task in tasks if isinstance(task.error, FabricLost)]
        if not rest or self._backend.fabric.is_alone:
            return path
        other = self._backend.tcp_path(node)
        await read_over(other, rest, deadline)
        return other if len(rest) == len(tasks) else path

    async def write_to(
        self, node: NodeRecord, tasks: Sequence[WriteTask], deadline: Deadline
    ) -> AsyncDataPath:
        """As ``read_from``. What landed already is a success there."""
        path = await super().write_to(node, tasks, deadline)
        rest = [task for task in tasks if isinstance(task.error, FabricLost)]
        if not rest or self._backend.fabric.is_alone:
            return path
        other = self._backend.tcp_path(node)
        await other.write(rest, deadline)
        return other if len(rest) == len(tasks) else path

    async def retry(self, effect: effects.Retry) -> bool:
        """As ``AsyncRun.retry``."""
        lines = self._backend.lines
        if lines.masters.is_lost and not self.deadline.is_explicit:
            return False
        if await self.pause(effect.seconds):
            return True
        lines.masters.is_lost = True
        return False


class AsyncEmbeddedBackend(AsyncBackend):
    """Performs effects by calling the core of a master in this process."""

    def __init__(self, session: Session, cluster: EmbeddedCluster) -> None:
        super().__init__(session)
        self.cluster = cluster
        self.path = AsyncMemoryDataPath({cluster.segment.incarnation: cluster.segment})
        self._reason = ""

    async def run(self, operation: Operation[R], deadline: CallDeadline) -> R:
        """As ``AsyncBackend.run``."""
        if self._reason:
            raise Closed(self._reason)
        return await _AsyncEmbeddedRun(self, deadline).drive(operation)

    async def aclose(self) -> None:
        """As ``AsyncBackend.aclose``."""
        if not self._reason:
            self._reason = "the client was closed"
            await self.path.aclose()
            self.cluster.close()

    def after_fork(self) -> None:
        """As ``AsyncBackend.after_fork``."""
        self._reason = "a local:// cluster belongs to the process that made it, not to its children"


class _AsyncEmbeddedRun(AsyncRun):
    """One operation under way."""

    __slots__ = ("_backend",)

    def __init__(self, backend: AsyncEmbeddedBackend, deadline: CallDeadline) -> None:
        self.deadline = deadline
        self._backend = backend

    def path_to(self, node: NodeRecord) -> AsyncDataPath:
        """As ``AsyncRun.path_to``."""
        del node
        return self._backend.path

    async def ask(self, effect: effects.Ask) -> Message:
        """As ``AsyncRun.ask``."""
        if effect.meanwhile is not None:
            effect.meanwhile()
        return await self._request(effect.message)

    async def ask_many(self, effect: effects.AskMany) -> list[Message]:
        """As ``AsyncRun.ask_many``."""
        return [await self._request(message) for message in effect.messages]

    async def tell(self, effect: effects.Tell) -> None:
        """As ``AsyncRun.tell``."""
        with contextlib.suppress(StoreError):  # A courtesy: nobody waits for its answer.
            self._backend.cluster.master.request(effect.message, TELL_S)

    async def attach(self, effect: effects.Attach) -> bool:
        """As ``AsyncRun.attach``: everything is near already."""
        del effect
        return False

    async def _request(self, message: Message) -> Message:
        """Ask; what may have to wait for another coroutine waits in a thread."""
        left_s = self.deadline.check("asking the embedded master")
        self._backend.session.counters.master_round_trips += 1
        request = self._backend.cluster.master.request
        if isinstance(message, PutStart) or (isinstance(message, Locate) and message.wait_ms):
            return await asyncio.to_thread(request, message, left_s)
        return request(message, left_s)
