"""Metrics of the SSD stores of all nodes, as each said last in its heartbeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from mooncake_store.wire.control import ClusterStatus, StoreStatus

    _Stores = list[tuple[tuple[str, str], StoreStatus]]
    """[(labels, what the store said)]"""

GAUGES: Final = {
    "disk_bytes": "Disk that the store's files take.",
    "waiting_bytes": "Bytes that wait to be written.",
    "memory_bytes": "Memory of its table of entries.",
    "index_bytes": "Bytes of records in its index.",
    "written_today_bytes": "Bytes written since midnight UTC, for all purposes.",
    "write_budget_bytes": "Bytes that may be written in a day; 0: no budget.",
    "write_amplification": "Bytes written for each byte of users, ever.",
}
"""{counter of `StoreStatus`: what it is}"""

COUNTERS: Final = {
    "reads": "Reads of extents that were served from disk.",
    "read_bytes": "Bytes that they delivered.",
    "read_misses": "Reads of extents that were not, or no longer, there.",
    "stored": "Extents written for users.",
    "stored_bytes": "Their bytes.",
    "present": "Writes of extents that were there already.",
    "evicted": "Extents given up to make room.",
    "carried": "Extents written again because they were read.",
    "removed": "Extents removed on request.",
    "cleared": "Extents whose namespace was cleared.",
    "written_bytes": "Bytes written to the disk for all purposes.",
}

REASONS: Final = {
    "lost": "Extents given up because they were bad or their room was lost, by why.",
    "refused": "Writes that were not done, by why.",
    "reads_refused": "Reads that were refused, by why.",
}
"""{counter with one value for each reason: what it is}"""

_LABELS: Final = ("node", "store")


def of_stores(prefix: str, status: ClusterStatus) -> Iterator[Metric]:
    """Yield the metrics of all stores; nothing where no node has one.

    Args:
        prefix: Of every name.
        status: The cluster.
    """
    stores = [
        ((node.record.name, store.path), store) for node in status.nodes for store in node.stores
    ]
    if not stores:
        return
    yield _gauge(prefix, "ready", "1 while the store does all its work.", [
        (labels, float(store.state == "ready")) for labels, store in stores
    ])  # fmt: skip
    for name, about, field in (
        ("capacity_bytes", "What the store may take of its disk.", "capacity_bytes"),
        ("used_bytes", "Bytes of its extents.", "used_bytes"),
        ("entries_count", "Their number.", "entries"),
    ):
        rows = [(labels, float(getattr(store, field))) for labels, store in stores]
        yield _gauge(prefix, name, about, rows)
    for name, about in GAUGES.items():
        rows = [(labels, store.counters.get(name, 0.0)) for labels, store in stores]
        yield _gauge(prefix, name, about, rows)
    yield from _counters(prefix, stores)


def _counters(prefix: str, stores: _Stores) -> Iterator[Metric]:
    for name, about in COUNTERS.items():
        family = CounterMetricFamily(f"{prefix}store_{name}", about, labels=_LABELS)
        for labels, store in stores:
            family.add_metric(labels, store.counters.get(name, 0.0))
        yield family
    for name, about in REASONS.items():
        family = CounterMetricFamily(f"{prefix}store_{name}", about, labels=(*_LABELS, "reason"))
        for labels, store in stores:
            for reason, count in _by_reason(store, name):
                family.add_metric((*labels, reason), count)
        yield family


def _gauge(
    prefix: str, name: str, about: str, rows: list[tuple[tuple[str, str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{prefix}store_{name}", about, labels=_LABELS)
    for labels, value in rows:
        family.add_metric(labels, value)
    return family


def _by_reason(store: StoreStatus, name: str) -> Iterator[tuple[str, float]]:
    start = f"{name}_"
    for counter, count in store.counters.items():
        if counter.startswith(start):
            yield counter.removeprefix(start), count
