"""What one stored extent looks like, in every tier and on every path, and how it is verified.

    offset 0            header, 64 bytes: identity, length, checksum, and a check of itself
    64                  payload, ``length`` bytes (64-byte aligned, so that views suit any dtype)
    64 + length         chunk table, 8 bytes a chunk; absent when there is one chunk
    then                name block: namespace, key, pin, hints; what a lost index is rebuilt from
    rounded up to ``limits.GRANULE_BYTES``

The checksum is XXH3-64 (https://xxhash.com): of the payload where it is one chunk, else of the
chunk table, whose entries are the XXH3-64 of each ``limits.CHUNK_BYTES`` of payload. So a ranged
read verifies the chunks it touches, and a whole read hashes each chunk while it is in the cache.
It finds damage and mistaken identity; it is no defence against a forger, who could write the
checksum too.

A writer puts payload and tail first, the header after them and the version table entry last: an
extent whose writer died half-way has no valid header.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import xxhash

from mooncake_store.errors import ChecksumMismatch, StaleExtent
from mooncake_store.fingerprint import fingerprint
from mooncake_store.limits import CHUNK_BYTES, GRANULE_BYTES
from mooncake_store.types import Pin

if TYPE_CHECKING:
    from collections.abc import Iterable

MAGIC: Final = 0x3156_4B4D  # "MKV1" in memory
FORMAT: Final = 1
HEADER_BYTES: Final = 64

_HEADER = struct.Struct("<IHHIIQQQ16sQ")
_HEADER_BODY_BYTES = HEADER_BYTES - 8
_CHECK = struct.Struct("<Q")
_NO_CHECK = bytes(_CHECK.size)
_NAMES = struct.Struct("<BBHHHHHdQQ")
"""pin, replicas, set count, lengths of namespace, key, group, parent; pin end, set id, check."""

_pack_header = _HEADER.pack
_unpack_header = _HEADER.unpack_from
_hash = xxhash.xxh3_64_intdigest


class Identity(NamedTuple):
    """What a reader expects to find: an extent that says anything else is not read."""

    fingerprint: bytes
    version: int
    slot: int
    epoch: int
    length: int


class Header(NamedTuple):
    """The header of one extent, verified against its own check."""

    slot: int
    epoch: int
    name_bytes: int
    version: int
    length: int
    checksum: int
    fingerprint: bytes


class Names(NamedTuple):
    """The name block: what makes an extent its own directory record."""

    namespace: str
    key: str
    group: str = ""
    parent: str = ""
    pin: Pin = Pin.NONE
    pin_ends_s: float = 0.0
    """Wall-clock seconds since 1970 at which a soft pin ends: it outlives processes."""
    replicas: int = 1
    """How many were asked for."""
    set_id: int = 0
    set_count: int = 0
    """Objects that become visible together share ``set_id``; there are ``set_count`` of them."""


def chunk_count(length: int) -> int:
    """Return the number of chunks of a payload; an empty payload is one empty chunk."""
    return max(1, -(-length // CHUNK_BYTES))


def table_bytes(length: int) -> int:
    """Return the bytes of the chunk table behind a payload of ``length`` bytes."""
    return 8 * chunk_count(length) if length > CHUNK_BYTES else 0


def read_bytes(length: int) -> int:
    """Return the bytes that a whole, verified read fetches: header, payload, chunk table."""
    return HEADER_BYTES + length + table_bytes(length)


def name_bytes(namespace: str, key: str, group: str = "", parent: str = "") -> int:
    """Return the bytes of the name block for these strings."""
    return _NAMES.size + len(f"{namespace}{key}{group}{parent}".encode())


def extent_bytes(length: int, names: int) -> int:
    """Return the bytes an extent takes, in whole granules; ``names`` is ``name_bytes(...)``."""
    total = HEADER_BYTES + length + table_bytes(length) + names
    return -(-total // GRANULE_BYTES) * GRANULE_BYTES


def pack_header(identity: Identity, checksum: int, names: int) -> bytes:
    """Return the 64 header bytes; ``names`` is the length of the name block."""
    body = _pack_header(
        MAGIC,
        FORMAT,
        identity.slot,
        identity.epoch,
        names,
        identity.version,
        identity.length,
        checksum,
        identity.fingerprint,
        0,
    )[:_HEADER_BODY_BYTES]
    return body + _CHECK.pack(_hash(body))


def unpack_header(source: bytes | bytearray | memoryview, offset: int = 0) -> Header:
    """Read a header and check it against itself.

    Raises:
        StaleExtent: There is no header (never written, freed, or another format).
        ChecksumMismatch: It is damaged.
    """
    fields = _unpack_header(source, offset)
    magic, form, slot, epoch, names, version, length, checksum, identity, check = fields
    if magic != MAGIC or form != FORMAT:
        raise StaleExtent("the extent holds no object of this format")
    if _hash(memoryview(source)[offset : offset + _HEADER_BODY_BYTES]) != check:
        raise ChecksumMismatch("the extent's header is damaged")
    return Header(slot, epoch, names, version, length, checksum, identity)


def expect_header(
    source: bytes | bytearray | memoryview, offset: int, identity: Identity
) -> Header:
    """Read a header that must be ``identity``'s.

    Raises:
        StaleExtent: It belongs to another version, key, namespace or epoch, or to none.
        ChecksumMismatch: It is damaged.
    """
    header = unpack_header(source, offset)
    if (
        header.version != identity.version
        or header.fingerprint != identity.fingerprint
        or header.epoch != identity.epoch
        or header.slot != identity.slot
    ):
        raise StaleExtent(f"the extent holds version {header.version}, not {identity.version}")
    if header.length != identity.length:
        raise ChecksumMismatch(
            f"the extent says {header.length} bytes, its index entry {identity.length}"
        )
    return header


def checksum_in(header: bytes, identity: Identity) -> int | None:
    """Return the checksum that a header states; None where it is not ``identity``'s, or damaged.

    What ``expect_header`` finds out, in a third of the time and without a reason.
    """
    magic, form, slot, epoch, _, version, length, checksum, mark, check = _unpack_header(header)
    if (
        (mark, version, slot, epoch, length) != identity
        or magic != MAGIC
        or form != FORMAT
        or _hash(header[:_HEADER_BODY_BYTES]) != check
    ):
        return None
    return int(checksum)


class ChunkHasher:
    """Hashes a payload that comes in pieces of any size into its chunk table.

    Pieces that are whole chunks at chunk boundaries take one library call each.
    """

    __slots__ = ("_filled", "_partial", "digests")

    def __init__(self) -> None:
        self.digests: list[int] = []
        """XXH3-64 of every chunk completed so far, in order."""
        self._partial: xxhash.xxh3_64 | None = None
        self._filled = 0

    def update(self, piece: memoryview) -> None:
        """Hash the next bytes of the payload (1-D, format "B"); they are not kept."""
        size = len(piece)
        if size <= CHUNK_BYTES and not self._filled:
            self._start(piece)
            return
        at = 0
        while at < size:
            take = min(CHUNK_BYTES - self._filled, size - at)
            part = piece[at : at + take]
            at += take
            if self._partial is None:
                self._start(part)
            else:
                self._partial.update(part)
                self._filled += take
                if self._filled == CHUNK_BYTES:
                    self._close()

    def finish(self) -> list[int]:
        """End the payload and return the digests of all its chunks, at least one."""
        if self._partial is not None:
            self._close()
        if not self.digests:
            self.digests.append(_hash(b""))
        return self.digests

    def _start(self, part: memoryview) -> None:
        if len(part) == CHUNK_BYTES:
            self.digests.append(_hash(part))
        elif len(part):
            self._partial = xxhash.xxh3_64(part)
            self._filled = len(part)

    def _close(self) -> None:
        assert self._partial is not None
        self.digests.append(self._partial.intdigest())
        self._partial = None
        self._filled = 0


def pack_table(digests: list[int]) -> bytes:
    """Return the chunk table of a payload: empty where it is one chunk."""
    return struct.pack(f"<{len(digests)}Q", *digests) if len(digests) > 1 else b""


def checksum_of(digests: list[int]) -> int:
    """Return the header's checksum for a payload with these chunk digests."""
    return digests[0] if len(digests) == 1 else _hash(pack_table(digests))


