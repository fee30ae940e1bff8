"""A cluster of processes on this machine: one master, some nodes, started and stopped together."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from mooncake_client._cli.children import Children, ProcessFailed
from mooncake_client._cli.memory_folder import MEMORY_ROOT, memory_folder
from mooncake_client._cli.options import ClientSettings
from mooncake_client._cli.target import connect
from mooncake_store.errors import PeerError
from mooncake_store.limits import MIB
from mooncake_store.types import NodeState
from mooncake_store.units import format_bytes

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from types import TracebackType

    from mooncake_client._cli.children import Child
    from mooncake_store.wire.control import NodeStatus

READY_S_MAX: Final = 120.0
"""Time for all processes to be up and known to the master: each imports for half a second on a
slow core, for half a minute on an emulated one, and a large pool has its page tables to make. One
that ends before is noticed at once."""

HOST: Final = "127.0.0.1"

_READY: Final = re.compile(r"master ready: rpc=(?P<rpc>\S+) .*admin=(?P<admin>\S+)")
_POLL_S: Final = 0.05


_ROOM_SHARE: Final = 0.8
"""Share of the free shared memory that a cluster takes at most: what is around the extents, and
whoever else needs some."""


def fitting_dram(wanted_bytes: int, nodes: int) -> int:
    """Return how much memory each node can pool on this machine: what is wanted, or less.

    Containers often have 64 MiB of shared memory; a cluster for trying things out runs there, too.
    """
    try:
        place = os.statvfs(MEMORY_ROOT)
    except OSError:
        return wanted_bytes  # its node will say what is wrong
    room = int(_ROOM_SHARE * place.f_bavail * place.f_frsize) // nodes
    return max(MIB, min(wanted_bytes, room // MIB * MIB))


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What to start.

    Attributes:
        nodes: How many storage nodes.
        dram_bytes: Memory that each of them pools.
        port: Of the master; 0 takes a free one.
        admin_port: Of its admin API; 0 takes a free one.
        ssd_bytes: Disk that each node takes, in a folder that is deleted at the end; 0: none.
    """

    nodes: int
    dram_bytes: int
    port: int = 0
    admin_port: int = 0
    ssd_bytes: int = 0


class LocalCluster:
    """A cluster that lives as long as its block; then every process ends and its memory is freed.

    Attributes:
        master: Address of the master for clients, known once it was started.
        admin: Address of its admin API, likewise.
    """

    def __init__(self, plan: ClusterPlan, show: Callable[[str, str], None]) -> None:
        """Plan it; ``show(process, line)`` gets what the processes write."""
        self._plan = plan
        self._stack = contextlib.ExitStack()
        self._children = Children(show)
        self.master = ""
        self.admin = ""

    def start(self, stop: threading.Event) -> list[NodeStatus]:
        """Start everything and return the nodes when all of them serve.

        Args:
            stop: Ends the wait early; fewer nodes are returned then.

        Raises:
            ProcessFailed: A process ended, or they did not all serve in time.
        """
        until_s = time.monotonic() + READY_S_MAX
        plan = self._plan
        # A folder of its own: clusters do not meet each other's nodes, and nothing outlives them.
        memory = self._stack.enter_context(memory_folder())
        words = f"master --bind {HOST} --port {plan.port} --admin-bind {HOST}"
        words += f" --admin-port {plan.admin_port}"
        master = self._children.start("master", words.split())
        while not self._knows_master(master):
            if not self._goes_on(stop, until_s):
                return []
        for number in range(1, plan.nodes + 1):
            words = f"node --master {self.master} --name node-{number} --memory-root {memory}"
            words += f" --dram {format_bytes(plan.dram_bytes)} --drain-timeout 0s"
            self._children.start(f"node-{number}", [*words.split(), *self._disk()])
        while len(nodes := self._live_nodes()) < plan.nodes and self._goes_on(stop, until_s):
            pass
        return sorted(nodes, key=lambda node: node.record.name)

    def _disk(self) -> list[str]:
        """Return the words that give a node its disk, if it is to have one."""
        if not self._plan.ssd_bytes:
            return []
        folder = tempfile.TemporaryDirectory(
            prefix="mooncake-store-up-", ignore_cleanup_errors=True
        )
        path = self._stack.enter_context(folder)
        return ["--ssd", f"{path}:{format_bytes(self._plan.ssd_bytes)}"]

    def check(self) -> None:
        """Make sure that everything runs.

        Raises:
            ProcessFailed: A process has ended; the message says which, and its last words.
        """
        if dead := self._children.first_dead():
            raise ProcessFailed(dead)

    def pids(self) -> dict[str, int]:
        """Return {process: its id}."""
        return self._children.pids()

    def stop(self) -> list[str]:
        """Stop everything; return the processes that had to be killed. Idempotent."""
        with self._stack:
            return self._children.stop()

    def _goes_on(self, stop: threading.Event, until_s: float) -> bool:
        """Wait a moment; return whether there is something to wait for."""
        self.check()
        if time.monotonic() > until_s:
            raise ProcessFailed(f"the cluster was not ready within {READY_S_MAX:g} s")
        return not stop.wait(_POLL_S)

    def _knows_master(self, master: Child) -> bool:
        ready = _READY.match(master.first_line("master ready:") or "")
        if ready:
            self.master, self.admin = ready["rpc"], ready["admin"]
        return ready is not None

    def _live_nodes(self) -> list[NodeStatus]:
        settings = ClientSettings(master=self.master, deadline_s=1.0)
        # The caller looks again until all are live, or says in time that they are not.
        with contextlib.suppress(PeerError), connect(settings) as client:
            nodes = client.describe_cluster().nodes
            return [node for node in nodes if node.record.state == NodeState.LIVE]
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
