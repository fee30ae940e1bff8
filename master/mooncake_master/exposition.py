"""Metrics in Prometheus' format, read from the core at the moment they are asked for.

Nothing is counted twice or kept apart: a gauge is what the index says now, so it equals a walk of
the index by construction. Nothing is registered in the process.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from mooncake_master.meters import BUCKETS_S
from mooncake_master.store_metrics import of_stores
from mooncake_store.wire.control import REQUESTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from mooncake_master.meters import Histogram, Meters
    from mooncake_master.server import Shared
    from mooncake_store.wire.control import ClusterStatus, NamespaceRecord

PREFIX: Final = "mooncake_master_"

HELP: Final = {
    "objects_acknowledged": "Versions that a commit made readable.",
    "objects_recovered": "Versions that nodes' directories brought back after a start.",
    "objects_gone": "Versions that ended, by how.",
    "keys_located": "Keys whose location was given to a reader.",
    "keys_located_on_disk": "Of those, the ones that no memory held.",
    "keys_probed": "Keys that a probe found.",
    "misses": "Keys that were asked for and not readable, by why.",
    "attempts_granted": "Writes that were given room.",
    "attempts_expired": "Writes that were not finished in time.",
    "attempts_aborted": "Writes that their writer gave up.",
    "puts_existing": "Puts that found a version there already, which is a success.",
    "puts_undercopied": "Puts that became readable with fewer replicas than asked.",
    "evicted_bytes": "Bytes of extents that eviction gave back.",
    "evicted_replicas": "Replicas that eviction gave back.",
    "extents_freed": "Extents that nodes confirmed to be erased.",
    "extents_not_yet_freed": "Times a node answered that an extent was still being written.",
    "windows_emptied": "Ranges emptied for one large put.",
    "recovery_overlaps": "Directory entries that lost against a newer version.",
    "recovery_dropped": "Directory entries that were stale.",
    "rebalanced_objects": "Objects moved from full nodes to emptier ones.",
    "rebalanced_bytes": "Payload of those.",
    "pins_unnoted": "Pins set after the put that the next master does not know.",
    "sets_unnoted": "Sets of which the next master does not bring back what is left.",
    "trimmed_replicas": "Replicas given up that were more than asked, as a node had returned.",
    "trimmed_bytes": "Payload of those.",
    "hot_objects_count": "Objects with more replicas than asked, for their many readers.",
    "drained_objects": "Objects copied from nodes that are being drained.",
    "drained_bytes": "Payload of those.",
    "pauses": "Times this process found that it had been stopped for a while.",
    "transfers": "Transfers that clients reported.",
    "transfer_failures": "Of those, how many failed.",
    "complaints_unconfirmed": "Reports of many failures that no other client confirmed.",
    "term_count": "Number of this master's reign.",
    "objects_count": "Objects in the index.",
    "namespaces_count": "Namespaces.",
    "object_bytes": "Payload of all objects, each once.",
    "attempts_count": "Writes under way.",
    "under_replicated_count": "Objects with fewer replicas than asked that are known so far.",
    "waiting_puts_count": "Puts that wait for room.",
    "pinned_bytes": "Memory of pinned objects.",
    "capacity_bytes": "Memory pooled by all nodes.",
    "used_bytes": "Memory in extents, those being written or freed included.",
    "freeing_bytes": "Memory that waits for its node's confirmation to be free.",
    "recovering": "1 while nodes' directories are being listed.",
    "copies": "Copies that nodes were asked to make, by what for and by how they ended.",
    "copied_bytes": "Bytes that copies have moved, by what for.",
    "copying_count": "Copies under way.",
    "tier_replicas_count": "Replicas in memory and on disks.",
    "tier_used_bytes": "Bytes of extents in each tier.",
    "tier_capacity_bytes": "Bytes that each tier offers.",
    "nodes_count": "Storage nodes, by state.",
    "node_capacity_bytes": "Memory that a node pools.",
    "node_used_bytes": "Of that, in extents.",
    "node_replicas_count": "Replicas that a node holds.",
    "node_scrubbed_bytes": "Bytes that a node has verified in the background since it started.",
    "refusals": "Items or requests refused, by error code.",
    "replicas_dropped": "Replicas that were found bad, or that a disk gave up, by why.",
    "replicas_lost": "Replicas lost with a node's memory or a store of its SSD, by node.",
}
"""{name of a number of the core without prefix and suffix: what it says}"""

Look = Callable[[], tuple["ClusterStatus", tuple["NamespaceRecord", ...]]]
"""Returns the state of the cluster and its namespaces at one moment."""

_SERIES: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?", re.DOTALL)
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:\\.|[^"\\])*)"', re.DOTALL)
_ESCAPES: Final = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


class Snapshot(NamedTuple):
    """Everything that metrics are made of, as it is at one moment."""

    status: ClusterStatus
    namespaces: tuple[NamespaceRecord, ...]
    meters: Meters
    connections: dict[str, int]
    faults: int
    leads: bool


class Exposition:
    """Takes a snapshot in the loop's thread and writes it out in another one.

    Writing takes 3 ms in a small cluster and 0.2 s in one with thousands of namespaces, which
    nobody should wait for.
    """

    def __init__(self, look: Look, shared: Shared) -> None:
        self._look = look
        self._shared = shared

    async def text(self) -> bytes:
        """Return all metrics, as they are now, in the text format."""
        return await asyncio.to_thread(render, self.snapshot())

    def snapshot(self) -> Snapshot:
        """Return the state of everything at this moment; nothing in it changes later."""
        status, namespaces = self._look()
        shared = self._shared
        switchboard = shared.switchboard
        leads = switchboard.office is None or switchboard.office.holds()
        roles = {"client": 0, "node": 0, "stranger": 0}
        for connection in shared.connections:
            roles[connection.role or "stranger"] += 1
        return Snapshot(status, namespaces, shared.meters.copy(), roles, switchboard.faults, leads)


class _Rows(Collector):
    """The collector of one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        snapshot = self._snapshot
        yield from core_counters(snapshot.status.counters)
        yield from _cluster(snapshot.status)
        yield _gauge("leading", "1 while this master leads, 0 while it stands by.", (), [
            ((), float(snapshot.leads))
        ])  # fmt: skip
        yield from _namespaces(snapshot.namespaces)
        yield from _requests(snapshot)
        yield from _connections(snapshot)


