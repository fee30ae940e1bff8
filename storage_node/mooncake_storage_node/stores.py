"""The node's SSD stores: opened in the background, found by incarnation, told about to the master.

A store in trouble costs its tier only: nothing here waits for a disk but ``open``, for a bounded
time, and ``close``.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_storage_node.ssd import Dropped, Options, State, Store
from mooncake_store.errors import ConfigError, StoreError
from mooncake_store.types import Tier, term_of
from mooncake_store.units import format_bytes
from mooncake_store.wire.control import DroppedItem, SegmentRecord, StoreStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from mooncake_storage_node.ssd import FileSystem, Statistics

logger = logging.getLogger(__name__)

OPEN_S: Final = 5.0
"""Time that a start waits for stores, to be told of settings that can never work. A large index, or
a disk that does not answer, takes longer: the node serves without it meanwhile."""

KNOWN_FILE: Final = "stores"
"""File in the node's folder: {directory: incarnation} as it was last open, and under ``GONE`` the
incarnations that are gone for good."""

GONE: Final = ""
"""No directory has that name."""

GONE_MAX: Final = 256
"""Incarnations that are remembered to be gone, the newest."""


class StorePlan(NamedTuple):
    """One store that was asked for."""

    directory: Path
    capacity_bytes: int


class _Slot:
    """One planned store, open or not.

    Attributes:
        store: None until it was opened.
        failure: Why it never can be.
    """

    def __init__(self, plan: StorePlan) -> None:
        self.plan = plan
        self.store: Store | None = None
        self.failure: ConfigError | None = None
        self.opened = threading.Event()


class Stores:
    """All stores of one node.

    Attributes:
        on_change: Called when ``records`` may have changed; short, on any thread.
        on_dropped: Told what stores gave up by themselves; same rules.
        files: Where files are; None: on the disks. Tests put something in between.
    """

    def __init__(self, plans: Sequence[StorePlan], options: Options, folder: Path) -> None:
        """Prepare; ``open`` opens.

        Args:
            plans: What to open.
            options: Of each store.
            folder: The node's own, which remembers what the stores were.

        Raises:
            ConfigError: What it remembers cannot be read.
        """
        self.on_change: Callable[[], None] = _ignore
        self.on_dropped: Callable[[list[DroppedItem]], None] = _ignore_items
        self.files: FileSystem | None = None
        self._options = options
        self._slots = [_Slot(plan) for plan in plans]
        self._file = folder / KNOWN_FILE
        names = {str(plan.directory) for plan in plans}
        known, gone = _read_known(self._file)
        self._known = {name: known[name] for name in names & known.keys()}
        self._gone = dict.fromkeys(gone)
        """Incarnations that are gone for good, in the order in which that was heard of."""
        self._epochs: dict[int, int] = {}
        self._lock = threading.Lock()
        self._closing = False

    def __bool__(self) -> bool:
        return bool(self._slots)

    # --- opening and closing --------------------------------------------------------------------

    def open(self) -> None:
        """Begin to open all; return when it is known of each, or ``OPEN_S`` later.

        Raises:
            ConfigError: A store can never be opened with these settings.
        """
        for slot in self._slots:
            threading.Thread(
                target=self._open, args=(slot,), name=f"ssd open {slot.plan.directory}", daemon=True
            ).start()
        until_s = time.monotonic() + OPEN_S
        for slot in self._slots:
            slot.opened.wait(max(0.0, until_s - time.monotonic()))
            if slot.failure is not None:
                self.close(0.0)
                raise slot.failure

    def _open(self, slot: _Slot) -> None:
        plan = slot.plan
        drops: list[Dropped] = []
        try:
            store = Store.open(
                plan.directory,
                plan.capacity_bytes,
                self._options,
                files=self.files,
                on_dropped=lambda dropped: self._dropped(slot, dropped, drops),
                on_change=self._changed,
                gone=self._gone,
            )
        except ConfigError as error:
            slot.failure = ConfigError(f"--ssd {plan.directory}: {error}")
            logger.error("%s", slot.failure)  # noqa: TRY400 - one line says it all
            slot.opened.set()
            self.on_change()
            return
        with self._lock:
            closing = self._closing
            if self._epochs and not closing:
                _tell(store, self._epochs)  # Before anybody finds it and reads there.
            slot.store = store
        if closing:
            store.close(0.0)
        self._changed(store)
        self._dropped(slot, [], drops)
        slot.opened.set()

    def close(self, timeout_s: float) -> None:
        """Close all, at once; what waits is written first, as far as there is time."""
        with self._lock:
            self._closing = True
            stores = [slot.store for slot in self._slots if slot.store is not None]
        threads = [
            threading.Thread(target=store.close, args=(timeout_s,), name="ssd close", daemon=True)
            for store in stores
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # --- finding --------------------------------------------------------------------------------

    def find(self, incarnation: int) -> Store | None:
        """Return the store of that incarnation; of two, as a directory moved, the open one.

        Stores are asked: what a directory holds is another before the news of it has arrived.
        """
        found = [store for store in self.all_open() if store.incarnation == incarnation != 0]
        return max(found, key=lambda store: store.is_open, default=None)

    def owns(self, incarnation: int) -> bool:
        """Return whether a store has, or had when it was last open, that incarnation."""
        return self.find(incarnation) is not None or incarnation in self._known.values()

    def all_open(self) -> list[Store]:
        """Return those that were opened."""
        return [slot.store for slot in self._slots if slot.store is not None]

    def records(self) -> tuple[SegmentRecord, ...]:
        """Return what is registered: each store whose incarnation is known."""
        found: dict[int, SegmentRecord] = {}
        for slot in self._slots:
            incarnation = self._incarnation(slot)
            if incarnation:
                found[incarnation] = SegmentRecord(
                    incarnation, slot.plan.capacity_bytes, int(Tier.SSD)
                )
        return tuple(found.values())

    def replaced(self) -> tuple[int, ...]:
        """Return the incarnations in whose place the open stores were made: they are gone."""
        found = {number for store in self.all_open() for number in store.replaced}
        return tuple(sorted(found - {record.incarnation for record in self.records()}))

    def epochs(self) -> dict[int, int]:
        """Return {namespace slot: readable epoch}, the highest that any knows."""
        found: dict[int, int] = {}
        for store in self.all_open():
            for slot, epoch in store.epochs().items():
                found[slot] = max(epoch, found.get(slot, 0))
        return found

    def term(self) -> int:
        """Return the newest term in which anything was written that they hold."""
        return max((term_of(store.newest_version()) for store in self.all_open()), default=0)

    def entries(self) -> int:
        """Return how many extents all hold; those that are not open count as one."""
        return sum(
            slot.store.statistics().entries if slot.store is not None and slot.store.incarnation
            else bool(self._incarnation(slot))
            for slot in self._slots
        )  # fmt: skip

    def describe(self) -> str:
        """Return how each fares, in words; empty where there is none."""
        return ", ".join(
            f"{status.path} {status.state}, {status.entries} objects of"
            f" {format_bytes(status.used_bytes)} in {format_bytes(status.capacity_bytes)}"
            + (f" ({status.reason})" if status.reason else "")
            for status in self.statuses()
        )

    def statuses(self) -> tuple[StoreStatus, ...]:
        """Return how each fares."""
        return tuple(self._status(slot) for slot in self._slots)

    def set_epochs(self, epochs: Mapping[int, int]) -> None:
        """Remember epochs for stores that open later; those that are open are told by others."""
        with self._lock:
            for number, epoch in epochs.items():
                self._epochs[number] = max(epoch, self._epochs.get(number, 0))

    def _incarnation(self, slot: _Slot) -> int:
        store = slot.store
        if store is not None and store.incarnation:
            return store.incarnation
        return self._known.get(str(slot.plan.directory), 0)

    def _status(self, slot: _Slot) -> StoreStatus:
        path, capacity = str(slot.plan.directory), slot.plan.capacity_bytes
        incarnation = self._incarnation(slot)
        store = slot.store
        if store is None:
            state, reason = "degraded", "the directory is being opened"
            if slot.failure is not None:
                state, reason = "failed", str(slot.failure)
            return StoreStatus(incarnation, path, state, reason, capacity, 0, 0)
        shown = store.statistics()
        state = "failed" if shown.state is State.CLOSED else shown.state.value
        return StoreStatus(
            incarnation, path, state, shown.reason, capacity, shown.used_bytes, shown.entries,
            counters_of(shown),
        )  # fmt: skip

    # --- what stores say ------------------------------------------------------------------------

    def _changed(self, store: Store) -> None:
        """Take the news that a store's state or incarnation may be another."""
        with self._lock:
            if store.incarnation:
                name = str(store.directory)
                new = [number for number in store.replaced if number not in self._gone]
                if new or self._known.get(name) != store.incarnation:
                    self._known[name] = store.incarnation
                    self._gone.update(dict.fromkeys(new))
                    for number in list(self._gone)[:-GONE_MAX]:
                        del self._gone[number]
                    _write_known(self._file, self._known, list(self._gone))
        self.on_change()

    def _dropped(self, slot: _Slot, dropped: Sequence[Dropped], early: list[Dropped]) -> None:
        """Pass on what a store gave up; keep it while the store is still being opened."""
        with self._lock:
            store = slot.store
            early.extend(dropped)
            if store is None:
                return
            items = [DroppedItem(store.incarnation, *item) for item in early]
            early.clear()
        if items:
            self.on_dropped(items)


