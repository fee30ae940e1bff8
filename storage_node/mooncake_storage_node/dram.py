"""The memory that a node gives: files of shared memory in a folder that only one process owns.

    <memory root>/<node name>/
        lock        held (flock) by the process that owns the folder
        node_id     32 hex digits: who the node is, for as long as its memory can be
        segment     the pool (``mooncake_store.segment``)
        notes       what this node keeps about absent ones (``notebook``)
        socket      where local processes get the descriptors

The folder outlives the process: who starts again under the same name, with the same size, goes on
with the contents. After a reboot there is nothing, so everything is new.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mooncake_store import memory, segment
from mooncake_store.errors import ConfigError, NotSupported
from mooncake_store.limits import GRANULE_BYTES, KIB, MIB
from mooncake_store.segment import Segment
from mooncake_store.types import Incarnation
from mooncake_store.units import format_bytes

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

DEFAULT_ROOT: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own, checked for its owner
MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "hugetlbfs", "ramfs"})
LOCK_FILE: Final = "lock"
NAMES_MAX: Final = 1000
"""Nodes of one host that find a name by themselves."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class NodeFolder:
    """The folder of one node, owned for as long as the process lives.

    Attributes:
        name: Of the node.
        path: The folder.
        node_id: Identity, the same after every restart on this memory.
        is_new: No process left anything here for this one.
    """

    def __init__(self, root: Path, name: str) -> None:
        """Take the folder of ``name``; an empty name takes the first free ``<hostname>-<k>``.

        Raises:
            ConfigError: Another process has it, or it cannot be used.
        """
        _check_memory(root)
        base = _own_folder(root / f"mooncake-store-{os.geteuid()}")
        if name:
            self.name = name
            lock = _take(base, name)
            if lock is None:
                raise ConfigError(
                    f"--name: another process runs node {name!r} on this host (its folder is"
                    f" {base / name})"
                )
            self._lock = lock
        else:
            self.name, self._lock = _take_first_free(base)
        self.path = base / self.name
        self.node_id, self.is_new = self._read_node_id()

    @property
    def lock_descriptor(self) -> int:
        """What the folder is locked by; -1 once it was given up."""
        return self._lock

    @property
    def socket_path(self) -> Path:
        """Where the local socket is to be."""
        return self.path / "socket"

    def close(self) -> None:
        """Give the folder up, contents and all."""
        memory.close_file(self._lock)
        self._lock = -1

    def remove(self) -> None:
        """Delete the folder with everything in it, then give it up.

        The lock goes last: without it the folder is another process's, with what that puts there.
        """
        for entry in self.path.iterdir():
            if entry.name != LOCK_FILE:
                entry.unlink()
        (self.path / LOCK_FILE).unlink()
        try:
            self.path.rmdir()
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.ENOENT}:  # Somebody took it over.
                raise
        self.close()

    def undo(self) -> None:
        """Give up what this process took, and leave what was there before it."""
        if self.is_new:
            self.remove()
        else:
            self.close()

    def _read_node_id(self) -> tuple[str, bool]:
        file = self.path / "node_id"
        if file.exists() and re.fullmatch("[0-9a-f]{32}", text := file.read_text().strip()):
            return text, False
        fresh = secrets.token_hex(16)
        draft = self.path / "node_id.new"
        draft.write_text(fresh)
        draft.replace(file)
        return fresh, True


def _check_memory(root: Path) -> None:
    """Refuse a folder on a disk.

    What lies there would come back after a power failure as some mixture of old and new pages, and
    with it what had been removed; a pool ends with the machine that it is the memory of.

    Raises:
        ConfigError: It is on a disk, or is not there.
    """
    try:
        device = root.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"--memory-root: cannot use {root}: {error.strerror}") from error
    wanted = f"{os.major(device)}:{os.minor(device)}"
    kinds = {
        mount.partition(" - ")[2].split(" ", 1)[0]
        for mount in mounts
        if mount.split(" ", 3)[2] == wanted
    }
    if not kinds & MEMORY_FILE_SYSTEMS:
        kind = ", ".join(sorted(kinds)) or "unknown"
        raise ConfigError(
            f"--memory-root: {root} is no memory but a file system of type {kind}; name a folder on"
            f" {' or '.join(sorted(MEMORY_FILE_SYSTEMS))}, such as {DEFAULT_ROOT}"
        )


