"""The shared-memory data path: the node's segments, mapped into this process.

The mapping ends when the path is closed and nothing uses it any more. A forked child does not have
it: there every call raises ``Closed``, views are released, and the child's own client maps anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final

from mooncake_store.data_path import AsyncDataPath, DataPath, ReadTask, WriteTask
from mooncake_store.errors import (
    Closed,
    ConfigError,
    Overloaded,
    ProtocolError,
    StaleExtent,
    StaleTerm,
    StoreError,
)
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.limits import WRITERS_MAX
from mooncake_store.memory import (
    close_file,
    fence,
    join_barriers,
    lock_range,
    map_file,
    populator,
)
from mooncake_store.segment import Intent, Segment
from mooncake_store.transport.effects import check_greeting
from mooncake_store.transport.extents import MOVE_BYTES_MIN, ExtentMemory
from mooncake_store.transport.local import fetch_handout
from mooncake_store.transport.tasks import check_write

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from mooncake_store.data_path import Reservation, View
    from mooncake_store.deadline import Deadline
    from mooncake_store.extent import Identity
    from mooncake_store.transport.extents import ExtentReservation, ExtentView
    from mooncake_store.transport.local import HandedSegment

SLOTS_MAX: Final = 64
"""Intent slots of one path: writes and reservations under way at one time. All processes of a host
share ``limits.WRITERS_MAX``."""


class Slot:
    """An intent slot while a write is under way.

    Attributes:
        number: Which; negative: the write is over.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class WriterSlots:
    """The intent slots of one segment that this process holds.

    A slot is ours while the kernel holds our lock on its words (``memory.lock_range``). Whoever
    writes keeps a reference to this object, so the locks end after the last write.
    """

    def __init__(self, segment: Segment, locks: int) -> None:
        """Take over the descriptor ``locks``."""
        self._segment = segment
        self._locks = locks
        self._mutex = threading.Lock()
        self._free: list[int] = []
        self._count = 0
        self._token = random.SystemRandom().getrandbits(62) | 1

    def begin(self, offset: int, size: int, version: int) -> Slot:
        """Declare a write and return its slot; look at the fence only after this.

        Raises:
            Overloaded: There is no slot left, here or on the host.
        """
        with self._mutex:
            slot = Slot(self._free.pop() if self._free else self._acquire())
        try:
            self.widen(slot, offset, version, size)
        except BaseException:
            self.end(slot)
            raise
        return slot

    def widen(self, slot: Slot, offset: int, version: int, size: int) -> None:
        """Declare that the write of ``slot`` is larger; look at the fence again after this."""
        self._segment.intend(slot.number, Intent(self._token, offset, size, version))
        fence()

    def end(self, slot: Slot) -> None:
        """Declare that the write of ``slot`` is over.

        Idempotent, to be called again where Ctrl-C came before its first line: a slot that is not
        ended keeps the node waiting for as long as we live.
        """
        number = slot.number
        if number < 0:
            return
        self._segment.finish_intent(number)
        with self._mutex:
            if slot.number >= 0:
                slot.number = -1
                self._free.append(number)

    def disown(self) -> None:
        """In a forked child: let go of the locks, which are the parent's."""
        close_file(self._locks)
        self._locks = -1

    def __del__(self) -> None:
        if self._locks >= 0:
            close_file(self._locks)

    def _acquire(self) -> int:
        if self._count >= SLOTS_MAX:
            raise Overloaded(f"this client has {SLOTS_MAX} local writes under way already")
        first = random.randrange(WRITERS_MAX)  # noqa: S311 - spreads processes, protects nothing
        for step in range(WRITERS_MAX):
            slot = (first + step) % WRITERS_MAX
            if lock_range(self._locks, *Segment.intent_range(slot)):
                self._segment.finish_intent(slot)  # A dead process may have left one.
                self._count += 1
                return slot
        raise Overloaded(f"{WRITERS_MAX} local writes are under way on this host already")


