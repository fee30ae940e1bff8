"""What must hold for a cluster that has come to rest: everything adds up, nothing overlaps."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from mooncake_store.extent import extent_bytes, name_bytes
from mooncake_store.limits import SCAN_PAGE_MAX
from mooncake_store.testing.waiting import ConditionNotMet, wait_until
from mooncake_store.types import NodeState
from mooncake_store.wire import control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mooncake_store.testing.wire_client import WireClient

SETTLE_S: Final = 15.0
"""Time for writes under way to end and for nodes to confirm what was freed."""

ACKNOWLEDGED: Final = "mooncake_master_objects_acknowledged_total"
RECOVERED: Final = "mooncake_master_objects_recovered_total"
_GONE: Final = re.compile(r'mooncake_master_objects_gone_total\{reason="(\w+)"\}')


def audit(connect: Callable[[], WireClient], *, settle_s: float = SETTLE_S) -> None:
    """Check the cluster behind a control connection, when it has come to rest.

    * acknowledged + recovered = listed + replaced + removed + evicted + cleared + lost + corrupt
    * no two live extents overlap, and no two have one row of a store
    * the numbers that the master exports equal what a walk over all objects counts
    * no counter is negative

    Args:
        connect: Returns a new control connection to the master.
        settle_s: How long to wait for the cluster to come to rest.

    Raises:
        AssertionError: Something does not add up; the message lists all of it.
    """
    problems: list[str] = []

    def adds_up() -> bool:
        with connect() as wire:
            problems[:] = find_problems(wire)
        return not problems

    try:
        wait_until(adds_up, settle_s)
    except ConditionNotMet:
        lines = "\n  ".join(problems)
        raise AssertionError(f"the audit found:\n  {lines}") from None


def find_problems(wire: WireClient) -> list[str]:
    """Return a sentence for everything that does not add up right now."""
    status = wire.ask(control.DescribeCluster())
    objects = list(walk(wire))
    return [
        *_unbalanced(status.counters, len(objects)),
        *overlaps(objects),
        *shared_rows(objects),
        *_miscounted(wire, status, objects),
        *(f"{name} is {count}" for name, count in status.counters.items() if count < 0),
    ]


def _unbalanced(counters: dict[str, int], listed: int) -> list[str]:
    gone = {found[1]: count for name, count in counters.items() if (found := _GONE.fullmatch(name))}
    begun = counters.get(ACKNOWLEDGED, 0) + counters.get(RECOVERED, 0)
    if begun == listed + sum(gone.values()):
        return []
    sums = f"acknowledged {counters.get(ACKNOWLEDGED)} + recovered {counters.get(RECOVERED)}"
    return [f"{sums} is not listed {listed} + gone {gone}"]


def _miscounted(
    wire: WireClient,
    status: control.ClusterStatus,
    objects: list[tuple[str, control.ObjectRecord]],
) -> Iterator[str]:
    """Compare exported numbers with the walk."""
    for namespace in wire.ask(control.ListNamespaces()).namespaces:
        mine = [record for name, record in objects if name == namespace.name]
        walked = len(mine), sum(record.length for record in mine)
        if (namespace.objects, namespace.bytes) != walked:
            yield (
                f"namespace {namespace.name!r} says {namespace.objects} objects of"
                f" {namespace.bytes} bytes, the walk found {walked}"
            )
    used: dict[int, int] = defaultdict(int)
    for incarnation, placed in _placed(objects).items():
        used[incarnation] = sum(end - begin for begin, end, _ in placed)
    for node in status.nodes:
        walked_bytes = sum(used[segment.incarnation] for segment in node.record.segments)
        is_away = node.record.state != NodeState.LIVE
        if is_away and node.used_bytes >= walked_bytes:
            continue  # what it still has to erase is erased when it returns
        if node.used_bytes != walked_bytes:
            yield (
                f"node {node.record.name!r} says {node.used_bytes} bytes used, the walk found"
                f" {walked_bytes}"
            )


def walk(wire: WireClient) -> Iterator[tuple[str, control.ObjectRecord]]:
    """Yield (namespace, object) for everything that the master lists."""
    for namespace in wire.ask(control.ListNamespaces()).namespaces:
        cursor = ""
        while True:
            page = wire.ask(
                control.Scan(namespace.slot, namespace.epoch, "", cursor, SCAN_PAGE_MAX)
            )
            for record in page.items:
                yield namespace.name, record
            cursor = page.cursor
            if not cursor:
                break


def overlaps(objects: list[tuple[str, control.ObjectRecord]]) -> list[str]:
    """Return a sentence for every two live extents that share a byte."""
    found = []
    for placed in _placed(objects).values():
        for (_, end, one), (begin, _, other) in itertools.pairwise(sorted(placed)):
            if begin < end:
                found.append(f"{one} ends at {end}, {other} begins at {begin}")
    return found


def shared_rows(objects: list[tuple[str, control.ObjectRecord]]) -> list[str]:
    """Return a sentence for every two replicas that have one row of a store."""
    found = []
    rows: dict[tuple[int, int], str] = {}
    for namespace, record in objects:
        for replica in record.replicas:
            if replica.tier == "ssd":
                what = f"{namespace}/{record.key} version {record.version} on {replica.node}"
                other = rows.setdefault((replica.incarnation, replica.offset), what)
                if other is not what:
                    found.append(f"row {replica.offset} of a store has {other} and {what}")
    return found


def _placed(
    objects: list[tuple[str, control.ObjectRecord]],
) -> dict[int, list[tuple[int, int, str]]]:
    """Return {incarnation: [(begin, end, what)]} of every replica in memory."""
    extents: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for namespace, record in objects:
        names = name_bytes(namespace, record.key, record.group, record.parent)
        size = extent_bytes(record.length, names)
        for replica in record.replicas:
            if replica.tier == "dram":
                what = f"{namespace}/{record.key} version {record.version} on {replica.node}"
                extents[replica.incarnation].append((replica.offset, replica.offset + size, what))
    return extents
