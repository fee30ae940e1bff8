"""A small cluster with a disk, for the tests of tiers."""

from __future__ import annotations

from mooncake_store.limits import KIB
from mooncake_store.wire.control import Location, Refusal
from tests.unit.master.rig import FakeNode, Free, Rig

OBJECT = 6 * KIB
"""Payload: two of them fit the memory of ``small``, not three."""


def small(**settings: Free) -> Rig:
    """One node with room for two objects, and a disk."""
    chosen: Free = {"lease_ttl_s": 0.0, "high_watermark": 1.0, "low_watermark": 1.0} | settings
    rig = Rig(1 * KIB, **chosen)
    rig.give_disk(rig.add_node(14 * KIB, name="disk"))
    return rig


def fill(rig: Rig, *keys: str, **fields: Free) -> None:
    for key in keys:
        results = rig.put(key, length=OBJECT, **fields)
        assert not isinstance(results[0], Refusal), results


def tiers(rig: Rig, key: str) -> list[int]:
    (found,) = rig.locate(key)
    return [replica.tier for replica in found.replicas] if isinstance(found, Location) else []


def copies(rig: Rig, purpose: str, outcome: str) -> int:
    return rig.counter(f'mooncake_master_copies_total{{outcome="{outcome}",purpose="{purpose}"}}')


def disk_of(rig: Rig) -> FakeNode:
    return rig.nodes["disk"]