def render(snapshot: Snapshot) -> bytes:
    """Return a snapshot in the text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Rows(snapshot))
    return generate_latest(registry)


def core_counters(counters: Mapping[str, int]) -> Iterator[Metric]:
    """Yield the core's counters, whose names carry their labels."""
    families: dict[str, dict[tuple[tuple[str, str], ...], int]] = defaultdict(dict)
    for series, value in counters.items():
        name, labels = parse_series(series)
        families[name][labels] = value
    for name, samples in families.items():
        total = name.endswith("_total")
        short = name.removeprefix(PREFIX).removesuffix("_total")
        kind = CounterMetricFamily if total else GaugeMetricFamily
        label_names = sorted({label for labels in samples for label, _ in labels})
        family = kind(name.removesuffix("_total"), HELP.get(short, short), labels=label_names)
        for labels, value in samples.items():
            given = dict(labels)
            family.add_metric([given.get(label, "") for label in label_names], value)
        yield family


def parse_series(series: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return name and labels of a series in the text form, ``name{label="value"}``."""
    match = _SERIES.fullmatch(series)
    assert match is not None, series
    labels = tuple(
        (label, re.sub(r"\\.", lambda m: _ESCAPES[m[0]], text))
        for label, text in _LABEL.findall(match[2] or "")
    )
    return match[1], labels


def _cluster(status: ClusterStatus) -> Iterator[Metric]:
    """Yield what the core's own gauges do not say."""
    yield _gauge("info", "1; what runs, in the labels.", ("software", "cluster_id"), [
        ((status.software, status.cluster_id), 1.0),
    ])  # fmt: skip
    yield _gauge("uptime_seconds", "Time since the start.", (), [((), status.uptime_s)])
    rows = [(node.record.name, node) for node in status.nodes]
    for name, about, field in (
        ("node_ssd_used_bytes", "Disk in use.", "ssd_used_bytes"),
        ("node_ssd_capacity_bytes", "Disk pooled.", "ssd_capacity_bytes"),
        ("node_heartbeat_age_seconds", "Time since the last sign of life.", "heartbeat_age_s"),
    ):
        yield _gauge(
            name, about, ("node",), [((label,), getattr(node, field)) for label, node in rows]
        )
    yield from of_stores(PREFIX, status)


def _namespaces(namespaces: Iterable[NamespaceRecord]) -> Iterator[Metric]:
    rows = list(namespaces)
    for name, about, field in (
        ("namespace_objects_count", "Objects of a namespace.", "objects"),
        ("namespace_object_bytes", "Their payload, each object once.", "bytes"),
        ("namespace_epoch_number", "Generation of its contents.", "epoch"),
    ):
        yield _gauge(
            name, about, ("namespace",), [((row.name,), getattr(row, field)) for row in rows]
        )


def _requests(snapshot: Snapshot) -> Iterator[Metric]:
    meters = snapshot.meters
    durations = HistogramMetricFamily(
        f"{PREFIX}request_duration_seconds",
        "From receiving a request to writing its reply, waits included.",
        labels=("request",),
    )
    for kind, histogram in meters.durations.items():
        if histogram.count:
            durations.add_metric([kind_name(kind)], _buckets(histogram), histogram.sum_s)
    yield durations
    yield _counter("request_errors", "Requests answered with an error.", ("request", "code"), [
        ((kind_name(kind), code), count) for (kind, code), count in meters.errors.items()
    ])  # fmt: skip
    yield _counter("instructions", "Requests sent to nodes.", ("request",), [
        ((kind_name(kind),), count) for kind, count in meters.instructed.items()
    ])  # fmt: skip
    yield _counter("instruction_failures", "Of those, without a good answer.", ("request",), [
        ((kind_name(kind),), count) for kind, count in meters.instruct_failures.items()
    ])  # fmt: skip
    yield _counter("faults", "Requests that failed by a bug of the master.", (), [
        ((), snapshot.faults)
    ])  # fmt: skip


def _connections(snapshot: Snapshot) -> Iterator[Metric]:
    meters, roles = snapshot.meters, snapshot.connections
    yield _gauge("connections", "Connections now, by who is behind them.", ("role",), [
        ((role,), count) for role, count in roles.items()
    ])  # fmt: skip
    yield _counter("connections_opened", "Connections accepted.", (), [
        ((), meters.connections_opened)
    ])  # fmt: skip
    yield _counter("connections_refused", "Connections ended at once, at the limit.", (), [
        ((), meters.connections_refused)
    ])  # fmt: skip
    yield _counter("connections_cut", "Connections that the master ended, by why.", ("reason",), [
        ((reason,), count) for reason, count in meters.connections_cut.items()
    ])  # fmt: skip
    yield _counter("received_bytes", "Bytes received on the RPC port.", (), [
        ((), meters.received_bytes)
    ])  # fmt: skip
    yield _counter("sent_bytes", "Bytes sent from it.", (), [((), meters.sent_bytes)])
    delays = HistogramMetricFamily(
        f"{PREFIX}loop_delay_seconds", "How late the event loop's ticks came: what others waited."
    )
    delays.add_metric([], _buckets(meters.tick_delays), meters.tick_delays.sum_s)
    yield delays


def kind_name(kind: int) -> str:
    """Return what a kind of request is called in labels."""
    request = REQUESTS.get(kind)
    return "unknown" if request is None else request.__name__


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    total = 0
    rows: list[tuple[str, float]] = []
    for bound, count in zip((*BUCKETS_S, float("inf")), histogram.counts, strict=True):
        total += count
        rows.append(("+Inf" if bound == float("inf") else str(bound), total))
    return rows


_Samples = list[tuple[tuple[str, ...], float]]


def _gauge(name: str, about: str, labels: tuple[str, ...], rows: _Samples) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}{name}", about, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _counter(name: str, about: str, labels: tuple[str, ...], rows: _Samples) -> Metric:
    family = CounterMetricFamily(f"{PREFIX}{name}", about, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family
