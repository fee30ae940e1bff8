"""What says whose a directory is: the format file, and the witness of the last commit."""

from __future__ import annotations

import logging
import os
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import xxhash

from mooncake_storage_node.ssd.buffers import map_aligned
from mooncake_storage_node.ssd.core.layout import BLOCK_BYTES
from mooncake_storage_node.ssd.core.records import Identity
from mooncake_store.errors import ConfigError
from mooncake_store.limits import REPLACED_MAX

if TYPE_CHECKING:
    from pathlib import Path

    from mooncake_storage_node.ssd.disk import Paths
    from mooncake_storage_node.ssd.files import File, FileSystem

FORMAT: Final = 1
"""Version of everything on disk. A directory of a newer one is refused, never laid out anew."""

INCARNATIONS_MAX: Final = 1 << 63
"""They are below that, see ``new_identity``."""

_WITNESS: Final = struct.Struct("<16sQQ")
_TEXT_BYTES_MAX: Final = BLOCK_BYTES
_log = logging.getLogger(__name__)


class Format(NamedTuple):
    """What the format file says."""

    identity: Identity
    region_bytes: int
    replaced: tuple[int, ...] = ()
    """Incarnations of the stores whose files were removed to make this one, newest last."""


class FormatDamaged(Exception):
    """The format file is there and nobody of ours left it like that."""


class _Words(msgspec.Struct):
    """The format file as JSON."""

    format: int
    store: str
    incarnation: int
    region_bytes: int
    replaced: tuple[int, ...] = ()


def new_identity() -> Identity:
    """Return the identity of contents that were never there before."""
    return Identity(os.urandom(16), int.from_bytes(os.urandom(8), "little") >> 1 or 1)


def read_format(system: FileSystem, paths: Paths, directory: Path) -> Format | None:
    """Return what the directory holds; None: no store yet.

    Raises:
        FormatDamaged: Nothing that can be used.
        ConfigError: A newer version wrote it.
    """
    if paths.format.name not in system.names(paths.root):
        return None
    file = system.open(paths.format)
    try:
        text = read_text(file)
    finally:
        file.close()
    body, _, check = text.strip().rpartition(" ")
    if xxhash.xxh3_64_hexdigest(body.encode()) != check:
        raise FormatDamaged("the format file is damaged")
    try:
        words = msgspec.json.decode(body, type=_Words)
        identity = Identity(bytes.fromhex(words.store), words.incarnation)
    except (msgspec.DecodeError, ValueError) as error:
        raise FormatDamaged(f"the format file makes no sense: {error}") from error
    if words.format > FORMAT:
        raise ConfigError(
            f"the store in {directory} has format {words.format}, this version writes {FORMAT}:"
            " use the newer version, or empty the directory"
        )
    if words.region_bytes <= 0 or words.region_bytes % BLOCK_BYTES:
        raise FormatDamaged(f"regions of {words.region_bytes} bytes")
    replaced = tuple(number for number in words.replaced if 0 < number < INCARNATIONS_MAX)
    return Format(identity, words.region_bytes, replaced[-REPLACED_MAX:])


def write_format(system: FileSystem, paths: Paths, form: Format) -> None:
    """Write the format file, whole or not at all."""
    store, incarnation = form.identity
    words = _Words(FORMAT, store.hex(), incarnation, form.region_bytes, form.replaced)
    body = msgspec.json.encode(words).decode()
    draft = paths.draft
    file = system.open(draft, create=True)
    try:
        write_text(file, f"{body} {xxhash.xxh3_64_hexdigest(body.encode())}\n")
        file.sync()
    finally:
        file.close()
    system.replace(draft, paths.format)


def read_text(file: File) -> str:
    """Return the text at the beginning of a file; what is no text of ours is replaced."""
    buffer = bytearray(_TEXT_BYTES_MAX)
    got = file.read(memoryview(buffer), 0)
    return buffer[:got].rstrip(b"\0").decode("ascii", "replace")


def write_text(file: File, text: str) -> None:
    """Make a file begin with a text, and zeros behind it."""
    page = bytearray(_TEXT_BYTES_MAX)
    page[: len(text)] = text.encode("ascii")
    file.write(memoryview(page), 0)


class Witness:
    """Remembers the number of the last commit outside the index.

    A damaged page can make LMDB go back to an older state, which is whole in itself but has what
    was removed since. The witness is not synced: it may be behind the index, never before it.
    """

    def __init__(self, file: File, identity: Identity) -> None:
        self._file = file
        self._store = identity.store
        self._page = map_aligned(BLOCK_BYTES)
        self._refused = False

    def note(self, commits: int) -> None:
        """Remember that a commit is done. A disk that refuses costs no more than this check.

        It is said once: commits go on, several in a second, for as long as the disk refuses.
        """
        body = _WITNESS.pack(self._store, commits, 0)[:-8]
        _WITNESS.pack_into(self._page, 0, self._store, commits, xxhash.xxh3_64_intdigest(body))
        try:
            self._file.write(self._page, 0)
            self._refused = False
        except OSError as error:
            if not self._refused:
                _log.warning("the witness of a store cannot be written: %s", error)
            self._refused = True

    def contradicts(self, commits: int) -> bool:
        """Return whether a later commit than this one is known to have been done."""
        got = self._file.read(self._page, 0)
        if got < _WITNESS.size:
            return False
        store, seen, check = _WITNESS.unpack_from(self._page)
        body = bytes(self._page[: _WITNESS.size - 8])
        is_ours = store == self._store and xxhash.xxh3_64_intdigest(body) == check
        return bool(is_ours and seen > commits)

    def close(self) -> None:
        """Close its file."""
        self._file.close()
