"""What is told to be free is written by nobody any more, whenever its writer began."""

from __future__ import annotations

import threading

import pytest

from mooncake_storage_node.obedience import Obedience
from mooncake_storage_node.reception import Reception
from mooncake_storage_node.writes import IncomingWrites
from mooncake_store.segment import Segment, mapped_bytes
from mooncake_store.types import make_version
from mooncake_store.wire.control import FreeItem
from mooncake_store.wire.data import Entry, Status

POOL_BYTES = 1 << 20
AT = 512
SIZE = 4096
VERSION = make_version(3, 5)


class LateWriter(IncomingWrites):
    """Announces a write at one of its steps, and looks at the fence at once."""

    def __init__(self, segment: Segment, *, when: str) -> None:
        super().__init__()
        self.reception = Reception(
            Entry(segment.incarnation, AT, VERSION, 0, SIZE),
            {segment.incarnation: segment},
            threading.Lock(),
        )
        self._when = when
        self._began = False

    def cut(self, item: FreeItem) -> None:
        if self._when == "before the cut":
            self._begin()
        super().cut(item)
        if self._when == "after the cut":
            self._begin()

    def _begin(self) -> None:
        if not self._began:
            self._began = True
            assert self.reception.write is not None
            self.add([self.reception.write])
            self.reception.admit()


@pytest.mark.parametrize("when", ["before the cut", "after the cut"])
def test_a_write_that_begins_while_its_extent_is_freed_moves_no_byte_after_that(when: str) -> None:
    memory = memoryview(bytearray(mapped_bytes(POOL_BYTES)))
    segment = Segment.format(memory, POOL_BYTES, 7)
    incoming = LateWriter(segment, when=when)
    obedience = Obedience({7: segment}, incoming, lambda *_: True)
    assert obedience.free([FreeItem(7, AT, SIZE, VERSION)]) == b"\x01"
    incoming.reception.aim(memoryview(bytearray(SIZE)))  # What comes before each byte.
    assert incoming.reception.status == Status.FENCED
