"""A file layer whose disk is full, slow, read-only or broken to order, and an index to match."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.ssd.files import File, FileSystem, OsFiles, Pin, Space
from mooncake_storage_node.ssd.index import Commit, Index, IndexFailed, LmdbIndex, Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from mooncake_storage_node.ssd.core.rows import RowBlock

Fault = "Callable[[str, Path], int]"

OPERATIONS: Final = frozenset({"open", "read", "write", "sync", "allocate", "commit", "page"})


class Faults:
    """What goes wrong, switched while a store works.

    Attributes:
        rules: Each is asked (operation, path) and returns an errno, or 0.
        gate: Operations named in ``gated`` wait until it is set.
        gated: Names of operations, see ``OPERATIONS``.
        threads: Only threads whose name begins so wait at the gate.
        waiting: How many have come to the gate since ``hold``.
        happened: {operation: how often it was asked for}.
        space: What the file system says of itself; None: the truth.
    """

    def __init__(self) -> None:
        self.rules: list[Callable[[str, Path], int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.gated: frozenset[str] = frozenset()
        self.threads = ""
        self.waiting = 0
        self.happened: dict[str, int] = {}
        self.space: Space | None = None
        self._lock = threading.Lock()

    def check(self, operation: str, path: Path) -> None:
        """Let an operation wait or fail."""
        with self._lock:
            self.happened[operation] = self.happened.get(operation, 0) + 1
        if operation in self.gated and threading.current_thread().name.startswith(self.threads):
            self.waiting += 1
            self.gate.wait(60)
        for rule in list(self.rules):
            code = rule(operation, path)
            if code:
                raise OSError(code, os.strerror(code), str(path))

    def fail(self, *operations: str, code: int = errno.EIO, name: str = "") -> None:
        """Let operations fail from now on, on paths that end with ``name``."""
        assert set(operations) <= OPERATIONS
        self.rules.append(
            lambda operation, path: (
                code if operation in operations and path.name.endswith(name) else 0
            )
        )

    def hold(self, *operations: str, threads: str = "") -> None:
        """Let operations hang until ``mend``."""
        self.gate.clear()
        self.waiting = 0
        self.threads = threads
        self.gated = frozenset(operations)

    def mend(self) -> None:
        """Let everything work again."""
        self.rules.clear()
        self.gated = frozenset()
        self.gate.set()


class FaultyFile(File):
    """A file with faults."""

    def __init__(self, file: File, path: Path, faults: Faults) -> None:
        self._file = file
        self._path = path
        self._faults = faults

    @property
    def align(self) -> int:
        return self._file.align

    def read(self, buffer: memoryview, offset: int) -> int:
        self._faults.check("read", self._path)
        return self._file.read(buffer, offset)

    def write(self, buffer: memoryview, offset: int) -> None:
        self._faults.check("write", self._path)
        self._file.write(buffer, offset)

    def sync(self) -> None:
        self._faults.check("sync", self._path)
        self._file.sync()

    def allocate(self, size: int) -> None:
        self._faults.check("allocate", self._path)
        self._file.allocate(size)

    def size(self) -> int:
        return self._file.size()

    def room(self) -> int:
        return self._file.room()

    def lock(self) -> bool:
        return self._file.lock()

    def descriptor(self) -> int:
        return self._file.descriptor()

    def close(self) -> None:
        self._file.close()


class FaultyIndex(Index):
    """An index with faults."""

    def __init__(self, index: Index, path: Path, faults: Faults) -> None:
        self._index = index
        self._path = path
        self._faults = faults

    def _check(self, operation: str) -> None:
        try:
            self._faults.check(operation, self._path)
        except OSError as error:
            raise IndexFailed(f"the index cannot be used: {error.strerror}") from error

    def load(self) -> Iterator[RowBlock]:
        return self._index.load()

    def summary(self) -> Summary:
        return self._index.summary()

    def commit(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> Commit:
        self._check("commit")
        return self._index.commit(puts, deletes)

    def page(self, location: int, limit: int) -> list[tuple[bytes, bytes]]:
        self._check("page")
        return self._index.page(location, limit)

    def close(self) -> None:
        self._index.close()


class FaultyFiles(FileSystem):
    """The machine's files with faults.

    Args:
        direct: Whether files may by-pass the page cache.
        in_process: Whether the index is in this process, which starts faster.
    """

    def __init__(
        self, faults: Faults | None = None, *, direct: bool = True, in_process: bool = True
    ) -> None:
        self.faults = faults or Faults()
        self._direct = direct
        self._in_process = in_process
        self._system = OsFiles()

    def open(self, path: Path, *, create: bool = False, direct: bool = False) -> File:
        self.faults.check("open", path)
        file = self._system.open(path, create=create, direct=direct and self._direct)
        return FaultyFile(file, path, self.faults)

    def pin(self, folder: Path) -> Pin:
        return self._system.pin(folder)

    def names(self, folder: Path) -> list[str]:
        return self._system.names(folder)

    def make_folder(self, path: Path) -> None:
        self._system.make_folder(path)

    def remove(self, path: Path) -> None:
        self._system.remove(path)

    def replace(self, source: Path, target: Path) -> None:
        self._system.replace(source, target)

    def inode(self, path: Path) -> tuple[int, int]:
        return self._system.inode(path)

    def is_folder(self, path: Path) -> bool:
        return self._system.is_folder(path)

    def space(self, path: Path) -> Space:
        return self.faults.space or self._system.space(path)

    def open_index(self, folder: Path, map_bytes: int, lock: File) -> Index:
        index: Index
        if self._in_process:
            index = LmdbIndex(folder, map_bytes)
        else:
            index = self._system.open_index(folder, map_bytes, lock)
        return FaultyIndex(index, folder / "data.mdb", self.faults)
