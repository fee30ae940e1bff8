"""Bytes that no honest peer sends, for every port there is."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mooncake_store import limits
from mooncake_store.testing import seeded
from mooncake_store.wire import control, data, frames
from mooncake_store.wire.data import Operation

if TYPE_CHECKING:
    from collections.abc import Iterator

_pack = msgspec.msgpack.encode


class Exploit:
    """Creates a file when somebody unpickles it."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self._marker,)


def anywhere(marker: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (what, bytes) that are hostile on any port."""
    generator = seeded("hostile")
    yield "a pickle", pickle.dumps(Exploit(marker))
    yield "nothing but zeros", bytes(100_000)
    yield "nothing but ones", b"\xff" * 100_000
    yield "a TLS greeting", bytes.fromhex("1603010200010001fc0303") + generator.randbytes(500)
    yield "an HTTP request", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield "a redis command", b"*1\r\n$4\r\nPING\r\n"
    for number in range(20):
        yield f"random bytes {number}", generator.randbytes(generator.choice((1, 16, 24, 5000)))


def frame(kind: int, body: bytes, *, size: int | None = None, flags: int = 0) -> bytes:
    """Return a control frame whose length may lie."""
    announced = len(body) if size is None else size
    return frames.HEADER.pack(announced & 0xFFFF_FFFF, kind, flags, 7, 1000) + body


def control_frames(marker: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what is hostile on a control port, before or after the greeting."""
    yield "a length of 4 GiB", frame(1, b"x" * 100, size=(1 << 32) - 1)
    yield "a length just over the limit", frame(13, b"", size=limits.FRAME_BYTES_MAX + 1)
    yield "a frame cut short", frame(13, b"x" * 10, size=1000)
    yield "a pickle in a frame", frame(1, pickle.dumps(Exploit(marker)))
    yield "an unknown kind", frame(9999, _pack([1, 2, 3]))
    yield "kind 0", frame(0, b"")
    yield "a reply to nothing", frame(60, _pack([]), flags=frames.REPLY)
    yield "an error to nothing", frame(60, _pack(["x", "y"]), flags=frames.REPLY | frames.ERROR)
    yield "all flags", frame(13, _pack([]), flags=0xFFFF)
    for kind in (1, 10, 13, 17, 18, 50, 51, 61):
        yield f"deep nesting in kind {kind}", frame(kind, b"\x91" * 60_000)
        yield f"an array of 4 billion in kind {kind}", frame(kind, b"\xdd\xff\xff\xff\xff")
        yield f"a string of 4 GiB in kind {kind}", frame(kind, b"\x91\xdb\xff\xff\xff\xffab")
        yield f"the wrong types in kind {kind}", frame(kind, _pack([[[]], {"a": 1}, None, -1]))
        yield f"no body in kind {kind}", frame(kind, b"")


def requests_of_strangers() -> Iterator[tuple[str, control.Message]]:
    """Yield well-formed requests that a client has no business to send, or that make no sense."""
    huge = (1 << 63) - 1
    segment = control.SegmentRecord(huge, huge)
    yield (
        "a node's registration",
        control.Register("evil", "f" * 32, "h", 1, "", {}, (segment,), 0, 0),
    )
    yield "a heartbeat for somebody else", control.Heartbeat(0, "f" * 32, huge, 0, 0, 0)
    yield "the master's own order", control.FreeExtents(huge, [control.FreeItem(1, 0, huge, huge)])
    yield "a slot far outside", control.Locate(huge, 1, ["k"])
    yield "a negative slot", control.Locate(-1, -1, ["k"])
    yield "an object of 2**62 bytes", control.PutStart(0, 1, [control.PutItem("k", 1 << 62)])
    yield "an object of negative size", control.PutStart(0, 1, [control.PutItem("k", -5)])
    yield (
        "a million replicas",
        control.PutStart(0, 1, [control.PutItem("k", 1)], replicas=1_000_000),
    )
    yield "a commit of what was never granted", control.PutCommit([control.CommitItem(huge, 1)])
    yield "an abort of what was never granted", control.PutAbort([0, -1, huge])
    yield "a hold for ever", control.Probe(0, 1, ["k"], hold_s=1e300)
    yield "a hold that is no number", control.Probe(0, 1, ["k"], hold_s=float("nan"))
    yield "a pin for ever", control.SetPin(0, 1, ["k"], 1, float("inf"))
    yield "an unknown pin", control.SetPin(0, 1, ["k"], 77, 1.0)
    yield "an empty key", control.Locate(0, 1, [""])
    yield "a key over the limit", control.Locate(0, 1, ["k" * (limits.KEY_BYTES_MAX + 1)])
    yield "a report about an unknown node", control.ReportTransfers(huge, huge, huge)
    yield "a report with negative numbers", control.ReportTransfers(0, -5, -5)
    yield "a cursor of nonsense", control.Scan(0, 1, "", "\0nonsense", 10)
    yield "a page of a billion", control.Scan(0, 1, "", "", 1_000_000_000)
    yield "a manifest of nonsense", control.OpenNamespace("n\0n", {"": ""})


def data_frames() -> Iterator[tuple[str, bytes]]:
    """Yield what is hostile on a data port, before the greeting."""
    huge = (1 << 64) - 1
    head = data.HEADER.pack
    yield "a read before the greeting", head(data.MAGIC, Operation.READ, 0, 0, 1, 1000, 0)
    yield "a greeting of 16 EiB", head(data.MAGIC, Operation.HELLO, 0, 0, 1, 1000, huge)
    yield (
        "a greeting with entries",
        head(data.MAGIC, Operation.HELLO, 0, 5, 1, 1000, data.GREETING_BYTES) + bytes(300),
    )
    yield "a reply", head(data.MAGIC, Operation.HELLO, data.REPLY, 0, 1, 1000, 0)
    yield "an unknown operation", head(data.MAGIC, 99, 0, 0, 1, 1000, 0)
    greeting = data.GREETING.pack(999, b"", 0)
    yield (
        "another version",
        head(data.MAGIC, Operation.HELLO, 0, 0, 1, 1000, len(greeting)) + greeting,
    )
    greeting = data.GREETING.pack(limits.PROTOCOL_VERSION, b"\xff" * 32, 0)
    yield (
        "another node's name",
        head(data.MAGIC, Operation.HELLO, 0, 0, 1, 1000, len(greeting)) + greeting,
    )


def data_requests(incarnation: int) -> Iterator[tuple[str, bytes]]:
    """Yield what is hostile on a data connection after the greeting."""
    huge = (1 << 64) - 1
    yield (
        "4 billion entries",
        data.HEADER.pack(data.MAGIC, Operation.READ, 0, (1 << 32) - 1, 1, 1000, 0),
    )
    yield (
        "a read of the whole address space",
        _request(Operation.READ, [(incarnation, 0, 1, 0, huge)]),
    )
    yield (
        "a read at the end of the address space",
        _request(Operation.READ, [(incarnation, huge, huge, huge, huge)]),
    )
    yield "a read of an unknown segment", _request(Operation.READ, [(1, 0, 1, 0, 64)])
    yield "an odd offset", _request(Operation.READ, [(incarnation, 3, 0, 0, 64)])
    yield (
        "a write of 16 EiB",
        _request(Operation.WRITE, [(incarnation, 0, huge, 0, huge)], payload=huge),
    )
    yield (
        "a write without a header",
        _request(Operation.WRITE, [(incarnation, 0, huge >> 1, 0, 10)], payload=10) + bytes(10),
    )
    yield (
        "a write whose payload lies",
        _request(Operation.WRITE, [(incarnation, 0, 5, 0, 100)], payload=7) + bytes(7),
    )
    yield (
        "a write of version 2**63",
        _request(Operation.WRITE, [(incarnation, 0, 1 << 63, 0, 64)], payload=64) + bytes(64),
    )
    yield (
        "a write cut short",
        _request(Operation.WRITE, [(incarnation, 0, 5, 0, 100)], payload=100) + bytes(7),
    )
    yield (
        "a second greeting",
        data.encode_greeting(data.Greeting(limits.PROTOCOL_VERSION, "", 0), 1, reply=False),
    )


def _request(
    operation: Operation, entries: list[tuple[int, int, int, int, int]], payload: int = 0
) -> bytes:
    head = data.HEADER.pack(data.MAGIC, operation, 0, len(entries), 1, 1000, payload)
    return head + b"".join(struct.pack("<QQQQQ", *entry) for entry in entries)


def http_requests() -> Iterator[tuple[str, bytes]]:
    """Yield what is hostile on the admin port."""
    yield "a header without end", b"GET / HTTP/1.1\r\nX: " + b"a" * 1_000_000
    yield "a thousand headers", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000
    yield (
        "a body of 16 EiB",
        (
            b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\n"
            b"Content-Length: 18446744073709551615\r\n\r\n"
        ),
    )
    yield (
        "a chunk of nonsense",
        (
            b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nzzz\r\n"
        ),
    )
    yield "a path out of the tree", b"GET /../../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n"
    yield "a negative length", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"
