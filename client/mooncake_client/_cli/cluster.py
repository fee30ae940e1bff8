"""``nodes`` and ``stats``: what the cluster consists of, and what it has counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from mooncake_client._cli.options import ClientSettings, JsonOption
from mooncake_client._cli.output import (
    about_bytes,
    about_seconds,
    columns,
    share,
    write_json,
    write_json_list,
)
from mooncake_client._cli.target import connect
from mooncake_store.settings import takes_settings
from mooncake_store.types import NodeState
from mooncake_store.wire.address import format_address

if TYPE_CHECKING:
    from mooncake_store.wire.control import NodeStatus, StoreStatus


UNDER_REPLICATED: Final = "mooncake_master_under_replicated_count"


COPIES: Final = 'mooncake_master_copies_total{{outcome="done",purpose="{}"}}'


@takes_settings(ClientSettings)
def nodes(
    settings: ClientSettings,
    *,
    disks: Annotated[
        bool, typer.Option("--disks", help="List the stores on disk instead: reads, drops, why.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the storage nodes: state, address, bytes used.

    Used and total bytes are shown for each tier.
    """
    with connect(settings) as client:
        status = client.describe_cluster()
    found = sorted(status.nodes, key=lambda node: node.record.name)
    if as_json:
        write_json_list(_as_object(node) for node in found)
        return
    if disks:
        _show_disks(found, status.counters)
        return
    head = ("NAME", "STATE", "ADDRESS", "DRAM", "USED", "SSD", "USED", "OBJECTS", "SEEN", "NOTE")
    typer.echo(columns(head, [_row(node) for node in found]))
    short = status.counters.get(UNDER_REPLICATED, 0)
    if short:
        typer.echo(f"under-replicated: {short} objects have fewer copies than asked")


def _row(node: NodeStatus) -> tuple[object, ...]:
    record = node.record
    return (
        record.name,
        NodeState(record.state).name.lower(),
        format_address(record.host, record.port),
        about_bytes(node.capacity_bytes),
        share(node.used_bytes, node.capacity_bytes),
        about_bytes(node.ssd_capacity_bytes) if node.ssd_capacity_bytes else "-",
        share(node.ssd_used_bytes, node.ssd_capacity_bytes),
        node.objects,
        f"{about_seconds(node.heartbeat_age_s)} ago",
        node.note,
    )


def _show_disks(found: list[NodeStatus], counters: dict[str, int]) -> None:
    head = ("NODE", "STORE", "STATE", "SIZE", "USED", "READS", "STORED", "EVICTED", "REFUSED",
            "LOST", "WRITTEN", "AMPLIFIED", "NOTE")  # fmt: skip
    rows = [_disk_row(node, store) for node in found for store in node.stores]
    typer.echo(columns(head, rows))
    demoted, promoted = (counters.get(COPIES.format(what), 0) for what in ("demotion", "promotion"))
    typer.echo(f"since the master started: demoted {demoted} objects, promoted {promoted}")


def _disk_row(node: NodeStatus, store: StoreStatus) -> tuple[object, ...]:
    figures = store.counters
    return (
        node.record.name,
        store.path,
        store.state,
        about_bytes(store.capacity_bytes),
        share(store.used_bytes, store.capacity_bytes),
        int(figures.get("reads", 0)),
        int(figures.get("stored", 0)),
        int(figures.get("evicted", 0)),
        _by_reason(figures, "refused"),
        _by_reason(figures, "lost"),
        about_bytes(figures.get("written_bytes", 0)),
        f"{figures.get('write_amplification', 1.0):.2f} x",
        "" if store.state == "ready" else store.reason,
    )


def _by_reason(figures: dict[str, float], name: str) -> str:
    """Return a count with its parts: ``5 (over_budget 3, queue_full 2)``."""
    reasons = [
        f"{key.removeprefix(f'{name}_')} {count:.0f}"
        for key, count in sorted(figures.items())
        if key.startswith(f"{name}_") and count
    ]
    total = f"{figures.get(name, 0):.0f}"
    return f"{total} ({', '.join(reasons)})" if reasons else total


def _as_object(node: NodeStatus) -> dict[str, object]:
    record = node.record
    return {
        "name": record.name,
        "state": NodeState(record.state).name.lower(),
        "host": record.host,
        "port": record.port,
        "node_id": record.node_id,
        "labels": record.labels,
        "dram": {"used_bytes": node.used_bytes, "capacity_bytes": node.capacity_bytes},
        "ssd": {"used_bytes": node.ssd_used_bytes, "capacity_bytes": node.ssd_capacity_bytes},
        "stores": [
            {
                "path": store.path,
                "state": store.state,
                "reason": store.reason,
                "used_bytes": store.used_bytes,
                "capacity_bytes": store.capacity_bytes,
                "entries": store.entries,
                "figures": store.counters,
            }
            for store in node.stores
        ],
        "objects": node.objects,
        "heartbeat_age_s": node.heartbeat_age_s,
        "note": node.note,
    }


@takes_settings(ClientSettings)
def stats(
    settings: ClientSettings,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD...", help="Only counters whose names contain all of these."),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Print the master's counters and gauges."""
    with connect(settings) as client:
        status = client.describe_cluster()
    wanted = {
        name: value
        for name, value in sorted(status.counters.items())
        if all(word in name for word in words or [])
    }
    if as_json:
        write_json(
            {
                "cluster_id": status.cluster_id,
                "term": status.term,
                "software": status.software,
                "uptime_s": round(status.uptime_s, 3),
                "counters": wanted,
            }
        )
        return
    typer.echo(columns(("COUNTER", "VALUE"), list(wanted.items())))
