"""The CUDA driver's calls, against a library that notes them. No hardware has seen this."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import pytest

from mooncake_store import device_memory
from mooncake_store.cuda import CudaDriver
from mooncake_store.device_memory import KnownMemory, is_on_gpu
from mooncake_store.errors import InvalidArgument, NotSupported

ADDRESS = 0x7F00_0000_0000
PAGE = mmap.PAGESIZE


class Library:
    """Answers as the driver would; ``codes`` names the calls that fail."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.supported = 1

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a ctypes function
        if not name.startswith("cu") or name in self.codes.get("absent", ()):  # type: ignore[operator]
            raise AttributeError(name)

        def call(*arguments: Any) -> int:  # noqa: ANN401
            self.calls.append((name, arguments))
            return self.codes.get(name) or self._answer(name, arguments)

        return call

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> int:
        if name == "cuGetErrorName":
            arguments[1]._obj.value = b"CUDA_ERROR_INVALID_VALUE"
        elif name in {"cuPointerGetAttribute", "cuDeviceGet"}:
            arguments[0]._obj.value = 3
        elif name == "cuDeviceGetAttribute":
            arguments[0]._obj.value = self.supported
        elif name == "cuMemGetHandleForAddressRange":
            arguments[0]._obj.value = 77
        elif name == "cuDeviceGetPCIBusId":
            arguments[0].value = b"0000:3B:00.0"
        return 0


def test_whole_pages_around_the_memory_are_exported() -> None:
    library = Library()
    exported = CudaDriver(library).export(ADDRESS + 100, PAGE)
    assert exported == (77, 100)
    ((_, start, size, kind, flags),) = [
        arguments for name, arguments in library.calls if name == "cuMemGetHandleForAddressRange"
    ]
    assert (start.value, size.value, kind, flags.value) == (ADDRESS, 2 * PAGE, 1, 0)


def test_calls_are_made_in_the_context_of_the_memory_s_gpu_which_is_kept() -> None:
    library = Library()
    driver = CudaDriver(library)
    driver.copy_in(ADDRESS, memoryview(b"abc"))
    target = memoryview(bytearray(3))
    driver.copy_out(target, ADDRESS)
    names = library.names()
    assert names.count("cuDevicePrimaryCtxRetain") == 1
    for copy in ("cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2"):
        at = names.index(copy)
        assert names[at - 1] == "cuCtxPushCurrent_v2"
        assert names[at + 1] == "cuCtxPopCurrent_v2"
        size = library.calls[at][1][2]
        assert size.value == 3


def test_the_bus_address_is_as_sysfs_writes_it() -> None:
    assert CudaDriver(Library()).bus_id(ADDRESS) == "0000:3b:00.0"


def test_what_the_driver_cannot_is_said() -> None:
    with pytest.raises(NotSupported, match="does not start: CUDA_ERROR_INVALID_VALUE"):
        CudaDriver(Library(cuInit=1))
    with pytest.raises(NotSupported, match=r"older than 11\.7"):
        CudaDriver(Library(absent=["cuMemGetHandleForAddressRange"])).export(ADDRESS, 1)  # type: ignore[arg-type]
    library = Library()
    library.supported = 0
    with pytest.raises(NotSupported, match="GPU 3 or its kernel module has no dma-buf"):
        CudaDriver(library).export(ADDRESS, 1)
    library = Library(cuMemGetHandleForAddressRange=1)
    with pytest.raises(NotSupported, match=r"GPU 3 exports no 4096 bytes.*INVALID_VALUE"):
        CudaDriver(library).export(ADDRESS, 1)
    assert library.names().count("cuCtxPopCurrent_v2") == 1
    with pytest.raises(InvalidArgument, match=r"refuses \(cuMemcpyHtoD_v2\)"):
        CudaDriver(Library(cuMemcpyHtoD_v2=1)).copy_in(ADDRESS, memoryview(b"a"))


def test_numbers_of_errors_without_a_name_are_said() -> None:
    library = Library(cuInit=1, cuGetErrorName=1)
    with pytest.raises(NotSupported, match="error 1"):
        CudaDriver(library)
    assert ctypes.sizeof(ctypes.c_size_t) == 8


def test_what_overlaps_is_known_as_one_until_each_is_forgotten() -> None:
    assert not device_memory.is_any_known()
    whole, part, behind = (
        KnownMemory(1000, 100),
        KnownMemory(1050, 10),
        KnownMemory(1100, 50),
    )
    try:
        assert is_on_gpu(1000, 150)
        assert is_on_gpu(1070, 30)
        assert not is_on_gpu(999, 2)
        assert not is_on_gpu(1140, 11)
        whole.close()
        whole.close()
        assert is_on_gpu(1050, 10)
        assert not is_on_gpu(1060, 1)
    finally:
        for known in (whole, part, behind):
            known.close()
    assert not device_memory.is_any_known()
