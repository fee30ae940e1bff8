"""How two queue pairs learn of each other over a data connection. Sans-I/O.

``RDMA_OPEN`` carries an endpoint; its reply one status, and where that is ``OK`` the node's
endpoint and its regions, else the reason as text. ``RDMA_BEGIN`` is a ``WRITE`` without payload:
what will be written one-sidedly, a status for each extent. ``RDMA_END`` repeats the entries of
those that were, with their headers as payload, and is answered like a ``WRITE``.

    endpoint, 36 bytes                        region, 40 bytes
    0   u32  queue pair                       0   u64  incarnation of the segment
    4   u32  first packet sequence number     8   u64  bytes of its extents
    8   16s  GID                              16  u64  address of the segment's control pages
    24  u16  LID (InfiniBand)                 24  u64  address of its extents
    26  u8   ``LinkLayer``                    32  u32  key of the control pages (read)
    27  u8   version of RoCE; 0: none         36  u32  key of the extents (read, write)
    28  u16  bytes of the path's MTU
    30  u8   RDMA reads it answers at a time
    31  u8   rail: which of its devices the asking side would like
    32  u32  zero
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from mooncake_store.errors import ProtocolError
from mooncake_store.limits import SEGMENTS_PER_NODE_MAX
from mooncake_store.wire import data

if TYPE_CHECKING:
    from collections.abc import Sequence

ENDPOINT: Final = struct.Struct("<II16sHBBHBBI")
ENDPOINT_BYTES: Final = ENDPOINT.size
REGION: Final = struct.Struct("<QQQQII")
REGION_BYTES: Final = REGION.size
OFFER_BYTES_MAX: Final = ENDPOINT_BYTES + REGION_BYTES * SEGMENTS_PER_NODE_MAX

REASON_BYTES_MAX: Final = 400
"""UTF-8 bytes of a node's reason to refuse: one line for people."""

MTUS: Final = (256, 512, 1024, 2048, 4096)
"""Bytes a packet may carry."""


class LinkLayer(enum.IntEnum):
    """What a port is connected to."""

    INFINIBAND = 1
    ETHERNET = 2


class Endpoint(NamedTuple):
    """One queue pair, as the other side must know it."""

    number: int
    first_psn: int
    gid: bytes
    lid: int
    link: int
    roce: int
    mtu_bytes: int
    reads_max: int
    rail: int = 0


class Region(NamedTuple):
    """One segment that is registered with the node's device."""

    incarnation: int
    bytes: int
    control: int
    extents: int
    control_key: int
    extents_key: int


def encode_endpoint(endpoint: Endpoint) -> bytes:
    """Return the bytes of an endpoint."""
    return ENDPOINT.pack(*endpoint, 0)


def decode_endpoint(source: bytes | bytearray | memoryview) -> Endpoint:
    """Read an endpoint of exactly ``ENDPOINT_BYTES``.

    Raises:
        ProtocolError: It is none that a queue pair could be connected to.
    """
    try:
        *fields, _ = ENDPOINT.unpack(source)
    except struct.error as error:
        raise ProtocolError(f"no RDMA endpoint: {error}") from error
    endpoint = Endpoint(*fields)
    if (
        endpoint.link not in {LinkLayer.INFINIBAND, LinkLayer.ETHERNET}
        or endpoint.mtu_bytes not in MTUS
        or max(endpoint.number, endpoint.first_psn) >= 1 << 24
    ):
        raise ProtocolError(f"no RDMA endpoint: {endpoint}")
    return endpoint


def encode_open(endpoint: Endpoint, request_id: int, deadline_ms: int) -> bytes:
    """Return a whole ``RDMA_OPEN`` request."""
    head = data.encode_request(
        data.Operation.RDMA_OPEN,
        request_id,
        (),
        deadline_ms=deadline_ms,
        payload_bytes=ENDPOINT_BYTES,
    )
    return bytes(head) + encode_endpoint(endpoint)


def encode_offer(request_id: int, endpoint: Endpoint, regions: Sequence[Region]) -> bytes:
    """Return the reply to ``RDMA_OPEN`` of a node that takes part."""
    payload = encode_endpoint(endpoint) + b"".join(REGION.pack(*region) for region in regions)
    head = data.encode_reply(data.Operation.RDMA_OPEN, request_id, [data.Status.OK], len(payload))
    return bytes(head) + payload


def encode_refusal(request_id: int, reason: str) -> bytes:
    """Return the reply to ``RDMA_OPEN`` of a node that cannot, with one line that says why."""
    text = reason.encode()[:REASON_BYTES_MAX]
    head = data.encode_reply(data.Operation.RDMA_OPEN, request_id, [data.Status.NO_RDMA], len(text))
    return bytes(head) + text


def decode_offer(payload: bytes | bytearray | memoryview) -> tuple[Endpoint, list[Region]]:
    """Read what follows the status of a reply to ``RDMA_OPEN``.

    Raises:
        ProtocolError: It is no offer.
    """
    endpoint = decode_endpoint(payload[:ENDPOINT_BYTES])
    rest = payload[ENDPOINT_BYTES:]
    if len(rest) % REGION_BYTES:
        raise ProtocolError(f"an RDMA offer does not end {len(rest)} bytes behind its endpoint")
    return endpoint, [Region(*fields) for fields in REGION.iter_unpack(rest)]
