"""Work requests of one exchange: joined, split, signalled, posted in turns. Sans-I/O.

A turn is what one doorbell starts. There are two, each with a half of the connection's slab: while
the device works on one, the other is filled, and what came with the one before is hashed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_store.memory import address_of
from mooncake_store.transport.effects import Receive, Send
from mooncake_store.transport.rdma.verbs import SCATTER_MAX, WorkRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_store.transport.rdma.link import Link
    from mooncake_store.transport.rdma.verbs import DeviceLimits, Piece

SIGNAL_EVERY: Final = 16
"""Work requests under one completion. Fewer: more completions to poll. More: the queue's entries,
which only a completion frees, come back later."""

MESSAGE_BYTES: Final = 1 << 20
"""Bytes of one work request at most, whatever the device takes: a lost packet repeats fewer."""


class Post(NamedTuple):
    """Give requests to the device of a link."""

    requests: Sequence[WorkRequest]
    link: Link


class Await(NamedTuple):
    """Wait until the request of this number is over on a link."""

    number: int
    link: Link


Moves = Generator[Send | Receive | Post | Await, int, None]


class Place(NamedTuple):
    """A buffer of the caller."""

    view: memoryview
    address: int
    """As the device calls it."""
    key: int
    """Of registered memory; -1: it is not."""


class Places:
    """Cuts the buffers of one task into consecutive pieces."""

    __slots__ = ("_at", "_index", "_places")

    def __init__(self, buffers: Sequence[memoryview], link: Link) -> None:
        find = link.rail.find
        self._places = [
            Place(view, *find(address_of(view), len(view))) for view in buffers if len(view)
        ]
        self._index = 0
        self._at = 0

    def take(self, size: int) -> list[Place]:
        """Return the next ``size`` bytes; the buffers hold at least that many."""
        taken = self._take(size)
        if len(taken) > SCATTER_MAX:
            return [place._replace(key=-1) for place in taken]
        return taken

    def _take(self, size: int) -> list[Place]:
        taken: list[Place] = []
        while size:
            view, address, key = self._places[self._index]
            at = self._at
            left = len(view) - at
            if not at and left <= size:
                taken.append(self._places[self._index])
            else:
                part = view[at : at + min(left, size)]
                taken.append(Place(part, address + at, key))
            if left > size:
                self._at = at + size
                return taken
            size -= left
            self._index += 1
            self._at = 0
        return taken


def staged_bytes(places: Sequence[Place]) -> int:
    """Return how much of a slab is needed for those that are not registered."""
    return sum(len(place.view) for place in places if place.key < 0)


class Batch:
    """Work requests in the making, in the order in which they are carried out."""

    __slots__ = ("_bytes_max", "_last_bytes", "_pieces_max", "_requests")

    def __init__(self, limits: DeviceLimits) -> None:
        self._pieces_max = limits.pieces_max
        self._bytes_max = min(limits.message_bytes_max, MESSAGE_BYTES)
        self._requests: list[tuple[bool, int, int, list[Piece]]] = []
        self._last_bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, *, write: bool, remote: int, key: int, pieces: Sequence[Piece]) -> None:
        """Move between contiguous remote memory and pieces of ours, in requests as few as can be.

        What continues where the last request ended joins it.
        """
        requests = self._requests
        room = 0
        current: list[Piece] = []
        if requests:
            last_write, last_remote, last_key, current = requests[-1]
            if (
                last_write is write
                and last_key == key
                and last_remote + self._last_bytes == remote
                and len(current) + len(pieces) <= self._pieces_max
            ):
                room = self._bytes_max - self._last_bytes
        for address, size, local_key in pieces:
            done = 0
            if current and room >= size:
                before, length, key_before = current[-1]
                if key_before == local_key and before + length == address:
                    current[-1] = (before, length + size, local_key)
                    done = size
                    remote += size
                    room -= size
                    self._last_bytes += size
            while done < size:
                if room <= 0 or len(current) >= self._pieces_max:
                    current = []
                    requests.append((write, remote, key, current))
                    room = self._bytes_max
                    self._last_bytes = 0
                part = min(room, size - done)
                current.append((address + done, part, local_key))
                done += part
                remote += part
                room -= part
                self._last_bytes += part

    def number(self, first: int) -> list[WorkRequest]:
        """Return the requests, numbered from ``first``; the last one is signalled."""
        last = first + len(self._requests) - 1
        return [
            WorkRequest(
                write, remote, key, pieces, number, number == last or not number % SIGNAL_EVERY
            )
            for number, (write, remote, key, pieces) in enumerate(self._requests, first)
        ]


class _Turn:
    """One half of the slab, and what happens with it."""

    __slots__ = ("batch", "end", "last", "start", "steps", "used", "words")

    def __init__(self, link: Link, start: int, end: int) -> None:
        self.start = self.used = start
        self.end = end
        self.batch = Batch(link.limits)
        self.steps: list[Callable[[], None]] = []
        self.words: dict[int, memoryview] = {}
        """{remote address: where it is fetched to}: small things that several tasks need."""
        self.last = 0


class Flow:
    """The turns of one exchange.

    Attributes:
        link: What they go over.
        copied: Payload bytes that went through the slab.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.copied = 0
        self._middle = len(link.slab.memory) // 2
        self._requests_max = link.requests_max // 2
        self._turn = _Turn(link, 0, self._middle)
        self._posted: _Turn | None = None

    def fits(self, size: int, requests: int) -> bool:
        """Return whether the turn in the making has room for so many more slab bytes and requests.

        Where not, ``turn`` first.
        """
        turn = self._turn
        return turn.used + size <= turn.end and len(turn.batch) + requests <= self._requests_max

    def turn(self) -> Moves:
        """Start what was added, end what was started before, and begin anew."""
        turn, before = self._turn, self._posted
        if len(turn.batch):
            requests = turn.batch.number(self.link.posted + 1)
            turn.last = requests[-1].number
            yield Post(requests, self.link)
        self._posted = turn
        if before is not None:
            yield from _end(before, self.link)
        start = self._middle - turn.start
        self._turn = _Turn(self.link, start, start + self._middle)

    def finish(self) -> Moves:
        """Start and end everything."""
        yield from self.turn()
        posted, self._posted = self._posted, None
        if posted is not None:
            yield from _end(posted, self.link)

    def scratch(self, size: int) -> tuple[memoryview, Piece]:
        """Return slab memory that holds until the steps of this turn were taken."""
        turn, slab = self._turn, self.link.slab
        at = turn.used
        turn.used += size
        return slab.memory[at : at + size], (slab.address + at, size, slab.key)

    def read(self, remote: int, key: int, pieces: Sequence[Piece]) -> None:
        """Fetch contiguous remote memory into pieces of ours."""
        self._turn.batch.add(write=False, remote=remote, key=key, pieces=pieces)

    def write(self, remote: int, key: int, pieces: Sequence[Piece]) -> None:
        """Store pieces of ours into contiguous remote memory."""
        self._turn.batch.add(write=True, remote=remote, key=key, pieces=pieces)

    def word(self, remote: int, size: int, key: int) -> memoryview:
        """Fetch a few remote bytes, once a turn; return where they will be."""
        found = self._turn.words.get(remote)
        if found is None:
            found, piece = self.scratch(size)
            self._turn.words[remote] = found
            self.read(remote, key, [piece])
        return found

    def then(self, step: Callable[[], None]) -> None:
        """Have something done once everything added so far has happened, in order."""
        self._turn.steps.append(step)


def _end(turn: _Turn, link: Link) -> Moves:
    if turn.last:
        yield Await(turn.last, link)
    for step in turn.steps:
        step()
