"""Performs the effects of operations by blocking calls: against servers, or inside the process."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mooncake_client._connections import Lines
from mooncake_client._core import effects
from mooncake_client._core.cluster import Reach
from mooncake_client._rdma import Fabric, RegisteredMemory, register
from mooncake_store import device_memory
from mooncake_store.data_path import ReadTask, WriteTask
from mooncake_store.deadline import Deadline
from mooncake_store.errors import (
    Closed,
    DeadlineExceeded,
    NotLeader,
    StoreError,
    Unreachable,
    without_frames,
)
from mooncake_store.transport.rdma import FabricLost, RdmaDataPath
from mooncake_store.transport.shm import ShmDataPath
from mooncake_store.transport.tcp import TcpDataPath
from mooncake_store.wire.control import OpenNamespace, PutCommit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_client._core.effects import Operation
    from mooncake_client._core.session import Session
    from mooncake_client._line import CallDeadline, Line
    from mooncake_client._memory import Registrable
    from mooncake_store.transport import DataPath, Reservation, View
    from mooncake_store.transport.rdma import RdmaContext
    from mooncake_store.wire.address import Address
    from mooncake_store.wire.control import Message, NodeRecord

R = TypeVar("R")
P = TypeVar("P", TcpDataPath, RdmaDataPath)
T = TypeVar("T", ReadTask, WriteTask)

ATTACH_S: Final = 1.0
"""Time for exchanging descriptors with a node on this host; it takes a millisecond."""


def share_of(deadline: Deadline, limit_s: float | None, count: int) -> Deadline:
    """Return the deadline of one node's tasks, where ``count`` nodes are still to come in turn."""
    if limit_s is None and count == 1:
        return deadline
    left_s = deadline.left_s()
    if limit_s is None:
        return Deadline(left_s / count)
    return Deadline(min(limit_s, left_s / (count + 1)))


