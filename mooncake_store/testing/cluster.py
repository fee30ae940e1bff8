"""A cluster of real processes on this machine, with faults on demand and an audit at the end."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from mooncake_store.errors import StoreError
from mooncake_store.testing.audit import SETTLE_S, audit
from mooncake_store.testing.process import Process, reaper
from mooncake_store.testing.proxy import FaultProxy
from mooncake_store.testing.sockets import free_port
from mooncake_store.testing.waiting import wait_until
from mooncake_store.testing.wire_client import WireClient
from mooncake_store.types import NodeState
from mooncake_store.wire import control

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

HOST: Final = "127.0.0.1"
READY_S_MAX: Final = 120.0
"""Time for all processes to start: each imports for a second on a slow and busy core, and for half
a minute on an emulated one."""

STATUS_S_MAX: Final = 20.0
"""Time for one answer that waits for nothing, on a machine that stands still at times."""

SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - a folder of its own is made in it
COMMAND: Final = (sys.executable, "-m", "mooncake_store")
"""How the store is started: the installation that this interpreter sees."""


class MasterProcess(Process):
    """The master.

    Attributes:
        port: Of its RPC; the same in every life.
        admin_port: Of its admin API.
    """

    def __init__(
        self, directory: Path, command: Sequence[str], options: Mapping[str, object]
    ) -> None:
        self.port = free_port(HOST)
        self.admin_port = free_port(HOST)
        words = {
            "bind": f"{HOST}:{self.port}",
            "admin-bind": f"{HOST}:{self.admin_port}",
            "data-dir": directory / "master",
        }
        super().__init__(
            "master", [*command, "master", *_flags({**words, **options})], directory / "master.log"
        )

    @property
    def address(self) -> str:
        """``host:port`` of the RPC."""
        return f"{HOST}:{self.port}"


class NodeProcess(Process):
    """One storage node.

    Attributes:
        port: Of its data path, behind the proxy if there is one.
        to_master: Proxy between this node and the master; None where they talk directly.
        data: Proxy between clients and this node's data port; None as above.
        ssd: Directory of its store; None where it has none.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        command: Sequence[str],
        options: Mapping[str, object],
        *,
        master: MasterProcess,
        proxied: bool,
    ) -> None:
        self.port = free_port(HOST)
        self.to_master = FaultProxy(HOST, master.port) if proxied else None
        self.data = FaultProxy(HOST, self.port) if proxied else None
        words: dict[str, object] = {
            "name": name,
            "master": self.to_master.address if self.to_master else master.address,
            "bind": f"{HOST}:{self.port}",
        }
        if self.data:
            words["advertise"] = self.data.address
        self.ssd: Path | None = None
        super().__init__(
            name, [*command, "node", *_flags({**words, **options})], directory / f"{name}.log"
        )

    def move(self) -> None:
        """Have the next life listen at another port; there must be no proxy before it."""
        assert self.data is None
        self.port = free_port(HOST)
        self.command[self.command.index("--bind") + 1] = f"{HOST}:{self.port}"

    def close_proxies(self) -> None:
        """End the proxies of this node."""
        for proxy in (self.to_master, self.data):
            if proxy is not None:
                proxy.close()


