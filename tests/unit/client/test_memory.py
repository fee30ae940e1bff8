"""Values and buffers of callers."""

from __future__ import annotations

import array
import ctypes
import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_client._memory import (
    PIECES_MAX,
    Memory,
    source_views,
    target_views,
)
from mooncake_client._views import cut, new_bytes, window
from mooncake_store.errors import BufferTooSmall, InvalidArgument


class Tensor:
    """Quacks like a torch tensor over a numpy array."""

    def __init__(self, values: np.ndarray, device: str = "cpu") -> None:
        self.values = values
        self.device = type("Device", (), {"type": device})()

    def data_ptr(self) -> int:
        return self.values.ctypes.data

    def numel(self) -> int:
        return self.values.size

    def element_size(self) -> int:
        return self.values.itemsize

    def is_contiguous(self) -> bool:
        return self.values.flags.c_contiguous


def joined(value: object) -> bytes:
    return b"".join(source_views(value))


FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"abc", b"abc"),
        (b"", b""),
        (bytearray(b"abc"), b"abc"),
        (memoryview(b"abc")[1:], b"bc"),
        (array.array("H", [1, 2]), b"\1\0\2\0"),
        (FLOATS, FLOATS.tobytes()),
        (FLOATS.astype(np.float16), FLOATS.astype(np.float16).tobytes()),
        (FLOATS.astype(">f8"), FLOATS.astype(">f8").tobytes()),
        (np.array(7, dtype=np.int64), b"\7" + bytes(7)),
        (np.zeros((0, 4)), b""),
        (np.array(["2020-01-01"], "M8[s]"), np.array(["2020-01-01"], "M8[s]").tobytes()),
        (Tensor(FLOATS), FLOATS.tobytes()),
        (Tensor(np.zeros(0)), b""),
        (Memory(FLOATS.ctypes.data, 8), FLOATS.tobytes()[:8]),
        (Memory(0, 0), b""),
        ([b"ab", b"", memoryview(b"cd")], b"abcd"),
        ((b"ab", Tensor(FLOATS)), b"ab" + FLOATS.tobytes()),
        ([], b""),
        (FLOATS[None, :], FLOATS.tobytes()),
    ],
)
def test_whatever_holds_memory_is_a_value(value: object, expected: bytes) -> None:
    assert joined(value) == expected


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("text", "encode"),
        (7, "not memory"),
        (None, "not memory"),
        ([b"a", "b"], r"value\[1\]"),
        (FLOATS.T, "contiguous"),
        (FLOATS[:, :2], "contiguous"),
        (memoryview(b"abcd")[::2], "contiguous"),
        (Tensor(FLOATS.T), "contiguous"),
        (Tensor(FLOATS, "xpu"), "xpu memory"),
        (Memory(0, 5), "no memory"),
        (Memory(-1, 5), "no memory"),
        (Memory(1, -5), "no memory"),
        (Memory("x", 5), "int address"),  # type: ignore[arg-type]
        ([b""] * (PIECES_MAX + 1), "pieces"),
        (np.array([object()]), "Python objects"),
        (np.array(["2020-01-01"] * 4, "M8[s]")[::2], "contiguous"),
    ],
)
def test_what_is_no_value_is_refused(value: object, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        source_views(value)


@pytest.mark.parametrize(
    "buffer",
    [
        b"abc",
        memoryview(b"abc"),
        np.frombuffer(b"abcd", np.uint8),
        [bytearray(3), b"abc"],
    ],
)
def test_what_cannot_be_written_is_no_buffer(buffer: object) -> None:
    with pytest.raises(InvalidArgument, match="read-only"):
        target_views(buffer)


def test_writing_through_the_views_reaches_the_callers_memory() -> None:
    values = np.zeros(4, np.float32)
    memory = mmap.mmap(-1, 4096)
    raw = (ctypes.c_char * 4)()
    buffers = [values, memory, Memory(ctypes.addressof(raw), 4), Tensor(np.zeros(1, np.int16))]
    views = target_views(buffers)
    for view in views:
        view[:] = b"\1" * len(view)
    assert values.tobytes() == b"\1" * 16
    assert memory[:4096] == b"\1" * 4096
    assert raw.raw == b"\1" * 4


@pytest.mark.parametrize("values", [array.array("d", [1.0]), FLOATS, np.array(7.0)])
def test_a_view_of_the_callers_view_is_no_export_of_it(values: object) -> None:
    given = memoryview(values)  # type: ignore[arg-type]  # arrays are buffers
    (view,) = source_views(given)
    given.release()  # a chain of exports would refuse, and crash the garbage collector
    assert bytes(view) == bytes(memoryview(values))  # type: ignore[arg-type]  # as above


@given(st.lists(st.integers(1, 20), max_size=6), st.data())
def test_cut_and_window_take_exactly_what_is_asked(sizes: list[int], data: st.DataObject) -> None:
    whole = bytes(i % 251 for i in range(sum(sizes)))
    views, at = [], 0
    for size in sizes:
        views.append(memoryview(whole)[at : at + size])
        at += size
    count = data.draw(st.integers(0, len(whole)))
    assert b"".join(cut(views, count)) == whole[:count]
    start = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, len(whole) - start))
    assert b"".join(window(views, start, length)) == whole[start : start + length]
    with pytest.raises(BufferTooSmall):
        cut(views, len(whole) + 1)


@pytest.mark.parametrize("size", [0, 1, 2, 4096, 1 << 20])
def test_new_bytes_are_ordinary_bytes_once_filled(size: int) -> None:
    value, view = new_bytes(size)
    view[:] = b"\7" * size
    assert value == b"\7" * size
    assert hash(value) == hash(b"\7" * size)
