"""Memory that processes share: creating, mapping and filling the files that segments live in.

A segment is a file of tmpfs (``/dev/shm``) or hugetlbfs: it outlives the process that made it and
is reached by whoever is handed its descriptor. This module is the only one that maps memory.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mooncake_store.errors import ConfigError, NotSupported
from mooncake_store.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.syscall.restype = ctypes.c_long

_MADV_POPULATE_READ: Final = 22
_MADV_POPULATE_WRITE: Final = 23
POPULATE_BYTES: Final = 64 * MIB
"""Memory filled by one system call: about 30 ms, after which a stop or a deadline is noticed."""

_MACHINE: Final = os.uname().machine
_SYS_MEMBARRIER: Final = {"x86_64": 324, "aarch64": 283, "ppc64le": 365, "riscv64": 283}.get(
    _MACHINE
)
_SYS_MBIND: Final = {"x86_64": 237, "aarch64": 235, "ppc64le": 259, "riscv64": 235}.get(_MACHINE)
_SYS_MOVE_PAGES: Final = {"x86_64": 279, "aarch64": 239, "ppc64le": 301, "riscv64": 239}.get(
    _MACHINE
)
_MEMBARRIER_GLOBAL_EXPEDITED: Final = 2
_MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: Final = 4
_MPOL_BIND: Final = 2
_MPOL_MF_MOVE: Final = 2


class _PyBuffer(ctypes.Structure):
    """``Py_buffer`` of the C API."""

    _fields_ = [  # type: ignore[mutable-override]  # typeshed names a Sequence, as ctypes once did
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_PyBuffer),)
_release_buffer.restype = None

move = ctypes.memmove
"""``move(target_address, source_address, size)``: a copy during which other threads run."""


def address_of(view: memoryview | mmap.mmap) -> int:
    """Return the address of the first byte of a contiguous buffer, writable or not.

    The caller keeps the buffer alive for as long as it uses the address.
    """
    buffer = _PyBuffer()
    _get_buffer(view, ctypes.byref(buffer), 0)
    address = buffer.buf or 0
    _release_buffer(ctypes.byref(buffer))
    return address


def create_file(path: Path, size: int) -> int:
    """Create a file of ``size`` zero bytes that nobody else can open; return its descriptor.

    Raises:
        ConfigError: It exists, or the folder cannot hold it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot create {path}: {error.strerror}") from error
    try:
        os.ftruncate(descriptor, size)
    except OSError as error:
        os.close(descriptor)
        path.unlink()
        raise ConfigError(f"cannot give {path} {size} bytes: {error.strerror}") from error
    return descriptor


def open_file(path: Path) -> int:
    """Open an existing file for reading and writing; return its descriptor.

    Raises:
        ConfigError: It cannot be opened.
    """
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"cannot open {path}: {error.strerror}") from error


def map_file(descriptor: int, size: int) -> mmap.mmap:
    """Map the first ``size`` bytes of a file, shared and writable.

    Forked children do not inherit the mapping: a child that wrote into it after its parent's
    death would do so unseen.

    Raises:
        ConfigError: The file is shorter, or the mapping is refused.
    """
    try:
        if os.fstat(descriptor).st_size < size:
            raise ConfigError(f"the shared file is shorter than its {size} bytes")
        mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot map {size} bytes of shared memory: {error}") from error
    mapping.madvise(mmap.MADV_DONTFORK)
    _mapped.add(mapping)
    return mapping


_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def _keep_from_unmapping() -> None:
    """Let no mapping object of the parent unmap anything in a forked child.

    The addresses are free there and may belong to somebody else by the time that the object dies.
    """
    for mapping in _mapped:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(mapping))


os.register_at_fork(after_in_child=_keep_from_unmapping)


def close_file(descriptor: int) -> None:
    """Close a descriptor that may be closed already."""
    try:
        os.close(descriptor)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise


_FLOCK: Final = struct.Struct("@hhqqi4x")
"""``struct flock``: type, whence, start, length, pid."""


def lock_range(descriptor: int, start: int, size: int) -> bool:
    """Lock bytes of a file for as long as this open file lives; False where another one has them.

    The lock belongs to the open file (``F_OFD_SETLK``), not to the process: it ends when the last
    descriptor of that open file is closed, which the kernel does when the process ends, however.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, start, size, 0))
    except BlockingIOError:
        return False
    return True


def unlock_range(descriptor: int, start: int, size: int) -> None:
    """Give bytes back that this open file locked."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, start, size, 0))


