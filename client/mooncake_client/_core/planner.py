"""Which replica to read: the cheapest live one, with batches spread over equals."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mooncake_client._core.cluster import Reach

if TYPE_CHECKING:
    from collections.abc import Collection

    from mooncake_client._core.breaker import Breakers
    from mooncake_client._core.cluster import Cluster
    from mooncake_store.wire.control import NodeRecord, Replica

Place = tuple[int, int]
"""(incarnation, offset): where one copy lies."""


class Choice(NamedTuple):
    """The replica to read next."""

    replica: Replica
    node: NodeRecord
    reach: Reach
    has_others: bool
    """Whether another one could be read instead, so that this one need not be waited for long."""


class Planner:
    """Chooses replicas for one round of one operation.

    Attributes:
        loads: {node index: bytes that this round reads from it}.
    """

    __slots__ = ("_breakers", "_cluster", "_now_s", "_verdicts", "loads")

    def __init__(self, cluster: Cluster, breakers: Breakers, now_s: float) -> None:
        self._cluster = cluster
        self._breakers = breakers
        self._now_s = now_s
        self._verdicts: dict[str, bool] = {}
        self.loads: dict[int, int] = {}

    def choose(
        self, replicas: tuple[Replica, ...], size: int, refused: Collection[Place] = ()
    ) -> Choice | None:
        """Return the replica to read ``size`` bytes from; None: there is none to try now.

        A faster tier comes before a nearer node: reading memory over the network costs less than
        waiting for a disk.
        """
        best: tuple[int, int, int] | None = None
        chosen: tuple[Replica, NodeRecord, Reach] | None = None
        candidates = 0
        for replica in replicas:
            found = self._usable(replica, refused)
            if found is None:
                continue
            candidates += 1
            node, reach = found
            cost = (replica.tier, reach, self.loads.get(node.index, 0))
            if best is None or cost < best:
                best, chosen = cost, (replica, node, reach)
        if chosen is None:
            return None
        index = chosen[1].index
        if index not in self.loads:
            self._breakers.tries(chosen[1].node_id, self._now_s)
        self.loads[index] = self.loads.get(index, 0) + size
        return Choice(*chosen, candidates > 1)

    def _usable(
        self, replica: Replica, refused: Collection[Place]
    ) -> tuple[NodeRecord, Reach] | None:
        if refused and (replica.incarnation, replica.offset) in refused:
            return None
        node = self._cluster.node_of(replica.incarnation)
        if node is None or not self._allows(node.node_id):
            return None
        reach = self._cluster.reach_of(node, replica.incarnation)
        return None if reach is Reach.NONE else (node, reach)

    def _allows(self, node_id: str) -> bool:
        """Ask the breaker once a round.

        Only the node that is chosen is told to be tried: the others are for the next round, should
        it fail.
        """
        verdict = self._verdicts.get(node_id)
        if verdict is None:
            verdict = self._verdicts[node_id] = self._breakers.would_allow(node_id, self._now_s)
        return verdict
