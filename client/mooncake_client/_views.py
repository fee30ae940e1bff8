"""Flat views of memory: cutting them, and making them of an address."""

from __future__ import annotations

import ctypes
from typing import Final

from mooncake_store.errors import BufferTooSmall

READ: Final = 0x100
WRITE: Final = 0x200
"""What a view of an address allows."""

view_of_address = ctypes.pythonapi.PyMemoryView_FromMemory
view_of_address.restype = ctypes.py_object
view_of_address.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)

_address_of_bytes = ctypes.pythonapi.PyBytes_AsString
_address_of_bytes.restype = ctypes.c_void_p
_address_of_bytes.argtypes = (ctypes.py_object,)


def total_bytes(views: list[memoryview]) -> int:
    """Return the bytes of all views."""
    return len(views[0]) if len(views) == 1 else sum(map(len, views))


def cut(views: list[memoryview], count: int, *, key: str | None = None) -> list[memoryview]:
    """Return the first ``count`` bytes of ``views``.

    Raises:
        BufferTooSmall: They hold fewer.
    """
    if len(views) == 1 and len(views[0]) == count:
        return views
    kept: list[memoryview] = []
    left = count
    for view in views:
        if left <= 0:
            break
        kept.append(view if len(view) <= left else view[:left])
        left -= len(view)
    if left > 0:
        have = total_bytes(views) if views else 0
        raise BufferTooSmall(f"{count} bytes do not fit a buffer of {have} (key {key!r})", key=key)
    return kept


def window(views: list[memoryview], start: int, count: int) -> list[memoryview]:
    """Return ``count`` bytes of ``views`` from ``start`` on; they hold as many."""
    kept: list[memoryview] = []
    for view in views:
        if not count:
            break
        size = len(view)
        if start >= size:
            start -= size
            continue
        part = view[start : start + count]
        start = 0
        count -= len(part)
        kept.append(part)
    return kept


def new_bytes(size: int) -> tuple[bytes, memoryview]:
    """Return a bytes object whose contents are undefined, and a writable view to fill it by.

    This is how C code makes bytes, and legal until somebody else has seen the object. It saves
    clearing the memory and a copy of the whole value. The view does not keep the object alive.
    """
    fresh = _new_bytes(None, size)
    view = view_of_address(_address_of_bytes(fresh), size, WRITE)
    assert isinstance(fresh, bytes)
    assert isinstance(view, memoryview)
    return fresh, view
