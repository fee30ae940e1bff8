"""The few operations on files that a store needs, and how Linux does them.

``FileSystem`` is a seam: tests put one in between that is full, slow, read-only or broken. All
calls block; ``OSError`` passes through, since what it means is for the callers to say.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_storage_node.ssd.core.layout import BLOCK_BYTES
from mooncake_storage_node.ssd.index_process import IndexProcess

if TYPE_CHECKING:
    from mooncake_storage_node.ssd.index import Index

SECTOR_BYTES: Final = 512
"""The smallest unit that O_DIRECT may ask for; disks with sectors of 4 KiB want those."""

COMMIT_S: Final = 60.0
"""Time that a commit of the index may take before its process is ended: a disk that takes longer
for some kilobytes does not come back, or nobody waits for it any more."""

_REFUSALS: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})


class Space(NamedTuple):
    """Room of a file system."""

    total_bytes: int
    free_bytes: int
    """What an unprivileged process can get."""


class File(ABC):
    """An open file, used at positions by several threads at once."""

    @property
    @abstractmethod
    def align(self) -> int:
        """What offsets, lengths and addresses of reads are multiples of; writes take blocks."""

    @abstractmethod
    def read(self, buffer: memoryview, offset: int) -> int:
        """Fill a buffer from ``offset`` on; return the bytes that were there."""

    @abstractmethod
    def write(self, buffer: memoryview, offset: int) -> None:
        """Write all of a buffer."""

    @abstractmethod
    def sync(self) -> None:
        """Make what was written durable."""

    @abstractmethod
    def allocate(self, size: int) -> None:
        """Give the file ``size`` bytes of disk, so that writing them cannot run out of space."""

    @abstractmethod
    def size(self) -> int:
        """Return the length."""

    @abstractmethod
    def room(self) -> int:
        """Return the bytes of disk that the file has; holes have none."""

    @abstractmethod
    def lock(self) -> bool:
        """Lock the file for this process; return False where another process has it."""

    @abstractmethod
    def descriptor(self) -> int:
        """Return the descriptor, to be handed to a child."""

    @abstractmethod
    def close(self) -> None:
        """Close the file, after the operations that are under way. Idempotent; never raises."""


class Pin:
    """A folder that stays the same one, whatever is mounted over its name.

    Attributes:
        path: Leads to it until ``close``.
    """

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def close(self) -> None:
        """Let go of the folder. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class FileSystem(ABC):
    """Opens files and changes folders."""

    @abstractmethod
    def pin(self, folder: Path) -> Pin:
        """Hold on to a folder."""

    @abstractmethod
    def open(self, path: Path, *, create: bool = False, direct: bool = False) -> File:
        """Open for reading and writing; ``direct`` by-passes the page cache where possible."""

    @abstractmethod
    def names(self, folder: Path) -> list[str]:
        """Return what lies in a folder."""

    @abstractmethod
    def make_folder(self, path: Path) -> None:
        """Create a folder if it is not there."""

    @abstractmethod
    def remove(self, path: Path) -> None:
        """Remove a file if it is there."""

    @abstractmethod
    def replace(self, source: Path, target: Path) -> None:
        """Give a file another name, whatever has it; durable."""

    @abstractmethod
    def inode(self, path: Path) -> tuple[int, int]:
        """Return what identifies the file behind a name."""

    @abstractmethod
    def is_folder(self, path: Path) -> bool:
        """Return whether there is a folder of that name."""

    @abstractmethod
    def space(self, path: Path) -> Space:
        """Return the room of the file system that holds ``path``."""

    @abstractmethod
    def open_index(self, folder: Path, map_bytes: int, lock: File) -> Index:
        """Open or create an index in a folder.

        Args:
            folder: Where.
            map_bytes: Most bytes it may ever have.
            lock: The store's lock, which whoever holds the index shares.

        Raises:
            IndexFailed, IndexDamaged: It cannot be opened.
        """


