"""Puts a storage node together: memory, data port, local socket, membership. No decisions here."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.copier import Copier
from mooncake_storage_node.core.directory import landed
from mooncake_storage_node.data_server import DataLimits, DataServer
from mooncake_storage_node.deadlines import Deadlines
from mooncake_storage_node.dram import NodeFolder, Pool, open_pool
from mooncake_storage_node.leaving import leave
from mooncake_storage_node.listening import advertised_host, listen, listening_on
from mooncake_storage_node.local_server import LocalServer, WriterWatch
from mooncake_storage_node.master_link import MasterLink, Masters
from mooncake_storage_node.membership import Load, Membership
from mooncake_storage_node.node_view import NodeView
from mooncake_storage_node.notebook import Notebook
from mooncake_storage_node.obedience import Obedience
from mooncake_storage_node.rdma_ports import open_ports
from mooncake_storage_node.reports import DropReports
from mooncake_storage_node.scrub import Scrubber
from mooncake_storage_node.store_orders import StoreOrders
from mooncake_storage_node.stores import Stores
from mooncake_storage_node.writes import IncomingWrites
from mooncake_store.errors import ConfigError, InternalError, NotSupported, Unreachable
from mooncake_store.units import format_bytes
from mooncake_store.wire.address import Address, parse_address
from mooncake_store.wire.control import Register, SegmentRecord
from mooncake_store.wire.data import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_storage_node.node_view import DataCounters
    from mooncake_storage_node.settings import NodeSettings

logger = logging.getLogger(__name__)

_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})

FILES_RESERVED: Final = 128
"""Descriptors kept for everything that is no data connection."""

SWITCH_S: Final = 0.0005
"""Time that a thread keeps the interpreter while another one waits for it. Python's own 5 ms were
seen whole in reads of memory while records for an index were packed; shorter, and the threads pass
it on more often than they work with it."""


class StorageNode:
    """One storage node in this process.

    Attributes:
        settings: How it runs.
        folder: Its folder, and with it name and identity.
        pool: Its memory.
        data: Its data port.
        local: Its local socket.
        copier: Copies extents to it.
        stores: What it has on disks.
        reports: Tells the master what the stores gave up, and what was found damaged.
        scrubber: Verifies what lies here.
        membership: Its place in the cluster.
    """

    def __init__(self, settings: NodeSettings) -> None:
        """Take memory and ports; ``start`` serves.

        Raises:
            ConfigError: Something cannot be had; the message names the option.
        """
        self.settings = settings
        with ExitStack() as undo:
            self.folder = NodeFolder(Path(settings.memory_root), settings.name)
            undo.callback(self.folder.undo)
            self.pool = open_pool(self.folder.path / "segment", settings.dram)
            _prepare(self.pool, settings)
            segment = self.pool.segment
            segments = {segment.incarnation: segment}
            incoming = IncomingWrites()
            self._watch = WriterWatch(self.pool)
            self._incoming = incoming
            self.deadlines = Deadlines()
            self.stores = Stores(settings.store_plans(), settings.store_options(), self.folder.path)
            orders = StoreOrders(self.stores, self.deadlines) if self.stores else None
            self.copier = Copier(self.folder.node_id, segments, incoming, orders)
            self.obedience = Obedience(
                segments,
                incoming,
                lambda _incarnation, slot: self._watch.is_over(slot),
                Notebook(self.folder.path / "notes"),
                self.copier.order,
                orders,
            )
            undo.callback(self.obedience.notebook.close)
            self.rdma = open_ports(
                settings.rdma_devices, [segment], lock=self.folder.lock_descriptor
            )
            if self.rdma is not None:
                undo.callback(self.rdma.stop)
            sockets = listen(settings.data_addresses())
            self.bound = listening_on(sockets)
            limits = DataLimits(
                threads=settings.threads,
                connections_max=_connections_max(settings.connections_max),
                stall_s=settings.stall_timeout_s,
            )
            self.data = DataServer(
                NodeView(self.folder.node_id, segments, incoming, self.rdma, orders),
                sockets,
                limits,
            )
            self.local = LocalServer(self.folder.socket_path, self.folder.node_id, self.pool)
            undo.pop_all()
        self.membership = Membership(
            Masters(settings.master_addresses()),
            self.obedience,
            self._introduction,
            self._load,
            self._is_news,
        )
        self.reports = DropReports(self.membership)
        self.stores.on_dropped = self.reports.add
        self.scrubber = Scrubber(
            list(segments.values()), settings.scrub_rate, self.reports.add, self.stores.all_open
        )
        self.stores.on_change = self.membership.look
        self._stopping = threading.Event()
        self._populating = threading.Thread(target=self._populate, name="populate", daemon=True)

    def start(self) -> None:
        """Serve, and join the cluster in the background.

        Raises:
            ConfigError: A store can never be opened.
        """
        self.deadlines.start()
        self.stores.set_epochs(self._epochs())
        self.stores.open()
        if self.settings.populate == "start":
            self._populate()
        if self.rdma is not None:
            self.rdma.register()
        self.data.start()
        self.local.start()
        self.copier.start()
        self.membership.start()
        self.reports.start()
        if self.settings.scrub_rate:
            self.scrubber.start()
        if self.settings.populate == "background":
            self._populating.start()

    def describe(self) -> str:
        """Return one line that says what this process gives, and where."""
        segment = self.pool.segment
        objects = sum(1 for _ in landed(segment)) if self.pool.attached else 0
        origin = f"kept, {objects} objects" if self.pool.attached else "new"
        bound = ",".join(map(str, self.bound))
        rdma = ",".join(self.rdma.names) if self.rdma else ""
        shown = self.settings.advertise or "as bound"
        return (
            f"node ready: name={self.folder.name} id={self.folder.node_id}"
            f" dram={format_bytes(segment.bytes)} ({origin}, {segment.incarnation:016x})"
            f" data={bound} advertise={shown} rdma={rdma or 'none'} local={self.folder.socket_path}"
            f" master={','.join(self.settings.master)}"
            + (f" ssd=[{self.stores.describe()}]" if self.stores else "")
        )

    def stop(self, *, release: bool | None = None) -> None:
        """Leave the cluster, end the transfers. Idempotent.

        Args:
            release: Give the memory back; None does as the settings say.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        logger.info("%s", self.summary())
        self.membership.stop()
        self.scrubber.stop()
        self.reports.stop()
        self.copier.stop()
        self.data.stop(self.settings.stop_timeout_s)
        if self.rdma is not None:
            self.rdma.stop()
        self.local.stop()
        self.stores.close(self.settings.stop_timeout_s)
        self.deadlines.stop()
        if self._populating.is_alive():
            self._populating.join()
        self._watch.close()
        self.obedience.notebook.close()
        if release or (release is None and self.settings.on_stop == "release"):
            self.folder.remove()
        else:
            self.folder.close()

    def summary(self) -> str:
        """Return one line that says what the data port has done, and what it refused and why."""
        counters = self.data.counters()
        refused = {
            status.name.lower(): count
            for status in Status
            if (count := sum(each.refusals[status] for each in counters))
        }
        cut_off: Counter[str] = Counter()
        for each in counters:
            cut_off.update(each.cut_off)
        return (
            f"served over tcp: {sum(each.reads for each in counters)} reads of"
            f" {format_bytes(sum(each.bytes_out for each in counters))},"
            f" {sum(each.writes for each in counters)} writes of"
            f" {format_bytes(sum(each.bytes_in for each in counters))}; refused {refused};"
            f" connections ended {dict(cut_off)}; over shared memory:"
            f" {self.local.served} processes, {self.local.refused} refused; over RDMA:"
            f" {self._rdma_summary(counters)}; extents freed"
            f" {self.obedience.freed}, busy {self.obedience.busy}, damaged"
            f" {self.obedience.damaged}; copied here {self.copier.copied} of"
            f" {format_bytes(self.copier.copied_bytes)}, failed {self.copier.failed}; scrubbed"
            f" {self.scrubber.extents} extents of {format_bytes(self.scrubber.bytes)} in"
            f" {self.scrubber.rounds} rounds, {self.scrubber.bad} damaged; drops reported"
            f" {self.reports.reported}, forgotten {self.reports.forgotten}"
        )

    def _rdma_summary(self, counters: list[DataCounters]) -> str:
        ports = self.rdma
        if ports is None:
            return "no device"
        return (
            f"{ports.opened} queue pairs, {ports.refused} refused, {ports.revoked} revoked,"
            f" {sum(each.rdma_writes for each in counters)} writes of"
            f" {format_bytes(sum(each.rdma_bytes_in for each in counters))}"
        )

    def _introduction(self, link: MasterLink) -> Register:
        address = self._advertised(link.own_host)
        segment = self.pool.segment
        return Register(
            name=self.folder.name,
            node_id=self.folder.node_id,
            host=address.host,
            port=address.port,
            local_path=str(self.folder.socket_path),
            labels=self.settings.label_map(),
            segments=(SegmentRecord(segment.incarnation, segment.bytes), *self.stores.records()),
            term=max(self.obedience.term, self.stores.term()),
            landed=sum(1 for _ in landed(segment)) + self.stores.entries(),
            epochs=self._epochs(),
            fellows=self.obedience.notebook.fellows,
            notes=len(self.obedience.notebook),
            replaced=self.stores.replaced(),
        )

    def _epochs(self) -> dict[int, int]:
        """Return {slot: epoch} as memory and disks know them, where not 0."""
        found = self.stores.epochs()
        for slot, epoch in enumerate(self.pool.segment.epochs.tolist()):
            if epoch:
                found[slot] = max(epoch, found.get(slot, 0))
        return found

    def _is_news(self, said: Register) -> bool:
        """Return whether the stores are others than the master was told."""
        return (self.stores.records(), self.stores.replaced()) != (said.segments[1:], said.replaced)

    def _advertised(self, own_host: str) -> Address:
        port = self.bound[0].port
        if self.settings.advertise:
            return parse_address(self.settings.advertise, port)
        return Address(advertised_host(self.bound, own_host), port)

    def _load(self) -> Load:
        return Load(
            used_bytes=self.pool.used_bytes,
            readers=self.data.connection_count + self.local.peer_count,
            writers=len(self._incoming),
            stores=self.stores.statuses(),
            scrubbed_bytes=self.scrubber.bytes,
        )

    def _populate(self) -> None:
        """Give the pool its pages, slice by slice."""
        at = 0
        try:
            while not self._stopping.is_set():
                at = self.pool.populate(at)
                if not at:
                    return
        except MemoryError as error:
            logger.warning("the pool was not populated to its end: %s", error)


