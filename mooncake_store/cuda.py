"""Memory of NVIDIA GPUs, through the driver's library where this host has one.

Not tried on hardware by us. What is used of the driver is documented for CUDA 11.7 and newer; its
numbers below are from the CUDA driver API.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from mooncake_store.errors import InvalidArgument, NotSupported
from mooncake_store.memory import address_of

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY: Final = "libcuda.so.1"

_ATTRIBUTE_DEVICE_ORDINAL: Final = 9
_ATTRIBUTE_DMA_BUF_SUPPORTED: Final = 124
_HANDLE_TYPE_DMA_BUF: Final = 1
_BUS_ID_BYTES: Final = 16


class Exported(NamedTuple):
    """Memory of a GPU as other devices can be given it.

    Attributes:
        descriptor: Of a dma-buf; whoever got it closes it.
        offset: Where the memory begins in it.
    """

    descriptor: int
    offset: int


class GpuDriver(Protocol):
    """What is asked of the driver of a GPU. Addresses are the GPU's, sizes bytes."""

    def export(self, address: int, size: int) -> Exported:
        """Make a dma-buf of the whole pages around memory of one allocation.

        Raises:
            NotSupported: GPU, driver or allocation cannot be exported; the message says why.
        """

    def copy_in(self, address: int, source: memoryview) -> None:
        """Copy from the host, and wait for it.

        Raises:
            InvalidArgument: The driver refuses: the memory is not there any more.
        """

    def copy_out(self, target: memoryview, address: int) -> None:
        """Copy to the host, and wait for it; ``target`` is writable.

        Raises:
            InvalidArgument: As ``copy_in``.
        """

    def bus_id(self, address: int) -> str:
        """Return the PCI address of the GPU that has the memory, as in ``/sys/bus/pci/devices``.

        Raises:
            InvalidArgument: None has.
        """


class CudaDriver:
    """The driver's library. Calls are made in the primary context of the memory's GPU."""

    def __init__(self, library: Any) -> None:  # noqa: ANN401 - a ctypes library, or a test's
        """Start it.

        Raises:
            NotSupported: It does not start.
        """
        self._library = library
        self._lock = threading.Lock()
        self._contexts: dict[int, ctypes.c_void_p] = {}
        code = library.cuInit(0)
        if code:
            raise NotSupported(f"the CUDA driver does not start: {self._why(code)}")

    def export(self, address: int, size: int) -> Exported:
        """As ``GpuDriver.export``."""
        if not hasattr(self._library, "cuMemGetHandleForAddressRange"):
            raise NotSupported("the CUDA driver is older than 11.7: it exports no memory")
        device = self._device_of(address)
        supported = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(supported), _ATTRIBUTE_DMA_BUF_SUPPORTED,
                   device)  # fmt: skip
        if not supported.value:
            raise NotSupported(f"GPU {device} or its kernel module has no dma-buf")
        page = mmap.PAGESIZE
        start = address // page * page
        whole = -(-(address + size - start) // page) * page
        descriptor = ctypes.c_int(-1)
        with self._within(device):
            code = self._library.cuMemGetHandleForAddressRange(
                ctypes.byref(descriptor),
                ctypes.c_uint64(start),
                ctypes.c_size_t(whole),
                _HANDLE_TYPE_DMA_BUF,
                ctypes.c_uint64(0),
            )
        if code:
            raise NotSupported(
                f"GPU {device} exports no {whole} bytes at {start:#x}: {self._why(code)}; register"
                " whole allocations of one kind"
            )
        return Exported(descriptor.value, address - start)

    def copy_in(self, address: int, source: memoryview) -> None:
        """As ``GpuDriver.copy_in``."""
        self._copy("cuMemcpyHtoD_v2", address, ctypes.c_uint64(address), source)

    def copy_out(self, target: memoryview, address: int) -> None:
        """As ``GpuDriver.copy_out``."""
        place = ctypes.c_void_p(address_of(target))
        self._copy("cuMemcpyDtoH_v2", address, place, target, ctypes.c_uint64(address))

    def bus_id(self, address: int) -> str:
        """As ``GpuDriver.bus_id``."""
        name = ctypes.create_string_buffer(_BUS_ID_BYTES)
        self._call("cuDeviceGetPCIBusId", name, _BUS_ID_BYTES, self._device_of(address))
        return name.value.decode().lower()

    def _copy(
        self, name: str, address: int, to: object, host: memoryview, source: object = None
    ) -> None:
        if source is None:
            source = ctypes.c_void_p(address_of(host))
        with self._within(self._device_of(address)):
            self._call(name, to, source, ctypes.c_size_t(host.nbytes))

    def _device_of(self, address: int) -> int:
        ordinal, device = ctypes.c_int(), ctypes.c_int()
        self._call("cuPointerGetAttribute", ctypes.byref(ordinal), _ATTRIBUTE_DEVICE_ORDINAL,
                   ctypes.c_uint64(address))  # fmt: skip
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        return device.value

    @contextlib.contextmanager
    def _within(self, device: int) -> Iterator[None]:
        """Make a GPU's primary context the thread's; what the thread had comes back."""
        with self._lock:
            context = self._contexts.get(device)
            if context is None:
                context = ctypes.c_void_p()
                self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
                self._contexts[device] = context
        self._call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise InvalidArgument(f"the GPU's driver refuses ({name}): {self._why(code)}")

    def _why(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._library.cuGetErrorName(code, ctypes.byref(text)) or text.value is None:
            return f"error {code}"
        return text.value.decode()


@functools.cache
def cuda_driver() -> GpuDriver:
    """Return the driver of this host's GPUs.

    Raises:
        NotSupported: There is none, or it does not start.
    """
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NotSupported(f"this host has no CUDA driver ({LIBRARY})") from error
    return CudaDriver(library)
