"""One read task: the parts of an extent it needs, and how what came is judged. Sans-I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from mooncake_store import extent
from mooncake_store.errors import StoreError
from mooncake_store.limits import CHUNK_BYTES
from mooncake_store.transport.one_chunk import hash_pieces
from mooncake_store.transport.tasks import Scatter, covering_chunks

if TYPE_CHECKING:
    from mooncake_store.data_path import ReadTask
    from mooncake_store.extent import Header

_hash = xxhash.xxh3_64_intdigest


class ReadPlan:
    """One task of a read: which chunks it needs, and what came of them."""

    __slots__ = ("chunks", "digests", "error", "header", "scatter", "task")

    def __init__(self, task: ReadTask) -> None:
        self.task = task
        self.chunks = covering_chunks(task)
        self.scatter = Scatter(task.targets)
        self.digests: list[int] = []
        self.header: Header | None = None
        self.error: StoreError | None = None

    def span(self) -> tuple[int, int]:
        """Return the first payload byte that is fetched and the one after the last."""
        task = self.task
        if not task.verify:
            return task.start, task.start + task.length
        low = self.chunks.start * CHUNK_BYTES
        return low, min(self.chunks.stop * CHUNK_BYTES, task.identity.length)

    def table_bytes(self) -> int:
        """Return the bytes of the chunk table that are needed to verify."""
        return extent.table_bytes(self.task.identity.length) if self.chunks else 0

    def received_header(self, raw: memoryview) -> None:
        """Check the header, which comes first."""
        try:
            self.header = extent.expect_header(raw, 0, self.task.identity)
        except StoreError as error:
            self.error = error

    def received_chunk(self, pieces: list[memoryview]) -> None:
        """Hash one whole chunk."""
        self.digests.append(_hash(pieces[0]) if len(pieces) == 1 else hash_pieces(pieces))

    def expect_chunks(self) -> None:
        """Make room for digests that come in any order; those that never come are wrong."""
        self.digests = [-1] * len(self.chunks)

    def received_chunk_at(self, index: int, pieces: list[memoryview]) -> None:
        """As ``received_chunk``, for the chunk of that place among those wanted."""
        self.digests[index] = _hash(pieces[0]) if len(pieces) == 1 else hash_pieces(pieces)

    def finish(self, table: memoryview | None) -> None:
        """Set the result of a verified task: everything of it has come."""
        task = self.task
        if self.error is None and self.header is not None:
            try:
                self._verify(self.header, table)
                task.verified = True
            except StoreError as error:
                self.error = error
        task.error = self.error

    def received_trailer(self, raw: memoryview) -> None:
        """Check the header once more: it still stands, so the bytes before it were its own."""
        if self.error is None:
            self.received_header(raw)
        self.task.error = self.error

    def _verify(self, header: Header, table: memoryview | None) -> None:
        if not self.digests:
            return
        if len(self.digests) == extent.chunk_count(header.length):
            extent.verify_digests(self.digests, header)
        elif table is not None:
            extent.verify_chunks(self.chunks.start, self.digests, table, header)
