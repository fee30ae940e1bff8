"""Tools to test a store, and code that uses one: virtual time, faults, processes, a checker.

Nothing here knows a role: it works on the kernel's wire formats and on the installed command line.
See ``docs/guides/testing.md``.
"""

from mooncake_store.testing.audit import audit, find_problems, overlaps, walk
from mooncake_store.testing.checker import (
    EXCUSES,
    HOLD_EXCUSES,
    Checker,
    Rule,
    Violation,
    settled_write,
)
from mooncake_store.testing.clock import Timer, VirtualClock
from mooncake_store.testing.cluster import MasterProcess, NodeProcess, ProcessCluster, parse_metrics
from mooncake_store.testing.faults import (
    BlackHole,
    CloseAfter,
    Cut,
    Direction,
    DropAfter,
    Fault,
    Flip,
    Pass,
    Stall,
    Throttle,
)
from mooncake_store.testing.history import NEVER, Call, History, Kind, Outcome, Record
from mooncake_store.testing.network import Conditions, SeededNetwork
from mooncake_store.testing.payload import (
    describe,
    identify,
    payload,
    payload_range,
    stamped_version,
)
from mooncake_store.testing.process import Process
from mooncake_store.testing.proxy import FaultProxy
from mooncake_store.testing.seeds import seeded
from mooncake_store.testing.sockets import free_port
from mooncake_store.testing.streams import End, Stream
from mooncake_store.testing.waiting import ConditionNotMet, wait_until
from mooncake_store.testing.wire_client import WireClient

__all__ = [
    "EXCUSES",
    "HOLD_EXCUSES",
    "NEVER",
    "BlackHole",
    "Call",
    "Checker",
    "CloseAfter",
    "ConditionNotMet",
    "Conditions",
    "Cut",
    "Direction",
    "DropAfter",
    "End",
    "Fault",
    "FaultProxy",
    "Flip",
    "History",
    "Kind",
    "MasterProcess",
    "NodeProcess",
    "Outcome",
    "Pass",
    "Process",
    "ProcessCluster",
    "Record",
    "Rule",
    "SeededNetwork",
    "Stall",
    "Stream",
    "Throttle",
    "Timer",
    "Violation",
    "VirtualClock",
    "WireClient",
    "audit",
    "describe",
    "find_problems",
    "free_port",
    "identify",
    "overlaps",
    "parse_metrics",
    "payload",
    "payload_range",
    "seeded",
    "settled_write",
    "stamped_version",
    "wait_until",
    "walk",
]
