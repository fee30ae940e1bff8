"""Several masters, some nodes, an etcd; a proxy on every way to and from a master."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from mooncake_store.errors import StoreError
from mooncake_store.testing import (
    BlackHole,
    FaultProxy,
    Process,
    WireClient,
    audit,
    free_port,
    wait_until,
)
from mooncake_store.testing.audit import SETTLE_S
from mooncake_store.testing.cluster import COMMAND
from mooncake_store.types import NodeState
from mooncake_store.wire import control
from tests.integration.ha.etcd import HOST, Etcd

if TYPE_CHECKING:
    from types import TracebackType

LEASE_S: Final = 4.0
"""Tests wait for its end. Shorter: a machine that stands still for a second or two loses leaders
that no test has taken away."""

PATIENT_LEASE_S: Final = 10.0
"""Where a leader has to stay one while etcd is away: a new process of etcd takes seconds to answer
on a busy machine."""

TAKE_OVER_S_MAX: Final = 60.0
"""Time from the loss of a leader to the first successful read, on a machine that is ever so busy.
How long it takes is shown and not asserted (docs/adr/0062)."""


class HaMaster(Process):
    """One of the masters.

    Attributes:
        front: Proxy that nodes, clients and the other masters' hints go through.
        to_etcd: Proxies on its ways to the members of etcd.
        admin_port: Of its admin API, not through a proxy.
    """

    def __init__(self, name: str, directory: Path, etcd: Etcd, lease_s: float) -> None:
        self.port, self.admin_port = free_port(HOST), free_port(HOST)
        self.front = FaultProxy(HOST, self.port)
        self.to_etcd = [FaultProxy(HOST, member.port) for member in etcd.members]
        words = {
            "bind": f"{HOST}:{self.port}",
            "admin-bind": f"{HOST}:{self.admin_port}",
            "advertise": self.front.address,
            "ha": "etcd://" + ",".join(proxy.address for proxy in self.to_etcd),
            "ha-lease": f"{lease_s:g}s",
            "lease-ttl": "0.3s",
        }
        flags = [word for option, value in words.items() for word in (f"--{option}", value)]
        super().__init__(name, [*COMMAND, "master", *flags], directory / f"{name}.log")

    @property
    def address(self) -> str:
        """Where others reach it."""
        return self.front.address

    def admin(self, path: str) -> tuple[int, Any]:
        """Ask the admin API; return status and JSON."""
        try:
            url = f"http://{HOST}:{self.admin_port}{path}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def leads(self) -> bool:
        """Whether it answers requests, asked not through the proxy."""
        try:
            with WireClient(HOST, self.port, deadline_s=0.5) as wire:
                wire.ask(control.DescribeCluster())
        except StoreError:
            return False
        return True

    def vanish(self) -> None:
        """Have the network swallow everything that goes to it or comes from it."""
        for proxy in (self.front, *self.to_etcd):
            proxy.set(BlackHole())

    def come_back(self) -> None:
        """Undo `vanish`; what was under way on old connections stays lost."""
        for proxy in (self.front, *self.to_etcd):
            proxy.heal()
            proxy.drop_connections()

    def close(self) -> None:
        """End it and its proxies."""
        self.kill()
        for proxy in (self.front, *self.to_etcd):
            proxy.close()


class Pool:
    """Everything, started on entering and ended on leaving."""

    def __init__(
        self, *, masters: int = 2, nodes: int = 1, members: int = 1, lease_s: float = LEASE_S
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="mooncake-ha-"))
        self.memory = Path(tempfile.mkdtemp(prefix="mooncake-ha-", dir="/dev/shm"))
        # In memory: it syncs each renewal of a lease, and a busy disk takes seconds for that.
        self.records = Path(tempfile.mkdtemp(prefix="mooncake-ha-etcd-", dir="/dev/shm"))
        self.etcd = Etcd(self.records, members)
        self.masters = [
            HaMaster(f"master-{number}", self.directory, self.etcd, lease_s)
            for number in range(1, masters + 1)
        ]
        self.nodes = [self._plan_node(f"node-{number}") for number in range(1, nodes + 1)]

    @property
    def address(self) -> str:
        """What clients are given."""
        return ",".join(master.address for master in self.masters)

    def __enter__(self) -> Self:
        try:
            self.etcd.start()
            for process in (*self.masters, *self.nodes):
                process.start()
            self.wait_ready()
        except BaseException as error:
            self.explain(error)
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
            if error is None:
                self.check()
        except BaseException as failure:
            self.explain(failure)
            raise
        finally:
            if error is not None:
                self.explain(error)
            self.close()

    def check(self) -> None:
        """Make the pool whole and audit what its leader says, as ``ProcessCluster.check``."""
        self.restore()
        audit(lambda: WireClient(HOST, self.leader().port, deadline_s=SETTLE_S))

    def close(self) -> None:
        """End everything and delete what it left."""
        for node in self.nodes:
            node.kill()
        for master in self.masters:
            master.close()
        self.etcd.kill()
        for folder in (self.directory, self.memory, self.records):
            shutil.rmtree(folder, ignore_errors=True)

    def explain(self, error: BaseException) -> None:
        """Add the ends of all logs to an error."""
        for process in (*self.masters, *self.nodes, *self.etcd.members):
            if process.lives:
                error.add_note(process.log_tail())

    # --- who leads ------------------------------------------------------------------------------

    def leader(self) -> HaMaster:
        """Return the master that leads, when there is one."""
        found = wait_until(
            lambda: next((m for m in self.masters if m.is_running and m.leads()), None),
            TAKE_OVER_S_MAX,
            what="a master leads",
        )
        assert found is not None
        return found

    def others(self, leader: HaMaster) -> list[HaMaster]:
        """Return the other masters."""
        return [master for master in self.masters if master is not leader]

    def status(self) -> control.ClusterStatus:
        """Ask the leader for the state of everything."""
        with WireClient(HOST, self.leader().port) as wire:
            status: control.ClusterStatus = wire.ask(control.DescribeCluster())
            return status

    def wait_ready(self, deadline_s: float = TAKE_OVER_S_MAX) -> None:
        """Wait until every master runs and knows who leads, and every node is live."""

        def ready() -> bool:
            roles = [master.admin("/api/v1/cluster")[1] for master in self.masters]
            if [role["role"] for role in roles].count("leader") != 1:
                return False
            if not all(role["leader"] for role in roles if role["role"] == "standby"):
                return False
            live = [n for n in self.status().nodes if n.record.state == NodeState.LIVE]
            return len(live) == len(self.nodes)

        wait_until(ready, deadline_s, what="the pool is whole", ignoring=(StoreError, OSError))

    def restore(self) -> None:
        """Make the pool whole again after a test."""
        for node in self.nodes:
            node.resume()
            if not node.is_running:
                node.start()
        for member in self.etcd.members:
            member.resume()
            if not member.is_running:
                member.start()
        self.etcd.wait_healthy()
        for master in self.masters:
            master.resume()
            master.come_back()
            if not master.is_running:
                master.start()
        self.wait_ready()

    def _plan_node(self, name: str) -> Process:
        words = {
            "name": name,
            "bind": f"{HOST}:{free_port(HOST)}",
            "master": self.address,
            "dram": "32MiB",
            "memory-root": str(self.memory),
        }
        flags = [word for option, value in words.items() for word in (f"--{option}", value)]
        return Process(name, [*COMMAND, "node", *flags], self.directory / f"{name}.log")


class Witness:
    """Asks all masters again and again whether they lead, and notes when two did at one time.

    A master that answered before another one was asked, and again after it, led all the while.
    """

    def __init__(self, pool: Pool) -> None:
        self.problems: list[str] = []
        self.rounds = 0
        self._pool = pool
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(30.0)

    def _watch(self) -> None:
        one, other = self._pool.masters[:2]
        while not self._ending.is_set():
            if one.leads() and other.leads() and one.leads():
                self.problems.append(f"two masters led {time.monotonic():.3f}")
            self.rounds += 1
            self._ending.wait(0.02)
