"""A small write that came whole lands in one step, or leaves no trace."""

from __future__ import annotations

import threading

import pytest

from mooncake_storage_node.landing import land
from mooncake_storage_node.node_view import NodeView
from mooncake_storage_node.writes import IncomingWrites
from mooncake_store import extent, fingerprint
from mooncake_store.segment import Segment, mapped_bytes
from mooncake_store.testing import wait_until
from mooncake_store.testing.payload import payload
from mooncake_store.types import make_version
from mooncake_store.wire.control import FreeItem
from mooncake_store.wire.data import Status

POOL_BYTES = 1 << 20
AT = 512
VERSION = make_version(3, 5)


def sealed(version: int = VERSION, size: int = 1000) -> bytes:
    identity = extent.Identity(fingerprint.fingerprint("n", "k"), version, 0, 1, size)
    content = payload("k", 1, size)
    digests = extent.hash_payload([memoryview(content)])
    header, tail = extent.seal(identity, digests, extent.Names("n", "k"))
    return header + content + tail


class Bed:
    def __init__(self) -> None:
        memory = memoryview(bytearray(mapped_bytes(POOL_BYTES)))
        self.segment = Segment.format(memory, POOL_BYTES, 7)
        self.node = NodeView("a" * 32, {7: self.segment}, IncomingWrites())
        self.guard = threading.Lock()

    def land(self, raw: bytes, *, offset: int = AT, incarnation: int = 7) -> Status | None:
        entry = (incarnation, offset, VERSION, 0, len(raw))
        status = land(self.node, self.guard, entry, memoryview(raw))
        assert not len(self.node.incoming)
        assert not self.guard.locked()
        return status


def test_it_is_published_as_it_came() -> None:
    bed, raw = Bed(), sealed()
    assert bed.land(raw) == Status.OK
    assert bed.segment.extents[AT : AT + len(raw)] == raw
    assert bed.segment.holds(AT, VERSION)


def test_what_landed_before_is_not_written_again() -> None:
    bed = Bed()
    assert bed.land(sealed()) == Status.OK
    before = bytes(bed.segment.extents[: 4 * AT])
    assert bed.land(sealed(size=700)) == Status.OK
    assert bed.segment.extents[: 4 * AT] == before


def test_what_was_freed_first_is_fenced() -> None:
    bed = Bed()
    bed.segment.free(AT, VERSION)
    assert bed.land(sealed()) == Status.FENCED
    assert bytes(bed.segment.extents[: 4 * AT]) == bytes(4 * AT)
    assert not bed.segment.holds(AT, VERSION)


def test_what_an_older_reign_granted_is_fenced() -> None:
    bed = Bed()
    bed.segment.term = 4
    assert bed.land(sealed()) == Status.FENCED
    assert bytes(bed.segment.extents[: 4 * AT]) == bytes(4 * AT)


def test_what_is_cut_off_while_it_lands_is_fenced() -> None:
    bed, raw = Bed(), sealed()
    item = FreeItem(7, AT, 2048, VERSION)
    bed.guard.acquire()
    outcome: list[Status | None] = []
    entry = (7, AT, VERSION, 0, len(raw))
    writer = threading.Thread(
        target=lambda: outcome.append(land(bed.node, bed.guard, entry, memoryview(raw)))
    )
    writer.start()
    wait_until(lambda: len(bed.node.incoming), 60, what="it has announced itself")
    # What ``IncomingWrites.cut`` does, with the guard held by us already.
    (write,) = bed.node.incoming._writes
    write.cut = True
    bed.guard.release()
    writer.join(60)
    assert outcome == [Status.FENCED]
    assert not bed.segment.holds(AT, VERSION)
    bed.node.incoming.cut(item)


@pytest.mark.parametrize("at", range(0, 64, 7))
def test_a_damaged_header_gets_a_closer_look(at: int) -> None:
    bed, raw = Bed(), bytearray(sealed())
    raw[at] ^= 1
    assert bed.land(bytes(raw)) is None
    assert not bed.segment.holds(AT, VERSION)


def test_what_is_not_plain_gets_a_closer_look() -> None:
    bed, raw = Bed(), sealed()
    assert bed.land(raw, incarnation=8) is None
    assert bed.land(raw, offset=100) is None
    assert bed.land(raw, offset=POOL_BYTES - 512) is None
    assert bed.land(sealed(make_version(3, 6))) is None
    assert bed.land(raw + b"x") is None
    entry = (7, AT, VERSION, 8, len(raw))
    assert land(bed.node, bed.guard, entry, memoryview(raw)) is None
