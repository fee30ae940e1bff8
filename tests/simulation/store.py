"""The SSD store of a simulated node, with the face and the rules of ``mooncake_storage_node.ssd``.

Its rules (docs/adr/0020, 0021, 0023): what is written is verified as it is read from memory, gets
a row, and is readable and acknowledged once a commit has recorded it; a removal makes unreadable at
once, is acknowledged once it is recorded, and its row is given to others only then; a commit that
was on its way when the process died may be there afterwards or not, what waited behind it is not.
The oldest extents are given up for new ones, and that is reported. While the disk is in trouble the
store refuses with a typed error, remembers what it was told to forget, and goes on by itself.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

from mooncake_storage_node.ssd import (
    NOT_ADMITTED,
    PRESENT,
    Dropped,
    Staged,
    State,
    Written,
)
from mooncake_storage_node.ssd.requests import Removal, Write, fail, settle
from mooncake_storage_node.ssd.verifying import ExtentVerifier
from mooncake_store import extent
from mooncake_store.errors import (
    ChecksumMismatch,
    DeadlineExceeded,
    InvalidArgument,
    NoSpace,
    ObjectTooLarge,
    Overloaded,
    StaleExtent,
    StoreError,
)
from mooncake_store.wire.control import DirectoryPage
from tests.simulation.disk import Row, Transaction, Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mooncake_store.deadline import Deadline
    from tests.simulation.disk import Disk
    from tests.simulation.parts import Part

PROBE_S = 0.1
"""Time between two looks at a directory that could not be opened."""
STALL_S = 0.25
"""A disk that hangs for longer is in trouble."""
READ_S = 0.4
"""Time after which a read is given up."""
REGIONS = 4
"""An eviction gives up that part of the capacity; an extent is no larger."""


class SimStore:
    """One store, for one life of its node.

    Attributes:
        incarnation: As ``Store.incarnation``.
        replaced: As ``Store.replaced``.
        table: {location: what is readable there}, oldest first.
    """

    def __init__(
        self,
        part: Part,
        disk: Disk,
        on_dropped: Callable[[list[Dropped]], None],
        on_change: Callable[[], None],
    ) -> None:
        self.incarnation = 0
        self.replaced: tuple[int, ...] = ()
        self.table: dict[int, Row] = {}
        self._part = part
        self._disk = disk
        self._on_dropped = on_dropped
        self._on_change = on_change
        self._is_open = False
        self._opening = 0
        """Grows whenever the directory is opened or closed: what was asked before is over then."""
        self._removed: set[int] = set()
        self._epochs: dict[int, int] = {}
        self._forget_all()

    def _forget_all(self) -> None:
        self.table = {}
        self._pending: dict[int, Write] = {}
        self._homeless: list[tuple[Write, Row]] = []
        self._dying: dict[int, Row] = {}
        self._reserved: set[int] = set()
        self._landed: list[tuple[Write, Row]] = []
        self._deleted: list[tuple[list[int], Removal]] = []
        self._noted: list[Removal] = []
        self._unrecorded: dict[int, int] = {}
        self._commit: Transaction | None = None

    # --- opening and closing --------------------------------------------------------------------

    def open(self) -> None:
        """Open the directory as soon as the disk lets us."""
        self._opening += 1
        self._operate(self._opened)

    def _opened(self, refused: bool) -> None:  # noqa: FBT001 - as disks say it
        disk = self._disk
        if refused:
            self._part.later(PROBE_S, self.open)
            return
        gone = [at for at, row in disk.rows.items() if row.version in self._removed]
        disk.record(Transaction({}, gone, self._epochs))
        self._removed.clear()
        for slot, epoch in disk.epochs.items():
            self._epochs[slot] = max(epoch, self._epochs.get(slot, 0))
        self.table = dict(disk.rows)
        self._is_open = True
        self.incarnation, self.replaced = disk.incarnation, disk.replaced
        self._on_change()

    def _close(self, reason: str) -> None:
        """Stop, as the index cannot be written; what must not come back is remembered."""
        self._removed |= {row.version for row in self._dying.values()}
        self._removed |= {v for v, write in self._pending.items() if write.is_fenced}
        error = Overloaded(f"the store is degraded: {reason}")
        writes = list(self._pending.values())
        removals = [removal for _, removal in self._deleted] + self._noted
        self._is_open = False
        self._forget_all()
        for write in writes:
            removals += write.removals
            write.fail(error)
        for removal in removals:
            fail(removal.future, error)
        self.open()

    def crash(self) -> None:
        """The process is dead: a commit that was on its way has arrived, or not."""
        arrives = self._commit is not None and self._disk.random.random() < 0.5
        if self._commit is not None and arrives and not self._is_spoiled:
            self._disk.record(self._commit)
        self._commit = None

    @property
    def _is_spoiled(self) -> bool:
        """Whether the index was damaged while the directory is open: who uses it notices."""
        return self.incarnation != self._disk.incarnation

    def _operate(self, over: Callable[[bool], None]) -> None:
        """Do one operation of the disk for as long as we live and the directory stays open."""
        opening, life = self._opening, self._part.lives

        def done(refused: bool) -> None:  # noqa: FBT001 - as disks say it
            if opening == self._opening and life == self._part.lives:
                over(refused)

        self._disk.operate(self._part.later, done)

    def remember(self, epochs: Mapping[int, int]) -> None:
        """Take epochs up that are to be recorded as soon as there is an open directory."""
        for slot, epoch in epochs.items():
            if epoch > self._epochs.get(slot, 0):
                self._epochs[slot] = self._unrecorded[slot] = epoch

    # --- state ----------------------------------------------------------------------------------

    def state(self) -> tuple[State, str]:
        """As ``Store.state``."""
        if not self._is_open:
            return State.DEGRADED, "the directory is not open"
        return (State.DEGRADED, "the disk hangs") if self._is_stalled() else (State.READY, "")

    def _is_stalled(self) -> bool:
        disk = self._disk
        return disk.trouble is Trouble.HANGS and disk.clock.now_s - disk.troubled_s > STALL_S

    def epochs(self) -> dict[int, int]:
        """As ``Store.epochs``."""
        return dict(self._epochs)

    def newest_version(self) -> int:
        """As ``Store.newest_version``."""
        return max((row.version for row in self.table.values()), default=0)

    def readable(self) -> list[Row]:
        """Return everything that can be read now."""
        return [row for row in self.table.values() if not self._is_cleared(row.header)]

    def find(self, version: int) -> int:
        """As ``Store.find``."""
        return next((at for at, row in self.table.items() if row.version == version), -1)

    def version_at(self, location: int) -> int:
        """Return the version that is at a location; 0: none."""
        row = self.table.get(location)
        return row.version if row is not None else 0

    def size_of(self, location: int, version: int) -> int:
        """As ``Store.size_of``."""
        self._check_open()
        return len(self._get(location, version).data)

    def _check_open(self) -> None:
        if not self._is_open:
            raise Overloaded("the store is degraded: its directory is not open")

    def _get(self, location: int, version: int) -> Row:
        row = self.table.get(location)
        if row is None or row.version != version or self._is_cleared(row.header):
            raise StaleExtent(f"version {version} is not on this disk (any more)")
        return row

    def _is_cleared(self, header: extent.Header) -> bool:
        return self._epochs.get(header.slot, 0) > header.epoch

    # --- writing --------------------------------------------------------------------------------

    def write(self, source: memoryview, version: int, *, wanted: bool = False) -> Future[Written]:
        """As ``Store.write``."""
        self._check_open()
        write = self._prepare(source, version)
        at = self.find(version)
        if at >= 0:
            future = write.join()
            settle(future, Written(at, PRESENT))
            return future
        under_way = self._pending.get(version)
        if under_way is not None:
            return under_way.join()
        if self._is_stalled():
            raise Overloaded("the store is degraded: the disk hangs")
        future = write.join()
        if not wanted and self._disk.random.random() >= self._disk.admits:
            settle(future, Written(-1, NOT_ADMITTED))
            return future
        self._pending[version] = write
        self._operate(lambda refused: self._take_half(write, refused))
        return future

    def _prepare(self, source: memoryview, version: int) -> Write:
        header = extent.unpack_header(bytes(source[: extent.HEADER_BYTES]))
        if header.version != version:
            raise StaleExtent(f"the extent holds version {header.version}, not {version}")
        size = extent.extent_bytes(header.length, header.name_bytes)
        if size > len(source):
            raise InvalidArgument(f"an extent of {size} bytes is not in {len(source)}")
        if size > self._disk.capacity_bytes // REGIONS:
            raise ObjectTooLarge(f"an extent of {size} bytes is larger than a region")
        if self._is_cleared(header):
            raise StaleExtent(f"epoch {header.epoch} of the extent's namespace is over")
        return Write(source, header, size)

    def _take_half(self, write: Write, refused: bool) -> None:  # noqa: FBT001 - as disks say it
        """Read the first half from memory; much may happen before the second."""
        if refused:
            self._refuse(write, Overloaded("the disk refuses to be written"))
            return
        half = bytes(write.source[: write.size // 2])
        self._operate(lambda refused: self._take(write, half, refused))

    def _take(self, write: Write, half: bytes, refused: bool) -> None:  # noqa: FBT001 - as above
        if refused:
            self._refuse(write, Overloaded("the disk refuses to be written"))
            return
        data = bytearray(half) + write.source[len(half) : write.size]
        verifier = ExtentVerifier(write.header)
        try:
            verifier.update(memoryview(data))
            names = extent.unpack_names(verifier.finish())
        except StoreError as error:
            self._refuse(write, error)
            return
        self._homeless.append((write, Row(write.version, data, write.header, names)))
        self._find_homes()

    def _refuse(self, write: Write, error: StoreError) -> None:
        del self._pending[write.version]
        _end_removals(write)
        write.fail(error)

    def _find_homes(self) -> None:
        """Give what was written its room, and have it recorded; evict where there is none."""
        while self._homeless:
            write, row = self._homeless[0]
            if self._used_bytes() + len(row.data) <= self._disk.capacity_bytes:
                self._homeless.pop(0)
                self._landed.append((write, row))
                self._commit_soon()
            elif self._dying or self._evict():
                return  # When their deletion is recorded.
            elif self._landed or self._commit is not None:
                return
            else:
                self._homeless.pop(0)
                self._refuse(write, NoSpace("nothing of the store can be given up"))

    def _used_bytes(self) -> int:
        rows = [*self.table.values(), *self._dying.values(), *(row for _, row in self._landed)]
        used = sum(len(row.data) for row in rows)
        if self._commit is not None:
            used += sum(len(row.data) for row in self._commit.puts.values())
        return used

    def _evict(self) -> bool:
        """Give up the oldest region; of what was read one extent is carried over."""
        hidden: list[tuple[int, Row]] = []
        size = carried = 0
        for location, row in list(self.table.items()):
            if size >= self._disk.capacity_bytes // REGIONS:
                break
            if row.hits and not carried:
                carried, row.hits = 1, 0
                self.table[location] = self.table.pop(location)
                continue
            size += len(row.data)
            hidden.append((location, row))
        self._give_up(hidden, "evicted")
        return bool(hidden)

    # --- giving up and removing -----------------------------------------------------------------

    def give_up(self, location: int, version: int, reason: str) -> None:
        """As ``Store.give_up``."""
        row = self.table.get(location)
        if row is not None and row.version == version:
            self._give_up([(location, row)], reason)

    def _give_up(self, entries: list[tuple[int, Row]], reason: str) -> None:
        for location, row in entries:
            self._hide(location)
            self._disk.given_up.add(row.version)
        self._on_dropped([Dropped(at, row.version, reason) for at, row in entries])
        self._delete([at for at, _ in entries], Removal())

    def remove(self, items: Sequence[tuple[int, int]]) -> Future[None]:
        """As ``Store.remove``."""
        if not self._is_open:
            self._removed.update(version for _, version in items)
            raise Overloaded("the store is degraded: its directory is not open")
        removal = Removal()
        hidden = []
        for location, version in items:
            at = location if location >= 0 else self.find(version)
            if version and self.version_at(at) == version:
                self._hide(at)
                hidden.append(at)
            elif version in self._pending:
                write = self._pending[version]
                write.is_fenced = True
                write.removals.append(removal)
                removal.left += 1
        self._delete(hidden, removal)
        return removal.future

    def _hide(self, location: int) -> None:
        self._dying[location] = self.table.pop(location)

    def _delete(self, locations: list[int], removal: Removal) -> None:
        """Have a deletion recorded, even of nothing: an earlier one may not be recorded yet."""
        self._deleted.append((locations, removal))
        self._commit_soon()

    def set_epochs(self, epochs: Mapping[int, int]) -> Future[None]:
        """As ``Store.set_epochs``."""
        self.remember(epochs)
        if not self._is_open:
            raise Overloaded("the store is degraded: its directory is not open")
        removal = Removal()
        self._noted.append(removal)
        self._commit_soon()
        return removal.future

    # --- commits --------------------------------------------------------------------------------

    def _commit_soon(self) -> None:
        """Record what has gathered, one commit at a time."""
        if self._commit is not None or not (self._landed or self._deleted or self._noted):
            return
        landed, self._landed = self._landed, []
        deleted, self._deleted = self._deleted, []
        noted, self._noted = self._noted, []
        epochs, self._unrecorded = self._unrecorded, {}
        places: list[tuple[Write, int, Row]] = []
        for write, row in landed:
            dead = write.is_fenced or self._is_cleared(row.header)
            places.append((write, -1 if dead else self._reserve(), row))
        puts = {location: row for _, location, row in places if location >= 0}
        deletes = [location for locations, _ in deleted for location in locations]
        self._commit = Transaction(puts, deletes, epochs)

        def over(refused: bool) -> None:  # noqa: FBT001 - as disks say it
            transaction, self._commit = self._commit, None
            assert transaction is not None
            if refused or self._is_spoiled:
                self._deleted += deleted
                self._noted += noted
                self._close("the disk refuses to be written")
                return
            self._disk.record(transaction)
            self._recorded(places, deleted, noted)

        self._operate(over)

    def _reserve(self) -> int:
        """Return the lowest free row: as soon as one may be given to others it is."""
        at = 0
        while at in self.table or at in self._dying or at in self._reserved:
            at += 1
        self._reserved.add(at)
        return at

    def _recorded(
        self,
        places: list[tuple[Write, int, Row]],
        deleted: list[tuple[list[int], Removal]],
        noted: list[Removal],
    ) -> None:
        """Make memory say what the disk says, then tell everybody who waits."""
        late: list[tuple[Write, int]] = []
        for write, location, row in places:
            self._reserved.discard(location)
            del self._pending[write.version]
            if location >= 0:
                self.table[location] = row
                if write.is_fenced:  # While it was on its way: nobody ever sees it.
                    self._hide(location)
                    late.append((write, location))
        for locations, _ in deleted:
            for location in locations:
                del self._dying[location]
        for removal in [*(removal for _, removal in deleted), *noted]:
            removal.step()
            removal.settle_if_over()
        for write, location, row in places:
            self._settle(write, location, row)
        for write, location in late:
            self._delete_late(write, location)
        self._find_homes()
        self._commit_soon()

    def _settle(self, write: Write, location: int, row: Row) -> None:
        if write.is_fenced or self._is_cleared(row.header):
            write.fail(StaleExtent(f"version {write.version} was removed meanwhile"))
        else:
            write.settle(Written(location))
        if location < 0:
            _end_removals(write)

    def _delete_late(self, write: Write, location: int) -> None:
        """Delete what was removed while it was being recorded; its removals wait for that."""
        removal = Removal()

        def over(ended: Future[None]) -> None:
            error = ended.exception()
            _end_removals(write, None if error is None else Overloaded(str(error)))

        removal.future.add_done_callback(over)
        self._delete([location], removal)

    # --- reading --------------------------------------------------------------------------------

    def read(
        self, location: int, version: int, start: int, length: int, deadline: Deadline
    ) -> Future[Staged]:
        """As ``Store.read``; the deadline is of another clock, ``READ_S`` stands for it."""
        del deadline
        self._check_open()
        future: Future[Staged] = Future()
        self._part.later(READ_S, lambda: fail(future, DeadlineExceeded("the disk is too slow")))

        def over(refused: bool) -> None:  # noqa: FBT001 - as disks say it
            if future.done():
                return
            try:
                settle(future, self._read(location, version, start, length, refused=refused))
            except StoreError as error:
                fail(future, error)

        self._operate(over)
        return future

    def _read(
        self, location: int, version: int, start: int, length: int, *, refused: bool
    ) -> Staged:
        row = self._get(location, version)
        if refused:
            raise Overloaded("the disk refuses to be read")
        try:
            found = extent.unpack_header(row.data)
        except StoreError:
            found = None
        if found != row.header:
            self.give_up(location, version, ChecksumMismatch.code)
            raise ChecksumMismatch(f"the header of version {version} is damaged")
        if start + length > len(row.data):
            raise InvalidArgument(f"no bytes {start} to {start + length} of {len(row.data)}")
        row.hits += 1
        return Staged(memoryview(bytes(row.data[start : start + length])), _nothing)

    def list_page(self, cursor: int, limit: int) -> Future[DirectoryPage]:
        """As ``Store.list_page``."""
        self._check_open()
        future: Future[DirectoryPage] = Future()

        def over(refused: bool) -> None:  # noqa: FBT001 - as disks say it
            if refused or self._is_spoiled:
                fail(future, Overloaded("the index cannot be read"))
                self._close("the index cannot be read")
                return
            rows = sorted(at for at in self._disk.rows if at >= cursor)[:limit]
            entries = [
                self.table[at].describe(at)
                for at in rows
                if at in self.table and not self._is_cleared(self.table[at].header)
            ]
            settle(future, DirectoryPage(entries, rows[-1] + 1 if len(rows) == limit else -1))

        self._operate(over)
        return future


def _nothing() -> None:
    """Give nothing back."""


def _end_removals(write: Write, error: StoreError | None = None) -> None:
    """Tell those who removed what was being written that it is over."""
    for removal in write.removals:
        removal.step()
        if error is not None:
            fail(removal.future, error)
        removal.settle_if_over()