def populate(address: int, size: int, *, write: bool) -> bool:
    """Give mapped memory its pages now, so that the first use does not pay for it.

    Slices of ``POPULATE_BYTES`` are the caller's: this is one system call, other threads run.

    Returns:
        Whether it was done; False where the kernel has no such call (before Linux 5.14).

    Raises:
        MemoryError: There are not that many free pages.
    """
    page = mmap.PAGESIZE
    start = address // page * page
    advice = _MADV_POPULATE_WRITE if write else _MADV_POPULATE_READ
    if _libc.madvise(start, address + size - start, advice) == 0:
        return True
    code = ctypes.get_errno()
    if code in {errno.ENOMEM, errno.EFAULT}:
        raise MemoryError(f"no pages for {size} bytes of shared memory: {os.strerror(code)}")
    return False


def populator(mapping: mmap.mmap) -> Callable[[int, int], None]:
    """Return what gives bytes of a mapping their pages: ``populate(offset, size)``.

    It raises MemoryError where there are none. Before Linux 5.14 it does nothing.
    """
    address = address_of(mapping)

    def give(offset: int, size: int) -> None:
        assert offset + size <= len(mapping)
        populate(address + offset, size, write=True)

    return give


def advise_huge(mapping: mmap.mmap) -> bool:
    """Ask for transparent huge pages; return whether the kernel took the advice."""
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return False
    state = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    refusals = ("[never]", "[deny]")
    return state.exists() and not any(word in state.read_text() for word in refusals)


def bind_to_numa(mapping: mmap.mmap, numa_node: int) -> None:
    """Place the pages of a mapping on one NUMA node, those in use already included.

    Raises:
        NotSupported: The machine or the kernel cannot do it; the message says why.
    """
    if _SYS_MBIND is None or not Path(f"/sys/devices/system/node/node{numa_node}").exists():
        raise NotSupported(f"this machine has no NUMA node {numa_node} to bind memory to")
    words = numa_node // 64 + 1
    mask = (ctypes.c_ulong * words)()
    mask[numa_node // 64] = 1 << (numa_node % 64)
    result = _libc.syscall(
        _SYS_MBIND,
        ctypes.c_void_p(address_of(mapping)),
        ctypes.c_size_t(len(mapping)),
        ctypes.c_int(_MPOL_BIND),
        mask,
        ctypes.c_ulong(64 * words + 1),
        ctypes.c_uint(_MPOL_MF_MOVE),
    )
    if result != 0:
        reason = os.strerror(ctypes.get_errno())
        raise NotSupported(f"the kernel refused to bind memory to NUMA node {numa_node}: {reason}")


SAMPLES_MAX: Final = 16
"""Pages that are asked for their NUMA node: enough for memory of one piece, or in turns."""


def numa_node_of(address: int, size: int) -> int:
    """Return the NUMA node that has most of some pages of memory; -1: none is known.

    Pages that were never touched are on no node.
    """
    if _SYS_MOVE_PAGES is None:
        return -1
    page = mmap.PAGESIZE
    first, last = address // page, (address + max(1, size) - 1) // page
    count = min(SAMPLES_MAX, last - first + 1)
    step = (last - first) // max(1, count - 1)
    pages = (ctypes.c_void_p * count)(*(page * (first + step * turn) for turn in range(count)))
    nodes = (ctypes.c_int * count)()
    result = _libc.syscall(
        _SYS_MOVE_PAGES, 0, ctypes.c_ulong(count), pages, None, nodes, ctypes.c_int(0)
    )
    known = [node for node in nodes if node >= 0] if result == 0 else []
    return max(known, key=known.count) if known else -1


_fence_lock: Final = threading.Lock()


def fence() -> None:
    """Order this thread's stores before its later loads.

    Taking a lock is an atomic read-modify-write, on x86 a full fence. Elsewhere ``barrier`` on the
    other side makes the order certain.
    """
    with _fence_lock:
        pass


def _membarrier(command: int) -> bool:
    return _SYS_MEMBARRIER is not None and _libc.syscall(_SYS_MEMBARRIER, command, 0, 0) == 0


def join_barriers() -> bool:
    """Let ``barrier`` calls of other processes order this one's memory accesses too.

    Returns:
        Whether the kernel does it.
    """
    return _membarrier(_MEMBARRIER_REGISTER_GLOBAL_EXPEDITED)


def barrier() -> bool:
    """Order memory between this process and all that joined: a full fence on each of their CPUs.

    Needed where one side stores A then loads B and the other stores B then loads A (a writer's
    intent and the node's fence): without it both may miss the other's store. The rare side pays.
    See membarrier(2).

    Returns:
        Whether the kernel did it.
    """
    return _membarrier(_MEMBARRIER_GLOBAL_EXPEDITED)
