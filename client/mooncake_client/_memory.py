"""Values and buffers of callers: whatever they hold becomes flat views of memory.

Accepted are objects with the buffer protocol (bytes, bytearray, memoryview, array, numpy arrays,
mmap), torch tensors, ``Memory(address, bytes)``, arrays of NVIDIA GPUs, and lists or tuples of
those: one object gathered from, or scattered over, several pieces. All checks happen here, before
anything moves.

What lies on a GPU is copied to the host to be put (its checksum is made there), and is read into
only where it was registered (``mooncake_store.device_memory``).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from mooncake_client._views import READ, WRITE, view_of_address
from mooncake_store import device_memory, limits
from mooncake_store.errors import InvalidArgument, ObjectTooLarge

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PIECES_MAX: Final = 4096
"""Pieces of one object: an engine's layers times two. More would make a call's bookkeeping cost
more than its bytes."""

_TYPESTR: Final = re.compile(r"[<>|=][a-zA-NP-Z](\d+)")
"""Element type of an array interface and its size in bytes; ``O`` would be pointers."""

_TENSOR_METHODS: Final = ("data_ptr", "numel", "element_size", "is_contiguous")


class Memory(NamedTuple):
    """Memory by its address, as engines hold their pages (``tensor.data_ptr()``).

    Whoever makes one vouches for it: the address cannot be checked, and must stay allocated until
    the call it is given to has returned.
    """

    address: int
    bytes: int


class Registrable(NamedTuple):
    """Memory to be registered: a view, and whether the processor must not touch its bytes."""

    view: memoryview
    is_on_gpu: bool


class Tensor(Protocol):
    """What is used of a torch tensor; torch itself is never imported."""

    def data_ptr(self) -> int:
        """Address of the first element."""
        ...

    def numel(self) -> int:
        """Elements."""
        ...

    def element_size(self) -> int:
        """Bytes of one element."""
        ...

    def is_contiguous(self) -> bool:
        """Whether the elements lie in order, without gaps."""
        ...


class Exporter(Protocol):
    """An object with the buffer protocol (``collections.abc.Buffer`` from Python 3.12)."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """Export the memory."""
        ...


Piece: TypeAlias = "bytes | bytearray | memoryview | Memory | Tensor | Exporter"
"""One stretch of memory."""

Value: TypeAlias = "Piece | Sequence[Piece]"
"""What ``put`` takes: one piece, or several that are gathered in order."""

Buffer: TypeAlias = "Piece | Sequence[Piece]"
"""What ``get_into`` fills: one writable piece, or several that the object is scattered over."""


def source_views(value: object, *, what: str = "value") -> list[memoryview]:
    """Return ``value`` as non-empty readable views, 1-D, format "B", in order.

    Raises:
        InvalidArgument: Not memory, not contiguous, or too many pieces.
        ObjectTooLarge: More bytes than ``limits.OBJECT_BYTES_MAX``.
    """
    if type(value) is bytes:
        return [memoryview(value)] if value else []
    views = _views(value, what, writable=False)
    total = sum(map(len, views))
    if total > limits.OBJECT_BYTES_MAX:
        raise ObjectTooLarge(f"{total} bytes are over the limit of {limits.OBJECT_BYTES_MAX}")
    return views


def target_views(buffer: object, *, what: str = "buffer") -> list[memoryview]:
    """Return ``buffer`` as non-empty writable views, 1-D, format "B", in order.

    Raises:
        InvalidArgument: Not memory, read-only, not contiguous, or too many pieces.
    """
    return _views(buffer, what, writable=True)


def registrable(buffer: object) -> list[Registrable]:
    """Return the non-empty pieces of ``buffer`` as ``register`` takes them.

    Raises:
        InvalidArgument: Not memory, not contiguous, or too many pieces.
    """
    found: list[Registrable] = []
    for what, piece in _pieces(buffer, "buffer"):
        on_gpu = _gpu_memory(piece, what)
        if on_gpu is None:
            found.append(Registrable(_view(piece, what, writable=False), is_on_gpu=False))
        else:
            view = view_of_address(on_gpu.address, on_gpu.bytes, WRITE)
            found.append(Registrable(view, is_on_gpu=True))
    return [entry for entry in found if len(entry.view)]


def _views(value: object, what: str, *, writable: bool) -> list[memoryview]:
    if isinstance(value, (list, tuple)) and not isinstance(value, Memory):
        views = [_view(piece, name, writable) for name, piece in _pieces(value, what)]
        return [view for view in views if len(view)]
    view = _view(value, what, writable)
    return [view] if len(view) else []


def _pieces(value: object, what: str) -> Iterator[tuple[str, object]]:
    """Yield what messages call each piece, and the piece."""
    if not isinstance(value, (list, tuple)) or isinstance(value, Memory):
        yield what, value
        return
    if len(value) > PIECES_MAX:
        raise InvalidArgument(f"a {what} has at most {PIECES_MAX} pieces, not {len(value)}")
    for at, piece in enumerate(value):
        yield f"{what}[{at}]", piece


def _view(piece: object, what: str, writable: bool) -> memoryview:  # noqa: FBT001 - hot path
    if isinstance(piece, Memory):
        return _view_memory(piece, what, writable)
    try:
        view = memoryview(piece)  # type: ignore[arg-type]  # tried: not every object has one
    except TypeError as error:
        return _view_tensor(piece, what, writable, error)
    except (ValueError, BufferError) as error:
        return _view_array(piece, what, writable, error)
    if writable and view.readonly:
        raise InvalidArgument(f"{what} is read-only")
    if not view.c_contiguous:
        raise InvalidArgument(f"{what} is not contiguous (in C order)")
    if view.ndim == 1 and view.format == "B":
        return view
    if "O" in view.format:
        raise InvalidArgument(f"{what} holds Python objects, not bytes")
    # A cast shares what is exported. A view *of* the view would crash CPython's collector (up to
    # 3.13 at least) once both are part of one garbage cycle, as a kept traceback makes them.
    return view.cast("B") if view.nbytes else memoryview(b"")


def _view_array(piece: object, what: str, writable: bool, error: Exception) -> memoryview:  # noqa: FBT001  # a flag of the buffer protocol
    """Take an array whose element type the buffer protocol cannot say (bfloat16, datetime64)."""
    interface = getattr(piece, "__array_interface__", None)
    if not isinstance(interface, dict):
        raise InvalidArgument(f"{what}: this {_name(piece)} exports no memory: {error}") from error
    if interface.get("strides") is not None:
        raise InvalidArgument(f"{what} is not contiguous (in C order)")
    address, readonly = interface["data"]
    if writable and readonly:
        raise InvalidArgument(f"{what} is read-only")
    kind = _TYPESTR.match(interface["typestr"])
    if kind is None:
        raise InvalidArgument(f"{what}: this {_name(piece)} exports no memory: {error}") from error
    size = math.prod(interface["shape"]) * int(kind[1])
    return _view_memory(Memory(address, size), what, writable)


def _view_memory(piece: Memory, what: str, writable: bool) -> memoryview:  # noqa: FBT001  # a flag of the buffer protocol
    address: object = piece.address
    size: object = piece.bytes
    if not isinstance(address, int) or not isinstance(size, int) or isinstance(size, bool):
        raise InvalidArgument(f"{what}: Memory takes an int address and an int size in bytes")
    if size < 0 or address < 0 or (size and not address) or address + size > 1 << 64:
        raise InvalidArgument(f"{what}: Memory({address:#x}, {size}) is no memory")
    if not size:
        return memoryview(b"")
    if not writable and device_memory.is_any_known() and device_memory.is_on_gpu(address, size):
        return device_memory.copy_out(address, size)
    view: memoryview = view_of_address(address, size, WRITE if writable else READ)
    return view


def _view_tensor(piece: object, what: str, writable: bool, error: Exception) -> memoryview:  # noqa: FBT001  # a flag of the buffer protocol
    on_gpu = _gpu_memory(piece, what)
    if on_gpu is not None:
        return _view_gpu(on_gpu, what, writable)
    if not _is_tensor(piece):
        hint = " (encode it first)" if isinstance(piece, str) else ""
        raise InvalidArgument(f"{what}: a {_name(piece)} is not memory{hint}") from error
    device = getattr(getattr(piece, "device", None), "type", "cpu")
    if device != "cpu":
        raise InvalidArgument(f"{what}: the tensor lies in {device} memory, not in the CPU's")
    if not piece.is_contiguous():  # type: ignore[attr-defined]  # a tensor, by its methods
        raise InvalidArgument(f"{what}: the tensor is not contiguous")
    size = piece.numel() * piece.element_size()  # type: ignore[attr-defined]  # a tensor, by its methods
    return _view_memory(Memory(piece.data_ptr(), size), what, writable)  # type: ignore[attr-defined]  # a tensor, by its methods


def _view_gpu(memory: Memory, what: str, writable: bool) -> memoryview:  # noqa: FBT001  # a flag of the buffer protocol
    address, size = memory
    if not size:
        return memoryview(b"")
    if not writable:
        return device_memory.copy_out(address, size)
    if not device_memory.is_on_gpu(address, size):
        raise InvalidArgument(
            f"{what} lies on a GPU and is not registered: Client.register it (or all its pages)"
            " before, or read into memory of the CPU"
        )
    view: memoryview = view_of_address(address, size, WRITE)
    return view


def _gpu_memory(piece: object, what: str) -> Memory | None:
    """Return where a piece lies on an NVIDIA GPU; None: it does not."""
    if _is_tensor(piece):
        if getattr(getattr(piece, "device", None), "type", "cpu") != "cuda":
            return None
        if not piece.is_contiguous():  # type: ignore[attr-defined]  # a tensor, by its methods
            raise InvalidArgument(f"{what}: the tensor is not contiguous")
        return Memory(piece.data_ptr(), piece.numel() * piece.element_size())  # type: ignore[attr-defined]  # a tensor, by its methods
    interface = getattr(piece, "__cuda_array_interface__", None)
    if not isinstance(interface, dict):
        return None
    if interface.get("strides") is not None:
        raise InvalidArgument(f"{what} is not contiguous (in C order)")
    kind = _TYPESTR.match(interface["typestr"])
    if kind is None:
        raise InvalidArgument(f"{what}: this {_name(piece)} exports no memory")
    return Memory(interface["data"][0], math.prod(interface["shape"]) * int(kind[1]))


def _is_tensor(piece: object) -> bool:
    return all(hasattr(piece, name) for name in _TENSOR_METHODS)


def _name(piece: object) -> str:
    return type(piece).__name__