def _own_folder(path: Path) -> Path:
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ConfigError(f"--memory-root: cannot use {path}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigError(f"--memory-root: {path} is not a folder that this user alone can use")
    return path


def _take(base: Path, name: str) -> int | None:
    """Lock the folder of a name, making it; None where another process has it."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"--name: {name!r} is no name: up to 63 letters, digits, dots, dashes, underscores"
        )
    while True:
        folder = _own_folder(base / name)
        try:
            lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # Its owner removed it between our two steps.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_nlink:
                return lock
        except BlockingIOError:
            os.close(lock)
            return None
        os.close(lock)


def _take_first_free(base: Path) -> tuple[str, int]:
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:50].strip(".-") or "node"
    for number in range(NAMES_MAX):
        name = f"{host}-{number}"
        lock = _take(base, name)
        if lock is not None:
            return name, lock
    raise ConfigError(f"--name: {NAMES_MAX} nodes run on this host already; name this one")


class Pool:
    """The segment of a node, mapped.

    Attributes:
        segment: The segment.
        mapped_bytes: Bytes of its file that are mapped.
        attached: Whether it was there before, contents and all.
        path: Its file.
    """

    def __init__(
        self,
        file: Path,
        mapping: mmap.mmap,
        attached: bool,  # noqa: FBT001 - made here only
    ) -> None:
        self.path = file
        self.mapped_bytes = len(mapping)
        self.attached = attached
        self._mapping = mapping
        self.segment = Segment(memoryview(mapping), memory.populator(mapping))

    @property
    def mapping(self) -> mmap.mmap:
        """The mapping."""
        return self._mapping

    @property
    def used_bytes(self) -> int:
        """Memory that the file takes now."""
        return self.path.stat().st_blocks * 512

    def populate(self, start: int) -> int:
        """Give the next pages their memory; return where to go on, 0 at the end.

        Raises:
            MemoryError: There is no more.
        """
        size = min(memory.POPULATE_BYTES, self.mapped_bytes - start)
        address = memory.address_of(self._mapping)
        if size <= 0 or not memory.populate(address + start, size, write=True):
            return 0
        return start + size

    def bind_to_numa(self, numa_node: int) -> None:
        """Place the pages on one NUMA node.

        Raises:
            NotSupported: The machine cannot.
        """
        memory.bind_to_numa(self._mapping, numa_node)

    def advise_huge(self) -> None:
        """Ask for transparent huge pages.

        Raises:
            NotSupported: The kernel does not give them for shared memory.
        """
        if not memory.advise_huge(self._mapping):
            raise NotSupported(
                "this kernel gives no transparent huge pages for shared memory (see"
                " /sys/kernel/mm/transparent_hugepage/shmem_enabled)"
            )

    def remove(self) -> None:
        """Delete the file; the memory returns when the last process lets go of it."""
        self.path.unlink(missing_ok=True)


def open_pool(file: Path, size: int) -> Pool:
    """Attach to the segment file of an earlier process, or make a new one.

    Args:
        file: The segment file.
        size: Bytes to pool; cut to whole granules.

    Raises:
        ConfigError: There is not that much memory.
    """
    size -= size % GRANULE_BYTES
    mapped = segment.mapped_bytes(size)
    pool = _attach(file, size, mapped)
    if pool is not None:
        _populate_directory(memory.populator(pool.mapping), size)
        return pool
    file.unlink(missing_ok=True)
    check_room(file.parent, mapped)
    descriptor = memory.create_file(file, mapped)
    try:
        mapping = memory.map_file(descriptor, mapped)
    finally:
        os.close(descriptor)
    try:
        _populate_directory(memory.populator(mapping), size)
    except ConfigError:
        file.unlink()
        raise
    Segment.format(memoryview(mapping), size, Incarnation(secrets.randbits(63) | 1))
    return Pool(file, mapping, attached=False)


def _populate_directory(give_pages: Callable[[int, int], None], size: int) -> None:
    """Give what lies before the extents its pages: it is touched at any time, by anybody.

    The pages of extents are asked for by whoever writes them (``Segment.secure``).

    Raises:
        ConfigError: There are none.
    """
    at, end = 0, segment.extents_at(size)
    try:
        while at < end:
            step = min(memory.POPULATE_BYTES, end - at)
            give_pages(at, step)
            at += step
    except MemoryError as error:
        raise ConfigError(
            f"--dram: no memory is left for the directory of the pool, {format_bytes(end)}"
        ) from error


def _attach(file: Path, size: int, mapped: int) -> Pool | None:
    """Return the pool in an existing file, None where it is no pool of that size."""
    if not file.exists():
        return None
    try:
        descriptor = memory.open_file(file)
        try:
            mapping = memory.map_file(descriptor, mapped)
        finally:
            os.close(descriptor)
        pool = Pool(file, mapping, attached=True)
    except ConfigError:
        return None
    return pool if pool.segment.bytes == size else None


def check_room(folder: Path, size: int) -> None:
    """Refuse memory that is not there.

    What other nodes of this user promised and did not touch yet counts as taken.

    Raises:
        ConfigError: It is not; the message says how much is.
    """
    promised = sum(map(_promised, folder.parent.glob("*/segment")))
    tmpfs = os.statvfs(folder)
    rooms = {"free memory": _available_bytes(), "room in " + str(folder.parent.parent):
             tmpfs.f_bavail * tmpfs.f_frsize}  # fmt: skip
    limit = _cgroup_room()
    if limit is not None:
        rooms["memory limit of this container"] = limit
    for what, room in rooms.items():
        if size > room - promised:
            raise ConfigError(
                f"--dram: a pool of {format_bytes(size)} does not fit: the {what} is"
                f" {_rounded(room)}, of which {_rounded(promised)} are promised to other nodes"
            )


def _promised(file: Path) -> int:
    """Return the memory that a segment file may still take; 0 where its node just gave it back."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return 0
    return max(0, found.st_size - 512 * found.st_blocks)


def _rounded(size: int) -> str:
    return format_bytes(max(0, size) // MIB * MIB)


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * KIB
    return 0


def _cgroup_room() -> int | None:
    """Return what this process' cgroup may still take; None where there is no limit."""
    try:
        most = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if most == "max" else int(most) - used
