"""How much memory a workload needs: its requests against the real core, without any bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mooncake_master.core.config import CoreConfig
from mooncake_master.core.instructions import Fail, Instruct, Reply
from mooncake_master.core.master import Master
from mooncake_store.errors import InternalError
from mooncake_store.limits import BATCH_KEYS_MAX, GRANULE_BYTES
from mooncake_store.wire.control import (
    CommitItem,
    Done,
    Exists,
    ExistsReply,
    Freed,
    FreeExtents,
    Locate,
    NamespaceRecord,
    OpenNamespace,
    PutCommit,
    PutGrant,
    PutItem,
    PutStart,
    PutStarted,
    Register,
    SegmentRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mooncake_master.core.instructions import Instruction
    from mooncake_store.wire.control import Message

CLIENT, NODE = 1, 2
NOW_S = 1.0
DEADLINE_S = 10.0
UNLIMITED_BLOCKS = 1 << 32
"""Blocks of a pool that never fills: 2 TiB of one granule each, which nobody allocates."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a pool of some capacity would have answered.

    Attributes:
        requests: Requests replayed.
        blocks: Blocks they looked up.
        block_hits: Of those, the ones that were there.
        prefix_hits: Of those, the ones in an unbroken run from the request's first block.
        evictions: Blocks that had to go.
    """

    requests: int
    blocks: int
    block_hits: int
    prefix_hits: int
    evictions: int

    @property
    def block_hit_rate(self) -> float:
        """Share of looked-up blocks that were there."""
        return self.block_hits / self.blocks if self.blocks else 0.0

    @property
    def prefix_hit_rate(self) -> float:
        """Share of looked-up blocks that were there with all before them."""
        return self.prefix_hits / self.blocks if self.blocks else 0.0


class _Pool:
    """A master with one imaginary node of equal blocks."""

    def __init__(self, capacity_blocks: int, policy: str) -> None:
        config = CoreConfig(
            lease_ttl_s=0.0, high_watermark=1.0, low_watermark=1.0, policy=policy,
            recovery_grace_s=0.0, pinned_share_max=0.0, gone_keys_max=1,
        )  # fmt: skip
        self._master = Master(config)
        segment = SegmentRecord(1, capacity_blocks * GRANULE_BYTES)
        self._ask(Register("node", "0" * 32, "", 0, "", {}, (segment,)), peer=NODE)
        space = self._ask(OpenNamespace("capacity"))
        assert isinstance(space, NamespaceRecord)
        self._slot, self._epoch = space.slot, space.epoch
        self._run_max = min(BATCH_KEYS_MAX, capacity_blocks)  # one call cannot put more than fits

    @property
    def evictions(self) -> int:
        """Blocks evicted so far."""
        return self._master.statistics().counters["mooncake_master_evicted_replicas_total"]

    def request(self, keys: list[str]) -> tuple[int, int]:
        """Touch or put blocks one after the other; return hits, and hits before the first miss.

        Runs of blocks that are there, or are missing, are one call each; what comes after a run
        is looked at again, since putting the missing ones may have evicted some of it.
        """
        hits = prefix = at = 0
        while at < len(keys):
            part = keys[at : at + self._run_max]
            found = self._ask(Exists(self._slot, self._epoch, part))
            assert isinstance(found, ExistsReply)
            end = found.found.find(not found.found[0])
            run = part if end < 0 else part[:end]
            if found.found[0]:
                self._ask(Locate(self._slot, self._epoch, run))
                prefix += len(run) if hits == at else 0
                hits += len(run)
            else:
                self.insert(run)
            at += len(run)
        return hits, prefix

    def insert(self, keys: list[str]) -> None:
        """Put blocks that are not there."""
        items = [PutItem(key, 0) for key in keys]
        started = self._ask(PutStart(self._slot, self._epoch, items))
        assert isinstance(started, PutStarted)
        commits = [CommitItem(item.version, 1) for item in started.items
                   if isinstance(item, PutGrant)]  # fmt: skip
        self._ask(PutCommit(commits))

    def _ask(self, message: Message, peer: int = CLIENT) -> Message:
        """Have a request handled, and do at once what a node would be asked to."""
        waiting = self._master.handle(peer, 0, message, DEADLINE_S, NOW_S)
        reply: Message | None = None
        while waiting:
            following: list[Instruction] = []
            for instruction in waiting:
                if isinstance(instruction, Reply):
                    reply = instruction.message
                elif isinstance(instruction, Fail):
                    raise instruction.error
                elif isinstance(instruction, Instruct):
                    order = instruction.message
                    done: Message = Done()
                    if isinstance(order, FreeExtents):
                        done = Freed(b"\1" * len(order.items))
                    following += self._master.node_replied(NODE, instruction.token, done, NOW_S)
            waiting = following
        if reply is None:
            raise InternalError(f"a {type(message).__name__} was not answered")
        return reply


def simulate_capacity(
    requests: Iterable[Sequence[int]], capacity_blocks: int | None, policy: str = "lru"
) -> Capacity:
    """Replay requests against a pool of equal blocks and count hits.

    Each request is the chain of its block ids, first block first. Blocks are touched in that
    order; those that are missing are put; room is made on demand by the policy.

    Args:
        requests: Block ids of each request.
        capacity_blocks: Blocks that the pool holds; None: all of them.
        policy: Order of eviction.
    """
    pool = _Pool(UNLIMITED_BLOCKS if capacity_blocks is None else capacity_blocks, policy)
    count = blocks = block_hits = prefix_hits = 0
    for ids in requests:
        count += 1
        keys = [str(number) for number in ids]
        hits, prefix = pool.request(keys)
        blocks += len(keys)
        block_hits += hits
        prefix_hits += prefix
    return Capacity(count, blocks, block_hits, prefix_hits, pool.evictions)
