"""What a master orders about the extents on this node's disks: performed without waiting for them.

An order is answered when the disk has done it, or at the order's time with what was done by then.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.deadlines import succeeded
from mooncake_storage_node.ssd import NOT_ADMITTED, OVER_BUDGET, Store, Written
from mooncake_store.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    Overloaded,
    StaleTerm,
    StoreError,
)
from mooncake_store.types import term_of
from mooncake_store.wire.control import CopyResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mooncake_storage_node.deadlines import Deadlines
    from mooncake_storage_node.stores import Stores
    from mooncake_store.deadline import Deadline
    from mooncake_store.wire.control import (
        CopyItem,
        DirectoryPage,
        FreeItem,
        ListDirectory,
        Message,
    )

ORDER_S: Final = 5.0
"""Time for an order that names none."""

EPOCHS_S: Final = 2.0
"""Time that new epochs wait for the disks. They are in the node's memory then, which outlives its
process, and a store that could not record them refuses to be read until it has: so a disk in
trouble does not keep a namespace from being cleared."""

ATTEMPTS_MAX: Final = 65_536
"""Copies to disks whose numbers are remembered, so that they can be named by them. 10 MB."""

LOOK_S: Final = 0.1
"""Time between two looks at copies that take too long: one ends at most this much late."""

CURSORS_MAX: Final = 1 << 32
"""Pages go on from a location, which has 32 bits (docs/adr/0023)."""
PAGE_ENTRIES_MAX: Final = 4096
"""Extents in one page, whatever is asked for: about 0.5 MiB."""

_WHY: Final = {
    NOT_ADMITTED: "its admission takes what is offered a second time",
    OVER_BUDGET: "what may be written to this disk today is used up",
}


class StoreCopy:
    """One copy that is to go to a store, from the moment that it was ordered.

    Attributes:
        item: The order.
        store: Where to.
        cut: Its attempt is over; set with the lock of ``StoreOrders`` held.
        writing: The store has it.
        until_s: When it is given up, once it is being written.
        expire: Gives it up.
    """

    __slots__ = ("cut", "expire", "item", "store", "until_s", "writing")

    def __init__(self, store: Store, item: CopyItem) -> None:
        self.item = item
        self.store = store
        self.cut = False
        self.writing = False
        self.until_s = float("inf")
        self.expire: Callable[[], None] = _nothing


class StoreOrders:
    """Performs orders on stores.

    Stores know an extent by its place and its *version*. Masters may name it by the number of the
    copy that brought it there as well: that is translated for as long as it is remembered.
    """

    def __init__(self, stores: Stores, deadlines: Deadlines) -> None:
        """Perform orders on ``stores``; ``deadlines`` ends those that take too long."""
        self.stores = stores
        self._deadlines = deadlines
        self._lock = threading.Lock()
        self._copies: set[StoreCopy] = set()
        self._versions: OrderedDict[int, int] = OrderedDict()
        """{attempt: version} of copies to stores, the latest ones."""
        self._looking = False

    def version_of(self, number: int) -> int:
        """Return the version that a number of a write stands for."""
        return self._versions.get(number, number)

    # --- removing -------------------------------------------------------------------------------

    def free(
        self, items: list[FreeItem], limit_s: float, over: Callable[[list[bool]], None]
    ) -> None:
        """Remove extents from stores.

        Args:
            items: Of stores, or of no segment of this node; offset -1: wherever it is.
            limit_s: Time in which it must be answered; 0: not said.
            over: Told of each whether it is gone for good, and nobody writes it any more.
        """
        by_store: dict[Store, list[int]] = {}
        gone = [False] * len(items)
        for index, item in enumerate(items):
            self._cut(item)
            store = self.stores.find(item.incarnation)
            if store is not None:
                by_store.setdefault(store, []).append(index)
            else:
                # A store that is not open may still hold it; other memory is gone.
                gone[index] = not self.stores.owns(item.incarnation)
        pending: list[tuple[list[int], Future[None]]] = []
        for store, indexes in by_store.items():
            places = [self._place(items[index]) for index in indexes]
            try:
                pending.append((indexes, store.remove(places)))
            except StoreError:
                continue  # It remembers them; asked again, it answers for the disk.

        def end() -> None:
            for indexes, future in pending:
                for index in indexes:
                    gone[index] = succeeded(future)
            over(gone)

        self._deadlines.gather([future for _, future in pending], limit_s or ORDER_S, end)

    def _place(self, item: FreeItem) -> tuple[int, int]:
        """Return (location, version) of what an item names.

        If there is another version by now, the item is gone: a store gives its row to others, older
        versions too, while an order that was not heard to be done is given again.
        """
        return item.offset, self.version_of(item.version)

    def _cut(self, item: FreeItem) -> None:
        with self._lock:
            for copy in self._copies:
                if item.version in {copy.item.version, copy.item.attempt}:
                    copy.cut = True

    def cut_older(self, term: int) -> None:
        """End all copies of older reigns, before this returns."""
        with self._lock:
            older = [copy for copy in self._copies if term_of(copy.item.attempt) < term]
            for copy in older:
                copy.cut = True
        for copy in older:
            if copy.writing:
                _revoke(copy)

    # --- epochs and listing ---------------------------------------------------------------------

    def set_epochs(
        self, epochs: Mapping[int, int], limit_s: float, over: Callable[[], None]
    ) -> None:
        """Make older epochs unreadable: at once; ``over`` is called when that is for good."""
        self.stores.set_epochs(epochs)
        futures = []
        for store in self.stores.all_open():
            try:
                futures.append(store.set_epochs(epochs))
            except StoreError:
                continue  # It refuses to be read until it has recorded them.
        self._deadlines.gather(futures, min(limit_s or EPOCHS_S, EPOCHS_S), over)

    def list_page(
        self, message: ListDirectory, limit_s: float, answer: Callable[[Message | StoreError], None]
    ) -> None:
        """Answer with one page of a store's directory."""
        if not 0 <= message.cursor < CURSORS_MAX:
            answer(InvalidArgument(f"no page of a store begins at {message.cursor}"))
            return
        store = self.stores.find(message.incarnation)
        if store is None:
            answer(Overloaded("the store is not open"))
            return
        try:
            future = store.list_page(message.cursor, max(1, min(message.limit, PAGE_ENTRIES_MAX)))
        except StoreError as error:
            answer(error)
            return
        answered = Once(answer)
        limit = limit_s or ORDER_S
        deadline = DeadlineExceeded(f"the disk did not list its extents in {limit:g} s")
        self._deadlines.gather([_plain(future)], limit, lambda: answered(_page(future, deadline)))

    # --- copies ---------------------------------------------------------------------------------

    def announce(self, store: Store, item: CopyItem) -> StoreCopy:
        """Note a copy that was ordered, so that an order to free it finds it from now on."""
        copy = StoreCopy(store, item)
        with self._lock:
            self._copies.add(copy)
            self._versions[item.attempt] = item.version
            while len(self._versions) > ATTEMPTS_MAX:
                self._versions.popitem(last=False)
        return copy

    def forget(self, copy: StoreCopy) -> None:
        """Note that a copy is over. Idempotent."""
        with self._lock:
            self._copies.discard(copy)

    def write(
        self,
        copy: StoreCopy,
        source: memoryview,
        deadline: Deadline,
        over: Callable[[CopyResult | StoreError], None],
    ) -> None:
        """Store an extent that lies in memory.

        Args:
            copy: As announced; it is forgotten at its end.
            source: The extent; kept until it is over, and verified as it is copied.
            deadline: When it is given up; it never becomes readable then.
            over: Told once how it ended, on any thread.

        Raises:
            StoreError: The store refuses; ``over`` is not called.
        """
        item = copy.item
        with self._lock:
            # A removal that comes later finds the write; one that came before has cut it.
            if copy.cut:
                raise StaleTerm(f"attempt {item.attempt} is over")
            future = copy.store.write(source, item.version, wanted=item.wanted)
            copy.writing = True
        ended = Once(over)

        def expire() -> None:
            late = DeadlineExceeded(f"the disk did not take the extent in {deadline.total_s:g} s")
            if ended.claim():
                _revoke(copy)
                self.forget(copy)
                ended.tell(late)

        def settle(done: Future[Written]) -> None:
            self.forget(copy)
            if ended.claim():
                ended.tell(_result(done, item))

        copy.expire = expire
        copy.until_s = deadline.at_s
        self._look_soon()
        future.add_done_callback(settle)

    def _look_soon(self) -> None:
        """Look after copies that take too long, every now and then while there are any.

        One look for all: a deadline for each would outlive the copy, thousands of times a second.
        """
        with self._lock:
            was, self._looking = self._looking, True
        if not was:
            self._deadlines.at(time.monotonic() + LOOK_S, self._look)

    def _look(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            late = [copy for copy in self._copies if copy.until_s <= now_s]
            self._looking = False
            more = bool(self._copies)
        for copy in late:
            copy.expire()
        if more:
            self._look_soon()


class Once:
    """Calls a function once, however many ask for it."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self.tell = tell
        self._lock = threading.Lock()
        self._claimed = False

    def claim(self) -> bool:
        """Return whether the caller is the first one."""
        with self._lock:
            was, self._claimed = self._claimed, True
        return not was

    def __call__(self, *args: object) -> None:
        """Call it, the first time."""
        if self.claim():
            self.tell(*args)


def _nothing() -> None:
    """Do nothing."""


def _revoke(copy: StoreCopy) -> None:
    """Keep a write that is under way from ever being readable."""
    try:
        copy.store.remove([(-1, copy.item.version)])
    except StoreError:
        return  # It is closed, and remembers that for when it is open again.


def _result(done: Future[Written], item: CopyItem) -> CopyResult | StoreError:
    error = done.exception()
    if error is not None:
        if isinstance(error, StoreError):
            return error
        return InternalError(f"the store failed: {error!r}")
    written = done.result()
    if written.location < 0:
        return CopyResult(-1, written.outcome, f"version {item.version}: {_WHY[written.outcome]}")
    return CopyResult(written.location)


def _plain(future: Future[DirectoryPage]) -> Future[None]:
    """Return a future that ends with another one, whatever its result."""
    plain: Future[None] = Future()
    future.add_done_callback(lambda _: plain.set_result(None))
    return plain


def _page(future: Future[DirectoryPage], late: StoreError) -> Message | StoreError:
    if not future.done():
        return late
    error = future.exception()
    if error is None:
        return future.result()
    return error if isinstance(error, StoreError) else InternalError(repr(error))
