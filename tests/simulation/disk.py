"""A simulated disk: what a store has recorded on it, and how the device fares.

It outlives the processes of its node, their memory, and loss of power. What it holds is exactly
what has been recorded: the store above decides what that is (``tests.simulation.store``).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from mooncake_store.limits import REPLACED_MAX
from mooncake_store.wire.control import DirectoryEntry

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from mooncake_store import extent
    from mooncake_store.testing import VirtualClock

    Over = Callable[[bool], None]
    Later = Callable[[float, Callable[[], None]], object]

QUICK_S = (0.000_2, 0.004)
"""Time of one operation of a disk that is well."""
SLOW_S = (0.02, 0.6)
"""The same of one that is not; some take longer than anybody waits."""


class Trouble(enum.Enum):
    """How a disk fares."""

    NONE = "well"
    SLOW = "slow"
    HANGS = "hangs"
    """It answers when it is well again, and not before."""
    REFUSES = "refuses"
    """Every operation is an error; an index that cannot be written closes the store."""
    ABSENT = "absent"
    """The directory is not there, as where a mount is missing."""


@dataclass(slots=True)
class Row:
    """One recorded extent.

    Attributes:
        version: Of its header.
        data: All of it, as it lay in memory; may be damaged later.
        header: As it was when it was written.
        names: Its name block.
        hits: Reads since it was written.
    """

    version: int
    data: bytearray
    header: extent.Header
    names: extent.Names
    hits: int = 0

    def describe(self, location: int) -> DirectoryEntry:
        """Return what the directory says of it."""
        names, header = self.names, self.header
        return DirectoryEntry(
            location, self.version, header.length, header.slot, header.epoch, names.namespace,
            names.key, names.group, names.parent, int(names.pin), names.pin_ends_s, names.replicas,
            names.set_id, names.set_count,
        )  # fmt: skip


class Transaction(NamedTuple):
    """What one commit changes, all of it or nothing."""

    puts: dict[int, Row]
    deletes: list[int]
    epochs: dict[int, int]


@dataclass(slots=True)
class Disk:
    """See the module.

    Attributes:
        clock: What operations take their time on.
        random: What decides how long, and what is found after a loss of power.
        capacity_bytes: What its extents may take.
        admits: Share of the extents that a store's own policy takes, 0 to 1.
        incarnation: Of its contents.
        replaced: Incarnations that are gone for good, as a store was made of their files.
        rows: {location: what is recorded there}, oldest first.
        epochs: {namespace slot: readable epoch} as recorded.
        trouble: How it fares.
        troubled_s: Since when.
        given_up: Versions that it does not hold any more though nobody asked it to forget them:
            their loss is honest.
        losses: How often all of its contents were lost.
    """

    clock: VirtualClock
    random: random.Random
    capacity_bytes: int
    admits: float = 1.0
    incarnation: int = 0
    replaced: tuple[int, ...] = ()
    rows: dict[int, Row] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    trouble: Trouble = Trouble.NONE
    troubled_s: float = 0.0
    given_up: set[int] = field(default_factory=set)
    losses: int = 0
    _waiting: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lay_out()

    def lay_out(self) -> None:
        """Begin empty, as a new disk in the place of this one would."""
        if self.incarnation:
            self.losses += 1
        self.given_up |= {row.version for row in self.rows.values()}
        self.rows, self.epochs, self.replaced = {}, {}, ()
        self.incarnation = self.random.getrandbits(62) + 1

    def spoil(self) -> None:
        """Damage the index: who opens the directory makes an empty store of it, and says so."""
        replaced = (*self.replaced, self.incarnation)
        self.lay_out()
        self.replaced = replaced[-REPLACED_MAX:]

    def fare(self, trouble: Trouble) -> None:
        """Fare like that from now on."""
        self.trouble, self.troubled_s = trouble, self.clock.now_s
        if trouble is not Trouble.HANGS:
            waiting, self._waiting = self._waiting, []
            for go_on in waiting:
                go_on()

    def operate(self, later: Later, over: Over) -> None:
        """Do one operation: ``over`` is told, by ``later``, whether the disk refuses."""

        def look() -> None:
            if self.trouble is Trouble.HANGS:
                self._waiting.append(lambda: later(self._delay_s(), look))
            else:
                over(self.trouble in {Trouble.REFUSES, Trouble.ABSENT})

        later(self._delay_s(), look)

    def record(self, transaction: Transaction) -> None:
        """Make a commit durable."""
        for location in transaction.deletes:
            del self.rows[location]
        self.rows.update(transaction.puts)
        for slot, epoch in transaction.epochs.items():
            self.epochs[slot] = max(epoch, self.epochs.get(slot, 0))

    def damage(self) -> None:
        """Flip a bit of some extent."""
        if self.rows:
            row = self.random.choice(list(self.rows.values()))
            at = self.random.randrange(len(row.data))
            row.data[at] ^= 1 << self.random.randrange(8)
            self.given_up.add(row.version)

    def _delay_s(self) -> float:
        low_s, high_s = SLOW_S if self.trouble is Trouble.SLOW else QUICK_S
        return self.random.uniform(low_s, high_s)