def verify_digests(digests: list[int], header: Header) -> None:
    """Compare the digests of a whole payload with the header's checksum.

    Raises:
        ChecksumMismatch: They differ, so the bytes are not those that were written.
    """
    if checksum_of(digests) != header.checksum:
        raise ChecksumMismatch("the payload differs from its checksum")


def verify_chunks(first: int, digests: list[int], table: memoryview, header: Header) -> None:
    """Compare the digests of consecutive chunks, the first being number ``first``.

    Args:
        first: Index of the first chunk.
        digests: Its digest and those of its successors.
        table: The object's whole chunk table as stored, ``table_bytes(header.length)`` long.
        header: The object's verified header.

    Raises:
        ChecksumMismatch: The table differs from the header, or a chunk from the table.
    """
    if header.length <= CHUNK_BYTES:
        verify_digests(digests, header)
        return
    if _hash(table) != header.checksum:
        raise ChecksumMismatch("the chunk table differs from its checksum")
    if list(struct.unpack_from(f"<{len(digests)}Q", table, 8 * first)) != digests:
        raise ChecksumMismatch("a chunk of the payload differs from its checksum")


def pack_names(names: Names) -> bytes:
    """Return the name block."""
    space, key = names.namespace.encode(), names.key.encode()
    group, parent = names.group.encode(), names.parent.encode()
    body = space + key + group + parent
    head = _NAMES.pack(
        names.pin,
        names.replicas,
        names.set_count,
        len(space),
        len(key),
        len(group),
        len(parent),
        names.pin_ends_s,
        names.set_id,
        0,
    )
    return head[: -_CHECK.size] + _CHECK.pack(_hash(head + body)) + body


