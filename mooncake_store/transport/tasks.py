"""Checks and slicing that every data path does with its tasks before it moves a byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from mooncake_store.data_path import ReadTask, WriteTask
from mooncake_store.errors import InvalidArgument, StoreError
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.limits import CHUNK_BYTES, NAMESPACES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T", ReadTask, WriteTask)


def check_read(task: ReadTask) -> None:
    """Check a task's own numbers, whatever the node holds.

    Raises:
        InvalidArgument: The range lies outside the payload, or the targets do not fit it.
    """
    if not 0 <= task.start <= task.start + task.length <= task.identity.length:
        raise InvalidArgument(
            f"the range {task.start}+{task.length} lies outside of {task.identity.length} bytes"
        )
    if not 0 <= task.identity.slot < NAMESPACES_MAX:
        raise InvalidArgument(f"there is no namespace slot {task.identity.slot}")
    room = 0
    for target in task.targets:
        if target.readonly or target.format != "B" or not target.c_contiguous:
            raise InvalidArgument("a target is writable, contiguous and of format 'B'")
        room += target.nbytes
    if room != task.length:
        raise InvalidArgument(f"targets of {room} bytes cannot take a range of {task.length}")


def check_write(task: WriteTask) -> int:
    """Check a task's own numbers; return the bytes from the extent's start to its end.

    Raises:
        InvalidArgument: The parts are not as long as the identity says.
    """
    size = 0
    for part in task.parts:
        if part.format != "B" or not part.c_contiguous:
            raise InvalidArgument("a part of a payload is contiguous and of format 'B'")
        size += part.nbytes
    if size != task.identity.length or len(task.sealed.header) != HEADER_BYTES:
        raise InvalidArgument(f"parts of {size} bytes are no payload of {task.identity.length}")
    return HEADER_BYTES + size + len(task.sealed.tail)


def checked(check: Callable[[T], object], tasks: Sequence[T]) -> Sequence[T]:
    """Return the tasks whose own numbers are right; what is wrong with others is their error."""
    if len(tasks) == 1:
        return tasks if passes(check, tasks[0]) else ()
    return [task for task in tasks if passes(check, task)]


def passes(check: Callable[[T], object], task: T) -> bool:
    """Return whether a task's own numbers are right; they become its error otherwise."""
    task.error = None
    try:
        check(task)
    except StoreError as error:
        task.error = error
        return False
    return True


def covering_chunks(task: ReadTask) -> range:
    """Return the chunks that a verified read of the task's range must hash.

    An empty payload is one empty chunk; an empty range of anything else needs none.
    """
    if not task.length and task.identity.length:
        return range(0)
    first = task.start // CHUNK_BYTES
    return range(first, max(first + 1, -(-(task.start + task.length) // CHUNK_BYTES)))


class Scatter:
    """Cuts a sequence of buffers into consecutive pieces."""

    __slots__ = ("_at", "_buffers", "_index")

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._buffers = buffers
        self._index = 0
        self._at = 0

    def take(self, size: int) -> list[memoryview]:
        """Return the next ``size`` bytes as slices; the buffers hold at least that many."""
        pieces: list[memoryview] = []
        while size:
            buffer = self._buffers[self._index]
            left = len(buffer) - self._at
            if left > size:
                pieces.append(buffer[self._at : self._at + size])
                self._at += size
                return pieces
            if left:
                pieces.append(buffer[self._at :] if self._at else buffer)
            size -= left
            self._index += 1
            self._at = 0
        return pieces


def advance(buffers: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left of ``buffers`` after their first ``count`` bytes."""
    for index, buffer in enumerate(buffers):
        size = len(buffer)
        if count < size:
            return [buffer[count:], *buffers[index + 1 :]] if count else buffers[index:]
        count -= size
    return []
