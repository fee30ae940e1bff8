"""The index on disk: records in LMDB, changed in durable transactions.

``LmdbIndex`` works in the process that opens it. LMDB maps its file: a page that cannot be read, a
file that was cut or a damaged page end the process with a signal. So a store has its index in a
process of its own (``index_process``); this class is what runs there.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple

import lmdb

from mooncake_storage_node.ssd.core import records
from mooncake_storage_node.ssd.core.records import Seal
from mooncake_storage_node.ssd.core.rows import RowBlock, RowBuilder
from mooncake_store.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

INDEX_FILE: Final = "data.mdb"
"""LMDB's own name for it."""

_READ_BYTES: Final = 4 * MIB
_TOTAL_MASK: Final = (1 << 64) - 1


class IndexFailed(Exception):
    """The index cannot be used now: its disk refuses, or its process is gone."""


class IndexDamaged(Exception):
    """The index is there, and it cannot be believed."""


class Summary(NamedTuple):
    """What loading an index found beside its rows."""

    metas: dict[bytes, bytes]
    """{key: body} of all records that are no entries; damaged ones are missing."""
    damaged: int
    """Entries whose records were damaged; they have been left out."""
    commits: int


class Commit(NamedTuple):
    """A transaction that is over."""

    number: int
    """Grows by one with each."""
    written_bytes: int
    """What it wrote to the disk, as far as that is known."""


class Index(ABC):
    """Records that are changed together. One user at a time; every method may take long.

    All raise ``IndexFailed``.
    """

    @abstractmethod
    def load(self) -> Iterator[RowBlock]:
        """Yield the rows of all entries; ``summary`` holds the rest.

        Raises:
            IndexDamaged: What is there does not belong together.
        """

    @abstractmethod
    def summary(self) -> Summary:
        """Return what the last ``load``, iterated to its end, found."""

    @abstractmethod
    def commit(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> Commit:
        """Change records durably, all or none.

        When this raises it is not known whether they were changed.
        """

    @abstractmethod
    def page(self, location: int, limit: int) -> list[tuple[bytes, bytes]]:
        """Return the records of up to ``limit`` entries from a location on, in order."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. Idempotent; never raises."""


class LmdbIndex(Index):
    """An index in this process."""

    def __init__(self, folder: Path, map_bytes: int) -> None:
        """Open or create the index in a folder.

        Raises:
            IndexFailed, IndexDamaged: It cannot be opened.
        """
        self._summary = Summary({}, 0, 0)
        self._environment: lmdb.Environment | None = None
        try:
            _read_through(folder / INDEX_FILE)
            self._environment = lmdb.open(
                str(folder), map_size=map_bytes, lock=False, max_readers=1, mode=0o600
            )
        except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
            raise IndexDamaged(f"the index is damaged: {error}") from error
        except (lmdb.Error, OSError) as error:
            raise IndexFailed(f"the index cannot be opened: {error}") from error

    def load(self) -> Iterator[RowBlock]:
        """See ``Index``."""
        try:
            yield from self._load()
        except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError) as error:
            raise IndexDamaged(f"the index is damaged: {error}") from error
        except lmdb.Error as error:
            raise IndexFailed(f"the index cannot be read: {error}") from error

    def summary(self) -> Summary:
        """See ``Index``."""
        return self._summary

    def commit(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> Commit:
        """See ``Index``."""
        try:
            return Commit(self._commit(puts, deletes), 0)
        except lmdb.Error as error:
            raise IndexFailed(f"the index cannot be written: {error}") from error

    def page(self, location: int, limit: int) -> list[tuple[bytes, bytes]]:
        """See ``Index``."""
        found: list[tuple[bytes, bytes]] = []
        try:
            with self._open().begin() as transaction:
                cursor = transaction.cursor()
                if not cursor.set_range(records.entry_key(location)):
                    return found
                for key, value in cursor:
                    if not key.startswith(records.ENTRY_PREFIX) or len(found) >= limit:
                        break
                    found.append((key, value))
        except lmdb.Error as error:
            raise IndexFailed(f"the index cannot be read: {error}") from error
        return found

    def close(self) -> None:
        """See ``Index``."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def _open(self) -> lmdb.Environment:
        if self._environment is None:
            raise IndexFailed("the index is closed")
        return self._environment

    def _load(self) -> Iterator[RowBlock]:
        metas: dict[bytes, bytes] = {}
        seal: Seal | None = None
        builder = RowBuilder()
        count = total = damaged = 0
        with self._open().begin() as transaction:
            for key, value in transaction.cursor():
                if key[:1] == records.ENTRY_PREFIX:
                    check, row = records.row_of(key, value)
                    if row is None:
                        damaged += 1
                    elif (block := builder.add(records.location_of(key), row)) is not None:
                        yield block
                elif key == records.SEAL_KEY:
                    seal = records.unpack_seal(value)
                    continue
                else:
                    check = records.check_of(value)
                    body = records.open_record(key, value)
                    if body is not None:
                        metas[key] = body
                count += 1
                total += check
        self._check(seal, count, total & _TOTAL_MASK)
        self._summary = Summary(metas, damaged, seal.commits if seal else 0)
        yield builder.finish()

    @staticmethod
    def _check(seal: Seal | None, count: int, total: int) -> None:
        if seal is None and count == 0:
            return
        if seal is None or (seal.records, seal.total) != (count, total):
            raise IndexDamaged(f"the index has {count} records that are not those it was left with")

    def _commit(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> int:
        with self._open().begin(write=True) as transaction:
            seal = records.unpack_seal(transaction.get(records.SEAL_KEY)) or Seal(0, 0, 0)
            count, total = seal.records, seal.total
            for key, value in puts:
                old = transaction.replace(key, value)
                total += records.check_of(value) - records.check_of(old or b"")
                count += old is None
            for key in deletes:
                old = transaction.pop(key)
                if old is not None:
                    total -= records.check_of(old)
                    count -= 1
            seal = Seal(seal.commits + 1, count, total & _TOTAL_MASK)
            transaction.put(records.SEAL_KEY, records.pack_seal(seal))
        return seal.commits


def _read_through(path: Path) -> None:
    """Read a file by system calls, which fail where reading mapped memory would end the process.

    What was read is in the page cache then, so that the walk over the mapping is fast. Room that
    was allocated and never written is passed over.
    """
    if not path.exists():
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        at, end = 0, os.fstat(descriptor).st_size
        while at < end:
            try:
                at = os.lseek(descriptor, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # Nothing but a hole is left.
                    break
                raise
            stop = os.lseek(descriptor, at, os.SEEK_HOLE)
            while at < stop:
                got = len(os.pread(descriptor, min(_READ_BYTES, stop - at), at))
                at += got or stop
    finally:
        os.close(descriptor)