def unpack_names(source: bytes | bytearray | memoryview) -> Names:
    """Read a name block of exactly ``header.name_bytes`` bytes.

    Raises:
        ChecksumMismatch: It is damaged or cut.
    """
    texts, (pin, replicas, set_count, pin_ends_s, set_id) = open_names(source)
    return Names(
        namespace=texts[0],
        key=texts[1],
        group=texts[2],
        parent=texts[3],
        pin=Pin(pin),
        pin_ends_s=pin_ends_s,
        replicas=replicas,
        set_id=set_id,
        set_count=set_count,
    )


def open_names(
    source: bytes | bytearray | memoryview,
) -> tuple[list[str], tuple[int, int, int, float, int]]:
    """Read a name block as plain values, which is what walking a million of them affords.

    Returns:
        (namespace, key, group, parent) and (pin, replicas, set count, pin end, set id).

    Raises:
        ChecksumMismatch: It is damaged or cut.
    """
    block = bytes(source)
    if len(block) < _NAMES.size:
        raise ChecksumMismatch("the extent's name block is cut short")
    pin, replicas, set_count, *lengths, pin_ends_s, set_id, check = _NAMES.unpack_from(block)
    body = block[_NAMES.size :]
    unchecked = b"".join((block[: _NAMES.size - _CHECK.size], _NO_CHECK, body))
    if sum(lengths) != len(body) or _hash(unchecked) != check:
        raise ChecksumMismatch("the extent's name block is damaged")
    whole: str | bytes = body.decode() if body.isascii() else body
    if isinstance(whole, str) and len(body) == lengths[0] + lengths[1]:
        # The usual one: no group, no parent.
        at = lengths[0]
        return [whole[:at], whole[at:], "", ""], (pin, replicas, set_count, pin_ends_s, set_id)
    texts: list[str] = []
    at = 0
    for size in lengths:
        text = whole[at : at + size]
        texts.append(text if isinstance(text, str) else text.decode())
        at += size
    return texts, (pin, replicas, set_count, pin_ends_s, set_id)


class Sealed(NamedTuple):
    """Header and tail around a payload, ready to be written with it."""

    header: bytes
    tail: bytes
    """Chunk table and name block."""


def seal(identity: Identity, digests: list[int], names: Names) -> Sealed:
    """Return header and tail for a payload whose chunk digests are known."""
    block = pack_names(names)
    return Sealed(
        pack_header(identity, checksum_of(digests), len(block)), pack_table(digests) + block
    )


def hash_payload(parts: Iterable[memoryview]) -> list[int]:
    """Return the chunk digests of a payload given as consecutive parts (1-D, format "B")."""
    if isinstance(parts, (list, tuple)) and len(parts) == 1 and len(parts[0]) <= CHUNK_BYTES:
        return [_hash(parts[0])]
    hasher = ChunkHasher()
    for part in parts:
        hasher.update(part)
    return hasher.finish()


def verify_names(header: Header, names: Names) -> None:
    """Check that a name block belongs to its header.

    Raises:
        ChecksumMismatch: The header's fingerprint is another key's.
    """
    if fingerprint(names.namespace, names.key) != header.fingerprint:
        raise ChecksumMismatch("the name block belongs to another object", key=names.key)
