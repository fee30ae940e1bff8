"""Data paths over segments of this very process, with faults to order.

The embedded cluster uses them plainly; tests and the simulation inject faults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mooncake_store.data_path import AsyncDataPath, DataPath, ReadTask, WriteTask
from mooncake_store.errors import Closed, StaleExtent, StoreError
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.transport.extents import MOVE_BYTES_MIN, ExtentMemory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mooncake_store.data_path import Reservation, View
    from mooncake_store.deadline import Deadline
    from mooncake_store.extent import Identity
    from mooncake_store.segment import Segment


class Faults(Protocol):
    """What goes wrong: asked around every task of a path."""

    def before(self, task: ReadTask | WriteTask) -> StoreError | None:
        """Return the error that the task ends with, nothing having happened; or None."""

    def after(self, task: ReadTask | WriteTask) -> StoreError | None:
        """Return the error that hides the task's result (it happened, the answer was lost)."""


class NoFaults:
    """A path that works."""

    def before(self, task: ReadTask | WriteTask) -> StoreError | None:
        """Let it happen."""
        del task
        return None

    def after(self, task: ReadTask | WriteTask) -> StoreError | None:
        """Let the answer arrive."""
        del task
        return None


class MemoryDataPath(DataPath):
    """Reads and writes segments that this process holds."""

    name = "memory"
    has_views = True

    def __init__(self, segments: Mapping[int, Segment], faults: Faults | None = None) -> None:
        """Serve ``segments``, {incarnation: segment}; they stay the caller's."""
        self._memories = {key: ExtentMemory(segment) for key, segment in segments.items()}
        self._faults: Faults = faults or NoFaults()
        self._closed = False

    def read(self, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
        """As ``DataPath.read``."""
        for task in tasks:
            self._perform(task, deadline)

    def write(self, tasks: Sequence[WriteTask], deadline: Deadline) -> None:
        """As ``DataPath.write``."""
        for task in tasks:
            self._perform(task, deadline)

    def view(self, incarnation: int, offset: int, identity: Identity, *, attempt: int = 0) -> View:
        """As ``DataPath.view``."""
        return self._memory(incarnation).view(offset, identity, attempt or identity.version)

    def reserve(self, incarnation: int, offset: int, identity: Identity) -> Reservation:
        """As ``DataPath.reserve``."""
        memory = self._memory(incarnation)
        memory.allow(offset, HEADER_BYTES + identity.length, identity)
        return memory.reserve(offset, identity, ended=lambda: None, widen=lambda _size: None)

    def close(self) -> None:
        """Let go of the segments."""
        self._closed = True
        self._memories = {}

    def _memory(self, incarnation: int) -> ExtentMemory:
        memory = self._memories.get(incarnation)
        if memory is None:
            if self._closed:
                raise Closed("the data path was closed")
            raise StaleExtent(f"there is no segment {incarnation:x} here")
        return memory

    def _perform(self, task: ReadTask | WriteTask, deadline: Deadline) -> None:
        try:
            deadline.check("waiting for its turn")
            memory = self._memory(task.incarnation)
        except StoreError as error:
            task.error = error
            return
        task.error = self._faults.before(task)
        if task.error is None:
            _move(memory, task)
        if task.error is None:
            task.error = self._faults.after(task)


def _move(memory: ExtentMemory, task: ReadTask | WriteTask) -> None:
    if isinstance(task, ReadTask):
        memory.read(task)
    elif task.identity.length <= MOVE_BYTES_MIN:
        memory.write(task)
    else:
        for _ in memory.writing(task):
            pass


class AsyncMemoryDataPath(AsyncDataPath):
    """The same for asyncio; it never waits."""

    name = "memory"
    has_views = True

    def __init__(self, segments: Mapping[int, Segment], faults: Faults | None = None) -> None:
        """As ``MemoryDataPath``."""
        self._path = MemoryDataPath(segments, faults)

    async def read(self, tasks: Sequence[ReadTask], deadline: Deadline) -> None:
        """As ``DataPath.read``."""
        self._path.read(tasks, deadline)

    async def write(self, tasks: Sequence[WriteTask], deadline: Deadline) -> None:
        """As ``DataPath.write``."""
        self._path.write(tasks, deadline)

    def view(self, incarnation: int, offset: int, identity: Identity, *, attempt: int = 0) -> View:
        """As ``DataPath.view``."""
        return self._path.view(incarnation, offset, identity, attempt=attempt)

    def reserve(self, incarnation: int, offset: int, identity: Identity) -> Reservation:
        """As ``DataPath.reserve``."""
        return self._path.reserve(incarnation, offset, identity)

    async def aclose(self) -> None:
        """As ``DataPath.close``."""
        self._path.close()
