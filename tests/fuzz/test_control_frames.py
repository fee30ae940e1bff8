"""Fuzz targets of the control port: whatever comes, a connection answers or ends, in bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mooncake_store import limits
from mooncake_store.errors import ProtocolError
from mooncake_store.testing import seeded
from mooncake_store.wire import control, frames
from tests.unit.master_shell.harness import Harness, turns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

HELLO = bytes(frames.encode_frame(1, control.Hello(1, "client", "fuzz", "x"), request_id=1))
GENERATED = st.binary(max_size=300)
KINDS = [*control.REQUESTS, 0, 9, 77, 65_535]


def almost_valid_frame(seed: int) -> bytes:
    """Return a frame whose body is msgpack of about the right shape, now and then damaged.

    Made by a seeded generator: drawing every value from hypothesis takes a hundred times longer.
    """
    generator = seeded(seed)
    body = msgspec.msgpack.encode([value(generator, 3) for _ in range(generator.randrange(10))])
    if generator.random() < 0.3:
        body = body[: generator.randrange(len(body) + 1)]
    size = len(body) if generator.random() < 0.8 else generator.getrandbits(32)
    flags = generator.choice([0, 0, 0, 0, 1, 2, 3, 65_535])
    kind = generator.choice(KINDS)
    return frames.HEADER.pack(size, kind, flags, generator.getrandbits(32), 5) + body


def value(generator: Random, depth: int) -> object:
    """Return something that msgpack can carry."""
    leaves: list[object] = [
        None, True, 0, 1, -1, 2**63, -(2**63), 1.5, float("nan"), "", "key", "\x00\U0010ffff",
        b"raw",
    ]  # fmt: skip
    choice = generator.randrange(8)
    if depth and choice == 0:
        return [value(generator, depth - 1) for _ in range(generator.randrange(5))]
    if depth and choice == 1:
        return {f"k{n}": value(generator, depth - 1) for n in range(generator.randrange(4))}
    return ["a", "b"] if choice == 2 else generator.choice(leaves)


def sizes(seed: int) -> Iterator[int]:
    generator = seeded(seed)
    while True:
        yield generator.choice([1, 2, 15, 16, 17, 100, 4096, 1 << 20])


async def converse(data: bytes, seed: int) -> Harness:
    harness = Harness()
    await harness.feed(data, sizes(seed))
    await turns(100)
    return harness


def check(harness: Harness) -> None:
    for frame in harness.frames():
        assert frame.flags & frames.REPLY
        if frame.flags & frames.ERROR:
            assert frames.decode_error(frame.body).code


@given(data=GENERATED, seed=st.integers(0, 99))
@example(data=b"\x00" * 16, seed=0)
@example(data=b"\xff" * 64, seed=1)
def test_a_stranger_may_send_anything(data: bytes, seed: int) -> None:
    harness = asyncio.run(converse(data, seed))
    check(harness)
    assert not harness.core.seen


@given(seeds=st.lists(st.integers(0, 2**32), max_size=8), seed=st.integers(0, 99))
def test_a_known_peer_may_send_anything(seeds: list[int], seed: int) -> None:
    harness = asyncio.run(converse(HELLO + b"".join(map(almost_valid_frame, seeds)), seed))
    check(harness)
    for message in harness.core.seen:
        assert isinstance(message, control.Message)
        kind = control.KINDS[type(message)]
        again = control.REQUEST_DECODERS[kind].decode(msgspec.msgpack.encode(message))
        assert msgspec.msgpack.encode(again) == msgspec.msgpack.encode(message)


@given(
    counts=st.lists(st.integers(0, 300), min_size=1, max_size=10),
    seed=st.integers(0, 999),
    settled=st.booleans(),
)
def test_frames_arrive_whole_and_in_order_however_they_are_cut(
    counts: list[int],
    seed: int,
    settled: bool,  # noqa: FBT001 - given by hypothesis
) -> None:
    generator = seeded(seed)
    shared = memoryview(bytearray(4096)) if settled else None
    decoder = frames.FrameDecoder(limits.FRAME_BYTES_MAX, shared=shared)
    sent = [control.Exists(0, 1, ["k" * generator.randrange(1, 99)] * count) for count in counts]
    stream = b"".join(frames.encode_frame(14, m, request_id=i) for i, m in enumerate(sent))
    received: list[tuple[int, control.Message]] = []
    at = 0
    while at < len(stream):
        buffer = decoder.buffer()
        size = min(len(buffer), generator.choice([1, 16, 999, 1 << 20]), len(stream) - at)
        buffer[:size] = stream[at : at + size]
        decoder.received(size)
        at += size
        for frame in decoder:
            message = control.REQUEST_DECODERS[frame.kind].decode(frame.body)
            received.append((frame.request_id, message))
        if shared is not None:
            decoder.settle()
            shared[:] = bytes(len(shared))  # another connection receives into it
    assert received == list(enumerate(sent))
    assert decoder.pending == 0


def test_memory_grows_with_what_came_not_with_what_is_announced() -> None:
    decoder = frames.FrameDecoder(limits.FRAME_BYTES_MAX, shared=memoryview(bytearray(65_536)))
    head = frames.HEADER.pack(limits.FRAME_BYTES_MAX, 14, 0, 1, 0)
    buffer = decoder.buffer()
    buffer[: len(head)] = head
    decoder.received(len(head))
    assert not list(decoder)
    decoder.settle()
    assert len(decoder.buffer()) <= 8192


async def test_the_canary_is_found() -> None:
    """The harness notices a connection that answers with something that is no frame."""
    harness = Harness()
    harness.transport.write(b"\x01" * 40)
    with pytest.raises((AssertionError, ProtocolError)):
        check(harness)


def test_a_number_too_wide_for_the_wire_is_an_error_of_the_store() -> None:
    message = control.ReportTransfers(1 << 64, 0, 0)
    with pytest.raises(ProtocolError, match="cannot be encoded"):
        frames.encode_frame(1, message, request_id=1)
