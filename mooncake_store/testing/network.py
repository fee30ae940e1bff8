"""A network on a virtual clock: late, lost, doubled, out of order, parted - and the same each time.

Two services, as real networks have them:

* ``send``: one message by itself. It may be lost, doubled, or overtaken by a later one.
* ``connect``: a ``Stream``, what TCP gives. Its messages arrive in order and once, or the stream
  breaks and both ends learn it, each in its own time; what was on the way may have arrived or not.

Every directed link has its own random generator, seeded by the network's seed and the two names:
what happens on one link does not depend on how much is said on another one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mooncake_store.testing.seeds import seeded
from mooncake_store.testing.streams import Stream

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    from mooncake_store.testing.clock import VirtualClock


@dataclass(frozen=True, slots=True)
class Conditions:
    """How well one link carries messages.

    Attributes:
        latency_s: Least and most seconds on the way.
        loss: Share of single messages that never arrive, 0 to 1.
        duplicate: Share of single messages that arrive twice.
        reorder: Share of single messages that are held back by up to ``reorder_s``.
        reorder_s: Most seconds by which such a message is held back.
    """

    latency_s: tuple[float, float] = (0.000_05, 0.000_5)
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_s: float = 0.05


class SeededNetwork:
    """All links between parts that are known by name.

    Not safe for use by several threads.

    Attributes:
        clock: The clock on which messages travel.
        statistics: {what happened: how often}, of ``sent``, ``lost``, ``duplicated``,
            ``reordered`` and ``broken`` (streams).
    """

    def __init__(
        self, clock: VirtualClock, seed: int, conditions: Conditions | None = None
    ) -> None:
        self.clock = clock
        self.statistics = dict.fromkeys(("sent", "lost", "duplicated", "reordered", "broken"), 0)
        self._seed = seed
        self._conditions = conditions or Conditions()
        self._special: dict[tuple[str, str], Conditions] = {}
        self._randoms: dict[tuple[str, str], random.Random] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._streams: dict[int, Stream] = {}
        self._stream_count = 0

    def set_conditions(
        self, conditions: Conditions, source: str | None = None, target: str | None = None
    ) -> None:
        """Change one directed link, or with neither name given every link without its own."""
        if source is None or target is None:
            self._conditions = conditions
        else:
            self._special[source, target] = conditions

    def partition(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Let nothing pass between two groups, either way, until ``heal``.

        Single messages are lost; what is on a stream waits, as it does in TCP, until the partition
        heals or an end gives the stream up.
        """
        pairs = [(one, other) for one in some for other in others]
        self._blocked.update(pairs, [(other, one) for one, other in pairs])

    def block(self, source: str, target: str) -> None:
        """Let nothing pass in one direction."""
        self._blocked.add((source, target))

    def heal(self) -> None:
        """End every partition; what waited on streams goes on its way."""
        self._blocked.clear()
        for stream in list(self._streams.values()):
            stream.resume()

    def is_blocked(self, source: str, target: str) -> bool:
        """Return whether nothing passes from one to the other."""
        return (source, target) in self._blocked

    def send(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Send one message by itself; ``deliver`` is called when it arrives, if it does."""
        self.statistics["sent"] += 1
        conditions, generator = self._link(source, target)
        if (source, target) in self._blocked or generator.random() < conditions.loss:
            self.statistics["lost"] += 1
            return
        copies = 1
        if generator.random() < conditions.duplicate:
            self.statistics["duplicated"] += 1
            copies = 2
        for _ in range(copies):
            delay_s = generator.uniform(*conditions.latency_s)
            if generator.random() < conditions.reorder:
                self.statistics["reordered"] += 1
                delay_s += generator.uniform(0.0, conditions.reorder_s)
            self.clock.call_later(delay_s, deliver)

    def connect(self, near: str, far: str) -> Stream:
        """Open a stream between two parts; its ends exist at once."""
        self._stream_count += 1
        stream: Stream = Stream(self, near, far, self._stream_count)
        self._streams[stream.number] = stream
        return stream

    def forget(self, stream: Stream) -> None:
        """Drop a stream that is over; streams call this."""
        self._streams.pop(stream.number, None)

    def cut(self, some: str, other: str) -> int:
        """Break every stream between two parts.

        Returns:
            How many there were.
        """
        return self._cut({some, other}.__eq__)

    def cut_all(self, part: str) -> int:
        """Break every stream of one part, as its death does.

        Returns:
            How many there were.
        """
        return self._cut(lambda names: part in names)

    def latency_s(self, source: str, target: str) -> float:
        """Draw the time that one message takes on a link."""
        conditions, generator = self._link(source, target)
        return generator.uniform(*conditions.latency_s)

    def chance(self, source: str, target: str) -> float:
        """Draw a number between 0 and 1 from a link's generator."""
        return self._link(source, target)[1].random()

    def _cut(self, concerned: Callable[[set[str]], bool]) -> int:
        hit = [
            stream
            for stream in self._streams.values()
            if concerned({stream.near.name, stream.far.name})
        ]
        for stream in hit:
            stream.cut()
        return len(hit)

    def _link(self, source: str, target: str) -> tuple[Conditions, random.Random]:
        link = (source, target)
        generator = self._randoms.get(link)
        if generator is None:
            generator = seeded(self._seed, source, target)
            self._randoms[link] = generator
        return self._special.get(link, self._conditions), generator