def _prepare(pool: Pool, settings: NodeSettings) -> None:
    try:
        if settings.huge_pages == "transparent":
            pool.advise_huge()
    except NotSupported as error:
        raise ConfigError(f"--huge-pages: {error}") from error
    try:
        if settings.numa_node >= 0:
            pool.bind_to_numa(settings.numa_node)
    except NotSupported as error:
        raise ConfigError(f"--numa-node: {error}") from error


def _connections_max(wanted: int) -> int:
    """Return how many connections the process may have; raises its limit of open files first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + FILES_RESERVED
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < needed:
        logger.warning("at most %d data connections: ulimit -n is %d", soft - FILES_RESERVED, soft)
    return max(1, min(wanted, soft - FILES_RESERVED))


def serve(settings: NodeSettings, announce: Callable[[str], None]) -> None:
    """Run a node until SIGTERM or SIGINT.

    Args:
        settings: How it runs.
        announce: Called once, with one line, when it serves.

    Raises:
        ConfigError: Something it needs cannot be had.
        Unreachable: No master was found in ``settings.register_timeout_s``.
        InternalError: A thread failed; the memory is kept for the next start.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    failures = _end_on_failing_threads()
    sys.setswitchinterval(SWITCH_S)
    node = StorageNode(settings)
    # A start that fails takes nothing away: what a killed process left is for the one that works.
    release = node.folder.is_new
    try:
        node.start()
        announce(node.describe())
        ended_by = _wait(node)
        release = settings.on_stop == "release"
        if ended_by == signal.SIGTERM and settings.drain_timeout_s and not failures:
            leave(node.membership, node.folder.node_id, settings.drain_timeout_s, _interrupted)
    finally:
        node.stop(release=release and not failures)
    if failures:
        raise InternalError(f"a thread of the node failed: {failures[0]!r}")


def _end_on_failing_threads() -> list[BaseException | None]:
    """Let a thread that fails end the process: half a node is worse than none."""
    failures: list[BaseException | None] = []

    def note(args: threading.ExceptHookArgs) -> None:
        logger.critical("a thread failed", exc_info=args.exc_value)
        failures.append(args.exc_value)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.excepthook = note
    return failures


def _interrupted(pause_s: float) -> bool:
    """Wait a moment; return whether a signal came."""
    return signal.sigtimedwait(_SIGNALS, pause_s) is not None


def _wait(node: StorageNode) -> int:
    """Wait for a signal and return it; for a master only as long as is allowed.

    Raises:
        Unreachable: None came in time.
    """
    limit_s = node.settings.register_timeout_s
    until = time.monotonic() + limit_s
    while limit_s and not node.membership.wait_joined(0):
        left_s = until - time.monotonic()
        if left_s <= 0:
            problem = node.membership.last_problem
            raise Unreachable(
                f"no master at {', '.join(node.settings.master)} in {limit_s:g} s"
                + (f" ({problem})" if problem else "")
            )
        found = signal.sigtimedwait(_SIGNALS, min(0.1, left_s))
        if found is not None:
            return found.si_signo
    return signal.sigwait(_SIGNALS)
