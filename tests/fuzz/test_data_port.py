"""Fuzz targets of the data protocol: the node's connection, and the client's exchanges.

Whatever bytes come: no exception but the expected ones, no allocation beyond bounds, no byte of
the segment changed but by a write that was right.
"""

from __future__ import annotations

import contextlib
import socket
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mooncake_storage_node.data_connection import DataConnection, Disconnect, Wait
from mooncake_storage_node.node_view import DataCounters, NodeView
from mooncake_storage_node.writes import IncomingWrites
from mooncake_store import extent, fingerprint
from mooncake_store.deadline import Deadline
from mooncake_store.errors import ProtocolError, StoreError
from mooncake_store.segment import Segment, mapped_bytes
from mooncake_store.transport import ReadTask
from mooncake_store.transport.effects import Receive, greeting_effects
from mooncake_store.transport.exchange import (
    SCRATCH_BYTES,
    read_exchange,
)
from mooncake_store.transport.local import decode_handout
from mooncake_store.wire import data

if TYPE_CHECKING:
    from collections.abc import Generator

POOL_BYTES = 1 << 20
INCARNATION = 0xABCD
GREETING = data.encode_greeting(data.Greeting(1, "", 0), 1, reply=False)
PAYLOAD = bytes(range(256)) * 4
IDENTITY = extent.Identity(fingerprint.fingerprint("n", "k"), 7, 0, 1, len(PAYLOAD))
SEALED = extent.seal(IDENTITY, extent.hash_payload([memoryview(PAYLOAD)]), extent.Names("n", "k"))
RAW = SEALED.header + PAYLOAD + SEALED.tail


