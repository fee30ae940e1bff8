"""How near a device is to memory: by PCI where the memory is a GPU's, else by NUMA nodes.

Everything here reads sysfs; ``system`` is its root, for tests.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

SYSTEM: Final = Path("/sys")

SAME_SWITCH, SAME_HOST_BRIDGE, SAME_NODE, UNKNOWN, OTHER_NODE = range(5)
"""How near, the nearest first."""

_PCI: Final = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class Spot(NamedTuple):
    """Where a device, or memory, is in the machine.

    Attributes:
        node: NUMA node; -1: it does not matter, or nobody knows.
        path: Host bridge, bridges and switches down to a PCI device itself; empty: it is none.
    """

    node: int = -1
    path: tuple[str, ...] = ()


NOWHERE: Final = Spot()


def spot_of_device(name: str, system: Path = SYSTEM) -> Spot:
    """Return where an RDMA device is; one made of software is nowhere."""
    return _spot(system / "class" / "infiniband" / name / "device")


def spot_of_pci(address: str, system: Path = SYSTEM) -> Spot:
    """Return where a PCI device is, by its address (``0000:3b:00.0``)."""
    return _spot(system / "bus" / "pci" / "devices" / address)


def nearness(device: Spot, memory: Spot) -> int:
    """Return how near a device is to memory: one of the words above."""
    shared = 0
    for ours, theirs in zip(device.path, memory.path, strict=False):
        if ours != theirs:
            break
        shared += 1
    if shared:
        return SAME_SWITCH if shared > 1 else SAME_HOST_BRIDGE
    if device.node < 0 or memory.node < 0:
        return UNKNOWN
    return SAME_NODE if device.node == memory.node else OTHER_NODE


def nearest(devices: Sequence[Spot], memory: Spot) -> tuple[int, ...]:
    """Return the places of the nearest devices in a row; empty: they are all alike."""
    ranks = [nearness(device, memory) for device in devices]
    found = tuple(place for place, rank in enumerate(ranks) if rank == min(ranks))
    return () if len(found) == len(devices) else found


def _spot(folder: Path) -> Spot:
    try:
        node = int((folder / "numa_node").read_text())
    except (OSError, ValueError):
        node = -1
    parts = folder.resolve().parts if folder.exists() else ()
    return Spot(node, tuple(part for part in parts if _PCI.fullmatch(part)))
