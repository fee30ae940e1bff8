"""How a node proves to a process of its host that they share memory: it hands over descriptors.

Over a unix socket of type SEQPACKET, one message each way:

    client   a greeting of the data protocol, with the node's identity that it wants
    node     the same header, ``count`` = n, payload: greeting, then n times (incarnation, bytes to
             map); with it travel 2 n descriptors, two separate open files of each segment: the
             first to map, the second to hold the locks of intent slots

The connection then stays open and silent for as long as the client uses the memory.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_store import limits
from mooncake_store.errors import ProtocolError, Unreachable
from mooncake_store.memory import close_file
from mooncake_store.wire import data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_store.deadline import Deadline

_SEGMENT: Final = struct.Struct("<QQ")
_UCRED: Final = struct.Struct("@iII")
HANDOUT_BYTES_MAX: Final = (
    data.HEADER_BYTES + data.GREETING_BYTES + _SEGMENT.size * limits.SEGMENTS_PER_NODE_MAX
)
DESCRIPTORS_MAX: Final = 2 * limits.SEGMENTS_PER_NODE_MAX
QUEUE_PAUSE_S: Final = 0.01
"""Between two tries to get into a full queue."""


class HandedSegment(NamedTuple):
    """One segment as it was handed over.

    Attributes:
        incarnation: What its control page must say.
        mapped_bytes: Bytes of the file to map.
        memory: Descriptor to map.
        locks: Descriptor that holds the locks of intent slots.
    """

    incarnation: int
    mapped_bytes: int
    memory: int
    locks: int


class Handout(NamedTuple):
    """What a node handed over."""

    greeting: data.Greeting
    segments: list[HandedSegment]


def encode_handout(greeting: data.Greeting, segments: Sequence[tuple[int, int]]) -> bytes:
    """Return the node's message; ``segments`` are (incarnation, bytes to map)."""
    payload = data.GREETING.pack(greeting.protocol, greeting.node_id.encode(), greeting.term)
    payload += b"".join(_SEGMENT.pack(*segment) for segment in segments)
    header = data.HEADER.pack(
        data.MAGIC, data.Operation.HELLO, data.REPLY, len(segments), 1, 0, len(payload)
    )
    return header + payload


def decode_handout(message: bytes, descriptors: Sequence[int]) -> Handout:
    """Read the node's message; the descriptors stay the caller's where this raises.

    Raises:
        ProtocolError: It is none.
    """
    if len(message) < data.HEADER_BYTES + data.GREETING_BYTES:
        raise ProtocolError("the local socket answers with something else than segments")
    header = data.decode_header(message, reply=True)
    rest = data.HEADER_BYTES + data.GREETING_BYTES
    greeting = data.decode_greeting(message[data.HEADER_BYTES : rest])
    if len(message) != rest + _SEGMENT.size * header.count or len(descriptors) != 2 * header.count:
        raise ProtocolError("the local socket handed over other descriptors than it says")
    segments = [
        HandedSegment(incarnation, mapped, descriptors[2 * index], descriptors[2 * index + 1])
        for index, (incarnation, mapped) in enumerate(_SEGMENT.iter_unpack(message[rest:]))
    ]
    return Handout(greeting, segments)


def peer_user(sock: socket.socket) -> int:
    """Return the user id of the process at the other end of a unix socket."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(raw)[1])


def fetch_handout(path: str, node_id: str, deadline: Deadline) -> tuple[socket.socket, Handout]:
    """Ask a node of this host for its memory; the caller closes socket and descriptors.

    Raises:
        Unreachable: There is no such socket here, or it belongs to another user.
        ProtocolError: Something else answers.
        DeadlineExceeded: Nothing does.
    """
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise Unreachable(f"no local access through {path}: {error}") from error
    try:
        message, descriptors = _ask(sock, path, node_id, deadline)
        try:
            return sock, decode_handout(message, descriptors)
        except BaseException:
            for descriptor in descriptors:
                close_file(descriptor)
            raise
    except OSError as error:
        sock.close()
        deadline.check(f"waiting for the local socket {path}")
        raise Unreachable(f"no local access through {path}: {error}") from error
    except BaseException:
        sock.close()
        raise


def _connect(sock: socket.socket, path: str, deadline: Deadline) -> None:
    """Connect; a unix socket whose queue is full says so at once, where TCP would wait."""
    while True:
        left_s = deadline.check("connecting to a local socket")
        sock.settimeout(left_s)
        try:
            sock.connect(path)
        except BlockingIOError:
            time.sleep(min(QUEUE_PAUSE_S, left_s))
        else:
            return


def _ask(
    sock: socket.socket, path: str, node_id: str, deadline: Deadline
) -> tuple[bytes, list[int]]:
    _connect(sock, path, deadline)
    if peer_user(sock) != os.geteuid():
        raise Unreachable(f"the local socket {path} belongs to another user")
    hello = data.Greeting(limits.PROTOCOL_VERSION, node_id, 0)
    sock.send(data.encode_greeting(hello, 1, reply=False))
    message, descriptors, _, _ = socket.recv_fds(
        sock, HANDOUT_BYTES_MAX, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC
    )
    return message, descriptors
