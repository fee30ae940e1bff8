"""What is asked of a store, and what comes back."""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from mooncake_storage_node.ssd.buffers import copy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_store.deadline import Deadline
    from mooncake_store.extent import Header

T = TypeVar("T")

STORED: Final = "stored"
PRESENT: Final = "present"
NOT_ADMITTED: Final = "not_admitted"
OVER_BUDGET: Final = "over_budget"


class Written(NamedTuple):
    """How a write ended that did not fail.

    ``PRESENT``: the version was there already and was not written again. ``NOT_ADMITTED`` and
    ``OVER_BUDGET``: policy refused it, which is counted; the location is -1.
    """

    location: int
    outcome: str = STORED


class Dropped(NamedTuple):
    """An entry that the store does not hold any more, though nobody asked it to forget it."""

    location: int
    version: int
    reason: str
    """``evicted``, or why it was bad: a key of ``Statistics.lost``."""


def settle(future: Future[T], result: T) -> bool:
    """End a future with a result; return False where it was cancelled or ended before."""
    try:
        future.set_result(result)
    except InvalidStateError:
        return False
    return True


def fail(future: Future[T], error: Exception) -> None:
    """End a future that may have been cancelled, or ended at its deadline, with an error."""
    with suppress(InvalidStateError):
        future.set_exception(error)


class Write:
    """One extent on its way to the disk.

    Attributes:
        source: The extent as it lies in memory; read until the write is over.
        header: Its header, checked against itself.
        size: Its bytes.
        futures: Everybody who waits for it.
        is_fenced: It was removed meanwhile: it must not become readable.
        names: Its name block, once it was read.
        place: Where it was written.
        location: Where it is found, once it is readable; -1 before.
        removals: Those that wait until it is over.
    """

    __slots__ = ("futures", "header", "is_fenced", "location", "names", "place", "removals", "size",
                 "source")  # fmt: skip

    def __init__(self, source: memoryview, header: Header, size: int) -> None:
        self.source = source
        self.header = header
        self.size = size
        self.futures: list[Future[Written]] = []
        self.removals: list[Removal] = []
        self.is_fenced = False
        self.names = b""
        self.place = -1
        self.location = -1

    @property
    def version(self) -> int:
        """The version that is written."""
        return self.header.version

    def join(self) -> Future[Written]:
        """Return one more future for this write."""
        future: Future[Written] = Future()
        self.futures.append(future)
        return future

    def settle(self, written: Written) -> None:
        """End it well."""
        for future in self.futures:
            settle(future, written)

    def fail(self, error: Exception) -> None:
        """End it with an error."""
        for future in self.futures:
            fail(future, error)


class Removal:
    """Entries to be forgotten; ``future`` ends when none of them can come back.

    Attributes:
        future: Ends with None.
        left: Steps that are not durable yet.
    """

    __slots__ = ("future", "left")

    def __init__(self) -> None:
        self.future: Future[None] = Future()
        self.left = 1

    def step(self) -> None:
        """Say that one step is done; call with the ledger's lock held."""
        self.left -= 1

    def settle_if_over(self) -> None:
        """End the future if nothing is left to do."""
        if not self.left:
            settle(self.future, None)


class Transfer(Future[None]):
    """A read into the caller's memory.

    Once ``cancel`` has returned True, or the future has ended, nothing more is written there.
    """

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self.deadline = deadline
        self._guard = threading.Lock()
        self._left = 0

    def expect(self, parts: int) -> None:
        """Say how many parts it consists of."""
        self._left = parts

    def deliver(self, copy: Callable[[], None]) -> bool:
        """Copy one part if the transfer is not over; return whether it was the last."""
        with self._guard:
            if self.done():
                return False
            copy()
            self._left -= 1
            return not self._left

    def cancel(self) -> bool:
        """Give the transfer up."""
        with self._guard:
            return super().cancel()

    def give_up(self, error: Exception) -> None:
        """End the transfer with an error."""
        with self._guard:
            fail(self, error)


class Staged:
    """Bytes of an extent in the store's own memory, to be sent and then given back.

    Attributes:
        view: The bytes.
    """

    __slots__ = ("_give_back", "view")

    def __init__(self, view: memoryview, give_back: Callable[[], None]) -> None:
        self.view = view
        self._give_back: Callable[[], None] | None = give_back

    def release(self) -> None:
        """Give the memory back. Idempotent; the view must not be used afterwards."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    def __enter__(self) -> memoryview:
        return self.view

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(slots=True)
class Span:
    """A range of one extent that somebody wants to read.

    Attributes:
        location: Where the store holds the extent.
        version: What must be found there.
        start: First byte, from the extent's header on.
        length: Bytes.
    """

    location: int
    version: int
    start: int
    length: int


def spread(targets: Sequence[memoryview], at: int, data: memoryview) -> None:
    """Copy bytes into consecutive buffers, ``at`` bytes from the beginning of the first."""
    for target in targets:
        if at >= len(target):
            at -= len(target)
            continue
        take = min(len(target) - at, len(data))
        copy(target[at : at + take], data[:take])
        data = data[take:]
        at = 0
        if not data:
            return
