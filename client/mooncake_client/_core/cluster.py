"""The nodes as this client knows them: which holds a segment, and how it is reached."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from mooncake_store.types import NodeState, Tier

if TYPE_CHECKING:
    from mooncake_store.wire.control import Membership, NodeRecord


class Reach(enum.IntEnum):
    """How a node is reached, cheapest first."""

    SHARED = 0
    """Proved to be on this host by exchanging descriptors."""
    NETWORK = 1
    NONE = 2
    """Not by the transports this client may use."""


class Cluster:
    """Membership, and what was proved about each node.

    Updates replace whole dictionaries, so threads that share one see a membership before or after.

    Attributes:
        number: Of the membership held; -1 before the first.
        near: Indices of nodes reached through shared memory, for the master's placement.
        disks: Incarnations of stores on disk; they are read over the network on every host.
    """

    __slots__ = (
        "_by_incarnation",
        "_by_index",
        "_embedded",
        "_has_untried",
        "_network",
        "_shared",
        "_tried",
        "disks",
        "near",
        "number",
    )

    def __init__(
        self, *, shared: bool = True, network: bool = True, embedded: bool = False
    ) -> None:
        """Take what the client may use: shared memory, the network, or both; or its own memory."""
        self._embedded = embedded
        self._shared = shared
        self._network = network
        self._by_index: dict[int, NodeRecord] = {}
        self._by_incarnation: dict[int, NodeRecord] = {}
        self._tried: dict[tuple[object, ...], bool] = {}
        self._has_untried = False
        self.number = -1
        self.near: tuple[int, ...] = ()
        self.disks: frozenset[int] = frozenset()

    def update(self, membership: Membership) -> None:
        """Take over a membership from a reply."""
        nodes = {node.index: node for node in membership.nodes}
        self._by_incarnation = {
            segment.incarnation: node for node in membership.nodes for segment in node.segments
        }
        self._by_index = nodes
        self.disks = frozenset(
            segment.incarnation
            for node in membership.nodes
            for segment in node.segments
            if segment.tier != Tier.DRAM
        )
        known = {_proof(node) for node in membership.nodes}
        self._tried = {proof: found for proof, found in self._tried.items() if proof in known}
        self.number = membership.number
        self._update_near()

    def forget(self) -> None:
        """Start again with another master."""
        self.number = -1
        self._by_index = {}
        self._by_incarnation = {}
        self.disks = frozenset()
        self._tried = {}
        self._update_near()

    @property
    def nodes(self) -> list[NodeRecord]:
        """Every known node."""
        return list(self._by_index.values())

    def node_of(self, incarnation: int) -> NodeRecord | None:
        """Return the node that has this segment."""
        return self._by_incarnation.get(incarnation)

    def reach(self, node: NodeRecord) -> Reach:
        """Return the cheapest way to ``node``."""
        if self._embedded or node.index in self.near:
            return Reach.SHARED
        return Reach.NETWORK if self._network and node.port else Reach.NONE

    def reach_of(self, node: NodeRecord, incarnation: int) -> Reach:
        """Return the cheapest way to what one segment of ``node`` holds.

        A disk is reached through its node's data port, also where the node's memory is at hand and
        the network is not to be used: nobody leaves this host for that.
        """
        if incarnation not in self.disks:
            return self.reach(node)
        may = self._network or node.index in self.near
        return Reach.NETWORK if may and node.port else Reach.NONE

    @property
    def has_several(self) -> bool:
        """Whether another node could take what one does not."""
        return len(self._by_index) > 1

    @property
    def is_shared_only(self) -> bool:
        """Whether nodes of other hosts are out of reach by choice."""
        return not self._network

    @property
    def has_untried(self) -> bool:
        """Whether ``untried`` would return anything."""
        return self._has_untried

    def untried(self) -> list[NodeRecord]:
        """Return the nodes that offer shared memory and were not asked for it yet."""
        if not self._shared:
            return []
        return [
            node
            for node in self._by_index.values()
            if node.local_path and node.state != NodeState.DEAD and _proof(node) not in self._tried
        ]

    def attached(self, node: NodeRecord, *, found: bool) -> None:
        """Note whether a node proved to be on this host."""
        self._tried[_proof(node)] = found
        self._update_near()

    def detach(self, node: NodeRecord) -> None:
        """Have a node asked again: its shared memory stopped working."""
        self._tried.pop(_proof(node), None)
        self._update_near()

    def _update_near(self) -> None:
        self.near = tuple(
            index for index, node in self._by_index.items() if self._tried.get(_proof(node))
        )
        self._has_untried = bool(self.untried())


def _proof(node: NodeRecord) -> tuple[object, ...]:
    """What an exchange of descriptors proved something about: new memory needs a new one."""
    memory = tuple(s.incarnation for s in node.segments if s.tier == Tier.DRAM)
    return node.node_id, node.local_path, memory
