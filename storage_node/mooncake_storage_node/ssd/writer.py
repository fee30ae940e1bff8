"""Writing extents: a bounded queue, and lanes that copy, verify and write batches of it.

A lane takes extents off the queue, finds consecutive room for them, copies them into its aligned
buffer, verifies the copy (what is written is what was verified, whatever happens to the source
meanwhile) and writes it at once. Several lanes keep the disk busy while one copies. An extent that
is larger than the buffer goes through it in parts.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.ssd.buffers import map_aligned
from mooncake_storage_node.ssd.committer import Landed
from mooncake_storage_node.ssd.core.layout import BLOCK_BYTES, run_bytes
from mooncake_storage_node.ssd.disk import RegionRefused
from mooncake_storage_node.ssd.ledger import (
    WAIT_S,
    WRITE_TROUBLE,
    Stopped,
    region_trouble,
)
from mooncake_storage_node.ssd.threads import make_thread
from mooncake_storage_node.ssd.verifying import ExtentVerifier
from mooncake_store.errors import NoSpace, Overloaded, StoreError
from mooncake_store.limits import CHUNK_BYTES
from mooncake_store.memory import address_of, move

if TYPE_CHECKING:
    from mooncake_storage_node.ssd.committer import Committer
    from mooncake_storage_node.ssd.core.regions import Run
    from mooncake_storage_node.ssd.disk import Disk
    from mooncake_storage_node.ssd.ledger import Ledger
    from mooncake_storage_node.ssd.options import Options
    from mooncake_storage_node.ssd.requests import Write

BATCH_COUNT_MAX: Final = 1024
"""Extents in one write: more would make their commit wait for the copying."""


class WriteQueue:
    """Extents that wait, bounded in number and bytes."""

    def __init__(self, options: Options) -> None:
        self._bytes_max = options.queue_bytes_max
        self._count_max = options.queue_count_max
        self._waiting: deque[Write] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self.bytes = 0

    def has_room(self, size: int) -> bool:
        """Return whether one more extent may wait; one is taken whatever its size."""
        waiting = len(self._waiting)
        return not waiting or (waiting < self._count_max and self.bytes + size <= self._bytes_max)

    def put(self, write: Write) -> None:
        """Let an extent wait; ``has_room`` was asked before."""
        with self._changed:
            self._waiting.append(write)
            self.bytes += write.size
            self._changed.notify()

    def put_back(self, writes: list[Write]) -> None:
        """Let extents wait again, before all others."""
        with self._changed:
            self._waiting.extendleft(reversed(writes))
            self.bytes += sum(write.size for write in writes)
            self._changed.notify()

    def take(self, batch_bytes: int) -> list[Write]:
        """Wait for extents; return one, or several that fit a batch; none: the queue has ended."""
        with self._changed:
            while not self._waiting:
                if self._ended:
                    return []
                self._changed.wait(WAIT_S)
            batch = [self._waiting.popleft()]
            total = batch[0].size
            while self._waiting and len(batch) < BATCH_COUNT_MAX:
                total += self._waiting[0].size
                if run_bytes(total) > batch_bytes:
                    break
                batch.append(self._waiting.popleft())
            self.bytes -= sum(write.size for write in batch)
            return batch

    def drain(self) -> list[Write]:
        """Take everything out."""
        with self._changed:
            writes = list(self._waiting)
            self._waiting.clear()
            self.bytes = 0
            return writes

    def end(self) -> None:
        """Let ``take`` return nothing once the queue is empty."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Lane:
    """One thread that writes.

    Attributes:
        busy_since_s: When the operation on the disk under way began; 0: there is none.
    """

    def __init__(
        self,
        number: int,
        queue: WriteQueue,
        ledger: Ledger,
        committer: Committer,
        disk: Disk,
        batch_bytes: int,
    ) -> None:
        self._queue = queue
        self._ledger = ledger
        self._committer = committer
        self._disk = disk
        self._batch_bytes = batch_bytes // BLOCK_BYTES * BLOCK_BYTES
        self._buffer = map_aligned(self._batch_bytes)
        self._address = address_of(self._buffer)
        self.busy_since_s = 0.0
        self._thread = make_thread(f"ssd write {number}", self._run, ledger.stop, courteous=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end after the queue's; return whether it has come in time."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while batch := self._queue.take(self._batch_bytes):
            try:
                self._write(batch)
            except Stopped as stopped:
                self._committer.refuse(batch, Overloaded(str(stopped)), "closing")
            except NoSpace as error:
                self._committer.refuse(batch, error, "no_room")
            except Overloaded as error:
                self._committer.refuse(batch, error, "degraded")

    def _write(self, batch: list[Write]) -> None:
        """Write a batch, or its beginning, the rest of which waits again."""
        while batch:
            run = self._ledger.allocate(
                [write.size for write in batch], [write.header.name_bytes for write in batch]
            )
            if run.extents < len(batch):
                self._queue.put_back(batch[run.extents :])
                del batch[run.extents :]
            try:
                self._fill(run, batch)
            except RegionRefused as refusal:
                self._ledger.end_run(run)
                self._blame(refusal)
                continue
            self._committer.submit(Landed(run, batch))
            return

    def _blame(self, refusal: RegionRefused) -> None:
        """Find out whether it is the file or the disk that refuses to be written."""
        self.busy_since_s = 0.0
        trouble = self._disk.probe.check()
        if trouble:
            self._ledger.set_trouble(WRITE_TROUBLE, trouble)
        else:
            self._ledger.break_region(refusal.number, str(refusal))

    def _fill(self, run: Run, batch: list[Write]) -> None:
        """Copy and write a run; extents that are not right are refused and leave the batch."""
        if run.size > len(self._buffer):
            self._stream(run, batch)
        else:
            good = []
            at = 0
            for write in batch:
                write.place = run.place + at
                if self._stage(write, at):
                    good.append(write)
                at += write.size
            self._buffer[at : run.size] = bytes(run.size - at)
            batch[:] = good
            if good:
                self._put(run.place, run.size)
        now_s = time.time()
        with self._ledger.lock:
            self._ledger.wear.spend(user_bytes=0, total_bytes=run.size, now_s=now_s)
            self._ledger.counters.written_bytes += run.size
            if self._ledger.troubles:  # A region that refused may have been mended.
                number = run.place // self._ledger.geometry.region_bytes
                self._ledger.troubles.pop(region_trouble(number), None)

    def _stage(self, write: Write, at: int) -> bool:
        """Copy a whole extent into the buffer and verify it there."""
        verifier = ExtentVerifier(write.header)
        self._copy(write, verifier, 0, write.size, at)
        return self._accept(write, verifier)

    def _stream(self, run: Run, batch: list[Write]) -> None:
        """Write one extent in parts."""
        write = batch[0]
        write.place = run.place
        verifier = ExtentVerifier(write.header)
        done = 0
        while done < write.size:
            part = min(len(self._buffer), write.size - done)
            self._copy(write, verifier, done, done + part, 0)
            padded = run_bytes(part)
            self._buffer[part:padded] = bytes(padded - part)
            self._put(run.place + done, padded)
            done += part
        if not self._accept(write, verifier):
            batch.clear()

    def _copy(self, write: Write, verifier: ExtentVerifier, start: int, stop: int, at: int) -> None:
        """Copy part of an extent into the buffer, hashing each chunk while it is in the cache."""
        source = address_of(write.source)
        while start < stop:
            take = min(verifier.step(start), stop - start, CHUNK_BYTES)
            move(self._address + at, source + start, take)
            verifier.update(self._buffer[at : at + take])
            start += take
            at += take

    def _accept(self, write: Write, verifier: ExtentVerifier) -> bool:
        try:
            write.names = verifier.finish()
        except StoreError as error:
            self._committer.refuse([write], error, error.code)
            return False
        return True

    def _put(self, place: int, size: int) -> None:
        self.busy_since_s = time.monotonic()
        self._disk.write(self._buffer[:size], place, self._ledger.geometry.region_bytes)
        self.busy_since_s = 0.0
