"""Memory of GPUs as a target of reads: where it is, and the way through the host (ADR 52).

A view of such memory has an address and a length, but a processor that touches its bytes dies. So
whoever makes one registers the memory here before, and every read goes through ``staged``, which
gives a path host memory instead, unless the path can do without the processor.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from typing import TYPE_CHECKING

from mooncake_store.cuda import cuda_driver
from mooncake_store.errors import StoreError
from mooncake_store.memory import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mooncake_store.cuda import GpuDriver
    from mooncake_store.data_path import ReadTask

driver: Callable[[], GpuDriver] = cuda_driver


class _Known:
    """The memory of GPUs that callers named. Readers need no lock: what they see is replaced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[tuple[int, int]] = []
        self.joined: tuple[list[int], list[int]] = ([], [])
        """Starts and ends of what is known, without overlaps."""

    def add(self, start: int, size: int) -> None:
        with self._lock:
            self._entries.append((start, start + size))
            self._join()

    def remove(self, start: int, size: int) -> None:
        with self._lock:
            self._entries.remove((start, start + size))
            self._join()

    def covers(self, address: int, size: int) -> bool:
        starts, ends = self.joined
        at = bisect.bisect_right(starts, address) - 1
        return at >= 0 and address + size <= ends[at]

    def _join(self) -> None:
        starts: list[int] = []
        ends: list[int] = []
        for start, end in sorted(self._entries):
            if ends and start <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                starts.append(start)
                ends.append(end)
        self.joined = starts, ends


_known = _Known()


class KnownMemory:
    """Memory of a GPU that views may be made of, until ``close``."""

    def __init__(self, start: int, size: int) -> None:
        self._range: tuple[int, int] | None = (start, size)
        _known.add(start, size)

    def close(self) -> None:
        """Forget it. Idempotent."""
        known, self._range = self._range, None
        if known is not None:
            _known.remove(*known)


def is_any_known() -> bool:
    """Return whether any memory of GPUs was named; while none was, nothing here costs anything."""
    return bool(_known.joined[0])


def is_on_gpu(address: int, size: int) -> bool:
    """Return whether these bytes are memory of a GPU that was named."""
    return _known.covers(address, size)


def is_gpu_view(view: memoryview) -> bool:
    """Return whether a view is of memory of a GPU."""
    return len(view) > 0 and _known.covers(address_of(view), len(view))


def copy_out(address: int, size: int) -> memoryview:
    """Return a copy of memory of a GPU.

    Raises:
        NotSupported: This host has no driver.
        InvalidArgument: The driver refuses.
    """
    copied = memoryview(bytearray(size))
    driver().copy_out(copied, address)
    return copied


@contextlib.contextmanager
def staged(
    tasks: Sequence[ReadTask], reaches: Callable[[Sequence[memoryview]], bool] = lambda _: False
) -> Iterator[None]:
    """Within the block, have tasks whose targets are a GPU's read into the host's memory.

    What was read is copied to the GPU at the end of the block, unless it is left by an error: a
    call that was cancelled writes nothing any more. A task that is not verified keeps its targets
    where the path ``reaches`` them without the processor.
    """
    held: list[tuple[ReadTask, Sequence[memoryview], memoryview]] = []
    for task in tasks:
        if any(map(is_gpu_view, task.targets)) and (task.verify or not reaches(task.targets)):
            held.append((task, task.targets, memoryview(bytearray(task.length))))
            task.targets = [held[-1][2]]
    try:
        yield
    except BaseException:
        for task, targets, _ in held:
            task.targets = targets
        raise
    for task, targets, host in held:
        task.targets = targets
        if task.error is None:
            _deliver(task, host)


def _deliver(task: ReadTask, host: memoryview) -> None:
    """Copy what came to where it was wanted."""
    at = 0
    try:
        for target in task.targets:
            part = host[at : at + len(target)]
            at += len(target)
            if is_gpu_view(target):
                driver().copy_in(address_of(target), part)
            else:
                target[:] = part
    except StoreError as error:
        task.error = error
        task.verified = False
