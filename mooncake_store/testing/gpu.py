"""A GPU without hardware: memory at addresses that the processor must not touch."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from mooncake_store.cuda import Exported
from mooncake_store.errors import InvalidArgument, NotSupported
from mooncake_store.memory import address_of

_NO_ACCESS = 0


def _leads_to(link: Path, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(link.stat(), file)
    except FileNotFoundError:  # Closed since it was listed.
        return False


class FakeTensor:
    """What torch would make of memory on a GPU, as far as the store looks."""

    def __init__(self, address: int, size: int) -> None:
        self.device = type("Device", (), {"type": "cuda"})()
        self._address = address
        self._size = size

    def __getitem__(self, part: slice) -> FakeTensor:
        start, end, step = part.indices(self._size)
        assert step == 1
        return FakeTensor(self._address + start, end - start)

    def data_ptr(self) -> int:
        """As a tensor's."""
        return self._address

    def numel(self) -> int:
        """As a tensor's."""
        return self._size

    def element_size(self) -> int:
        """As a tensor's."""
        return 1

    def is_contiguous(self) -> bool:
        """As a tensor's."""
        return True


class FakeGpu:
    """A ``GpuDriver`` with one allocation; touching its address kills the process.

    Attributes:
        address: Of the allocation.
        size: Its bytes.
        contents: What it holds, for tests to look at.
        exports: Whether it has dma-buf.
        copied_in: Bytes that came through the driver.
        exports_made: How many descriptors it gave out.
    """

    def __init__(self, size: int, *, bus_id: str = "0000:00:00.0") -> None:
        self.size = size
        self.exports = True
        self.copied_in = 0
        self.exports_made = 0
        self._bus_id = bus_id
        self._room = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, _NO_ACCESS)
        self.address = address_of(self._room)
        self._file = os.memfd_create("gpu", os.MFD_CLOEXEC)
        os.ftruncate(self._file, size)
        self.contents = memoryview(mmap.mmap(self._file, size))
        self._own = self._count_open()

    def tensor(self, start: int, size: int) -> FakeTensor:
        """Return part of the allocation."""
        return FakeTensor(self.address + start, size)

    def export(self, address: int, size: int) -> Exported:
        """As ``GpuDriver.export``: a descriptor of all there is."""
        if not self.exports:
            raise NotSupported("GPU 0 or its kernel module has no dma-buf")
        offset = self._at(address, size)
        self.exports_made += 1
        return Exported(os.dup(self._file), offset)

    def exports_open(self) -> int:
        """Count the descriptors given out that nobody has closed yet.

        By what they lead to: the number of one that was closed is soon another file's.
        """
        return self._count_open() - self._own

    def _count_open(self) -> int:
        memory = os.fstat(self._file)
        return sum(_leads_to(link, memory) for link in Path("/proc/self/fd").iterdir())

    def copy_in(self, address: int, source: memoryview) -> None:
        """As ``GpuDriver.copy_in``."""
        at = self._at(address, len(source))
        self.contents[at : at + len(source)] = source
        self.copied_in += len(source)

    def copy_out(self, target: memoryview, address: int) -> None:
        """As ``GpuDriver.copy_out``."""
        at = self._at(address, len(target))
        target[:] = self.contents[at : at + len(target)]

    def bus_id(self, address: int) -> str:
        """As ``GpuDriver.bus_id``."""
        self._at(address, 1)
        return self._bus_id

    def _at(self, address: int, size: int) -> int:
        at = address - self.address
        if not 0 <= at <= at + size <= self.size:
            raise InvalidArgument(f"no allocation has {size} bytes at {address:#x}")
        return at
