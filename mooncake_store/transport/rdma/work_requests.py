"""Chains of work requests for ``ibv_post_send``, written into memory that is used again (ADR 54).

pyverbs has an object for each request and for each of its pieces. Making them takes longer than all
that the store does for a request, and version 44 never frees what they allocate. So only the head
of a chain is an object of pyverbs; what follows it is written as libibverbs defines it:

    ibv_send_wr, 128 bytes                   ibv_sge, 16 bytes
    0   u64  wr_id                           0   u64  address
    8   u64  next, an address                8   u32  bytes
    16  u64  sg_list, an address             12  u32  local key
    24  u32  number of pieces
    28  u32  opcode
    32  u32  flags
    36  u32  (immediate data)
    40  u64  remote address
    48  u32  remote key
    52  ...  what RDMA READ and WRITE do not use
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any, Final

from mooncake_store.memory import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_store.transport.rdma.verbs import WorkRequest

_REQUEST: Final = struct.Struct("=QQQIIIIQI")
REQUEST_BYTES: Final = 128
_PIECE: Final = struct.Struct("=QII")
PIECE_BYTES: Final = _PIECE.size
_ADDRESS: Final = struct.Struct("=Q")
_NEXT_AT: Final = 8
_MARK: Final = 0x5A17_C0DE_5A17_C0DE
_OBJECT_BYTES_MAX: Final = 4096


class Chain:
    """Memory for the requests of one post. It belongs to one queue pair, and one thread at a time.

    Attributes:
        head: What ``ibv_post_send`` is given the address of: ``REQUEST_BYTES``.
    """

    def __init__(self, head: memoryview, opcodes: tuple[int, int], signalled: int) -> None:
        """Take the head's memory.

        Args:
            head: Writable, 1-D, format "B".
            opcodes: Of a READ, of a WRITE.
            signalled: The flag of a request whose completion is told.
        """
        self.head = head
        self._opcodes = opcodes
        self._flags = (0, signalled)
        self._rest = bytearray()
        self._address = 0

    def write(self, requests: Sequence[WorkRequest]) -> None:
        """Write requests, linked in order; what the head held is gone. They are read until posted.

        Nobody may keep the memory of an earlier chain: it may have moved.
        """
        size = len(requests) * REQUEST_BYTES + PIECE_BYTES * sum(len(each[3]) for each in requests)
        if size > len(self._rest):
            self._rest = bytearray(2 * size)
            self._address = address_of(memoryview(self._rest))
        rest, base = self._rest, self._address
        opcodes, flags = self._opcodes, self._flags
        pack_request, pack_piece = _REQUEST.pack_into, _PIECE.pack_into
        into: memoryview | bytearray = self.head
        at = following = 0
        piece_at = len(requests) * REQUEST_BYTES
        for write, remote, key, pieces, number, signalled in requests:
            pack_request(
                into, at, number, base + following, base + piece_at, len(pieces),
                opcodes[write], flags[signalled], 0, remote, key,
            )  # fmt: skip
            for address, length, local_key in pieces:
                pack_piece(rest, piece_at, address, length, local_key)
                piece_at += PIECE_BYTES
            into, at = rest, following
            following += REQUEST_BYTES
        if len(requests) == 1:
            _ADDRESS.pack_into(self.head, _NEXT_AT, 0)
        else:
            _ADDRESS.pack_into(rest, following - 2 * REQUEST_BYTES + _NEXT_AT, 0)


class Poster:
    """Posts chains behind an object of pyverbs.

    The object is as pyverbs made it whenever it does not post, so pyverbs may free it as it likes.
    """

    def __init__(self, request: Any, at: int, opcodes: tuple[int, int], signalled: int) -> None:  # noqa: ANN401 - pyverbs is untyped
        """Take a ``SendWR`` and where its ``ibv_send_wr`` is in it (``find``)."""
        self._request = request
        self._head = memory_of(request, at)
        self._as_made = bytes(self._head)
        self._chain = Chain(self._head, opcodes, signalled)

    def post(self, post_send: Callable[[Any], object], requests: Sequence[WorkRequest]) -> None:
        """Have ``post_send`` give requests to the device; raises what it raises."""
        try:
            self._chain.write(requests)
            post_send(self._request)
        finally:
            self._head[:] = self._as_made


def memory_of(request: Any, at: int) -> memoryview:  # noqa: ANN401 - pyverbs is untyped
    """Return the request that is in an object of pyverbs; the caller keeps the object alive."""
    return memoryview((ctypes.c_ubyte * REQUEST_BYTES).from_address(id(request) + at)).cast("B")


def find(new_request: Callable[..., Any], new_piece: Callable[..., Any]) -> int:
    """Return where pyverbs keeps the ``ibv_send_wr`` of a ``SendWR``; -1: it is not to be found.

    It is looked for by its contents, and believed when pyverbs reads what was written there.
    """
    pieces = [new_piece(address, address + 1, address + 2) for address in (16, 32)]
    probe = new_request(wr_id=_MARK, opcode=4, num_sge=2, sg=pieces, send_flags=2)
    probe.set_wr_rdma(77, _MARK + 1)
    size = min(type(probe).__basicsize__, _OBJECT_BYTES_MAX)
    raw = ctypes.string_at(id(probe), size)
    places = [
        at
        for at in range(0, size - REQUEST_BYTES + 1, 8)
        if _fields(raw, at) == (_MARK, 0, 2, 4, 2, _MARK + 1, 77)
    ]
    found = places[0] if len(places) == 1 else -1
    if found >= 0:
        memory = memory_of(probe, found)
        as_made = bytes(memory)
        _REQUEST.pack_into(memory, 0, _MARK + 2, 0, _sg_list(raw, found), 1, 0, 0, 0, 0, 0)
        read_back = (probe.wr_id, probe.num_sge, probe.opcode, probe.send_flags)
        memory[:] = as_made
        if read_back != (_MARK + 2, 1, 0, 0) or not _holds(_sg_list(raw, found)):
            found = -1
    release(probe, pieces)
    return found


def release(request: Any, pieces: Sequence[Any]) -> None:  # noqa: ANN401 - pyverbs is untyped
    """Free what objects of pyverbs allocated; version 44 does not when they die."""
    for held in (request, *pieces):
        held.close()


def _fields(raw: bytes, at: int) -> tuple[int, ...]:
    number, following, _, pieces, opcode, flags, _, remote, key = _REQUEST.unpack_from(raw, at)
    return number, following, pieces, opcode, flags, remote, key


def _sg_list(raw: bytes, at: int) -> int:
    address: int = _REQUEST.unpack_from(raw, at)[2]
    return address


def _holds(address: int) -> bool:
    raw = ctypes.string_at(address, 2 * PIECE_BYTES)
    return list(_PIECE.iter_unpack(raw)) == [(16, 17, 18), (32, 33, 34)]