def read_over(path: DataPath, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
    """Read, through memory of the host where targets are a GPU's and the path needs it."""
    if not device_memory.is_any_known():
        path.read(tasks, deadline)
        return
    with device_memory.staged(tasks, path.reaches):
        path.read(tasks, deadline)


def write_over(path: DataPath, tasks: Sequence[WriteTask], deadline: Deadline) -> None:
    """Write, as ``read_over`` reads."""
    path.write(tasks, deadline)


class Backend(ABC):
    """Runs operations for any number of threads.

    Attributes:
        session: State of the client.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    @abstractmethod
    def run(self, operation: Operation[R], deadline: CallDeadline) -> R:
        """Drive an operation to its end and return its result."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. Idempotent."""

    @abstractmethod
    def after_fork(self) -> None:
        """In a forked child: let go of what is the parent's."""

    def register(self, pieces: Sequence[Registrable]) -> RegisteredMemory:
        """Let the devices of this client use memory of the caller; there are none here."""
        return register(None, pieces)


class Run(ABC):
    """One operation under way. Its methods perform the effects that are named like them."""

    __slots__ = ("deadline",)

    def __init__(self, deadline: CallDeadline) -> None:
        self.deadline = deadline

    def drive(self, operation: Operation[R]) -> R:
        """Perform effects until the operation ends.

        An interruption between two effects is the operation's, too: it gives up what it began.
        """
        try:
            return self._drive(operation, None)
        except StoreError as error:
            raise without_frames(error)  # noqa: B904 - it is the same error
        except BaseException as error:  # noqa: BLE001 - the operation passes it on
            return self._drive(operation, error)  # One that has ended raises it again.

    def _drive(self, operation: Operation[R], problem: BaseException | None) -> R:
        try:
            effect = operation.send(None) if problem is None else operation.throw(problem)
            while True:
                try:
                    result = getattr(self, effect.verb)(effect)
                except BaseException as error:  # noqa: BLE001 - the operation passes it on
                    effect = operation.throw(error)
                else:
                    effect = operation.send(result)
        except StopIteration as stop:
            ended: R = stop.value
            return ended
        finally:
            del problem  # Its traceback holds this frame.

    @abstractmethod
    def path_to(self, node: NodeRecord) -> DataPath:
        """Return the data path to a node."""

    def path_for(self, node: NodeRecord, tasks: Sequence[ReadTask]) -> DataPath:
        """Return the data path to what tasks of one node read, all in memory or all on disk."""
        del tasks
        return self.path_to(node)

    @abstractmethod
    def ask(self, effect: effects.Ask) -> Any:  # noqa: ANN401 - see effects
        """Perform ``Ask``."""

    @abstractmethod
    def ask_many(self, effect: effects.AskMany) -> list[Any]:
        """Perform ``AskMany``."""

    @abstractmethod
    def tell(self, effect: effects.Tell) -> None:
        """Perform ``Tell``."""

    @abstractmethod
    def attach(self, effect: effects.Attach) -> bool:
        """Perform ``Attach``."""

    def read(self, effect: effects.Read) -> list[DataPath]:
        """Perform ``Read``, node after node; each gets a fair share of the time left."""
        paths: list[DataPath] = []
        count = len(effect.groups)
        for node, tasks in effect.groups:
            limit = share_of(self.deadline, effect.limit_s, count)
            path = self.path_for(node, tasks)
            read_over(path, tasks, limit)
            paths.append(self.again(node, path, tasks, limit, read_over))
            count -= 1
        return paths

    def write(self, effect: effects.Write) -> list[DataPath]:
        """Perform ``Write``, as ``read``."""
        paths: list[DataPath] = []
        count = len(effect.groups)
        for node, tasks in effect.groups:
            path, limit = self.path_to(node), share_of(self.deadline, effect.limit_s, count)
            write_over(path, tasks, limit)
            paths.append(self.again(node, path, tasks, limit, write_over))
            count -= 1
        return paths

    def again(
        self,
        node: NodeRecord,
        path: DataPath,
        tasks: Sequence[T],
        deadline: Deadline,
        move: Callable[[DataPath, Sequence[T], Deadline], None],
    ) -> DataPath:
        """Move what a path could not over another one, if any; return that which moved them."""
        del node, tasks, deadline, move
        return path

    def view(self, effect: effects.View) -> tuple[DataPath, View]:
        """Perform ``View``."""
        path, replica = self.path_to(effect.node), effect.replica
        return path, path.view(
            replica.incarnation, replica.offset, effect.identity, attempt=replica.attempt
        )

    def reserve(self, effect: effects.Reserve) -> tuple[DataPath, Reservation]:
        """Perform ``Reserve``."""
        path, replica = self.path_to(effect.node), effect.replica
        return path, path.reserve(replica.incarnation, replica.offset, effect.identity)

    def wait(self, effect: effects.Wait) -> bool:
        """Perform ``Wait``."""
        return self.pause(effect.seconds)

    def retry(self, effect: effects.Retry) -> bool:
        """Perform ``Retry``."""
        return self.pause(effect.seconds)

    def pause(self, seconds: float) -> bool:
        """Let time pass if the deadline leaves that much."""
        if self.deadline.left_s() <= seconds:
            return False
        if seconds:
            time.sleep(seconds)
        return True


class NetworkBackend(Backend):
    """Talks to a master and to nodes of their own.

    Attributes:
        lines: Connections to the master.
        shared: {node id: path through shared memory}.
        fabric: The RDMA devices.
    """

    def __init__(
        self,
        session: Session,
        masters: Sequence[Address],
        name: str,
        connections_max: int,
        *,
        fabric: Fabric,
    ) -> None:
        super().__init__(session)
        self.fabric = fabric
        self.lines = Lines(masters, name, connections_max, session.counters)
        self.shared: dict[str, DataPath] = {}
        self._network: dict[tuple[str, str, int], TcpDataPath] = {}
        """{(node id, host, port): path through the network}"""
        self._rdma: dict[tuple[str, str, int], RdmaDataPath] = {}
        """The same for nodes that RDMA was tried to."""
        self._lock = threading.Lock()
        self._closed = False

    def run(self, operation: Operation[R], deadline: CallDeadline) -> R:
        """As ``Backend.run``."""
        run = _NetworkRun(self, deadline)
        try:
            return run.drive(operation)
        finally:
            run.end()

    def close(self) -> None:
        """As ``Backend.close``."""
        with self._lock:
            self._closed = True
            paths = [*self.shared.values(), *self._rdma.values(), *self._network.values()]
            self.shared = {}
            self._rdma = {}
            self._network = {}
        self.lines.close()
        for path in paths:
            path.close()
        self.fabric.close()

    def after_fork(self) -> None:
        """As ``Backend.after_fork``: sockets are closed without a word."""
        self._lock = threading.Lock()
        self.shared = {}
        self._rdma = {}
        self._network = {}
        self.fabric.after_fork()
        self.lines.after_fork()

    def register(self, pieces: Sequence[Registrable]) -> RegisteredMemory:
        """As the base class, with the devices of ``fabric``."""
        return self.fabric.register(pieces)

    def network_path(self, node: NodeRecord) -> DataPath:
        """Return the path to a node through the network; it connects when it is used.

        Raises:
            ConfigError: It is to be RDMA, and this host has none.
        """
        context = self.fabric.context()
        if context is None:
            return self.tcp_path(node)
        path = self._rdma.get((node.node_id, node.host, node.port))
        if path is None:
            path = self._add_rdma_path(node, context)
        return path if path.is_up or self.fabric.is_alone else self.tcp_path(node)

    def tcp_path(self, node: NodeRecord) -> DataPath:
        """Return the path that always is."""
        key = (node.node_id, node.host, node.port)
        path = self._network.get(key)
        return path if path is not None else self._add_tcp_path(key, node)

    def attach(self, node: NodeRecord, deadline: Deadline) -> bool:
        """Try to reach a node through shared memory."""
        limit = Deadline(min(deadline.left_s(), ATTACH_S))
        try:
            path = ShmDataPath.connect(
                node.local_path, node_id=node.node_id, node=node.name, deadline=limit
            )
        except StoreError:
            return False
        with self._lock:
            old = self.shared.get(node.node_id)
            if not self._closed:
                self.shared[node.node_id] = path
        if old is not None:
            old.close()
        if self._closed:
            path.close()
        return not self._closed

    def _add_tcp_path(self, key: tuple[str, str, int], node: NodeRecord) -> DataPath:
        with self._lock:
            gone: list[DataPath] = [*self._take_gone(self._network)]
            path = self._network.get(key)
            if path is None:
                path = self._network[key] = TcpDataPath(
                    node.host, node.port, node_id=node.node_id, node=node.name
                )
        for old in gone:
            old.close()
        return path

    def _add_rdma_path(self, node: NodeRecord, context: RdmaContext) -> RdmaDataPath:
        key = (node.node_id, node.host, node.port)
        with self._lock:
            gone = self._take_gone(self._rdma)
            path = self._rdma.get(key)
            if path is None:
                path = self._rdma[key] = RdmaDataPath(
                    node.host, node.port, node_id=node.node_id, node=node.name, context=context
                )
        for old in gone:
            old.close()
        return path

    def _take_gone(self, paths: dict[tuple[str, str, int], P]) -> list[P]:
        """Under the lock, before a path is added: return those to nodes that are gone."""
        if self._closed:
            raise Closed("the client was closed")
        known = {(other.node_id, other.host, other.port) for other in self.session.cluster.nodes}
        return [paths.pop(old) for old in list(paths) if old not in known]


class _NetworkRun(Run):
    """One operation under way; holds at most one connection to the master."""

    __slots__ = ("_backend", "_line")

    def __init__(self, backend: NetworkBackend, deadline: CallDeadline) -> None:
        self.deadline = deadline
        self._backend = backend
        self._line: Line | None = None

    def end(self) -> None:
        """Return what the operation held."""
        line, self._line = self._line, None
        if line is not None:
            self._backend.lines.give_back(line)

    def path_to(self, node: NodeRecord) -> DataPath:
        """As ``Run.path_to``."""
        backend = self._backend
        if backend.session.cluster.reach(node) is Reach.SHARED:
            path = backend.shared.get(node.node_id)
            if path is not None:
                return path
        return backend.network_path(node)

    def path_for(self, node: NodeRecord, tasks: Sequence[ReadTask]) -> DataPath:
        """As ``Run.path_for``: no memory that is mapped or registered holds a disk."""
        if tasks[0].incarnation in self._backend.session.cluster.disks:
            return self._backend.tcp_path(node)
        return self.path_to(node)

    def ask(self, effect: effects.Ask) -> Any:  # noqa: ANN401  # whatever the effect yields
        """As ``Run.ask``."""
        line = self._ready_line(effect.message)
        try:
            reply = line.ask(effect.message, self.deadline, effect.meanwhile)
        except StoreError as error:
            self._failed(line, error)
            raise
        self._backend.session.counters.master_round_trips += 1
        return reply

    def ask_many(self, effect: effects.AskMany) -> list[Any]:
        """As ``Run.ask_many``."""
        line = self._ready_line(effect.messages[0])
        try:
            replies = line.ask_many(effect.messages, self.deadline)
        except StoreError as error:
            self._failed(line, error)
            raise
        self._backend.session.counters.master_round_trips += 1
        for reply in replies:
            if isinstance(reply, NotLeader):
                self._failed(line, reply)
                raise reply
        return replies

    def tell(self, effect: effects.Tell) -> None:
        """As ``Run.tell``: only over a connection that is there, since telling never waits."""
        line = self._line
        if line is None:
            line = self._line = self._backend.lines.take_idle()
        if line is not None and line.reign == self._backend.session.reign:
            line.tell(effect.message)

    def attach(self, effect: effects.Attach) -> bool:
        """As ``Run.attach``."""
        return self._backend.attach(effect.node, self.deadline)

    def read(self, effect: effects.Read) -> list[DataPath]:
        """As ``Run.read``; other threads may talk to the master meanwhile."""
        self.end()
        return super().read(effect)

    def again(
        self,
        node: NodeRecord,
        path: DataPath,
        tasks: Sequence[T],
        deadline: Deadline,
        move: Callable[[DataPath, Sequence[T], Deadline], None],
    ) -> DataPath:
        """As ``Run.again``: over TCP, where RDMA failed. A write that landed is a success there."""
        if path.name != RdmaDataPath.name or self._backend.fabric.is_alone:
            return path
        rest = [task for task in tasks if isinstance(task.error, FabricLost)]
        if not rest:
            return path
        other = self._backend.tcp_path(node)
        move(other, rest, deadline)
        return other if len(rest) == len(tasks) else path

    def retry(self, effect: effects.Retry) -> bool:
        """As ``Run.retry``."""
        lines = self._backend.lines
        if lines.masters.is_lost and not self.deadline.is_explicit:
            return False
        if self.pause(effect.seconds):
            return True
        lines.masters.is_lost = True
        return False

    def _ready_line(self, message: Message) -> Line:
        """Return a connection to the master whose namespace is open."""
        backend = self._backend
        line = self._line
        if line is None:
            line = self._line = backend.lines.take(
                self.deadline, ends_a_put=type(message) is PutCommit
            )
        session = backend.session
        if line.reign != session.reign:
            session.reign_seen = line.reign
            if type(message) is not OpenNamespace and hasattr(message, "slot"):
                raise effects.NewReign
        return line

    def _failed(self, line: Line, error: StoreError) -> None:
        """Decide what an error says about the connection it came over."""
        lines = self._backend.lines
        if isinstance(error, NotLeader):
            line.is_clean = False
            lines.redirect(error.node)
        elif line.is_clean:
            self._backend.session.counters.master_round_trips += 1
            return
        elif isinstance(error, Unreachable):
            lines.distrust()
        elif isinstance(error, DeadlineExceeded):
            if line.outlives_deadline():
                return
            lines.masters.is_lost = True
        self.end()
