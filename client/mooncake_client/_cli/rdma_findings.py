"""What ``doctor`` finds about RDMA: this host's devices, and the way to each node over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mooncake_client._cli.findings import bad, note, ok
from mooncake_client._cli.output import about_bytes
from mooncake_store.deadline import Deadline
from mooncake_store.errors import StoreError
from mooncake_store.limits import MIB
from mooncake_store.memory import address_of
from mooncake_store.transport.rdma import RdmaContext, RdmaDataPath
from mooncake_store.transport.rdma.pyverbs_device import device_names, open_devices
from mooncake_store.transport.rdma.verbs import Access
from mooncake_store.types import NodeState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_client._cli.findings import Finding
    from mooncake_store.transport.rdma.verbs import Device
    from mooncake_store.wire.control import ClusterStatus, NodeRecord

LOCKED_BYTES: Final = 8 * MIB
"""Memory that a client locks for a few connections to a node; registered on trial."""

PATIENCE_S: Final = 3.0
"""Time to reach one node."""

FALLBACK: Final = "bytes go over TCP instead"


def look_at_rdma(status: ClusterStatus) -> Iterator[Finding]:
    """Yield what RDMA can do here: a line for each device, and for each node over them."""
    if not device_names():
        yield note("rdma", f"no device on this host: {FALLBACK}")
        return
    devices, problems = open_devices()
    for problem in problems:
        yield bad("rdma", f"{problem}; {FALLBACK}")
    for device in devices:
        yield _look_at_device(device)
    if not devices:
        return
    context = RdmaContext(devices)
    try:
        for node in sorted(status.nodes, key=lambda node: node.record.name):
            if node.record.port and node.record.state in {NodeState.LIVE, NodeState.SUSPECT}:
                yield look_at_link(node.record, context)
    finally:
        context.close()


def _look_at_device(device: Device) -> Finding:
    """Register some memory on trial."""
    memory = memoryview(bytearray(LOCKED_BYTES))
    try:
        device.register(address_of(memory), len(memory), Access.LOCAL).close()
    except StoreError as error:
        return bad("rdma", f"{error}; {FALLBACK}")
    return ok("rdma", f"{device.name} opens and locks {about_bytes(LOCKED_BYTES)}")


def look_at_link(node: NodeRecord, context: RdmaContext) -> Finding:
    """Return how a node is reached over RDMA."""
    with RdmaDataPath(
        node.host, node.port, node_id=node.node_id, node=node.name, context=context
    ) as path:
        try:
            report = path.examine(Deadline(PATIENCE_S))
        except StoreError as error:
            return bad(node.name, f"{error}; {FALLBACK}")
    if not report.segments:
        return bad(node.name, f"RDMA reaches another memory than the node's; {FALLBACK}")
    if report.mtu_bytes != report.peer_mtu_bytes:
        return note(
            node.name,
            f"RDMA over {report.device} with packets of"
            f" {min(report.mtu_bytes, report.peer_mtu_bytes)} bytes, as the MTU is"
            f" {report.mtu_bytes} here and {report.peer_mtu_bytes} there: make them alike",
        )
    return ok(node.name, f"RDMA over {report.device}, MTU {report.mtu_bytes}")
