"""Numbers of the master: gauges worked out when asked for, and a full walk to compare them with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mooncake_master.core import accounting
from mooncake_master.core.accounting import labelled
from mooncake_master.core.records import EDGE, Attempt, Copy, Freeing, Gone, Stored, Window
from mooncake_store.limits import GRANULE_BYTES
from mooncake_store.types import NodeState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.nodes import Disk, Segment
    from mooncake_master.core.puts import Puts
    from mooncake_master.core.records import Extent
    from mooncake_master.core.repair import Repair


@dataclass(frozen=True, slots=True)
class Statistics:
    """Numbers under their metric names, with labels as in the Prometheus text form."""

    counters: dict[str, int]
    """They never fall."""
    gauges: dict[str, int]


@dataclass(frozen=True, slots=True)
class Walk:
    """What a full walk has counted.

    Attributes:
        objects: Objects in the index.
        readable: Those with a replica that can be read.
        used_bytes: Bytes of segments that are not free.
        free_bytes: Bytes that are.
        pinned_bytes: Bytes of pinned objects.
        attempts: Attempts that writers know of.
        freeing: Extents that wait for their node.
    """

    objects: int
    readable: int
    used_bytes: int
    free_bytes: int
    pinned_bytes: int
    attempts: int
    freeing: int


def gauges(context: Context, catalog: Catalog, puts: Puts, repair: Repair) -> dict[str, int]:
    """Return the gauges."""
    cluster = context.cluster
    nodes = list(cluster.nodes.values())
    found = {
        "mooncake_master_term_count": context.term,
        "mooncake_master_objects_count": catalog.count,
        "mooncake_master_namespaces_count": len(catalog.spaces),
        "mooncake_master_object_bytes": sum(s.current.bytes for s in catalog.spaces.values()),
        "mooncake_master_attempts_count": context.attempts,
        "mooncake_master_waiting_puts_count": len(puts),
        "mooncake_master_under_replicated_count": repair.under_replicated,
        "mooncake_master_pinned_bytes": sum(s.pinned for s in cluster.segments.values())
        * GRANULE_BYTES,
        "mooncake_master_capacity_bytes": sum(n.capacity for n in nodes) * GRANULE_BYTES,
        "mooncake_master_used_bytes": sum(n.capacity - n.free_granules for n in nodes)
        * GRANULE_BYTES,
        "mooncake_master_freeing_bytes": sum(n.freeing for n in nodes) * GRANULE_BYTES,
        "mooncake_master_recovering": int(context.recovering),
        "mooncake_master_copying_count": sum(map(len, context.copying.values())),
    }
    disks = list(cluster.disks.values())
    named = [disk for disk in disks if disk.is_named]
    for tier, replicas, used_granules, capacity in (
        ("dram", sum(n.objects for n in nodes), sum(n.capacity - n.free_granules for n in nodes),
         sum(n.capacity for n in nodes)),
        ("ssd", sum(len(d.held) for d in disks), sum(d.used for d in named),
         sum(d.granules for d in named)),
    ):  # fmt: skip
        found[labelled("mooncake_master_tier_replicas_count", tier=tier)] = replicas
        found[labelled("mooncake_master_tier_used_bytes", tier=tier)] = (
            used_granules * GRANULE_BYTES
        )
        found[labelled("mooncake_master_tier_capacity_bytes", tier=tier)] = capacity * GRANULE_BYTES
    for state in NodeState:
        name = labelled("mooncake_master_nodes_count", state=state.name.lower())
        found[name] = sum(node.state is state for node in nodes)
    for node in nodes:
        used = node.capacity - node.free_granules
        for metric, value in (
            ("mooncake_master_node_capacity_bytes", node.capacity * GRANULE_BYTES),
            ("mooncake_master_node_used_bytes", used * GRANULE_BYTES),
            ("mooncake_master_node_replicas_count", node.objects),
            (
                "mooncake_master_node_scrubbed_bytes",
                0 if node.heartbeat is None else node.heartbeat.scrubbed_bytes,
            ),
        ):
            found[labelled(metric, node=node.name)] = value
    return found


def walk(context: Context, catalog: Catalog, puts: Puts) -> Walk:
    """Count everything and compare it with what is kept.

    Raises:
        AssertionError: They differ.
    """
    objects = list(_objects(catalog))
    current = [stored for stored in objects if not stored.home.cleared]
    assert len(current) == catalog.count, (len(current), catalog.count)
    for space in catalog.spaces.values():
        home = space.current
        assert home.bytes == sum(stored.length for stored in home.objects.values())
        protected = [stored for stored in home.objects.values() if stored.pin_s]
        sizes = [e.granules for each in protected for e in each.extents() if not e.segment.tier]
        assert home.pinned == sum(sizes), (space.name, home.pinned, sum(sizes))
        live = sum(shelf.live for shelf in home.shelves.values())
        assert live == len(home.objects), (live, len(home.objects))
    counters = context.counters
    known = counters[accounting.ACKNOWLEDGED] + counters[accounting.RECOVERED]
    gone = sum(counters[accounting.GONE[reason]] for reason in Gone)
    assert known == len(current) + gone, (known, len(current), gone)
    extents = {id(extent) for stored in objects for extent in stored.extents()}
    attempts = puts.commits.attempts()
    assert len(attempts) == context.attempts
    held = sum(extent.granules for attempt in attempts for extent in attempt.extents)
    assert held == puts.commits.granules
    used = free = pinned = freeing = replicas = 0
    for segment in context.cluster.segments.values():
        counts = _walk_segment(segment, extents)
        used, free, pinned = used + counts[0], free + counts[1], pinned + counts[2]
        freeing, replicas = freeing + counts[3], replicas + counts[4]
    for node in context.cluster.nodes.values():
        _check_order(node.policy.edge, node.objects)
        for box in node.boxes:
            assert box.copying_granules == sum(copy.granules for copy in box.copying)
            assert all(copy in context.copying[copy.stored] for copy in box.copying)
    for disk in context.cluster.disks.values():
        replicas += _walk_disk(disk, extents)
    listed = sum(1 for stored in objects for extent in stored.extents() if not extent.segment.lost)
    assert replicas == listed, (replicas, listed)
    return Walk(
        objects=len(current),
        readable=sum(stored.readable for stored in current),
        used_bytes=used * GRANULE_BYTES,
        free_bytes=free * GRANULE_BYTES,
        pinned_bytes=pinned * GRANULE_BYTES,
        attempts=len(attempts),
        freeing=freeing,
    )


def _objects(catalog: Catalog) -> Iterator[Stored]:
    for space in catalog.spaces.values():
        yield from space.current.objects.values()
    for home in catalog.graveyard:
        yield from home.objects.values()


def _walk_segment(segment: Segment, extents: set[int]) -> tuple[int, int, int, int, int]:
    """Return used, free, pinned granules, and the numbers of extents being freed and readable."""
    space = segment.space
    at = used = free = pinned = freeing = freeing_granules = replicas = 0
    before_free = False
    for extent in space.extents():
        size = extent.granules
        owner = extent.owner
        assert extent.offset == at, "extents overlap or leave a gap"
        assert size > 0
        assert extent.after.before is extent
        assert not (owner is None and before_free), "two free neighbours were not joined"
        at += size
        before_free = owner is None
        if owner is None:
            free += size
            continue
        used += size
        if isinstance(owner, Stored):
            assert id(extent) in extents, "an extent's object does not know it"
            replicas += 1
            pinned += size if owner.pin_s else 0
        elif isinstance(owner, Freeing):
            freeing += 1
            freeing_granules += size
        else:
            assert owner is EDGE or isinstance(owner, Attempt | Copy | Window)
    assert at == segment.granules
    assert free == space.free_granules, (free, space.free_granules)
    assert pinned == segment.pinned, (pinned, segment.pinned)
    assert freeing_granules == segment.freeing, (freeing_granules, segment.freeing)
    space.check()
    owners = {extent.offset: extent.owner for extent in space.extents()}
    assert all(isinstance(owners.get(offset), Stored) or owners.get(offset) is EDGE
               for offset in segment.copies), "a copy is listed that is none"  # fmt: skip
    return used, free, pinned, freeing, replicas


def _walk_disk(disk: Disk, extents: set[int]) -> int:
    """Return the number of a store's replicas."""
    replicas = used = pinned = 0
    for location, extent in disk.held.items():
        assert extent.offset == location
        used += extent.granules
        if extent.owner is EDGE:
            continue
        assert isinstance(extent.owner, Stored)
        assert id(extent) in extents, "a disk's extent is not its object's"
        replicas += 1
        pinned += extent.granules if extent.owner.pin_s else 0
    assert used == disk.used, (used, disk.used)
    assert pinned == disk.pinned, (pinned, disk.pinned)
    freeing = sum(freeing.extent.granules for freeing in disk.erasing)
    assert freeing == disk.freeing, (freeing, disk.freeing)
    return replicas


def _check_order(edge: Extent, count: int) -> None:
    """Check the links of an order of eviction."""
    seen = 0
    extent = edge.newer
    while extent is not edge:
        assert extent.newer.older is extent
        seen += 1
        extent = extent.newer
    assert seen == count, (seen, count)
