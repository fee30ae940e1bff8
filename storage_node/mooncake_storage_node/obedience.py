"""What a master may tell a node, and how the node does it.

Obeys the highest term it has heard of and refuses older ones (``StaleTerm``): that is the fence
against a master that was replaced and does not know it.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from mooncake_storage_node.core.directory import list_page
from mooncake_storage_node.core.fencing import blocking_slots
from mooncake_storage_node.notebook import Notebook
from mooncake_store.errors import InvalidArgument, NotSupported, StaleTerm, StoreError
from mooncake_store.limits import GRANULE_BYTES, NAMESPACES_MAX
from mooncake_store.memory import barrier, fence
from mooncake_store.segment import FREED
from mooncake_store.types import COUNT_BITS, make_version, term_of
from mooncake_store.wire.control import (
    CopyExtents,
    DirectoryPage,
    Done,
    DropNotes,
    Freed,
    FreeExtents,
    FreeItem,
    KeepNotes,
    ListDirectory,
    ListNotes,
    SetEpochs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mooncake_storage_node.store_orders import StoreOrders
    from mooncake_storage_node.writes import IncomingWrites
    from mooncake_store.segment import Intent, Segment
    from mooncake_store.wire.control import Message

    Answer = Callable[[Message | StoreError], None]
    Copy = Callable[[CopyExtents, float, Answer], None]

TERM_BITS = 63 - COUNT_BITS
"""Versions have 63 bits, as the top one of a table entry is the fence."""

PAGE_ENTRIES_MAX = 4096
"""Objects in one page of the directory: about 0.5 MiB and 40 ms of this process."""

_ORDERS = (
    CopyExtents, DropNotes, FreeExtents, KeepNotes, ListDirectory, ListNotes, SetEpochs,
)  # fmt: skip


class Obedience:
    """Performs the orders of masters on the segments of this node.

    Attributes:
        notebook: Notes about other nodes.
        freed: Extents that were erased.
        busy: Answers that an extent is still being written.
        damaged: Extents found damaged when they were listed, and dropped.
    """

    def __init__(
        self,
        segments: Mapping[int, Segment],
        incoming: IncomingWrites,
        writer_is_over: Callable[[int, int], bool],
        notebook: Notebook | None = None,
        copy: Copy | None = None,
        stores: StoreOrders | None = None,
    ) -> None:
        """Work on ``segments``.

        Args:
            segments: {incarnation: segment}.
            incoming: Writes that arrive over TCP.
            writer_is_over: Tells for (incarnation, slot) whether that local writer is gone.
            notebook: Keeps notes about other nodes; one in memory where None.
            copy: Performs ``CopyExtents`` within so many seconds (0: not said), off this thread,
                and answers it; None refuses such orders.
            stores: What the node has on disks; None: nothing.
        """
        self.notebook = notebook if notebook is not None else Notebook()
        self.freed = 0
        self.busy = 0
        self.damaged = 0
        self._segments = segments
        self._incoming = incoming
        self._writer_is_over = writer_is_over
        self._copy = copy
        self._stores = stores
        self._lock = threading.Lock()

    @property
    def term(self) -> int:
        """The newest term obeyed."""
        return max((segment.term for segment in self._segments.values()), default=0)

    def adopt(self, term: int) -> None:
        """Obey a master of this term from now on; writes of older reigns are over.

        Raises:
            StaleTerm: A newer one was obeyed already.
            InvalidArgument: No reign can have that number.
        """
        if not 0 <= term < 1 << TERM_BITS:
            raise InvalidArgument(f"no reign has the number {term}")
        with self._lock:
            current = self.term
            if term < current:
                raise StaleTerm(f"term {term} is over: this node obeys {current}")
            if term > current:
                for segment in self._segments.values():
                    segment.term = term
                self._incoming.cut_older(make_version(term, 0))
                if self._stores is not None:
                    self._stores.cut_older(term)

    def set_epochs(self, epochs: Mapping[int, int], limit_s: float = 0.0) -> Future[None]:
        """Make older epochs unreadable; an epoch never goes back.

        Returns:
            What ends when the disks have recorded them, or ``limit_s`` later.

        Raises:
            InvalidArgument: A number is out of range.
        """
        for slot, epoch in epochs.items():
            if not 0 <= slot < NAMESPACES_MAX or not 0 <= epoch < 1 << 32:
                raise InvalidArgument(f"no epoch {epoch} of a namespace slot {slot}")
        for segment in self._segments.values():
            for slot, epoch in epochs.items():
                segment.epochs[slot] = max(segment.epochs[slot], epoch)
        recorded: Future[None] = Future()
        if self._stores is None:
            recorded.set_result(None)
        else:
            self._stores.set_epochs(epochs, limit_s, lambda: recorded.set_result(None))
        return recorded

    def perform(self, message: Message, limit_s: float, answer: Answer) -> None:
        """Do what a master asks.

        Args:
            message: The order.
            limit_s: Time in which it wants an answer; 0: not said.
            answer: Gets the answer, once: before this returns, but for orders that take time,
                which are answered on another thread.
        """
        try:
            if isinstance(message, _ORDERS):
                self.adopt(message.term)
            begin = self._begin(message, limit_s, answer)
            done = None if begin is not None else self._perform(message)
        except StoreError as error:
            answer(error)
            return
        if begin is not None:
            begin()
        elif done is not None:
            answer(done)

    def _begin(self, message: Message, limit_s: float, answer: Answer) -> Callable[[], None] | None:
        """Return what begins an order that takes time; None where it is another one."""
        if isinstance(message, CopyExtents) and self._copy is not None:
            return partial(self._copy, message, limit_s, answer)
        stores = self._stores
        if stores is None:
            return None
        if isinstance(message, SetEpochs):
            recorded = self.set_epochs(message.epochs, limit_s)
            return partial(recorded.add_done_callback, lambda _: answer(Done()))
        if isinstance(message, ListDirectory) and stores.stores.owns(message.incarnation):
            return partial(stores.list_page, message, limit_s, answer)
        if isinstance(message, FreeExtents):
            elsewhere = [
                index
                for index, item in enumerate(message.items)
                if item.incarnation not in self._segments
            ]
            if elsewhere:
                return partial(self._free_in_stores, message, elsewhere, limit_s, answer)
        return None

    def _free_in_stores(
        self, message: FreeExtents, elsewhere: list[int], limit_s: float, answer: Answer
    ) -> None:
        """Free extents, those at ``elsewhere`` in stores."""
        assert self._stores is not None
        try:
            freed = bytearray(self.free(message.items))
        except StoreError as error:
            answer(error)
            return

        def over(gone: list[bool]) -> None:
            for index, is_gone in zip(elsewhere, gone, strict=True):
                freed[index] = is_gone
            answer(Freed(bytes(freed)))

        self._stores.free([message.items[index] for index in elsewhere], limit_s, over)

    def _perform(self, message: Message) -> Message:
        if isinstance(message, SetEpochs):
            self.set_epochs(message.epochs)
            return Done()
        if isinstance(message, FreeExtents):
            return Freed(self.free(message.items))
        if isinstance(message, ListDirectory):
            return self._list(message)
        if isinstance(message, (KeepNotes, DropNotes, ListNotes)):
            return self._note(message)
        raise NotSupported(f"this node does not know {type(message).__name__}")

    def _note(self, message: KeepNotes | DropNotes | ListNotes) -> Message:
        if isinstance(message, ListNotes):
            return self.notebook.page(message)
        if isinstance(message, KeepNotes):
            self.notebook.keep(message)
        else:
            self.notebook.drop(message)
        return Done()

    def free(self, items: list[FreeItem]) -> bytes:
        """Erase extents; return one byte an item, 1 where nobody writes there any more."""
        for item in items:
            segment = self._segments.get(item.incarnation)
            if segment is not None and not _fits(segment, item):
                raise InvalidArgument(
                    f"no extent of {item.bytes} bytes at {item.offset}, version {item.version}"
                )
        for item in items:
            self._incoming.cut(item)
            self._erase(item)
        if len(self._incoming):
            # Who announced itself after the cut may have looked for the fence before it was set.
            for item in items:
                self._incoming.cut(item)
                self._erase(item)
        # Fences first, intents second: a writer does it the other way round (ADR 2).
        fence()
        barrier()
        intents = {key: segment.intents() for key, segment in self._segments.items()}
        return bytes(self._is_free(item, intents) for item in items)

    def _is_free(self, item: FreeItem, intents: dict[int, list[tuple[int, Intent]]]) -> bool:
        slots = blocking_slots(item, intents.get(item.incarnation, ()))
        if not all(self._writer_is_over(item.incarnation, slot) for slot in slots):
            self.busy += 1
            return False
        # A local writer may have published over the fence just before it ended.
        self._erase(item)
        self.freed += 1
        return True

    def _erase(self, item: FreeItem) -> None:
        segment = self._segments.get(item.incarnation)
        if segment is not None:
            segment.free(item.offset, item.version)

    def _list(self, message: ListDirectory) -> DirectoryPage:
        segment = self._segments.get(message.incarnation)
        if segment is None:
            raise InvalidArgument(f"this node has no segment {message.incarnation:x}")
        limit = max(1, min(message.limit, PAGE_ENTRIES_MAX))
        writing = self._older_writes(message.incarnation) if message.cursor <= 0 else []
        page, damaged = list_page(segment, message.cursor, limit)
        for offset, version in damaged:
            segment.free(offset, version)
        self.damaged += len(damaged)
        return DirectoryPage(page.entries, page.cursor, writing)

    def _older_writes(self, incarnation: int) -> list[FreeItem]:
        """Return where local processes write for a master whose reign is over.

        The term was raised before, so no further one begins.
        """
        fence()
        barrier()
        segment = self._segments[incarnation]
        return [
            FreeItem(incarnation, intent.offset, intent.bytes, intent.version)
            for slot, intent in segment.intents()
            if term_of(intent.version) < segment.term
            and not self._writer_is_over(incarnation, slot)
        ]


def _fits(segment: Segment, item: FreeItem) -> bool:
    return (
        0 <= item.version < FREED
        and item.offset >= 0
        and not item.offset % GRANULE_BYTES
        and 0 < item.bytes <= segment.bytes - item.offset
    )
