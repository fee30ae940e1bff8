"""The files of one opened store: where they lie, and whether the disk still does its work."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.ssd.buffers import map_aligned
from mooncake_storage_node.ssd.core.layout import BLOCK_BYTES, pieces
from mooncake_storage_node.ssd.index import INDEX_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from mooncake_storage_node.ssd.files import File, FileSystem

FOLDER: Final = "mooncake-ssd"
"""Everything of a store lies in a folder of this name, so that a mount's own files do no harm."""

_REGION_SUFFIX: Final = ".region"
_REGION_DIGITS: Final = 5


class Paths:
    """Names of a store's files."""

    __slots__ = ("draft", "format", "index", "index_file", "lock", "probe", "regions", "root",
                 "witness")  # fmt: skip

    def __init__(self, directory: Path) -> None:
        self.root = directory / FOLDER
        self.format = self.root / "format"
        self.draft = self.root / "format.tmp"
        self.lock = self.root / "lock"
        self.probe = self.root / "probe"
        self.witness = self.root / "witness"
        self.index = self.root / "index"
        self.index_file = self.index / INDEX_FILE
        self.regions = self.root / "regions"

    def region(self, number: int) -> Path:
        """Return the name of a region's file."""
        return self.regions / f"{number:0{_REGION_DIGITS}d}{_REGION_SUFFIX}"


def region_number(name: str) -> int:
    """Return the number of the region that has this file name; -1: none."""
    stem, dot, suffix = name.partition(".")
    is_ours = dot + suffix == _REGION_SUFFIX and len(stem) == _REGION_DIGITS
    return int(stem) if is_ours and stem.isascii() and stem.isdigit() else -1


class RegionRefused(Exception):
    """A region's file cannot be written.

    Attributes:
        number: Which.
    """

    def __init__(self, number: int, error: OSError) -> None:
        super().__init__(f"region file {number} cannot be written: {error.strerror or error}")
        self.number = number


class Probe:
    """Finds out whether a disk takes, keeps and gives back a block."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._turn = threading.Lock()
        self._buffer = map_aligned(BLOCK_BYTES)

    def check(self) -> str:
        """Write, sync and read one block; return what went wrong, or an empty sentence."""
        with self._turn:
            written = os.urandom(BLOCK_BYTES)
            self._buffer[:] = written
            try:
                self._file.write(self._buffer, 0)
                self._file.sync()
            except OSError as error:
                return f"the disk cannot be written: {error.strerror or error}"
            self._buffer[:] = bytes(BLOCK_BYTES)
            try:
                self._file.read(self._buffer, 0)
            except OSError as error:
                return f"the disk cannot be read: {error.strerror or error}"
            if bytes(self._buffer) != written:
                return "the disk does not give back what was written"
        return ""


class Disk:
    """The open files of a store.

    Attributes:
        paths: Their names.
        system: Where they were opened.
        files: {region: its file}. Files are added while the store is open, none is taken out.
        probe: See ``Probe``.
        identity: What the lock's name led to when the store was opened.
    """

    def __init__(
        self, directory: Path, paths: Paths, system: FileSystem, lock: File, probe: File
    ) -> None:
        """Begin without regions; ``paths`` lead to ``directory`` by whatever way."""
        self.paths = paths
        self.system = system
        self.files: dict[int, File] = {}
        self.probe = Probe(probe)
        self._name = directory / FOLDER / paths.lock.name
        self.identity = system.inode(paths.lock)
        self._align = 1
        self._lock = lock
        self._probe_file = probe

    def is_in_place(self) -> bool:
        """Return whether the directory is still the one that was opened."""
        try:
            return self.system.inode(self._name) == self.identity
        except OSError:
            return False

    def create_region(self, number: int, size: int) -> None:
        """Create a region's file, with all its room.

        Raises:
            OSError: There is no room, or the disk refuses; nothing is left behind.
        """
        path = self.paths.region(number)
        file = self.system.open(path, create=True, direct=True)
        try:
            file.allocate(size)
        except OSError:
            file.close()
            self.system.remove(path)
            raise
        self.add(number, file)

    @property
    def align(self) -> int:
        """What addresses, lengths and memory of reads are multiples of."""
        return self._align

    def add(self, number: int, file: File) -> None:
        """Take up the open file of a region."""
        self._align = max(self._align, file.align)
        self.files[number] = file

    def read(self, buffer: memoryview, place: int, region_bytes: int) -> int:
        """Fill a buffer from an address on, all aligned; return the bytes that were there.

        Fewer than the buffer takes: a file ends before.
        """
        done = 0
        for number, offset, part in pieces(place, len(buffer), region_bytes):
            got = self.files[number].read(buffer[done : done + part], offset)
            done += got
            if got < part:
                break
        return done

    def write(self, buffer: memoryview, place: int, region_bytes: int) -> None:
        """Write a buffer of whole blocks at an address of one.

        Raises:
            RegionRefused: A file cannot be written.
        """
        done = 0
        for number, offset, part in pieces(place, len(buffer), region_bytes):
            try:
                self.files[number].write(buffer[done : done + part], offset)
            except OSError as error:
                raise RegionRefused(number, error) from error
            done += part

    def remove_region(self, number: int) -> None:
        """Remove a region's file; nobody uses it any more."""
        self.files.pop(number).close()
        self.system.remove(self.paths.region(number))

    def close_files(self) -> None:
        """Close everything but the lock."""
        for file in [*self.files.values(), self._probe_file]:
            file.close()

    def close(self) -> None:
        """Close everything; the lock goes last."""
        self.close_files()
        self._lock.close()
