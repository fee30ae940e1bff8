"""Verifying an extent that comes as a stream of bytes: from memory to the disk, or back."""

from __future__ import annotations

from typing import Final

from mooncake_store import extent
from mooncake_store.errors import ChecksumMismatch
from mooncake_store.extent import HEADER_BYTES, ChunkHasher, Header, Names
from mooncake_store.limits import CHUNK_BYTES

_TAIL_AT_ONCE: Final = 1 << 20


class ExtentVerifier:
    """Takes the bytes of one extent in order, and says at the end whether they are right.

    The header is known beforehand; the bytes must hold the same one.
    """

    __slots__ = ("_at", "_hasher", "_head", "_header", "_tail")

    def __init__(self, header: Header) -> None:
        self._header = header
        self._at = 0
        self._head = bytearray()
        self._hasher = ChunkHasher()
        self._tail = bytearray()

    def step(self, at: int) -> int:
        """Return how many bytes from ``at`` on are best given together."""
        if at < HEADER_BYTES:
            return HEADER_BYTES - at
        payload = at - HEADER_BYTES
        if payload < self._header.length:
            chunk_left = CHUNK_BYTES - payload % CHUNK_BYTES
            return min(chunk_left, self._header.length - payload)
        return _TAIL_AT_ONCE

    def update(self, data: memoryview) -> None:
        """Take the next bytes; they are not kept."""
        while data:
            take = min(self.step(self._at), len(data))
            part = data[:take]
            if self._at < HEADER_BYTES:
                self._head += part
            elif self._at < HEADER_BYTES + self._header.length:
                self._hasher.update(part)
            else:
                self._tail += part
            self._at += take
            data = data[take:]

    def finish(self) -> bytes:
        """Return the name block.

        Raises:
            ChecksumMismatch: Something differs from what its writer put there.
            StaleExtent: There is no header where it was.
        """
        header = self._header
        if len(self._head) < HEADER_BYTES:
            raise ChecksumMismatch("the extent is cut short")
        if extent.unpack_header(self._head) != header:
            raise ChecksumMismatch("the extent's header changed while it was copied")
        table = extent.table_bytes(header.length)
        names = bytes(self._tail[table : table + header.name_bytes])
        digests = self._hasher.finish()
        extent.verify_digests(digests, header)
        if bytes(self._tail[:table]) != extent.pack_table(digests):
            raise ChecksumMismatch("the chunk table differs from the payload")
        read_names(header, names)
        return names


def read_names(header: Header, block: bytes) -> Names:
    """Return what a name block says; it belongs to that header.

    Raises:
        ChecksumMismatch: It does not, or is damaged, or nobody of ours wrote it.
    """
    try:
        names = extent.unpack_names(block)
    except ValueError as error:
        raise ChecksumMismatch(f"the extent's name block makes no sense: {error}") from error
    extent.verify_names(header, names)
    return names
