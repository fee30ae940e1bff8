"""One exchange over several queue pairs: which of them takes what (ADR 53). Sans-I/O.

Only registered memory is spread, in stripes; headers, tables and what goes through the slab stay
with the first queue pair. Queue pairs overtake each other, so whoever judges or publishes
does it after all of them have ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_store.data_path import WriteTask
from mooncake_store.limits import CHUNK_BYTES, MIB
from mooncake_store.memory import address_of
from mooncake_store.transport.rdma.flow import MESSAGE_BYTES, Flow, Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_store.data_path import ReadTask
    from mooncake_store.transport.rdma.flow import Moves
    from mooncake_store.transport.rdma.link import Link

SPREAD_BYTES: Final = 4 * MIB
"""Bytes of an exchange from which on it is spread. Smaller: more doorbells and completions than
the second queue pair saves. Larger: a part of a link lies idle for longer."""

STRIPE_BYTES: Final = MESSAGE_BYTES
"""Bytes that go to one queue pair before the next has its turn: one work request."""


class Spread:
    """The flows of one exchange.

    Attributes:
        main: That of the first queue pair.
    """

    def __init__(self, link: Link, tasks: Sequence[ReadTask | WriteTask]) -> None:
        """Use the lanes that are open, if there is enough to move."""
        self.main = Flow(link)
        self._flows = [self.main]
        if link.lanes and _bytes_of(tasks) >= SPREAD_BYTES:
            self._flows += [Flow(lane) for lane in link.lanes]
        self._moved = 0

    @property
    def is_wide(self) -> bool:
        """Whether there is more than one queue pair to use."""
        return len(self._flows) > 1

    @property
    def flows(self) -> Sequence[Flow]:
        """All of them, the first queue pair's first."""
        return self._flows

    def pick(self, incarnation: int, places: list[Place]) -> tuple[Flow, list[Place]]:
        """Return the flow that moves these pieces of the caller's memory, named as its device does.

        Whatever is not registered with the device whose turn it is stays with ``main``.
        """
        flows = self._flows
        if len(flows) == 1:
            return self.main, places
        flow = flows[self._moved // STRIPE_BYTES % len(flows)]
        self._moved += sum(len(place.view) for place in places)
        if flow is self.main or incarnation not in flow.link.regions:
            return self.main, places
        if any(place.key < 0 for place in places):
            return self.main, places
        rail = flow.link.rail
        if rail is not self.main.link.rail:
            named = [
                Place(place.view, *rail.find(address_of(place.view), len(place.view)))
                for place in places
            ]
            if any(place.key < 0 for place in named):
                return self.main, places
            places = named
        return flow, places

    def finish(self) -> Moves:
        """Start everything, then end everything."""
        for flow in self._flows:
            yield from flow.turn()
        for flow in self._flows:
            yield from flow.finish()


def wants_lanes(tasks: Sequence[ReadTask | WriteTask], link: Link) -> bool:
    """Return whether an exchange would go over more than one queue pair, were they open."""
    if _bytes_of(tasks) < SPREAD_BYTES:
        return False
    buffer = max((buffer for task in tasks for buffer in _buffers_of(task)), key=len)
    return link.rail.find(address_of(buffer), len(buffer))[1] >= 0


def _bytes_of(tasks: Sequence[ReadTask | WriteTask]) -> int:
    """Return the bytes that may be spread: those of objects that are more than one chunk."""
    total = 0
    for task in tasks:
        size = sum(map(len, _buffers_of(task)))
        if size > CHUNK_BYTES:
            total += size
    return total


def _buffers_of(task: ReadTask | WriteTask) -> Sequence[memoryview]:
    return task.parts if isinstance(task, WriteTask) else task.targets
