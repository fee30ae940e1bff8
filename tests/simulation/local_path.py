"""A client's way to a node of its own host: the node's memory itself, with intents (ADR 2, ADR 7).

The real path (``mooncake_store.transport.shm``) maps files and holds locks of the kernel; here the
memory is shared anyway, and the world knows who holds which intent slot. What is decided by whom in
which order is the same, a step at a time, so a writer can be stopped or killed between any two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_store.data_path import ReadTask, WriteTask
from mooncake_store.errors import DeadlineExceeded, StaleExtent, StoreError
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.limits import WRITERS_MAX
from mooncake_store.segment import Intent
from mooncake_store.transport.extents import ExtentMemory
from mooncake_store.transport.tasks import check_write

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from mooncake_store.segment import Segment
    from tests.simulation.client import SimClient

STEP_S = (0.000_05, 0.003)
"""Slow, so that much happens while somebody writes."""
SLICE_BYTES = 700


class LocalPath:
    """Moves bytes in and out of the memory of one node."""

    def __init__(self, client: SimClient, segment: Segment) -> None:
        self._client = client
        self._segment = segment
        self._memory = ExtentMemory(segment)
        self._life = client.lives

    def perform(
        self, tasks: Sequence[ReadTask | WriteTask], limit_s: float, over: Callable[[], None]
    ) -> None:
        """Perform tasks, step by step; ``over`` is called once each of them has its result."""
        until_s = self._client.clock.now_s + limit_s
        steps = self._steps(tasks)

        may_end = True

        def step() -> None:
            nonlocal may_end
            if may_end and self._client.clock.now_s > until_s:
                steps.close()
                for task in tasks:
                    task.error = task.error or DeadlineExceeded("the deadline passed")
                over()
                return
            try:
                may_end = next(steps)
            except StopIteration:
                over()
                return
            self._client.later(self._client.world.random.uniform(*STEP_S), step)

        step()

    def _steps(self, tasks: Sequence[ReadTask | WriteTask]) -> Generator[bool, None, None]:
        """Yield whether the real path looks at its deadline here; a copy under way never does."""
        for task in tasks:
            yield True
            if task.incarnation != self._segment.incarnation:
                task.error = StaleExtent("there is no such segment here")
            elif isinstance(task, ReadTask):
                self._memory.read(task)
            else:
                yield from self._write(task)

    def _write(self, task: WriteTask) -> Generator[bool, None, None]:
        slot = self._begin(task)
        try:
            yield False
            if not self._memory.allow(task.offset, check_write(task), task.identity):
                return
            at = task.offset + HEADER_BYTES
            for part in task.parts:
                for low in range(0, len(part), SLICE_BYTES):
                    yield False
                    piece = part[low : low + SLICE_BYTES]
                    self._segment.extents[at : at + len(piece)] = piece
                    at += len(piece)
            yield True
            self._memory.publish(task.offset, task.identity, task.sealed)
            yield True
        except StoreError as error:
            task.error = error
        finally:
            self._end(slot)

    def _begin(self, task: WriteTask) -> int:
        writers = self._client.world.local_writers
        incarnation = self._segment.incarnation
        slot = next(at for at in range(WRITERS_MAX) if (incarnation, at) not in writers)
        writers[incarnation, slot] = self._client.name
        size = HEADER_BYTES + task.identity.length + len(task.sealed.tail)
        self._segment.intend(slot, Intent(slot + 1, task.offset, size, task.identity.version))
        return slot

    def _end(self, slot: int) -> None:
        if self._client.is_alive and self._client.lives == self._life:  # the dead end nothing
            self._segment.finish_intent(slot)
            self._client.world.local_writers.pop((self._segment.incarnation, slot), None)
