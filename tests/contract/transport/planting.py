"""Writes and reads the memory of a segment behind the back of the code under test.

Nothing here comes from the packages but their constants: the layouts are spelled out again from
their documentation, so that a change of a format, or a writer and a reader that are wrong in the
same way, shows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

PAGE = 4096
EPOCHS_AT = PAGE
INTENTS_AT = EPOCHS_AT + 4 * 4096
TABLE_AT = INTENTS_AT + 32 * 1024
ALIGN = 2 * 1024 * 1024
GRANULE = 512
CHUNK = 256 * 1024
FREED = 1 << 63


def extents_at(pool_bytes: int) -> int:
    end_of_table = TABLE_AT + 8 * (pool_bytes // GRANULE)
    return -(-end_of_table // ALIGN) * ALIGN


def file_bytes(pool_bytes: int) -> int:
    return extents_at(pool_bytes) + pool_bytes


def format_segment(memory: memoryview, pool_bytes: int, incarnation: int) -> None:
    struct.pack_into(
        "<QQQQQQ",
        memory,
        0,
        int.from_bytes(b"MKVSEG01", "little"),
        1 | GRANULE << 32,
        incarnation,
        pool_bytes,
        extents_at(pool_bytes),
        0,
    )


@dataclass(frozen=True)
class Planted:
    """One extent, as its bytes."""

    key: str
    version: int
    slot: int
    epoch: int
    payload: bytes
    namespace: str = "contract"

    @property
    def fingerprint(self) -> bytes:
        return xxhash.xxh3_128_digest(f"{self.namespace}\0{self.key}".encode())

    @property
    def table(self) -> bytes:
        chunks = [self.payload[at : at + CHUNK] for at in range(0, len(self.payload), CHUNK)]
        if len(chunks) < 2:
            return b""
        return b"".join(struct.pack("<Q", xxhash.xxh3_64_intdigest(chunk)) for chunk in chunks)

    @property
    def names(self) -> bytes:
        texts = [self.namespace.encode(), self.key.encode(), b"", b""]
        fields = (0, 1, 0, *map(len, texts), 0.0, 0)
        body = b"".join(texts)
        check = xxhash.xxh3_64_intdigest(struct.pack("<BBHHHHHdQQ", *fields, 0) + body)
        return struct.pack("<BBHHHHHdQQ", *fields, check) + body

    @property
    def header(self) -> bytes:
        checksum = xxhash.xxh3_64_intdigest(self.table or self.payload)
        body = struct.pack(
            "<4sHHIIQQQ16s",
            b"MKV1",
            1,
            self.slot,
            self.epoch,
            len(self.names),
            self.version,
            len(self.payload),
            checksum,
            self.fingerprint,
        )
        return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))

    @property
    def extent(self) -> bytes:
        return self.header + self.payload + self.table + self.names


class Ground:
    """The memory of one segment, as bytes."""

    def __init__(self, memory: memoryview, pool_bytes: int, incarnation: int) -> None:
        self.memory = memory
        self.pool_bytes = pool_bytes
        self.incarnation = incarnation
        self._extents_at = extents_at(pool_bytes)
        self._next = 0

    def room(self, size: int) -> int:
        """Return an offset where ``size`` bytes fit, from the start again when it is full."""
        granules = -(-size // GRANULE) * GRANULE
        if self._next + granules > self.pool_bytes:
            self._next = 0
        at = self._next
        self._next += granules
        return at

    def plant(self, planted: Planted, *, attempt: int | None = None) -> int:
        """Put an extent somewhere, readable; return its offset."""
        raw = planted.extent
        offset = self.room(len(raw))
        for stale in range(offset, offset + len(raw), GRANULE):
            self.set_entry(stale, 0)
        self.write(offset, raw)
        self.set_entry(offset, planted.version if attempt is None else attempt)
        return offset

    def write(self, offset: int, raw: bytes) -> None:
        at = self._extents_at + offset
        self.memory[at : at + len(raw)] = raw

    def read(self, offset: int, size: int) -> bytes:
        at = self._extents_at + offset
        return bytes(self.memory[at : at + size])

    def flip(self, offset: int) -> None:
        """Flip one bit of the byte at ``offset`` of the extents."""
        self.memory[self._extents_at + offset] ^= 0x10

    def entry(self, offset: int) -> int:
        (entry,) = struct.unpack_from("<Q", self.memory, TABLE_AT + 8 * (offset // GRANULE))
        return int(entry)

    def set_entry(self, offset: int, entry: int) -> None:
        struct.pack_into("<Q", self.memory, TABLE_AT + 8 * (offset // GRANULE), entry)

    def set_epoch(self, slot: int, epoch: int) -> None:
        struct.pack_into("<I", self.memory, EPOCHS_AT + 4 * slot, epoch)

    def set_term(self, term: int) -> None:
        struct.pack_into("<Q", self.memory, 40, term)

    def intents(self) -> list[tuple[int, int, int, int]]:
        """Return the words of every declared write."""
        raw = bytes(self.memory[INTENTS_AT:TABLE_AT])
        return [words for words in struct.iter_unpack("<QQQQ", raw) if words[0]]
