"""A client's data path to one node: real exchanges over virtual sockets."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from mooncake_store.deadline import Deadline
from mooncake_store.errors import ChecksumMismatch, DeadlineExceeded, StoreError, Unreachable
from mooncake_store.transport import ReadTask, WriteTask
from mooncake_store.transport.effects import Receive, greeting_effects
from mooncake_store.transport.exchange import (
    SCRATCH_BYTES,
    probe_of,
    read_exchange,
    settle_doubts,
    write_exchange,
)
from mooncake_store.transport.tasks import advance, check_read, check_write
from tests.simulation.local_path import LocalPath
from tests.simulation.sockets import VirtualSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_store.transport.effects import Effects
    from mooncake_store.transport.exchange import AnyRead, AnyWrite
    from mooncake_store.wire.control import NodeRecord
    from tests.simulation.client import SimClient
    from tests.simulation.node import SimNode

    Exchange = AnyRead | AnyWrite


class SimDataPath:
    """Moves bytes to and from one node.

    Attributes:
        name: As ``DataPath.name``: ``shm`` while the node's memory is at hand, else ``tcp``.
    """

    has_views = False

    def __init__(self, client: SimClient, node: NodeRecord) -> None:
        self.name = "tcp"
        self._client = client
        self._node = node
        self._idle: list[Conversation] = []
        self._local: LocalPath | None = None

    def attach(self) -> bool:
        """Take the memory of a node that lives on this host; return whether it does."""
        node = self._client.world.nodes[self._node.name]
        here = node.is_alive and not node.is_paused and node.host == self._client.host
        self._local = LocalPath(self._client, node.segment) if here else None
        self.name = "shm" if here else "tcp"
        return here

    def perform(
        self,
        tasks: Sequence[ReadTask | WriteTask],
        limit_s: float,
        over: Callable[[], None],
    ) -> None:
        """Perform tasks; ``over`` is called once each of them has its result."""
        good = [task for task in tasks if _is_sound(task)]
        if not good:
            self._client.later(0.0, over)
            return
        # As backends choose (``path_for``): no memory at hand holds a disk.
        if (
            self._local is not None
            and good[0].incarnation not in self._client.session.cluster.disks
        ):
            self._local.perform(good, limit_s, over)
        else:
            _Transfer(self, good, limit_s, over).begin()

    def take(self) -> Conversation:
        """Return a connection."""
        while self._idle:
            kept = self._idle.pop()
            if kept.is_open:
                return kept
        return Conversation(self._client, self._node)

    def give(self, conversation: Conversation) -> None:
        """Take back a connection on which nothing is under way."""
        self._idle.append(conversation)


def _is_sound(task: ReadTask | WriteTask) -> bool:
    try:
        check_read(task) if isinstance(task, ReadTask) else check_write(task)
    except StoreError as error:
        task.error = error
        return False
    return True


class _Transfer:
    """Some tasks on their way, over one connection after the other."""

    def __init__(
        self,
        path: SimDataPath,
        tasks: Sequence[ReadTask | WriteTask],
        limit_s: float,
        over: Callable[[], None],
    ) -> None:
        self._path = path
        self._client = path._client
        self._tasks = list(tasks)
        self._over = over
        self._until_s = self._client.clock.now_s + limit_s
        self._timer = self._client.later(limit_s, self._expire)
        self._conversation: Conversation | None = None
        self._probes: list[tuple[ReadTask, ReadTask]] = []
        self._is_over = False

    def begin(self) -> None:
        """Start, or go on with what is left."""
        conversation = self._conversation = self._path.take()
        exchange: Exchange
        if isinstance(self._tasks[0], ReadTask):
            exchange = read_exchange(self._tasks, Deadline(5.0))  # type: ignore[arg-type]
        else:
            exchange = write_exchange(self._tasks, Deadline(5.0))  # type: ignore[arg-type]
        is_fresh = conversation.is_fresh

        def ended(error: StoreError | None) -> None:
            if self._is_over:
                return
            if error is None:
                self._path.give(conversation)
                self._done()
                return
            conversation.close()
            self._tasks = self._tasks[exchange.done :]
            retry = not is_fresh and not exchange.answered and isinstance(error, Unreachable)
            if retry and self._tasks:
                self.begin()
            else:
                self._fail(error)

        conversation.perform(exchange.effects, ended)

    def _done(self) -> None:
        doubtful = [
            task
            for task in self._tasks
            if isinstance(task, ReadTask) and isinstance(task.error, ChecksumMismatch)
        ]
        if self._probes or not doubtful:
            settle_doubts(*zip(*self._probes, strict=True) if self._probes else ((), ()))
            self._end()
            return
        self._probes = [(task, probe_of(task)) for task in doubtful]
        self._tasks = [probe for _, probe in self._probes]
        self.begin()

    def _expire(self) -> None:
        if not self._is_over:
            if self._conversation is not None:
                self._conversation.close()
            self._fail(DeadlineExceeded("the node did not answer in time"))

    def _fail(self, error: StoreError) -> None:
        if not self._probes:
            for task in self._tasks:
                if task.error is None:
                    task.error = error
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._timer.cancel()
        self._over()


class Conversation:
    """One data connection.

    Attributes:
        is_open: As far as we know.
        is_fresh: No exchange ran on it yet.
    """

    def __init__(self, client: SimClient | SimNode, node: NodeRecord) -> None:
        self.is_open = True
        self.is_fresh = True
        self._node = node
        self._client = client
        stream = client.network.connect(client.name, node.name)
        self._socket = VirtualSocket(stream.near, client.world.random, self._ready)
        stream.near.on_message = client.mine(stream.near.on_message)
        stream.near.on_lost = client.mine(stream.near.on_lost)
        client.world.nodes[node.name].accept_data(stream.far)
        self._ids = itertools.count(1)
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._effects: Effects | None = None
        self._sending: list[memoryview] = []
        self._receiving: list[memoryview] = []
        self._missing = 0
        self._received = 0
        self._ended: Callable[[StoreError | None], None] = lambda _error: None
        self._is_greeted = False

    def perform(
        self,
        effects: Callable[..., Effects],
        ended: Callable[[StoreError | None], None],
    ) -> None:
        """Run an exchange, after the greeting on a new connection."""
        exchange = effects(self._ids, self._scratch, self._node.name)
        if self.is_fresh:
            self._run(
                _chained(greeting_effects(self._node.node_id, self._node.name), exchange), ended
            )
        else:
            self._run(exchange, ended)

    def close(self) -> None:
        """Close it; nothing is received from here on."""
        self.is_open = False
        self._effects = None
        self._socket.close()

    def _run(self, effects: Effects, ended: Callable[[StoreError | None], None]) -> None:
        self._effects = effects
        self._ended = ended
        self._sending, self._receiving, self._missing = [], [], 0
        self._go_on(None)

    def _go_on(self, moved: int | None) -> None:
        """Run the exchange until it has to wait for the socket."""
        effects = self._effects
        assert effects is not None
        try:
            while True:
                effect = effects.send(moved)  # type: ignore[arg-type]  # None starts a generator
                if isinstance(effect, Receive):
                    self._receiving, self._missing = effect.buffers, effect.at_least
                    self._received = 0
                    self._receive()
                    moved = self._received
                else:
                    self._sending = effect.buffers
                    self._send()
                    moved = 0
        except StopIteration:
            self._finish(None)
        except BlockingIOError:
            return
        except StoreError as error:
            self._finish(error)
        except OSError as error:
            self._finish(Unreachable(f"the connection broke: {error}"))

    def _ready(self) -> None:
        if self._effects is None:
            return
        try:
            if self._sending:
                self._send()
                moved = 0
            else:
                self._receive()
                moved = self._received
        except BlockingIOError:
            return
        except OSError as error:
            self._finish(Unreachable(f"the connection broke: {error}"))
        else:
            self._go_on(moved)

    def _send(self) -> None:
        while self._sending:
            sent = self._socket.sendmsg(self._sending)
            self._sending = advance(self._sending, sent)

    def _receive(self) -> None:
        while self._received < self._missing:
            got = self._socket.recvmsg_into(self._receiving)[0]
            if not got:
                raise ConnectionResetError("the peer closed the connection")
            self._received += got
            self._receiving = advance(self._receiving, got)

    def _finish(self, error: StoreError | None) -> None:
        self._effects = None
        self.is_fresh = False
        if error is not None:
            self.is_open = False
        self._ended(error)


def _chained(first: Effects, second: Effects) -> Effects:
    yield from first
    yield from second