class _Mapped:
    """One mapped segment."""

    __slots__ = ("memory", "slots")

    def __init__(self, handed: HandedSegment) -> None:
        mapping = map_file(handed.memory, handed.mapped_bytes)
        segment = Segment(memoryview(mapping), populator(mapping))
        if segment.incarnation != handed.incarnation:
            raise ProtocolError("the node handed over another segment than it says")
        self.memory = ExtentMemory(segment)
        try:
            self.slots = WriterSlots(segment, os.dup(handed.locks))
        except OSError as error:
            raise ConfigError(f"cannot keep the locks of shared memory: {error}") from error


_paths: weakref.WeakSet[ShmDataPath] = weakref.WeakSet()


def _disown_all() -> None:
    for path in list(_paths):
        path.disown()


os.register_at_fork(after_in_child=_disown_all)


class ShmDataPath(DataPath):
    """Reads and writes the segments of a node of this host in place."""

    name = "shm"
    has_views = True

    def __init__(self, mapped: dict[int, _Mapped], connection: socket.socket, node: str) -> None:
        """Take over what ``connect`` made."""
        self._mapped = mapped
        self._connection = connection
        self._node = node
        self._why = ""
        self._loans: weakref.WeakSet[ExtentView | ExtentReservation] = weakref.WeakSet()
        _paths.add(self)

    @classmethod
    def connect(
        cls, local_path: str, *, node_id: str, node: str, deadline: Deadline
    ) -> ShmDataPath:
        """Exchange descriptors with a node of this host and map its segments.

        Args:
            local_path: Unix socket of the node.
            node_id: Identity it must have.
            node: Its name, for messages.
            deadline: When to give up.

        Raises:
            Unreachable: There is no such socket here: another host, user or mount namespace.
            WrongPeer, ProtocolMismatch, ProtocolError: Something else answers.
            ConfigError: The memory cannot be mapped.
            DeadlineExceeded: Nothing answers.
        """
        connection, handout = fetch_handout(local_path, node_id, deadline)
        try:
            check_greeting(handout.greeting, node_id, node)
            join_barriers()
            mapped = {handed.incarnation: _Mapped(handed) for handed in handout.segments}
        except BaseException:
            connection.close()
            raise
        finally:
            for handed in handout.segments:
                close_file(handed.memory)
                close_file(handed.locks)
        return cls(mapped, connection, node)

    @property
    def incarnations(self) -> frozenset[int]:
        """Segments that are mapped."""
        return frozenset(self._mapped)

    def is_connected(self) -> bool:
        """Return whether the node process that handed the memory over still lives.

        The memory stays valid without it, and a node that is started again goes on with it.
        """
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def read(self, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
        """As ``DataPath.read``."""
        for _ in self.reading(tasks, deadline):
            pass

    def take(
        self, incarnation: int, offset: int, identity: Identity, *, attempt: int = 0
    ) -> bytes | None:
        """As ``DataPath.take``."""
        mapped = self._mapped.get(incarnation)
        if mapped is None:
            return None
        return mapped.memory.take(offset, identity, attempt or identity.version)

    def write(self, tasks: Sequence[WriteTask], deadline: Deadline) -> None:
        """As ``DataPath.write``."""
        for _ in self.writing(tasks, deadline):
            pass

    def reading(self, tasks: Sequence[ReadTask], deadline: Deadline) -> Generator[None, None, None]:
        """Perform ``read`` in slices: it is over when this ends, given up when it is closed."""
        for task in tasks:
            task.error = None
            try:
                mapped = self._segment(task.incarnation)
                deadline.check("reading shared memory", node=self._node)
            except StoreError as error:
                task.error = error
                continue
            if task.length <= MOVE_BYTES_MIN:
                mapped.memory.read(task)
            else:
                yield from _until(mapped.memory.reading(task), task, deadline)

    def writing(
        self, tasks: Sequence[WriteTask], deadline: Deadline
    ) -> Generator[None, None, None]:
        """Perform ``write`` in slices: it is over when this ends, given up when it is closed."""
        for task in tasks:
            yield from self._writing(task, deadline)

    def view(self, incarnation: int, offset: int, identity: Identity, *, attempt: int = 0) -> View:
        """As ``DataPath.view``."""
        memory = self._segment(incarnation).memory
        view = memory.view(offset, identity, attempt or identity.version)
        self._loans.add(view)
        return view

    def reserve(self, incarnation: int, offset: int, identity: Identity) -> Reservation:
        """As ``DataPath.reserve``."""
        mapped = self._segment(incarnation)
        size = HEADER_BYTES + identity.length
        slot = mapped.slots.begin(offset, size, identity.version)
        try:
            if not mapped.memory.allow(offset, size, identity):
                raise StaleTerm(f"attempt {identity.version} has landed already")  # noqa: TRY301 - ends the slot below
            loan = mapped.memory.reserve(
                offset,
                identity,
                ended=partial(mapped.slots.end, slot),
                widen=partial(mapped.slots.widen, slot, offset, identity.version),
            )
            self._loans.add(loan)
        except BaseException:
            mapped.slots.end(slot)
            raise
        return loan

    def close(self) -> None:
        """Let go of the memory; it is unmapped when the last call, view or slice of it ends."""
        self._why = self._why or "the data path was closed"
        self._mapped = {}
        self._connection.close()

    def disown(self) -> None:
        """In a forked child: forget memory that is not there."""
        self._why = "shared memory is not inherited by a forked process: open a client of its own"
        for loan in list(self._loans):
            with contextlib.suppress(BufferError):
                loan.payload.release()
        for mapped in self._mapped.values():
            mapped.slots.disown()
        self.close()

    def _segment(self, incarnation: int) -> _Mapped:
        mapped = self._mapped.get(incarnation)
        if mapped is None:
            if self._why:
                raise Closed(self._why, node=self._node)
            raise StaleExtent(
                f"node {self._node} handed over no segment {incarnation:x}", node=self._node
            )
        return mapped

    def _writing(self, task: WriteTask, deadline: Deadline) -> Generator[None, None, None]:
        task.error = None
        try:
            deadline.check("writing shared memory", node=self._node)
            mapped = self._segment(task.incarnation)
            size = check_write(task)
            slot = mapped.slots.begin(task.offset, size, task.identity.version)
        except StoreError as error:
            task.error = error
            return
        try:
            if task.identity.length <= MOVE_BYTES_MIN:
                mapped.memory.write(task)
            else:
                yield from _until(mapped.memory.writing(task), task, deadline)
            mapped.slots.end(slot)
        except BaseException:  # Ctrl-C in the line above, too
            mapped.slots.end(slot)
            raise


def _until(
    steps: Generator[None, None, None], task: ReadTask | WriteTask, deadline: Deadline
) -> Generator[None, None, None]:
    """Take steps for as long as there is time."""
    for _ in steps:
        try:
            deadline.check("copying shared memory")
        except StoreError as error:
            steps.close()
            task.error = error
            return
        yield


class AsyncShmDataPath(AsyncDataPath):
    """The same for an event loop: long copies let others have their turn after each slice."""

    name = "shm"
    has_views = True

    def __init__(self, shm: ShmDataPath) -> None:
        """Use a path that ``ShmDataPath.connect`` made; ``aclose`` closes it."""
        self._shm = shm

    async def read(self, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
        """As ``DataPath.read``."""
        await _in_turns(self._shm.reading(tasks, deadline))

    async def write(self, tasks: Sequence[WriteTask], deadline: Deadline) -> None:
        """As ``DataPath.write``."""
        await _in_turns(self._shm.writing(tasks, deadline))

    def view(self, incarnation: int, offset: int, identity: Identity, *, attempt: int = 0) -> View:
        """As ``DataPath.view``."""
        return self._shm.view(incarnation, offset, identity, attempt=attempt)

    def reserve(self, incarnation: int, offset: int, identity: Identity) -> Reservation:
        """As ``DataPath.reserve``."""
        return self._shm.reserve(incarnation, offset, identity)

    async def aclose(self) -> None:
        """As ``DataPath.close``."""
        self._shm.close()


async def _in_turns(steps: Generator[None, None, None]) -> None:
    try:
        for _ in steps:
            await asyncio.sleep(0)
    finally:
        steps.close()