class OsFile(File):
    """A descriptor that is closed only when nobody uses it: its number may soon be another's."""

    def __init__(self, descriptor: int, *, direct: bool) -> None:
        self._descriptor = descriptor
        self._direct = direct
        self._align = 1
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False
        self._find_alignment()

    @property
    def align(self) -> int:
        """See ``File``."""
        return self._align

    def read(self, buffer: memoryview, offset: int) -> int:
        """See ``File``."""
        done = 0
        with self._use():
            while done < len(buffer):
                got = os.preadv(self._descriptor, [buffer[done:]], offset + done)
                done += got
                if not got or got % self._align:
                    break
        return done

    def write(self, buffer: memoryview, offset: int) -> None:
        """See ``File``."""
        done = 0
        with self._use():
            while done < len(buffer):
                done += os.pwritev(self._descriptor, [buffer[done:]], offset + done)

    def sync(self) -> None:
        """See ``File``."""
        with self._use():
            os.fdatasync(self._descriptor)

    def allocate(self, size: int) -> None:
        """See ``File``."""
        with self._use():
            os.posix_fallocate(self._descriptor, 0, size)
            os.fsync(self._descriptor)
        self._find_alignment()

    def size(self) -> int:
        """See ``File``."""
        with self._use():
            return os.fstat(self._descriptor).st_size

    def room(self) -> int:
        """See ``File``."""
        with self._use():
            return os.fstat(self._descriptor).st_blocks * SECTOR_BYTES

    def lock(self) -> bool:
        """See ``File``."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def descriptor(self) -> int:
        """See ``File``."""
        return self._descriptor

    def close(self) -> None:
        """See ``File``."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._users:
                return
        os.close(self._descriptor)

    def _use(self) -> _Use:
        return _Use(self)

    def enter(self) -> None:
        """Begin an operation."""
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, "the file is closed")
            self._users += 1

    def leave(self) -> None:
        """End an operation; the last one closes the file if that was asked for meanwhile."""
        with self._lock:
            self._users -= 1
            last = self._closed and not self._users
        if last:
            os.close(self._descriptor)

    def _find_alignment(self) -> None:
        """Ask the kernel for one sector that is no block: disks with large sectors refuse."""
        if not self._direct:
            return
        self._align = BLOCK_BYTES
        if os.fstat(self._descriptor).st_size < BLOCK_BYTES:
            return
        page = memoryview(mmap.mmap(-1, mmap.PAGESIZE))
        try:
            os.preadv(self._descriptor, [page[SECTOR_BYTES : 2 * SECTOR_BYTES]], SECTOR_BYTES)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
        else:
            self._align = SECTOR_BYTES


class _Use:
    """One operation on an ``OsFile``."""

    __slots__ = ("_file",)

    def __init__(self, file: OsFile) -> None:
        self._file = file

    def __enter__(self) -> None:
        self._file.enter()

    def __exit__(self, *_: object) -> None:
        self._file.leave()


class OsFiles(FileSystem):
    """The file systems of the machine, and indexes in processes of their own."""

    def pin(self, folder: Path) -> Pin:
        """See ``FileSystem``; without /proc the name has to do."""
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        way = Path(f"/proc/self/fd/{descriptor}")
        try:
            is_same = way.samefile(folder)
        except OSError:
            is_same = False
        return Pin(way if is_same else folder, descriptor)

    def open(self, path: Path, *, create: bool = False, direct: bool = False) -> File:
        """See ``FileSystem``."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        if direct:
            try:
                return OsFile(os.open(path, flags | os.O_DIRECT, 0o600), direct=True)
            except OSError as error:
                if error.errno not in _REFUSALS:
                    raise
        return OsFile(os.open(path, flags, 0o600), direct=False)

    def names(self, folder: Path) -> list[str]:
        """See ``FileSystem``."""
        return sorted(entry.name for entry in folder.iterdir())

    def make_folder(self, path: Path) -> None:
        """See ``FileSystem``."""
        path.mkdir(mode=0o700, exist_ok=True)

    def remove(self, path: Path) -> None:
        """See ``FileSystem``."""
        path.unlink(missing_ok=True)

    def replace(self, source: Path, target: Path) -> None:
        """See ``FileSystem``."""
        source.replace(target)
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def inode(self, path: Path) -> tuple[int, int]:
        """See ``FileSystem``."""
        found = path.stat()
        return found.st_dev, found.st_ino

    def is_folder(self, path: Path) -> bool:
        """See ``FileSystem``."""
        try:
            return stat.S_ISDIR(path.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def space(self, path: Path) -> Space:
        """See ``FileSystem``."""
        found = os.statvfs(path)
        return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def open_index(self, folder: Path, map_bytes: int, lock: File) -> Index:
        """See ``FileSystem``."""
        return IndexProcess(folder, map_bytes, lock=lock.descriptor(), timeout_s=COMMIT_S)
