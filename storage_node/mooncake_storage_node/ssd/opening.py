"""Opening a directory: lock, format, files, index; what does not verify is gone afterwards.

A directory without a format file, or with a damaged one, is laid out anew, and whatever an older
store left in it is removed. An index that cannot be believed means the same: a cache may forget.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mooncake_storage_node.ssd.core import records
from mooncake_storage_node.ssd.core.admission import Wear
from mooncake_storage_node.ssd.core.layout import BLOCK_BYTES, REGION_COUNT_MIN, plan
from mooncake_storage_node.ssd.disk import Disk, Paths, region_number
from mooncake_storage_node.ssd.format import (
    Format,
    FormatDamaged,
    Witness,
    new_identity,
    read_format,
    write_format,
)
from mooncake_storage_node.ssd.index import IndexDamaged, IndexFailed
from mooncake_storage_node.ssd.ledger import Ledger
from mooncake_storage_node.ssd.locking import take_lock
from mooncake_storage_node.ssd.recovery import Recovery
from mooncake_store.errors import ConfigError
from mooncake_store.limits import REPLACED_MAX
from mooncake_store.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from mooncake_storage_node.ssd.core.layout import Geometry
    from mooncake_storage_node.ssd.files import File, FileSystem, Pin
    from mooncake_storage_node.ssd.index import Index
    from mooncake_storage_node.ssd.options import Options
    from mooncake_storage_node.ssd.requests import Dropped
    from mooncake_storage_node.ssd.statistics import Counters

_log = logging.getLogger(__name__)


class DiskTrouble(Exception):
    """The directory cannot be opened now; the message says why. Worth trying again."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be opened.

    Attributes:
        directory: Where.
        capacity_bytes: What it may take.
        options: See there.
        system: Where files are.
        on_dropped: Told what the store gives up.
        gone: Incarnations that were replaced: who has one is a copy of what was given up.
    """

    directory: Path
    capacity_bytes: int
    options: Options
    system: FileSystem
    on_dropped: Callable[[Sequence[Dropped]], None]
    gone: Container[int] = ()


@dataclass(slots=True)
class Memory:
    """What a store remembers while its directory is closed.

    Attributes:
        counters: What happened so far.
        epochs: {namespace slot: readable epoch} as it was told.
        removed: Versions that were removed and whose deletion may not be on disk.
        entries: How many were readable when it was closed; -1: it was never open.
        device: File system that it was last open on; 0: it was never open.
    """

    counters: Counters
    epochs: dict[int, int] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    entries: int = -1
    device: int = 0

    def raise_epochs(self, epochs: Mapping[int, int]) -> None:
        """Take up epochs that are higher than known."""
        for slot, epoch in epochs.items():
            self.epochs[slot] = max(epoch, self.epochs.get(slot, 0))


@dataclass(frozen=True, slots=True)
class Opened:
    """A directory that is open.

    Attributes:
        form: Whose it is.
        ledger: Its entries.
        disk: Its files.
        index: Its index.
        sequences: {region: sequence} as recorded.
        witness: See ``Witness``.
        pin: Holds the directory.
    """

    form: Format
    ledger: Ledger
    disk: Disk
    index: Index
    sequences: dict[int, int]
    witness: Witness
    pin: Pin


def open_directory(wanted: Plan, memory: Memory) -> Opened:
    """Open a directory, and lay it out if it is new.

    Raises:
        ConfigError: It can never be opened with these settings.
        DiskTrouble: It cannot be opened now.
    """
    try:
        _check_directory(wanted)
        with ExitStack() as stack:
            pin = wanted.system.pin(wanted.directory)
            stack.callback(pin.close)
            opened = _Opening(wanted, memory, stack, pin).run()
            stack.pop_all()
            return opened
    except OSError as error:
        raise DiskTrouble(f"{wanted.directory} cannot be used: {_say(error)}") from error
    except IndexFailed as error:
        raise DiskTrouble(f"{wanted.directory} cannot be used: {error}") from error


def _say(error: OSError) -> str:
    name = f" ({Path(error.filename).name})" if error.filename else ""
    return f"{error.strerror or error}{name}"


def _check_directory(wanted: Plan) -> None:
    directory = wanted.directory
    if not wanted.system.is_folder(directory):
        if _is_something(wanted.system, directory):
            raise ConfigError(f"{directory} is no directory, and a store needs one")
        # Not created: where a mount is missing, the cache would fill the system's own disk.
        raise DiskTrouble(f"there is no directory {directory}: create it, or mount its disk")
    total = wanted.system.space(directory).total_bytes
    if wanted.capacity_bytes > total:
        raise ConfigError(
            f"the file system of {directory} has {total} bytes in all, fewer than the"
            f" {format_bytes(wanted.capacity_bytes)} of the store"
        )


def _is_something(system: FileSystem, path: Path) -> bool:
    """Return whether a name leads to something, or through something that is no folder."""
    try:
        system.inode(path)
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True
    return True


class _Opening:
    """One attempt; what it opens is closed by ``stack`` unless it succeeds."""

    def __init__(self, wanted: Plan, memory: Memory, stack: ExitStack, pin: Pin) -> None:
        self._wanted = wanted
        self._memory = memory
        self._stack = stack
        self._system = wanted.system
        self._pin = pin
        self._paths = Paths(pin.path)
        self._lost: Counter[str] = Counter()

    def run(self) -> Opened:
        """Do it all."""
        self._check_device()
        self._system.make_folder(self._paths.root)
        lock = self._lock()
        form = self._format(lock)
        try:
            return self._open(form, lock)
        except IndexDamaged as error:
            _log.error("the store in %s begins empty: %s", self._wanted.directory, error)
            self._lose_all("index_damaged")
            return self._open(self._lay_out(form), lock)

    def _lose_all(self, reason: str) -> None:
        """Count all entries as lost; at least one, where their number is not known."""
        self._lost[reason] += max(1, self._memory.entries)

    # --- lock and format ------------------------------------------------------------------------

    def _lock(self) -> File:
        lock = self._system.open(self._paths.lock, create=True)
        self._stack.callback(lock.close)
        take_lock(lock, self._wanted.directory)
        return lock

    def _format(self, lock: File) -> Format:
        try:
            form = read_format(self._system, self._paths, self._wanted.directory)
        except FormatDamaged as error:
            _log.error("the store in %s begins empty: %s", self._wanted.directory, error)
            self._lose_all("format_damaged")
            form = None
        if form is None:
            return self._lay_out(self._owner(lock))
        if form.identity.incarnation in self._wanted.gone:
            _log.error(
                "the store in %s begins empty: this is a copy of one that was given up, which has"
                " what was removed since",
                self._wanted.directory,
            )
            self._lose_all("replaced")
            return self._lay_out(form)
        cut = plan(self._wanted.capacity_bytes, self._wanted.options.index_bytes, form.region_bytes)
        if cut.region_count < REGION_COUNT_MIN // 2:
            _log.warning(
                "the store in %s begins empty: its regions are too large for its new capacity",
                self._wanted.directory,
            )
            self._lose_all("capacity")
            return self._lay_out(form)
        return form

    def _check_device(self) -> None:
        """Begin no new store where the file system of the old one may only be unmounted."""
        device, _ = self._system.inode(self._pin.path)
        root = self._paths.root
        is_there = self._system.is_folder(root) and (
            self._paths.format.name in self._system.names(root)
        )
        if self._memory.device not in {0, device} and not is_there:
            raise DiskTrouble(
                f"{self._wanted.directory} is on another file system than before, which holds no"
                " store: mount its disk, or restart the node to begin a new one"
            )

    def _owner(self, lock: File) -> Format | None:
        """Return whose files lie in a directory that does not say so itself; None: nobody knows."""
        if self._paths.index.name not in self._system.names(self._paths.root):
            return None
        try:
            with ExitStack() as stack:
                index = self._open_index(lock, stack)
                for _ in index.load():
                    pass
                found = records.unpack_identity(index.summary().metas.get(records.IDENTITY_KEY))
        except (IndexDamaged, IndexFailed) as error:
            _log.warning("nobody knows whose files lie in %s: %s", self._wanted.directory, error)
            return None
        return None if found is None else Format(found, 0)

    def _lay_out(self, before: Format | None) -> Format:
        """Make an empty store of the directory, whatever lies in it.

        Args:
            before: The store whose files these were, which is gone for good with them; None where
                there was none, or nobody knows which.
        """
        paths, system = self._paths, self._system
        for folder in (paths.index, paths.regions):
            system.make_folder(folder)
            for name in system.names(folder):
                system.remove(folder / name)
        system.remove(paths.witness)
        cut = plan(self._wanted.capacity_bytes, self._wanted.options.index_bytes)
        replaced = () if before is None else (*before.replaced, before.identity.incarnation)
        form = Format(new_identity(), cut.region_bytes, replaced[-REPLACED_MAX:])
        write_format(system, paths, form)
        return form

    # --- files and index ------------------------------------------------------------------------

    def _open(self, form: Format, lock: File) -> Opened:
        with ExitStack() as stack:
            index = self._open_index(lock, stack)
            geometry = self._allocate_index(form)
            disk = self._open_disk(lock, stack)
            witness = Witness(self._block(self._paths.witness), form.identity)
            stack.callback(witness.close)
            opened = self._recover(form, geometry, disk, index, witness)
            self._stack.push(stack.pop_all())
            return opened

    def _open_index(self, lock: File, stack: ExitStack) -> Index:
        self._system.make_folder(self._paths.index)
        self._system.make_folder(self._paths.regions)
        size = 0
        if self._paths.index_file.name in self._system.names(self._paths.index):
            file = self._system.open(self._paths.index_file)
            size = file.size()
            file.close()
        wanted = plan(self._wanted.capacity_bytes, self._wanted.options.index_bytes)
        most = 2 * max(size, wanted.index_bytes)
        index = self._system.open_index(self._paths.index, most, lock)
        stack.callback(index.close)
        return index

    def _allocate_index(self, form: Format) -> Geometry:
        """Give the index all its room, so that others cannot take it; return how all is cut."""
        capacity, options = self._wanted.capacity_bytes, self._wanted.options
        cut = plan(capacity, options.index_bytes, form.region_bytes)
        file = self._system.open(self._paths.index_file)
        try:
            size = file.size()
            if min(size, file.room()) < cut.index_bytes:
                file.allocate(cut.index_bytes)
        finally:
            file.close()
        if size > cut.index_bytes:  # It was larger once, and LMDB's file does not shrink.
            cut = plan(capacity, size, form.region_bytes)
        return cut

    def _open_disk(self, lock: File, stack: ExitStack) -> Disk:
        probe = self._block(self._paths.probe, direct=True)
        disk = Disk(self._wanted.directory, self._paths, self._system, lock, probe)
        stack.callback(disk.close_files)
        for name in self._system.names(self._paths.regions):
            number = region_number(name)
            if number >= 0:
                disk.add(number, self._system.open(self._paths.region(number), direct=True))
        self._system.remove(self._paths.draft)
        return disk

    def _block(self, path: Path, *, direct: bool = False) -> File:
        """Open a file of one block, and create it if it is not there."""
        file = self._system.open(path, create=True, direct=direct)
        if file.size() < BLOCK_BYTES:
            file.allocate(BLOCK_BYTES)
        return file

    # --- entries --------------------------------------------------------------------------------

    def _recover(
        self, form: Format, geometry: Geometry, disk: Disk, index: Index, witness: Witness
    ) -> Opened:
        """Load the index, bring it together with the files, and delete what does not fit."""
        budget = self._wanted.options.write_budget_bytes_per_day
        wear = Wear(budget, time.time(), None)
        ledger = Ledger(geometry, self._memory.counters, wear, self._wanted.on_dropped)
        for number in disk.files:
            ledger.regions.add(number)
        recovery = Recovery(ledger, disk, self._memory.removed)
        recovery.load(index)
        metas, commits = index.summary().metas, index.summary().commits
        self._check_identity(form, metas, commits, witness)
        kept = records.unpack_wear(metas.get(records.WEAR_KEY))
        ledger.wear = Wear(budget, time.time(), kept)
        ledger.raise_epochs(records.unpack_epochs(metas.get(records.EPOCHS_KEY)))
        ledger.raise_epochs(dict(self._memory.epochs))  # A copy: others are raised meanwhile.
        sequences = recovery.order(metas)
        recovery.check_headers()
        surplus = recovery.shrink(geometry.region_count)
        puts = [records.pack_identity(form.identity), records.pack_epochs(ledger.live_epochs())]
        deletes = [records.entry_key(location) for location in recovery.gone]
        witness.note(index.commit(puts, deletes).number)
        for number in surplus:
            disk.remove_region(number)
        self._complete(ledger, disk)
        self._count(ledger, recovery.lost)
        self._memory.device, _ = disk.identity
        return Opened(form, ledger, disk, index, sequences, witness, self._pin)

    def _complete(self, ledger: Ledger, disk: Disk) -> None:
        """Give regions the room that a process was killed over, or somebody cut off."""
        size = ledger.geometry.region_bytes
        for number, file in list(disk.files.items()):
            if min(file.size(), file.room()) >= size:
                continue
            try:
                file.allocate(size)
            except OSError as error:
                _log.warning("region file %d has no room for %d bytes: %s", number, size, error)
                if ledger.regions[number].is_unused:
                    ledger.regions.discard(number)
                    disk.remove_region(number)  # It is made when there is room.

    @staticmethod
    def _check_identity(
        form: Format, metas: dict[bytes, bytes], commits: int, witness: Witness
    ) -> None:
        found = records.unpack_identity(metas.get(records.IDENTITY_KEY))
        if commits and found != form.identity:
            raise IndexDamaged("the index belongs to another store")
        if witness.contradicts(commits):
            raise IndexDamaged("the index is older than its last commit")

    def _count(self, ledger: Ledger, lost: Counter[str]) -> None:
        """Let the counts of a store that was open before go on, so that they add up."""
        counters, entries = ledger.counters, ledger.table.count
        self._lost.update(lost)
        for reason, count in self._lost.items():
            if count:
                counters.lost[reason] += count
        if self._memory.entries < 0:
            counters.entries_found = entries + sum(self._lost.values())
            return
        missing = self._memory.entries - entries - sum(self._lost.values())
        if missing > 0:
            counters.lost["not_recovered"] += missing
        else:
            counters.entries_found -= missing