def counters_of(shown: Statistics) -> dict[str, float]:
    """Return the numbers of a store under the names that metrics and listings use."""
    plain = (
        "disk_bytes", "entries_found", "memory_bytes", "index_bytes", "regions", "regions_free",
        "regions_broken", "waiting_bytes", "reads", "read_bytes", "read_misses", "stored",
        "stored_bytes", "present", "evicted", "carried", "carried_bytes", "removed", "cleared",
        "written_bytes", "written_today_bytes", "write_budget_bytes", "write_amplification",
        "read_us", "commit_us",
    )  # fmt: skip
    counters = {name: float(getattr(shown, name)) for name in plain}
    for name in ("lost", "refused", "reads_refused"):
        by_reason: dict[str, int] = getattr(shown, name)
        counters[name] = float(sum(by_reason.values()))
        counters |= {f"{name}_{reason}": float(count) for reason, count in by_reason.items()}
    return counters


def _tell(store: Store, epochs: Mapping[int, int]) -> None:
    try:
        store.set_epochs(epochs)
    except StoreError as error:
        # It remembers them and refuses to read until they are recorded.
        logger.debug("%s was told epochs while degraded: %s", store.directory, error)


def _read_known(file: Path) -> tuple[dict[str, int], list[int]]:
    """Return what the stores were, and which are gone; nothing where there is no file of ours.

    Raises:
        ConfigError: It cannot be read: taken for no stores, their contents would count as lost.
    """
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        raise ConfigError(
            f"{file}, which says what the disks held, cannot be read: {error.strerror}"
        ) from error
    except ValueError:
        return {}, []
    if not isinstance(found, dict):
        return {}, []
    gone = found.pop(GONE, [])
    return (
        {str(name): value for name, value in found.items() if _is_incarnation(value)},
        [number for number in gone if _is_incarnation(number)] if isinstance(gone, list) else [],
    )


def _is_incarnation(value: object) -> bool:
    return isinstance(value, int) and 0 < value < 1 << 63


def _write_known(file: Path, known: Mapping[str, int], gone: Sequence[int]) -> None:
    draft = file.with_suffix(".new")
    try:
        draft.write_text(json.dumps({**known, GONE: gone}))
        draft.replace(file)
    except OSError as error:
        # Memory is full: that must not end the node. Until the next start nothing is missed; then
        # a store that cannot be opened is one that the node does not know yet.
        logger.warning("which stores there are was not recorded: %s", error)


def _ignore() -> None:
    """Do nothing."""


def _ignore_items(_: list[DroppedItem]) -> None:
    """Do nothing."""