def make_segment() -> Segment:
    whole = memoryview(bytearray(mapped_bytes(POOL_BYTES)))
    segment = Segment.format(whole, POOL_BYTES, INCARNATION)
    segment.extents[: len(RAW)] = RAW
    segment.table[0] = IDENTITY.version
    return segment


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request of about the right shape, then damaged."""
    number = st.sampled_from([0, 1, 7, 8, 64, 512, 1024, 4096, POOL_BYTES, 1 << 40, (1 << 64) - 1])
    entries = draw(
        st.lists(
            st.tuples(st.sampled_from([INCARNATION, 1]), number, number, number, number),
            max_size=4,
        )
    )
    operation = draw(st.sampled_from([2, 3, 1, 9]))
    payload = draw(st.binary(max_size=200)) if operation == 3 else b""
    count = draw(st.sampled_from([len(entries), len(entries), 1, 1024, 1025, 2**32 - 1]))
    said = draw(st.sampled_from([len(payload), sum(e[4] for e in entries) & (2**64 - 1), 1 << 62]))
    header = data.HEADER.pack(
        data.MAGIC, operation, draw(st.sampled_from([0, 0, 0, 1, 255])), count, 5, 100,
        0 if operation == 2 else said,
    )  # fmt: skip
    raw = header + b"".join(data.ENTRY.pack(*entry) for entry in entries) + payload
    return raw[: draw(st.integers(0, len(raw)))] if draw(st.booleans()) else raw


def converse(segment: Segment, stream: bytes) -> str:
    """Feed a connection with a stream and its end; return why it ended."""
    ours, theirs = socket.socketpair()
    ours.settimeout(0)
    theirs.settimeout(0)
    node = NodeView("ab" * 16, {INCARNATION: segment}, IncomingWrites())
    connection = DataConnection(ours, node, DataCounters(), memoryview(bytearray(4096)))
    with theirs, contextlib.closing(connection):
        theirs.sendall(stream)
        theirs.shutdown(socket.SHUT_WR)
        for _ in range(1000):
            try:
                connection.notice(1)
                connection.run()
            except Disconnect as reason:
                return str(reason)
            if connection.waits == Wait.WRITABLE:
                while theirs.recv(1 << 16):
                    with contextlib.suppress(BlockingIOError):
                        continue
        raise AssertionError("the connection neither ended nor went on")


@given(st.lists(st.one_of(requests(), st.binary(max_size=100)), max_size=4))
@example([data.HEADER.pack(data.MAGIC, 3, 0, 1, 1, 1, 1 << 62) + data.ENTRY.pack(
    INCARNATION, 0, 9, 0, 1 << 62)])  # fmt: skip
@example([data.HEADER.pack(data.MAGIC, 2, 0, 1024, 1, 1, 0)])
def test_a_connection_survives_any_stream(pieces: list[bytes]) -> None:
    segment = make_segment()
    before = bytes(segment.extents[: len(RAW)])
    reason = converse(segment, GREETING + b"".join(pieces))
    assert reason in {"closed", "protocol", "broken", "refused_too_much"}
    assert bytes(segment.extents[: len(RAW)]) == before
    assert segment.table[0] == IDENTITY.version


@given(st.binary(max_size=200))
@example(GREETING.replace(b"\0", b"\xff"))
def test_a_stranger_can_say_anything(stream: bytes) -> None:
    assert converse(make_segment(), stream) in {
        "closed", "protocol", "broken", "protocol_mismatch", "wrong_peer",
    }  # fmt: skip


def test_sizes_that_lie_allocate_nothing() -> None:
    segment = make_segment()
    streams = [
        data.HEADER.pack(data.MAGIC, 2, 0, 2**32 - 1, 1, 1, 0),
        data.HEADER.pack(data.MAGIC, 3, 0, 1, 1, 1, 1 << 62)
        + data.ENTRY.pack(INCARNATION, 0, 9, 0, 1 << 62),
        data.HEADER.pack(data.MAGIC, 3, 0, 1024, 1, 1, 1 << 50),
    ]
    tracemalloc.start()
    try:
        for stream in streams:
            converse(segment, GREETING + stream)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# --- the client's side --------------------------------------------------------------------------


def feed(effects: Generator[object, int, None], stream: bytes) -> None:
    """Answer everything an exchange wants to receive from a stream, in pieces of odd sizes."""
    left = memoryview(stream)
    effect = next(effects)
    while True:
        moved = 0
        if isinstance(effect, Receive):
            if len(left) < effect.at_least:
                effects.close()
                return
            for buffer in effect.buffers:
                piece = left[: len(buffer)]
                buffer[: len(piece)] = piece
                left = left[len(piece) :]
                moved += len(piece)
        try:
            effect = effects.send(moved)
        except StopIteration:
            return


def good_reply(counts: int, payload: bytes) -> bytes:
    return bytes(data.encode_reply(2, 1, [0] * counts, len(payload))) + payload


@given(
    st.one_of(
        st.binary(max_size=300),
        st.builds(
            lambda at, byte: (
                good_reply(1, RAW[: 64 + len(PAYLOAD)])[:at]
                + bytes([byte])
                + good_reply(1, RAW[: 64 + len(PAYLOAD)])[at + 1 :]
            ),
            st.integers(0, 27 + 64 + len(PAYLOAD)),
            st.integers(0, 255),
        ),
    ),
    st.sampled_from([(0, 1024, True), (0, 1024, False), (10, 100, True), (0, 0, True)]),
)
def test_a_read_gives_right_bytes_or_an_error_whatever_is_answered(
    stream: bytes, wanted: tuple[int, int, bool]
) -> None:
    check_read(stream, wanted)


def check_read(stream: bytes, wanted: tuple[int, int, bool]) -> None:
    """Read ``wanted`` (start, length, verify) from a peer that answers with ``stream``."""
    start, length, verify = wanted
    target = bytearray(length)
    task = ReadTask(INCARNATION, 0, IDENTITY, start, length, [memoryview(target)], verify)
    exchange = read_exchange([task], Deadline(5))
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    with contextlib.suppress(ProtocolError):
        feed(exchange.effects(iter(range(1, 9)), scratch, "n"), stream)
    if task.verified:
        assert task.error is None
        assert target == PAYLOAD[start : start + length]


def test_the_canary_is_found() -> None:
    """The property above is able to fail: a reply whose bytes verify but are not the payload."""
    other = bytes(len(PAYLOAD))
    sealed = extent.seal(IDENTITY, extent.hash_payload([memoryview(other)]), extent.Names("n", "k"))
    with pytest.raises(AssertionError):
        check_read(good_reply(1, sealed.header + other), (0, 1024, True))


@given(st.binary(max_size=120))
def test_a_greeting_can_be_anything(stream: bytes) -> None:
    with contextlib.suppress(StoreError):
        feed(greeting_effects("ab" * 16, "n"), stream)


@given(st.binary(max_size=200), st.lists(st.integers(3, 9), max_size=4))
def test_a_handout_can_be_anything(message: bytes, descriptors: list[int]) -> None:
    with contextlib.suppress(ProtocolError):
        handout = decode_handout(message, descriptors)
        assert len(descriptors) == 2 * len(handout.segments)
