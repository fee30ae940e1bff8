"""The file: records in LMDB, each with a checksum of its key and contents.

LMDB commits in the page cache (no flush to the disk): what was committed survives the end of this
process at any moment. ``flush`` makes it survive a power failure.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import lmdb
import msgspec

from mooncake_master.core.remembered import TABLES, Entry
from mooncake_store.limits import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILE: Final = "standing.mdb"

FORMAT: Final = b"mooncake-store standing 1"
"""First record of the file; another number is another layout."""

MAP_BYTES: Final = 1 * GIB
"""Most that the file grows to: ten million notes. Only what is used takes room on the disk."""

_FORMAT_KEY: Final = b"\0format"
_CHECKSUM_BYTES: Final = 4
_encoder: Final = msgspec.msgpack.Encoder()
_decoders: Final = {table: msgspec.msgpack.Decoder(kind) for table, kind in TABLES.items()}

Change = tuple[str, str, Entry | None]
"""(table, key, what to keep there, or None)"""


class FileFailed(Exception):
    """The file cannot be used: the disk refuses, or there is no room."""


class FileDamaged(Exception):
    """The file cannot be believed, or was written by another version."""


class StandingFile:
    """The file, opened by one process at a time (the caller sees to that)."""

    def __init__(self, directory: Path) -> None:
        """Open it, or make it.

        Raises:
            FileFailed, FileDamaged: It cannot be used.
        """
        path = directory / FILE
        try:
            self._environment = lmdb.open(
                str(path), subdir=False, map_size=MAP_BYTES, mode=0o600, lock=False, sync=False
            )
        except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
            raise FileDamaged(f"{path} is damaged: {error}") from error
        except (lmdb.Error, OSError) as error:
            raise FileFailed(f"{path} cannot be opened: {error}") from error

    def read(self) -> dict[str, dict[str, Entry]]:
        """Return {table: {key: entry}}; all of it, or nothing.

        Raises:
            FileFailed, FileDamaged: Not all of it can be read.
        """
        tables: dict[str, dict[str, Entry]] = {table: {} for table in TABLES}
        try:
            with self._environment.begin() as transaction:
                if not transaction.stat()["entries"]:
                    return tables
                found = transaction.get(_FORMAT_KEY)
                if found != FORMAT:
                    raise FileDamaged(f"{FILE} has the format {found!r}, not {FORMAT!r}")
                for key, value in transaction.cursor():
                    if key != _FORMAT_KEY:
                        table, name = _read_key(key)
                        tables[table][name] = _read(table, key, value)
        except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError) as error:
            raise FileDamaged(f"{FILE} is damaged: {error}") from error
        except lmdb.Error as error:
            raise FileFailed(f"{FILE} cannot be read: {error}") from error
        return tables

    def write(self, changes: Sequence[Change]) -> None:
        """Make changes, all or none.

        Raises:
            FileFailed: None was made.
        """
        try:
            with self._environment.begin(write=True) as transaction:
                transaction.put(_FORMAT_KEY, FORMAT)
                for table, name, entry in changes:
                    key = f"{table}\0{name}".encode()
                    if entry is None:
                        transaction.delete(key)
                    else:
                        body = _encoder.encode(entry)
                        transaction.put(key, _checksum(key, body) + body)
        except lmdb.Error as error:
            raise FileFailed(f"{FILE} cannot be written: {error}") from error

    def flush(self) -> None:
        """Make everything written so far survive a power failure; may take long, in any thread.

        Raises:
            FileFailed: The disk refused.
        """
        try:
            self._environment.sync(True)  # noqa: FBT003 - the foreign library's own signature
        except lmdb.Error as error:
            raise FileFailed(f"{FILE} cannot be flushed: {error}") from error

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._environment.close()


def _read_key(key: bytes) -> tuple[str, str]:
    table, _, name = key.partition(b"\0")
    try:
        found = table.decode(), name.decode()
    except UnicodeDecodeError as error:
        raise FileDamaged(f"{FILE} has a record with a damaged name") from error
    if found[0] not in TABLES:
        raise FileDamaged(f"{FILE} has a table {found[0]!r}, which this version does not know")
    return found


def _read(table: str, key: bytes, value: bytes) -> Entry:
    body = value[_CHECKSUM_BYTES:]
    if value[:_CHECKSUM_BYTES] != _checksum(key, body):
        raise FileDamaged(f"{FILE} has a damaged record in its table {table}")
    try:
        return _decoders[table].decode(body)
    except msgspec.DecodeError as error:
        raise FileDamaged(f"{FILE} has a senseless record in its table {table}") from error


def _checksum(key: bytes, body: bytes) -> bytes:
    return zlib.crc32(body, zlib.crc32(key)).to_bytes(_CHECKSUM_BYTES, "little")
