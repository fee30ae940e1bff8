"""Layout of a segment: the shared memory that a node pools, and that outlives its process.

    control page        magic, layout, incarnation, sizes, term
    epochs              4 B a namespace slot: the generation that is readable
    intents             32 B a writer: which extent a local process is writing right now
    version table       8 B a granule: the version whose extent begins there, or a copy's attempt
    extents

The version table is the node's directory of its DRAM: an entry is set by whoever wrote the extent
(the node for TCP, the client for shared memory, the network card for RDMA) after payload and
header, so an object whose put was acknowledged is in it on every path, without a message. A copy
that the node made later (a repair, a drain, a promotion) stands there under the number of that
write, which is higher than the version in its header. With
``FREED`` set it is a fence: versions up to that one may not be written at this place any more.

Everything here works on plain memory that the caller maps; nothing does I/O. Words are 64-bit and
aligned, so a load or a store of one is atomic on every machine that CPython supports.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_store.errors import ConfigError, Overloaded, StaleExtent
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.limits import (
    GRANULE_BYTES,
    KIB,
    MIB,
    NAMESPACES_MAX,
    SEGMENT_BYTES_MAX,
    WRITERS_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC: Final = 0x3130_4745_5356_4B4D  # "MKVSEG01" in memory
LAYOUT: Final = 1
FREED: Final = 1 << 63
"""Bit of a version table entry: the extent was freed, and with it every version up to this one."""

_PAGE: Final = 4096
EPOCHS_AT: Final = _PAGE
"""Where the epochs begin; public for readers that address a segment from afar."""
_INTENTS_AT: Final = EPOCHS_AT + 4 * NAMESPACES_MAX
_INTENT_WORDS: Final = 4
TABLE_AT: Final = _INTENTS_AT + 8 * _INTENT_WORDS * WRITERS_MAX
_ALIGN: Final = 2 * MIB  # a huge page
PIECE_BYTES: Final = 512 * KIB
"""Memory that ``secure`` asks for at a time. Smaller: more system calls, and a byte of each process
for each piece; larger: the first small write into a piece waits for more pages."""

_MAGIC, _LAYOUT, _INCARNATION, _EXTENTS_BYTES, _EXTENTS_AT, _TERM = range(6)
INCARNATION_AT: Final = 8 * _INCARNATION
_NO_HEADER = bytes(HEADER_BYTES)


class Intent(NamedTuple):
    """A write that a local process says it is doing."""

    writer: int
    """Token the node gave the process; 0: the slot is free."""
    offset: int
    bytes: int
    version: int


def extents_at(extents_bytes: int) -> int:
    """Return the offset of the extents in a segment that pools ``extents_bytes``."""
    table = 8 * (extents_bytes // GRANULE_BYTES)
    return -(-(TABLE_AT + table) // _ALIGN) * _ALIGN


def mapped_bytes(extents_bytes: int) -> int:
    """Return the bytes to map for a segment that pools ``extents_bytes``."""
    return extents_at(extents_bytes) + extents_bytes


class Segment:
    """One mapped segment.

    The caller owns the mapping and keeps it alive; ``release`` gives all views back so that it can
    be closed. Offsets are relative to the extents and multiples of ``limits.GRANULE_BYTES``.

    Attributes:
        incarnation: Random id of these memory contents.
        bytes: Bytes pooled.
        extents: Writable view of them, 1-D, format "B".
        epochs: The readable epoch of each namespace slot, format "I".
        table: The version table, format "Q".
    """

    __slots__ = ("_control", "_extents_at", "_intents", "_populate", "_secured", "_whole",
                 "bytes", "epochs", "extents", "incarnation", "table")  # fmt: skip

    def __init__(
        self, memory: memoryview, populate: Callable[[int, int], None] | None = None
    ) -> None:
        """Attach to formatted memory (1-D, writable, format "B").

        Args:
            memory: The memory.
            populate: Gives ``(offset, size)`` of it pages, or raises MemoryError; None where all
                of it is there for certain.

        Raises:
            ConfigError: The memory holds no segment of this layout.
        """
        self._whole = memory
        if len(memory) < TABLE_AT:
            raise ConfigError(f"a segment has at least {TABLE_AT} bytes, not {len(memory)}")
        self._control = memory[:_PAGE].cast("Q")
        magic, layout = self._control[_MAGIC], self._control[_LAYOUT]
        if magic != MAGIC or layout != LAYOUT | GRANULE_BYTES << 32:
            raise ConfigError(f"no segment of layout {LAYOUT} (magic {magic:#x}, {layout:#x})")
        self.incarnation = self._control[_INCARNATION]
        self.bytes = self._control[_EXTENTS_BYTES]
        start = self._control[_EXTENTS_AT]
        if start != extents_at(self.bytes) or start + self.bytes > len(memory):
            raise ConfigError(f"the segment says {self.bytes} bytes, {len(memory)} are mapped")
        self._extents_at = start
        self._populate = populate
        self._secured = bytearray(-(-len(memory) // PIECE_BYTES)) if populate else None
        self.epochs = memory[EPOCHS_AT:_INTENTS_AT].cast("I")
        self._intents = memory[_INTENTS_AT:TABLE_AT].cast("Q")
        self.table = memory[TABLE_AT : TABLE_AT + 8 * (self.bytes // GRANULE_BYTES)].cast("Q")
        self.extents = memory[start : start + self.bytes]

    @classmethod
    def format(cls, memory: memoryview, extents_bytes: int, incarnation: int) -> Segment:
        """Lay out zeroed memory of ``mapped_bytes(extents_bytes)`` and attach to it.

        Raises:
            ConfigError: The size is no positive multiple of the granule, or above the limit.
        """
        if not 0 < extents_bytes <= SEGMENT_BYTES_MAX or extents_bytes % GRANULE_BYTES:
            raise ConfigError(
                f"a segment pools a multiple of {GRANULE_BYTES} bytes up to"
                f" {SEGMENT_BYTES_MAX}, not {extents_bytes}"
            )
        struct.pack_into(
            "<QQQQQQ",
            memory,
            0,
            0,  # the magic comes last: a half-formatted segment is none
            LAYOUT | GRANULE_BYTES << 32,
            incarnation,
            extents_bytes,
            extents_at(extents_bytes),
            0,
        )
        struct.pack_into("<Q", memory, 0, MAGIC)
        return cls(memory)

    @property
    def memory(self) -> memoryview:
        """The whole mapping, control pages first."""
        return self._whole

    @property
    def term(self) -> int:
        """The newest term this segment's node obeys; writes of older terms are refused."""
        return self._control[_TERM]

    @term.setter
    def term(self, term: int) -> None:
        self._control[_TERM] = term

    def holds(self, offset: int, version: int) -> bool:
        """Return whether ``version``'s extent begins at ``offset`` and may be read."""
        index, rest = divmod(offset, GRANULE_BYTES)
        return not rest and 0 <= index < len(self.table) and self.table[index] == version

    def fits(self, offset: int, size: int) -> bool:
        """Return whether an extent of ``size`` bytes can begin at ``offset``."""
        aligned = offset >= 0 and not offset % GRANULE_BYTES
        return aligned and size >= HEADER_BYTES and offset + size <= self.bytes

    def may_write(self, offset: int, size: int, version: int) -> bool:
        """Return whether ``version`` may be written at ``offset``: in range and not fenced."""
        if not self.fits(offset, size):
            return False
        return self.table[offset // GRANULE_BYTES] & ~FREED < version < FREED

    def secure(self, offset: int, size: int) -> None:
        """Make certain that there is memory behind an extent that is about to be written.

        A page of shared memory that cannot be had when it is touched ends the process that touches
        it (SIGBUS): a node, or an engine that puts. So whoever writes asks first.

        Raises:
            Overloaded: The host has no memory left for it. It may have some later.
        """
        secured = self._secured
        if secured is None:
            return
        first = self._extents_at + offset
        end = (first + size - 1) // PIECE_BYTES + 1
        piece = secured.find(0, first // PIECE_BYTES, end)
        while piece >= 0:
            self._give_pages(piece)
            secured[piece] = 1
            piece = secured.find(0, piece, end)

    def _give_pages(self, piece: int) -> None:
        assert self._populate is not None
        start = piece * PIECE_BYTES
        try:
            self._populate(start, min(PIECE_BYTES, len(self._whole) - start))
        except MemoryError as error:
            raise Overloaded("this host has no memory left for the pool of its node") from error

    def publish(self, offset: int, header: bytes | memoryview, version: int) -> None:
        """Make an extent readable whose payload and tail are in place: header, then table.

        Raises:
            StaleExtent: The version was freed meanwhile; nothing became readable.
        """
        index = offset // GRANULE_BYTES
        if self.table[index] & ~FREED >= version:
            raise StaleExtent(f"version {version} was freed before its write was over")
        self.extents[offset : offset + HEADER_BYTES] = header
        self.table[index] = version

    def free(self, offset: int, version: int) -> bool:
        """Make ``version`` at ``offset`` unreadable and unwritable, whether or not it landed.

        Idempotent. A newer version that lies there already is left alone.

        Returns:
            Whether it had landed, and is now erased.
        """
        index = offset // GRANULE_BYTES
        entry = self.table[index]
        if entry & ~FREED > version:
            return False
        landed = entry == version
        self.table[index] = version | FREED
        if landed:
            self.extents[offset : offset + HEADER_BYTES] = _NO_HEADER
        return landed

    def intend(self, slot: int, intent: Intent) -> None:
        """Declare a write before its first byte; the token comes last."""
        at = slot * _INTENT_WORDS
        words = self._intents
        words[at + 1] = intent.offset
        words[at + 2] = intent.bytes
        words[at + 3] = intent.version
        words[at] = intent.writer

    def finish_intent(self, slot: int) -> None:
        """Declare that the write of ``slot`` is over, done or given up."""
        self._intents[slot * _INTENT_WORDS] = 0

    def intents(self) -> list[tuple[int, Intent]]:
        """Return the writes that are declared right now, each with its slot."""
        words = self._intents
        return [
            (at // _INTENT_WORDS, Intent(*words[at : at + _INTENT_WORDS].tolist()))
            for at in range(0, _INTENT_WORDS * WRITERS_MAX, _INTENT_WORDS)
            if words[at]
        ]

    @staticmethod
    def intent_range(slot: int) -> tuple[int, int]:
        """Return where in the file a slot's words lie: (first byte, bytes).

        A writer keeps this range locked, so that the kernel tells whether it still lives.
        """
        return _INTENTS_AT + 8 * _INTENT_WORDS * slot, 8 * _INTENT_WORDS

    def release(self) -> None:
        """Give back every view of the memory; the segment cannot be used afterwards."""
        views = (self._control, self.epochs, self._intents, self.table, self.extents)
        for view in views:
            view.release()