class ProcessCluster:
    """One master and some nodes, each a process of its own, on free ports of this machine.

        with ProcessCluster(nodes=2, node_options={"dram": "64MiB"}) as cluster:
            client = Client(cluster.address)
            cluster.nodes[0].kill()

    Entering starts everything and waits until all nodes serve. Leaving without an exception waits
    for quiet and audits the cluster (see ``audit``); leaving in any way ends every process and
    deletes every file and every piece of shared memory. An exception that passes through is given
    the ends of all logs as notes.

    With ``proxied`` there is a ``FaultProxy`` on every link: ``to_master`` and ``data`` of each
    node, and ``client_proxy`` between clients and the master. Shared memory does not pass through
    a proxy: use clients with ``transport="tcp"`` where the data path is to be disturbed.

    Attributes:
        directory: Where logs and files lie.
        memory: Where the nodes' shared memory lies.
        master: The master.
        nodes: The nodes, in the order in which they were added.
        client_proxy: Proxy between clients and master, or None.
    """

    def __init__(  # noqa: PLR0913 - keywords, all with defaults
        self,
        nodes: int = 2,
        *,
        master_options: Mapping[str, object] | None = None,
        node_options: Mapping[str, object] | None = None,
        ssd: str = "",
        proxied: bool = False,
        audited: bool = True,
        command: Sequence[str] = COMMAND,
    ) -> None:
        """Plan a cluster; nothing is started yet.

        Args:
            nodes: How many nodes.
            master_options: Flags of the master without their dashes, such as
                ``{"lease-ttl": "0.5s"}``; True for a flag that takes no value.
            node_options: Flags of every node.
            ssd: Size of a store that every node has on disk, such as ``64MiB``; empty: none.
            proxied: Put a proxy on every link.
            audited: Audit at the end.
            command: How the store is started.
        """
        self.directory = Path(tempfile.mkdtemp(prefix="mooncake-test-"))
        self.memory = Path(tempfile.mkdtemp(prefix="mooncake-test-", dir=SHARED_MEMORY))
        for path in (self.directory, self.memory):
            reaper().write(str(path))
        self.nodes: list[NodeProcess] = []
        self._command = command
        self._node_options = {
            "dram": "64MiB",
            "memory-root": self.memory,
            **(node_options or {}),
        }
        self._proxied = proxied
        self._ssd = ssd
        self._audited = audited
        self.master = MasterProcess(self.directory, command, master_options or {})
        self.client_proxy = FaultProxy(HOST, self.master.port) if proxied else None
        for _ in range(nodes):
            self._plan_node()

    # --- life -----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException as error:
            self._explain(error)
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None and self._audited:
                self.check()
        except BaseException as failure:
            self._explain(failure)
            raise
        finally:
            if error is not None:
                self._explain(error)
            self.close()

    def start(self) -> None:
        """Start everything and wait until it serves.

        Raises:
            AssertionError: It does not in time, or a process ended.
        """
        self.master.start()
        for node in self.nodes:
            node.start()
        self.wait_ready()

    def close(self) -> None:
        """End every process and proxy, and delete what they left."""
        for process in (*self.nodes, self.master):
            process.kill()
        for node in self.nodes:
            node.close_proxies()
        if self.client_proxy:
            self.client_proxy.close()
        for path in (self.directory, self.memory):
            shutil.rmtree(path, ignore_errors=True)

    def add_node(self, options: Mapping[str, object] | None = None) -> NodeProcess:
        """Start one more node, without waiting for it."""
        node = self._plan_node(options)
        node.start()
        return node

    def wait_ready(self, deadline_s: float = READY_S_MAX) -> None:
        """Wait until the master serves and knows every running node as live.

        Raises:
            AssertionError: That does not happen in time, or a process ended.
        """

        def ready() -> bool:
            for process in (self.master, *self.nodes):
                if process.lives and process.exit_code not in {None, -signal.SIGKILL}:
                    raise AssertionError(f"{process.name} ended with {process.exit_code}")
            expected = {node.name for node in self.nodes if node.is_running}
            live = {
                node.record.name
                for node in self.status().nodes
                if node.record.state == NodeState.LIVE
            }
            return live >= expected

        wait_until(ready, deadline_s, what="all nodes are live", ignoring=(StoreError,))

    # --- looking at it --------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Address of the master for clients: the proxy's, if there is one."""
        return self.client_proxy.address if self.client_proxy else self.master.address

    def wire(self, *, deadline_s: float = 5.0) -> WireClient:
        """Return a new control connection to the master, not through the proxy."""
        return WireClient(HOST, self.master.port, deadline_s=deadline_s)

    def status(self) -> control.ClusterStatus:
        """Ask the master for the state of everything."""
        with self.wire(deadline_s=STATUS_S_MAX) as wire:
            status: control.ClusterStatus = wire.ask(control.DescribeCluster())
            return status

    def node_status(self, name: str) -> control.NodeStatus | None:
        """Return what the master believes of a node, or None where it knows none of that name."""
        return next((node for node in self.status().nodes if node.record.name == name), None)

    def admin(self, path: str, *, method: str = "GET", deadline_s: float = 10.0) -> Any:  # noqa: ANN401 - whatever JSON there is
        """Ask the admin API; return its JSON, or its text where that is none.

        Raises:
            urllib.error.HTTPError: It answers with a status of 400 or more.
        """
        request = urllib.request.Request(
            f"http://{HOST}:{self.master.admin_port}{path}", method=method
        )
        with urllib.request.urlopen(request, timeout=deadline_s) as answer:  # noqa: S310 - as above
            text = answer.read().decode()
        try:
            return json.loads(text)
        except ValueError:
            return text

    def metrics(self) -> dict[str, float]:
        """Return {name with labels: value} of the master's metrics."""
        return parse_metrics(str(self.admin("/metrics")))

    def check(self) -> None:
        """Audit the cluster.

        Raises:
            AssertionError: Something does not add up; the message lists all of it.
        """
        if self.master.is_running:
            audit(lambda: self.wire(deadline_s=SETTLE_S))

    def _plan_node(self, options: Mapping[str, object] | None = None) -> NodeProcess:
        name = f"node-{len(self.nodes) + 1}"
        disk: dict[str, object] = {}
        directory = self.directory / "ssd" / name if self._ssd else None
        if directory is not None:
            directory.mkdir(parents=True)
            disk["ssd"] = f"{directory}:{self._ssd}"
        node = NodeProcess(
            name,
            self.directory,
            self._command,
            {**self._node_options, **disk, **(options or {})},
            master=self.master,
            proxied=self._proxied,
        )
        node.ssd = directory
        self.nodes.append(node)
        return node

    def _explain(self, error: BaseException) -> None:
        for process in (self.master, *self.nodes):
            if process.lives:
                error.add_note(process.log_tail())


def parse_metrics(text: str) -> dict[str, float]:
    """Return {name with labels: value} of a page in the Prometheus text format."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def _flags(options: Mapping[str, object]) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", str(value)]
    return words
