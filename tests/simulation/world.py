"""The whole cluster on one clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mooncake_master.core import CoreConfig
from mooncake_store.testing import Conditions, History, SeededNetwork, VirtualClock, seeded
from tests.simulation.client import SimClient
from tests.simulation.disk import Disk
from tests.simulation.master import SimMaster
from tests.simulation.node import SimNode

if TYPE_CHECKING:
    import random

    from tests.simulation.parts import Part

FAST = CoreConfig(
    lease_ttl_s=0.5,
    put_ttl_s=1.0,
    hold_s_max=5.0,
    heartbeat_s=0.1,
    suspect_after_s=0.4,
    dead_after_s=1.0,
    forget_after_s=30.0,
    recovery_grace_s=0.5,
    acknowledge_grace_s=0.3,
    probe_memory_s=1.0,
    store_patience_s=0.3,
    promote_window_s=6.0,
    suspicion_s=0.5,
    gone_keys_max=256,
    probes_max=64,
)
"""Everything that takes a time takes a tenth of it: a schedule of some seconds sees all of it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How large a cluster is.

    Attributes:
        nodes: Storage nodes.
        clients: Clients.
        extents_bytes: Pool of each node.
        config: Settings of the master.
        conditions: Of the network.
        has_data_directory: The master keeps there what no node can tell it; else the nodes do.
        disk_bytes: What the disk of each node holds; 0: there are none.
        disk_admits: Share of the extents that the disks' own policy takes.
    """

    nodes: int = 3
    clients: int = 3
    extents_bytes: int = 128 * 1024
    config: CoreConfig = FAST
    conditions: Conditions = field(default_factory=Conditions)
    has_data_directory: bool = True
    disk_bytes: int = 0
    disk_admits: float = 1.0


class World:
    """Clock, network, parts and history of one schedule."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.plan = plan
        self.random: random.Random = seeded(seed, "world")
        self.clock = VirtualClock()
        self.network = SeededNetwork(self.clock, seed, plan.conditions)
        self.history = History(self.clock)
        self.durable: set[int] = set()
        """Numbers of the writes that were acknowledged as durable."""
        self.master = SimMaster(self.network, seed, plan.config, keeps=plan.has_data_directory)
        self.nodes = {
            name: SimNode(
                self, name, plan.extents_bytes, self._disk(seed, name, plan), host=f"host-{number}"
            )
            for number, name in enumerate(f"node-{index}" for index in range(plan.nodes))
        }
        self._versions = 0
        self.local_writers: dict[tuple[int, int], str] = {}
        """{(incarnation, intent slot): client that holds it}"""
        self.clients = [
            SimClient(self, f"client-{number}", "default", host=f"host-{number}")
            for number in range(plan.clients)
        ]

    def _disk(self, seed: int, name: str, plan: Plan) -> Disk | None:
        """Return the disk of a node, if it has one."""
        if not plan.disk_bytes:
            return None
        return Disk(self.clock, seeded(seed, "disk", name), plan.disk_bytes, plan.disk_admits)

    def disks(self) -> list[Disk]:
        """Return all disks."""
        return [node.disk for node in self.nodes.values() if node.disk is not None]

    def parts(self) -> list[Part]:
        """Return every process."""
        return [self.master, *self.nodes.values(), *self.clients]

    def next_version(self) -> int:
        """Return a number that no payload has yet."""
        self._versions += 1
        return self._versions

    def is_writer_over(self, incarnation: int, slot: int) -> bool:
        """Return whether the local writer that holds an intent slot is dead."""
        return (incarnation, slot) not in self.local_writers

    def start(self) -> None:
        """Start everything."""
        for part in self.parts():
            part.begin_life()
