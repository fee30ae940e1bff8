"""What the parts of one master share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_master.core.accounting import Counters
from mooncake_master.core.instructions import Forget, Remember
from mooncake_master.core.nodes import Cluster
from mooncake_master.core.remembered import Reign
from mooncake_store.types import Version, make_version

if TYPE_CHECKING:
    from mooncake_master.core.config import CoreConfig, Randomness
    from mooncake_master.core.draining import Drain
    from mooncake_master.core.instructions import Instruction
    from mooncake_master.core.records import Copy, Extent, Stored, Window
    from mooncake_master.core.remembered import Entry
    from mooncake_store.wire.control import SegmentRecord


class Context:
    """The state that every part reads.

    Attributes:
        config: Settings.
        random: Seeded source of randomness.
        counters: Counters under their metric names.
        cluster: Nodes and segments.
        term: Number of this reign.
        wall_offset_s: What to add to the monotonic clock to get seconds since 1970.
        now_s: Time of the event that is being handled.
        out: Instructions that it led to so far.
        recovering: The index is not complete yet.
        fresh: All nodes that came are new, so the cluster seems to be.
        cluster_id: Which cluster this is.
        kept: Tables of which what is remembered outlives this process.
        unseen: {node that did not come back yet: what it had} of an earlier reign; what is missing
            may be there.
        unlisted: A node or a disk is there of which it is not known what it holds.
        unread: The same, of one that was not listed to its end yet, in this reign: what is missing
            may be there.
        attempts: Attempts that writers know of.
        drains: {node id: its drain}.
        callers: {client that looked something up or put something: when it did so last}.
        leased_granules: What was leased lately, as an estimate for the pressure.
        claimed: {extent that is readable still: window that it becomes a part of}.
        copying: {object: copies of it that nodes make now}; those objects are not evicted.
    """

    def __init__(
        self, config: CoreConfig, random: Randomness, *, term: int, count: int,
        wall_offset_s: float,
    ) -> None:  # fmt: skip
        self.config = config
        self.random = random
        self.counters = Counters()
        self.cluster = Cluster(config)
        self.term = term
        self.wall_offset_s = wall_offset_s
        self.now_s = 0.0
        self.out: list[Instruction] = []
        self.recovering = False
        self.fresh = False
        self.cluster_id = ""
        self.kept: frozenset[str] = frozenset()
        self.unseen: dict[str, tuple[SegmentRecord, ...]] = {}
        self.unlisted = self.unread = False
        self.attempts = 0
        self.drains: dict[str, Drain] = {}
        self.callers: dict[int, float] = {}
        self.leased_granules = 0
        self.claimed: dict[Extent, Window] = {}
        self.copying: dict[Stored, list[Copy]] = {}
        self._count = self._count_first = count
        self._token = 0

    def next_version(self) -> Version:
        """Return the number of a new attempt."""
        self._count += 1
        return make_version(self.term, self._count)

    @property
    def newest_version(self) -> Version:
        """Return the number of the newest attempt."""
        return make_version(self.term, self._count)

    @property
    def keeps(self) -> bool:
        """Whether what absent nodes still have to erase outlives this process by itself."""
        return "notes" in self.kept

    def next_token(self) -> int:
        """Return a token for a request to a node."""
        self._token += 1
        return self._token

    def raise_term(self, other: int) -> bool:
        """Make our term higher than one that was seen; return whether it had to be raised."""
        if other < self.term:
            return False
        self.term = other + 1
        self._count = self._count_first
        self.remember("reign", "", Reign(self.cluster_id, self.term))
        return True

    def remember(self, table: str, key: str, entry: Entry) -> None:
        """Have something kept over a restart before any reply that follows."""
        if table in self.kept:
            self.out.append(Remember(table, key, entry))

    def forget(self, table: str, key: str) -> None:
        """Have something kept no longer."""
        if table in self.kept:
            self.out.append(Forget(table, key))
