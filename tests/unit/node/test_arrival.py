"""A copy is verified byte by byte, and is never published once its attempt is over."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_storage_node.arrival import Landing
from mooncake_storage_node.pulling import Pull, copy_here
from mooncake_storage_node.writes import IncomingWrites
from mooncake_store import extent, fingerprint
from mooncake_store.deadline import Deadline
from mooncake_store.errors import (
    ChecksumMismatch,
    InvalidArgument,
    ProtocolError,
    StaleExtent,
    StaleTerm,
    StoreError,
)
from mooncake_store.segment import FREED, Segment, mapped_bytes
from mooncake_store.testing.payload import payload
from mooncake_store.transport.effects import Receive
from mooncake_store.types import make_version
from mooncake_store.wire import data
from mooncake_store.wire.control import CopyItem, FreeItem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POOL_BYTES = 4 << 20
SOURCE_AT = 512
TARGET_AT = 8192
VERSION = make_version(3, 5)
ATTEMPT = make_version(3, 9)


def make_segment(incarnation: int) -> Segment:
    memory = memoryview(bytearray(mapped_bytes(POOL_BYTES)))
    return Segment.format(memory, POOL_BYTES, incarnation)


class Bed:
    """A source segment with one extent, a target segment, and an order to copy."""

    def __init__(self, size: int) -> None:
        self.source = make_segment(1)
        self.target = make_segment(2)
        self.incoming = IncomingWrites()
        identity = extent.Identity(fingerprint.fingerprint("n", "k"), VERSION, 0, 4, size)
        content = payload("k", 1, size)
        digests = extent.hash_payload([memoryview(content)])
        sealed = extent.seal(identity, digests, extent.Names("n", "k", "group"))
        self.raw = sealed.header + content + sealed.tail
        self.bytes = -(-len(self.raw) // 512) * 512
        self.source.extents[SOURCE_AT : SOURCE_AT + len(self.raw)] = self.raw
        self.source.table[SOURCE_AT // 512] = VERSION
        self.item = CopyItem("", "", 0, 1, SOURCE_AT, 0, VERSION, self.bytes, 2, TARGET_AT, ATTEMPT)

    def landing(self) -> Landing:
        landing = Landing(self.item, self.target, self.incoming)
        assert landing.begin()
        return landing

    def copy(self, landing: Landing | None = None) -> None:
        landing = landing or self.landing()
        try:
            for _ in copy_here(landing, self.source, Deadline(60)):
                pass
            landing.publish()
        finally:
            landing.end()

    def is_published(self) -> bool:
        entry = self.target.table[TARGET_AT // 512]
        return bool(entry) and not entry & FREED


def serve(
    bed: Bed, pull: Pull, tamper: Callable[[int, bytearray], None] = lambda _at, _raw: None
) -> None:
    """Be the source of a pull: answer each request from the segment, in small pieces."""
    effects = pull.effects(iter(itertools.count(1)), memoryview(bytearray(1000)), "s")
    asked = b""
    answer = bytearray()
    moved: int | None = None
    while True:
        try:
            effect = effects.send(moved)  # type: ignore[arg-type]  # None starts a generator
        except StopIteration:
            return
        if not isinstance(effect, Receive):
            asked += b"".join(effect.buffers)
            moved = 0
            continue
        if asked:
            header = data.decode_header(asked, reply=False)
            entry = data.decode_entries(asked[data.HEADER_BYTES :], 1)[0]
            is_there = bed.source.holds(entry.offset, entry.version)
            status = data.Status.OK if is_there else data.Status.STALE
            size = entry.bytes if is_there else 0
            start = entry.offset + entry.start
            body = bytearray(bed.source.extents[start : start + size])
            tamper(entry.start, body)
            answer += data.encode_reply(data.Operation.READ, header.request_id, [status], size)
            answer += body
            asked = b""
        moved = 0
        for buffer in effect.buffers:
            buffer[:] = answer[: len(buffer)]
            del answer[: len(buffer)]
            moved += len(buffer)


@pytest.mark.parametrize("size", [0, 1, 1000, 256 << 10, (256 << 10) + 1, 1_500_000])
def test_a_copy_is_the_same_extent_under_another_number(size: int) -> None:
    bed = Bed(size)
    bed.copy()
    at = slice(TARGET_AT, TARGET_AT + len(bed.raw))
    assert bytes(bed.target.extents[at]) == bed.raw
    assert bed.target.holds(TARGET_AT, ATTEMPT)
    assert not bed.target.holds(TARGET_AT, VERSION)
    assert not len(bed.incoming)


@pytest.mark.parametrize("size", [0, 777, 600_000])
def test_a_pull_brings_the_same_as_a_copy(size: int) -> None:
    bed = Bed(size)
    landing = bed.landing()
    pull = Pull(landing, Deadline(60))
    serve(bed, pull)
    assert pull.error is None
    assert pull.done
    landing.publish()
    at = slice(TARGET_AT, TARGET_AT + len(bed.raw))
    assert bytes(bed.target.extents[at]) == bed.raw


@given(st.data())
def test_no_flipped_bit_is_ever_published(given_data: st.DataObject) -> None:
    bed = Bed(300_000)
    where = given_data.draw(st.integers(0, len(bed.raw) - 1))
    bed.source.extents[SOURCE_AT + where] ^= 1 << given_data.draw(st.integers(0, 7))
    if given_data.draw(st.booleans()):
        with pytest.raises((ChecksumMismatch, StaleExtent)):
            bed.copy()
    else:
        landing = bed.landing()
        pull = Pull(landing, Deadline(60))
        serve(bed, pull)
        assert isinstance(pull.error, (ChecksumMismatch, StaleExtent))
        landing.end()
    assert not bed.is_published()


def test_a_bit_that_flips_on_the_way_is_no_damage_of_the_source() -> None:
    """The caller cannot tell; what matters is that nothing is published."""
    bed = Bed(5000)
    landing = bed.landing()

    def tamper(at: int, raw: bytearray) -> None:
        if at:
            raw[100] ^= 4

    pull = Pull(landing, Deadline(60))
    serve(bed, pull, tamper)
    assert isinstance(pull.error, ChecksumMismatch)
    assert not bed.is_published()


def test_a_source_that_is_reused_meanwhile_is_stale_and_not_damaged() -> None:
    bed = Bed(600_000)
    landing = bed.landing()

    def reuse(at: int, raw: bytearray) -> None:
        if at:
            bed.source.free(SOURCE_AT, VERSION)
            raw[: len(raw) // 2] = bytes(len(raw) // 2)

    pull = Pull(landing, Deadline(60))
    serve(bed, pull, reuse)
    assert isinstance(pull.error, StaleExtent)
    assert not bed.is_published()


def test_a_source_of_this_node_that_is_reused_meanwhile_is_stale_as_well() -> None:
    bed = Bed(3_000_000)
    steps = copy_here(bed.landing(), bed.source, Deadline(60))
    next(steps)
    bed.source.free(SOURCE_AT, VERSION)
    at = SOURCE_AT + 2_000_000
    bed.source.extents[at : at + 1000] = bytes(1000)
    with pytest.raises(StaleExtent):
        for _ in steps:
            pass
    assert not bed.is_published()


def finish(steps: Iterator[None], landing: Landing) -> None:
    for _ in steps:
        pass
    landing.publish()


def test_an_order_to_free_ends_a_copy_at_any_step() -> None:
    steps_of_a_copy = 3
    for stop_at in range(steps_of_a_copy + 1):
        bed = Bed(1_500_000)
        landing = bed.landing()
        steps = copy_here(landing, bed.source, Deadline(60))
        for _ in range(stop_at):
            next(steps, None)
        bed.incoming.cut(FreeItem(2, TARGET_AT, bed.bytes, ATTEMPT))
        bed.target.free(TARGET_AT, ATTEMPT)
        before = bytes(bed.target.extents[TARGET_AT : TARGET_AT + bed.bytes])
        with pytest.raises(StaleTerm):
            finish(steps, landing)
        assert bytes(bed.target.extents[TARGET_AT : TARGET_AT + bed.bytes]) == before
        assert not bed.is_published()


def test_a_fence_or_a_newer_reign_refuses_a_copy_before_its_first_byte() -> None:
    bed = Bed(100)
    bed.target.free(TARGET_AT, ATTEMPT)
    with pytest.raises(StaleTerm):
        Landing(bed.item, bed.target, bed.incoming).begin()
    bed = Bed(100)
    bed.target.term = 4
    with pytest.raises(StaleTerm):
        Landing(bed.item, bed.target, bed.incoming).begin()
    assert not len(bed.incoming)


def test_a_namespace_that_was_cleared_meanwhile_is_not_copied() -> None:
    bed = Bed(100)
    bed.target.epochs[0] = 5
    with pytest.raises(StaleExtent):
        bed.copy()
    assert not bed.is_published()


def test_a_copy_that_has_landed_already_is_not_copied_again() -> None:
    bed = Bed(100)
    bed.copy()
    assert not Landing(bed.item, bed.target, bed.incoming).begin()


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": -1},
        {"offset": 100},
        {"offset": POOL_BYTES},
        {"bytes": 0},
        {"bytes": POOL_BYTES + 512},
        {"attempt": VERSION - 1},
        {"attempt": FREED},
        {"incarnation": 1, "offset": SOURCE_AT + 512},
    ],
)
def test_numbers_that_cannot_be_are_refused(changes: dict[str, int]) -> None:
    bed = Bed(1000)
    fields = {name: getattr(bed.item, name) for name in bed.item.__struct_fields__}
    item = CopyItem(**{**fields, **changes})
    segment = bed.source if item.incarnation == 1 else bed.target
    with pytest.raises(InvalidArgument):
        Landing(item, segment, bed.incoming)


def test_an_extent_that_is_larger_than_its_room_is_refused() -> None:
    bed = Bed(5000)
    fields = {name: getattr(bed.item, name) for name in bed.item.__struct_fields__}
    bed.item = CopyItem(**{**fields, "bytes": 1024})
    with pytest.raises(ChecksumMismatch):
        bed.copy()


def test_a_source_that_answers_nonsense_is_a_protocol_error() -> None:
    bed = Bed(100)
    pull = Pull(bed.landing(), Deadline(60))
    effects = pull.effects(iter(itertools.count(1)), memoryview(bytearray(100)), "s")
    next(effects)
    reply = effects.send(0)
    assert isinstance(reply, Receive)
    reply.buffers[0][:] = data.encode_reply(data.Operation.READ, 1, [0], 1 << 40)
    with pytest.raises(ProtocolError):
        effects.send(reply.at_least)
    assert issubclass(ProtocolError, StoreError)
    assert not pull.done
