"""What every measured system looks like to the workload.

Values live in ``Region``s, so that a system can register their memory for direct transfer, and
so that no system pays for a conversion inside a timed call that another one is spared.
"""

import ctypes
import mmap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.processes import Servers


@dataclass(frozen=True, slots=True)
class Region:
    """Memory of the client that holds a value to put, or takes a value that is read.

    Attributes:
        view: The memory, writable, format "B", shape (n,).
        address: Where it starts.
        value: The same bytes as an immutable object, for client libraries that take nothing
            else; empty for a region that is only read into.
    """

    view: memoryview
    address: int
    value: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of the region."""
        return self.view.nbytes

    def split(self, count: int) -> list["Region"]:
        """Cut into ``count`` regions of equal size, which share this one's memory."""
        step = self.size // count
        return [
            Region(
                self.view[start : start + step],
                self.address + start,
                self.value[start : start + step],
            )
            for start in range(0, count * step, step)
        ]


def new_region(size: int, payload: bytes = b"") -> Region:
    """Fresh private memory, all of it touched, in huge pages where the kernel has them.

    That is what numpy and torch allocate for arrays of this size, hence what engines have.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(memory)
    view[:] = payload or bytes(size)
    return Region(view, ctypes.addressof(ctypes.c_char.from_buffer(view)), payload)


class Adapter(ABC):
    """One system seen from one client in this process.

    Every object call raises on failure and on a missing key: a workload never times a miss.
    """

    has_views = False
    """Whether the system has unverified reads and views."""

    def __init__(self, log_directory: Path) -> None:
        self.servers = Servers(log_directory)

    @abstractmethod
    def start(self, segment_bytes: int) -> None:
        """Start the servers, with ``segment_bytes`` of memory for objects."""

    @abstractmethod
    def connect(self) -> None:
        """Connect the client to the servers."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect the client."""

    @abstractmethod
    def put(self, key: str, source: Region) -> None:
        """Store the region's bytes by the library's fastest call."""

    @abstractmethod
    def get(self, key: str) -> bytes | memoryview:
        """Return the value in memory that the library chooses."""

    @abstractmethod
    def get_into(self, key: str, target: Region) -> None:
        """Read the value into the region, by a copy where the library cannot."""

    @abstractmethod
    def exists(self, key: str) -> bool:
        """Ask the servers whether the key has a value."""

    @abstractmethod
    def remove(self, keys: Sequence[str]) -> None:
        """Remove all keys, read or not."""

    def put_many(self, keys: Sequence[str], sources: Sequence[Region]) -> None:
        """Store a batch; one by one unless the library does better."""
        for key, source in zip(keys, sources, strict=True):
            self.put(key, source)

    def get_into_many(self, keys: Sequence[str], targets: Sequence[Region]) -> None:
        """Read a batch; one by one unless the library does better."""
        for key, target in zip(keys, targets, strict=True):
            self.get_into(key, target)

    def exists_many(self, keys: Sequence[str]) -> list[bool]:
        """Ask about a batch; one by one unless the library does better."""
        return [self.exists(key) for key in keys]

    def region(self, size: int, payload: bytes = b"") -> Region:
        """Memory for values; a system that registers memory overrides this."""
        return new_region(size, payload)

    def reconnect(self) -> None:
        """Become a client that has put nothing, and so cannot know where anything is.

        Regions made before are not to be used after.
        """
        self.close()
        self.connect()

    def get_into_unverified(self, key: str, target: Region) -> None:
        """Read without comparing the checksum of the bytes; only for systems that verify."""
        raise NotImplementedError

    def view(self, key: str) -> int:
        """Open and leave a view of the object without a copy; its size."""
        raise NotImplementedError

    def master_round_trips(self) -> int | None:
        """Requests that this client has sent to a master, or None where nobody counts them."""
        return None

    def stop(self) -> None:
        """End what ``start`` started."""
        self.servers.stop()
