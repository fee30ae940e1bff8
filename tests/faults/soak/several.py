"""Three masters over a real etcd, with nodes, as one ``ProcessCluster`` that a soak can harm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_store.errors import StoreError, Unreachable
from mooncake_store.testing import ProcessCluster, WireClient, audit, wait_until
from mooncake_store.testing.cluster import COMMAND, HOST, READY_S_MAX, MasterProcess
from mooncake_store.types import NodeState
from mooncake_store.wire.control import DescribeCluster
from tests.integration.ha.etcd import Etcd

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MASTERS: Final = 3
LEASE_S: Final = 4
"""Twice the shortest one: what a busy machine takes from a leader is not this soak's subject."""

ASK_S_MAX: Final = 0.3
"""Longest time that one master may take to say whether it leads."""


class _Master(MasterProcess):
    """One of several masters; what outlives it lies in etcd, so it has no data directory."""

    def __init__(
        self, number: int, directory: Path, options: Mapping[str, object], etcd: Etcd
    ) -> None:
        name = f"master-{number}"
        members = ",".join(f"{HOST}:{member.port}" for member in etcd.members)
        ha = {"ha": f"etcd://{members}", "ha-lease": f"{LEASE_S}s", "data-dir": None}
        (directory / name).mkdir()
        super().__init__(directory / name, COMMAND, {**options, **ha})
        self.name = name


class SeveralMasters(ProcessCluster):
    """Masters of which one leads.

    Attributes:
        etcd: One member, which keeps its data over its lives.
        masters: All of them; ``master`` is the one that led when somebody asked last.
    """

    def __init__(
        self,
        nodes: int,
        *,
        master_options: Mapping[str, object],
        node_options: Mapping[str, object],
        ssd: str,
    ) -> None:
        super().__init__(0, node_options=node_options, ssd=ssd)
        self.etcd = Etcd(self.directory)
        self.masters = [
            _Master(number, self.directory, master_options, self.etcd)
            for number in range(1, MASTERS + 1)
        ]
        self.master = self.masters[0]
        for _ in range(nodes):
            self._plan_node({"master": self.address})

    @property
    def address(self) -> str:
        """Addresses of all masters."""
        return ",".join(master.address for master in self.masters)

    def start(self) -> None:
        """Start everything and wait until it serves."""
        self.etcd.start()
        for process in (*self.masters, *self.nodes):
            process.start()
        self.wait_ready()

    def close(self) -> None:
        """End every process, and delete what they left."""
        for node in self.nodes:
            node.kill()
        for process in (*self.masters, *self.etcd.members):
            process.kill()
        super().close()

    def wire(self, *, deadline_s: float = 5.0) -> WireClient:
        """Return a new control connection to the master that leads.

        Raises:
            Unreachable: None does now.
        """
        for master in sorted(self.masters, key=lambda each: each is not self.master):
            try:
                with WireClient(HOST, master.port, deadline_s=ASK_S_MAX) as wire:
                    wire.ask(DescribeCluster())
                connected = WireClient(HOST, master.port, deadline_s=deadline_s)
            except StoreError:
                continue  # It is away, or stands by.
            self.master = master
            return connected
        raise Unreachable("no master leads")

    def wait_ready(self, deadline_s: float = READY_S_MAX) -> None:
        """Wait until etcd is well, every master runs, one leads, and all nodes are live."""
        self.etcd.wait_healthy()

        def ready() -> bool:
            for process in (*self.masters, *self.nodes):
                if not process.is_running:
                    raise AssertionError(f"{process.name} ended with {process.exit_code}")
            nodes = self.status().nodes
            live = {each.record.name for each in nodes if each.record.state == NodeState.LIVE}
            return live >= {node.name for node in self.nodes}

        wait_until(ready, deadline_s, what="all nodes are live", ignoring=(StoreError,))

    def check(self) -> None:
        """Audit what the leader says, as ``ProcessCluster.check``."""
        audit(self.wire)

    def _explain(self, error: BaseException) -> None:
        for process in (*self.etcd.members, *self.masters, *self.nodes):
            if process.lives:
                error.add_note(process.log_tail())
