"""What a simulated node does with its store: opens, registers, reports; in the place of ``Stores``.

Orders are performed by the real ``StoreOrders``, over deadlines of the virtual clock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mooncake_storage_node.deadlines import Deadlines
from mooncake_storage_node.store_orders import StoreOrders
from mooncake_store.types import Tier, term_of
from mooncake_store.wire.control import (
    Done,
    DroppedItem,
    ReportDropped,
    SegmentRecord,
    StoreStatus,
)
from tests.simulation.store import SimStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from mooncake_storage_node.ssd import Dropped
    from mooncake_store.errors import StoreError
    from mooncake_store.wire.control import Message
    from tests.simulation.disk import Disk
    from tests.simulation.parts import Part
    from tests.simulation.rpc import Line

SCALE = 10
"""Real nodes give their disks ten times as long, as everything here."""
REPORT_S = 0.02
"""Time for which drops gather; also between two tries to report them."""
BATCH = 8
"""Drops in one report."""


class VirtualDeadlines(Deadlines):
    """Deadlines of the virtual clock."""

    def __init__(self, part: Part) -> None:
        self._part = part

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        """Do nothing: who orders a copy gives it up here when its time is over."""

    def gather(
        self, futures: Sequence[Future[None]], limit_s: float, over: Callable[[], None]
    ) -> None:
        """As ``Deadlines.gather``."""
        left = len(futures)
        is_over = False

        def end() -> None:
            nonlocal is_over
            was, is_over = is_over, True
            if not was:
                over()

        def ended(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                end()

        if not futures:
            over()
            return
        self._part.later(limit_s / SCALE, end)
        for future in futures:
            future.add_done_callback(ended)


class SimStores:
    """The store of one life of a node.

    Attributes:
        store: It, open or not.
        on_change: Called when ``records`` may have changed.
        on_dropped: Told what the store gave up.
    """

    def __init__(self, part: Part, disk: Disk, known: int) -> None:
        """Prepare; ``open`` opens.

        Args:
            part: The node.
            disk: Its disk.
            known: Incarnation of the store as the node knew it last; 0: it knew none.
        """
        self.on_change: Callable[[], None] = lambda: None
        self.on_dropped: Callable[[list[DroppedItem]], None] = lambda _items: None
        self.store = SimStore(part, disk, self._dropped, self._changed)
        self._disk = disk
        self._known = known
        self._epochs: dict[int, int] = {}

    def open(self, epochs: Mapping[int, int]) -> None:
        """Begin to open; ``epochs`` are known already."""
        self.store.remember(epochs)
        self.store.open()

    def _changed(self) -> None:
        self.on_change()

    def _dropped(self, dropped: list[Dropped]) -> None:
        if dropped:
            self.on_dropped([DroppedItem(self.store.incarnation, *item) for item in dropped])

    def find(self, incarnation: int) -> SimStore | None:
        """As ``Stores.find``."""
        return self.store if self.store.incarnation == incarnation else None

    def owns(self, incarnation: int) -> bool:
        """As ``Stores.owns``."""
        return incarnation == self.incarnation

    @property
    def incarnation(self) -> int:
        """Of the store, open or not; 0 where it is not known."""
        return self.store.incarnation or self._known

    def all_open(self) -> list[SimStore]:
        """As ``Stores.all_open``: it is opened, or waits for its disk, from the start."""
        return [self.store]

    def records(self) -> tuple[SegmentRecord, ...]:
        """As ``Stores.records``."""
        if not self.incarnation:
            return ()
        return (SegmentRecord(self.incarnation, self._disk.capacity_bytes, int(Tier.SSD)),)

    def replaced(self) -> tuple[int, ...]:
        """As ``Stores.replaced``."""
        return tuple(sorted(set(self.store.replaced) - {self.incarnation}))

    def epochs(self) -> dict[int, int]:
        """As ``Stores.epochs``."""
        return self.store.epochs()

    def term(self) -> int:
        """As ``Stores.term``."""
        return term_of(self.store.newest_version())

    def entries(self) -> int:
        """As ``Stores.entries``."""
        return len(self.store.table) if self.store.incarnation else bool(self.incarnation)

    def statuses(self) -> tuple[StoreStatus, ...]:
        """As ``Stores.statuses``."""
        state, reason = self.store.state()
        rows = self.store.table.values()
        used = sum(len(row.data) for row in rows)
        capacity = self._disk.capacity_bytes
        return (
            StoreStatus(self.incarnation, "/disk", state.value, reason, capacity, used, len(rows)),
        )

    def set_epochs(self, epochs: Mapping[int, int]) -> None:
        """As ``Stores.set_epochs``: an open store is told by ``StoreOrders`` as well."""
        self.store.remember(epochs)


def orders_of(part: Part, stores: SimStores) -> StoreOrders:
    """Return the real performer of orders over simulated stores."""
    return StoreOrders(stores, VirtualDeadlines(part))  # type: ignore[arg-type]


class Reports:
    """Reports drops until the master has confirmed them; in the place of ``DropReports``."""

    def __init__(self, part: Part, connect: Callable[[], Line], index: Callable[[], int]) -> None:
        """Prepare.

        Args:
            part: The node.
            connect: Opens a line to the master and says hello on it.
            index: The node's number at the master; -1 while it is no member.
        """
        self._part = part
        self._connect = connect
        self._index = index
        self._waiting: deque[DroppedItem] = deque()
        self._is_due = False
        self._line: Line | None = None

    def add(self, items: list[DroppedItem]) -> None:
        """Report these soon."""
        self._waiting.extend(items)
        self._soon()

    def _soon(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            self._part.later(REPORT_S, self._send)

    def _send(self) -> None:
        self._is_due = False
        index = self._index()
        if index < 0:
            self._soon()
            return
        line = self._line
        if line is None or not line.is_open:
            line = self._line = self._connect()
        batch = list(self._waiting)[:BATCH]
        self._is_due = True

        def answered(reply: Message | StoreError) -> None:
            self._is_due = False
            if isinstance(reply, Done):
                for item in batch:
                    if self._waiting and self._waiting[0] is item:
                        self._waiting.popleft()
            else:
                line.close()
            self._soon()

        line.ask(ReportDropped(index, batch), 1.0, answered)
