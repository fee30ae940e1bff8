"""One directory while it is open: its threads, and what is asked of them.

A volume never mends itself: when its index fails, or a thread does, it stops, and the store closes
it and opens the directory again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.ssd.committer import Committer, Deleted, Noted
from mooncake_storage_node.ssd.core import records
from mooncake_storage_node.ssd.core.admission import OfferMemory
from mooncake_storage_node.ssd.keeper import Keeper
from mooncake_storage_node.ssd.ledger import READ_TROUBLE, WRITE_TROUBLE
from mooncake_storage_node.ssd.listing import list_page
from mooncake_storage_node.ssd.options import Admission
from mooncake_storage_node.ssd.reading import ReadPool
from mooncake_storage_node.ssd.requests import (
    NOT_ADMITTED,
    OVER_BUDGET,
    PRESENT,
    Dropped,
    Removal,
    Write,
    Written,
    settle,
)
from mooncake_storage_node.ssd.writer import Lane, WriteQueue
from mooncake_store import extent
from mooncake_store.errors import (
    InvalidArgument,
    ObjectTooLarge,
    Overloaded,
    StaleExtent,
)
from mooncake_store.extent import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from mooncake_storage_node.ssd.buffers import Staging
    from mooncake_storage_node.ssd.core.table import Entry
    from mooncake_storage_node.ssd.opening import Memory, Opened
    from mooncake_storage_node.ssd.options import Options
    from mooncake_store.extent import Header
    from mooncake_store.wire.control import DirectoryPage

STALL_TROUBLE: Final = "stall"
"""The disk takes very long."""

JOIN_S: Final = 5.0
"""Time that threads have to end once they were told to; one that hangs in the disk does not."""


class Volume:
    """See the module.

    Attributes:
        ledger: Its entries and everything else that is known of it.
        reads: Where reads are asked for.
        form: Whose contents they are.
    """

    def __init__(self, opened: Opened, options: Options, staging: Staging) -> None:
        self._options = options
        self._opened = opened
        self.form = opened.form
        self.ledger = opened.ledger
        self._disk = opened.disk
        self._index = opened.index
        self._committer = Committer(
            self.ledger, opened.index, opened.disk.files, opened.witness.note
        )
        self._queue = WriteQueue(options)
        self._lanes = [
            Lane(
                number, self._queue, self.ledger, self._committer, opened.disk, options.batch_bytes
            )
            for number in range(options.writers)
        ]
        self._keeper = Keeper(self.ledger, self._committer, opened.disk, options)
        self.reads = ReadPool(self.ledger, opened.disk, options, staging, self.lose)
        self._offers = OfferMemory() if options.admission is Admission.SECOND_HIT else None

    def start(self) -> None:
        """Begin to work."""
        self._committer.start(self._opened.sequences)
        self._keeper.start()
        for lane in self._lanes:
            lane.start()
        self.reads.start()

    # --- writes ---------------------------------------------------------------------------------

    def write(self, source: memoryview, version: int, *, wanted: bool) -> Future[Written]:
        """See ``Store.write``."""
        write = self._prepare(source, version)
        ledger = self.ledger
        with ledger.lock:
            if ledger.stopped:
                ledger.counters.refused["degraded"] += 1
                raise Overloaded(ledger.stopped)
            done = self._present(write)
            if done is not None:
                return done
            self._check_room(write)
            future = write.join()
            refusal = "" if wanted else self._policy(write)
            if refusal:
                ledger.counters.refused[refusal] += 1
                settle(future, Written(-1, refusal))
                return future
            ledger.accept(write)
            self._queue.put(write)
        return future

    def _prepare(self, source: memoryview, version: int) -> Write:
        """Check an extent before it waits."""
        if len(source) < HEADER_BYTES:
            raise InvalidArgument(f"an extent has at least {HEADER_BYTES} bytes")
        header = extent.unpack_header(bytes(source[:HEADER_BYTES]))
        if header.version != version:
            raise StaleExtent(f"the extent holds version {header.version}, not {version}")
        size = extent.extent_bytes(header.length, header.name_bytes)
        if size > len(source):
            raise InvalidArgument(f"an extent of {size} bytes is not in {len(source)}")
        if not self.ledger.regions.fits(size):
            limit = self.ledger.geometry.region_bytes
            with self.ledger.lock:
                self.ledger.counters.refused["too_large"] += 1
            raise ObjectTooLarge(
                f"an extent of {size} bytes is larger than a region of this store ({limit} bytes)"
            )
        return Write(source, header, size)

    def _present(self, write: Write) -> Future[Written] | None:
        """Return the end of a write that need not be done (again); with the lock held."""
        ledger = self.ledger
        header: Header = write.header
        if ledger.is_cleared(header.slot, header.epoch):
            ledger.counters.refused["cleared"] += 1
            raise StaleExtent(f"epoch {header.epoch} of the extent's namespace is over")
        location = ledger.table.find(header.version)
        if location >= 0:
            ledger.counters.present += 1
            future = write.join()
            settle(future, Written(location, PRESENT))
            return future
        under_way = ledger.pending.get(header.version)
        if under_way is None:
            return None
        ledger.counters.present += 1
        return under_way.join()

    def _check_room(self, write: Write) -> None:
        ledger = self.ledger
        for kind in (WRITE_TROUBLE, STALL_TROUBLE):
            if kind in ledger.troubles:
                ledger.counters.refused["degraded"] += 1
                raise Overloaded(ledger.troubles[kind])
        if not self._queue.has_room(write.size):
            ledger.counters.refused["queue_full"] += 1
            raise Overloaded(f"{self._queue.bytes} bytes wait to be written already")

    def _policy(self, write: Write) -> str:
        """Return why policy refuses a write; with the lock held."""
        if self._offers is not None and not self._offers.seen_before(write.header.fingerprint):
            return NOT_ADMITTED
        if not self.ledger.wear.allows(write.size + self.ledger.pending_bytes, time.time()):
            return OVER_BUDGET
        return ""

    # --- removals -------------------------------------------------------------------------------

    def remove(self, items: Sequence[tuple[int, int]]) -> Future[None]:
        """See ``Store.remove``."""
        ledger = self.ledger
        removal = Removal()
        hidden: list[tuple[int, Entry]] = []
        with ledger.lock:
            for location, version in items:
                at = location if location >= 0 else ledger.table.find(version)
                entry = ledger.hide(at, version)
                if entry is not None:
                    hidden.append((at, entry))
                else:
                    ledger.fence(version, removal)
            ledger.counters.removed += len(hidden)
        # Committed even if nothing is hidden: an earlier deletion may not be durable yet.
        self._committer.submit(Deleted(hidden, removal))
        return removal.future

    def set_epochs(self, epochs: Mapping[int, int]) -> Future[None]:
        """See ``Store.set_epochs``."""
        ledger = self.ledger
        removal = Removal()
        with ledger.lock:
            puts = []
            if ledger.raise_epochs(epochs):
                puts.append(records.pack_epochs(ledger.live_epochs()))
                ledger.changed.notify_all()
            self._committer.submit(Noted(puts, removal))
        return removal.future

    def lose(self, location: int, version: int, reason: str) -> None:
        """Forget an entry that proved bad, and say so."""
        ledger = self.ledger
        with ledger.lock:
            entry = ledger.hide(location, version)
            if entry is None:
                return
            ledger.counters.lost[reason] += 1
        ledger.on_dropped([Dropped(location, version, reason)])
        self._committer.submit(Deleted([(location, entry)], Removal()))

    # --- looking --------------------------------------------------------------------------------

    def list_page(self, cursor: int, limit: int) -> DirectoryPage:
        """See ``Store.list_page``; takes long."""
        return list_page(self.ledger, self._index, cursor, limit, self.lose)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait to be written."""
        return self._queue.bytes

    # --- watching -------------------------------------------------------------------------------

    def watch(self) -> None:
        """Note what takes too long; never waits."""
        self.reads.expire()
        since = [lane.busy_since_s for lane in self._lanes]
        since += [self._committer.busy_since_s, self.reads.busy_since_s()]
        oldest_s = min((at for at in since if at), default=0.0)
        took_s = time.monotonic() - oldest_s if oldest_s else 0.0
        stalled = took_s > self._options.stall_s
        sentence = _silence(took_s, self._options.stall_s) if stalled else ""
        if stalled or STALL_TROUBLE in self.ledger.troubles:
            self.ledger.set_trouble(STALL_TROUBLE, sentence)

    def probe(self) -> None:
        """Look whether the directory is in its place and troubles are over; may take long."""
        if not self._disk.is_in_place():
            self.ledger.stop("the directory was removed or replaced")
            return
        if not {READ_TROUBLE, WRITE_TROUBLE} & self.ledger.troubles.keys():
            return
        # The index is tried as well: one that cannot record removals must not serve reads.
        self._committer.submit(Noted([records.pack_wear(self.ledger.wear.state())], Removal()))
        sentence = self._disk.probe.check()
        if not sentence:
            self.ledger.set_trouble(READ_TROUBLE, "")
            self.ledger.set_trouble(WRITE_TROUBLE, "")
            self._keeper.mend_soon()

    # --- the end --------------------------------------------------------------------------------

    def close(self, reason: str, timeout_s: float) -> bool:
        """End everything; what waits is written first, if there is time and nothing has failed.

        Returns:
            Whether nothing of it touches the directory any more.
        """
        until_s = time.monotonic() + timeout_s
        self._queue.end()
        if self.ledger.stopped:
            self._refuse_waiting()
        over = all(lane.join(max(0.0, until_s - time.monotonic())) for lane in self._lanes)
        self.ledger.stop(reason)
        self._refuse_waiting()
        self.reads.end(reason, JOIN_S)
        over = all(lane.join(JOIN_S) for lane in self._lanes) and over
        over = self._committer.end(JOIN_S + max(0.0, until_s - time.monotonic())) and over
        over = self._keeper.join(JOIN_S) and over
        self._refuse_pending()
        self._index.close()
        self._opened.witness.close()
        self._disk.close()
        if over:
            self._opened.pin.close()
        return over

    def is_over(self) -> bool:
        """Return whether no thread that writes is left."""
        lanes = all(lane.join(0.0) for lane in self._lanes)
        if not (lanes and self._committer.end(0.0) and self._keeper.join(0.0)):
            return False
        self._opened.pin.close()
        return True

    def remember(self, memory: Memory) -> None:
        """Keep what must not be forgotten while the directory is closed."""
        ledger = self.ledger
        with ledger.lock:
            memory.raise_epochs(ledger.live_epochs())
            memory.removed.update(ledger.dying.values())
            memory.removed.update(v for v, write in ledger.pending.items() if write.is_fenced)
            memory.entries = ledger.table.count

    def _refuse_pending(self) -> None:
        """End writes whose thread has ended by mistake, or does not come back."""
        with self.ledger.lock:
            pending = list(self.ledger.pending.values())
        self._committer.refuse(pending, Overloaded(self.ledger.stopped), "closing")

    def _refuse_waiting(self) -> None:
        waiting = self._queue.drain()
        if waiting:
            self._committer.refuse(waiting, Overloaded(self.ledger.stopped), "closing")


def _silence(took_s: float, stall_s: float) -> str:
    """Say for how long a disk is silent, in doublings of what counts as trouble.

    Each new sentence is logged and told to the master: one that counted tenths of seconds would
    fill logs for as long as a disk hangs.
    """
    shown_s = stall_s
    while 2 * shown_s <= took_s:
        shown_s *= 2
    return f"the disk has not answered for {shown_s:.1f} s or longer"
