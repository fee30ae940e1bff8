"""A small write that has come whole with its request: what ``Reception`` does, in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_storage_node.writes import Incoming
from mooncake_store import extent
from mooncake_store.errors import Overloaded, StaleExtent, StoreError
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.types import term_of
from mooncake_store.wire.data import Status

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from mooncake_storage_node.node_view import NodeView


def land(
    node: NodeView, guard: threading.Lock, entry: Sequence[int], whole: memoryview
) -> Status | None:
    """Put an extent in place and publish it.

    Args:
        node: Where to.
        guard: Lock of the connection that it came over.
        entry: Incarnation, offset, version, start and bytes, as the request has them.
        whole: The extent; it may be used again afterwards.

    Returns:
        What the writer is told; None where the request needs a closer look.
    """
    incarnation, offset, version, start, size = entry
    segment = node.segments.get(incarnation)
    if segment is None or start or not segment.fits(offset, size):
        return None
    if segment.holds(offset, version):
        return Status.OK  # the answer to the first try was lost
    try:
        segment.secure(offset, size)
    except Overloaded:
        return Status.BUSY
    header = whole[:HEADER_BYTES]
    if not _is_sound(header, version, size):
        return None
    write = Incoming((incarnation, offset), size, version, guard)
    incoming = node.incoming
    incoming.add_one(write)
    # The fence is looked at once the write is in the register: whoever frees does it the other way.
    try:
        with guard:
            may_land = (
                not write.cut
                and segment.may_write(offset, size, version)
                and term_of(version) >= segment.term
            )
            if may_land:
                segment.extents[offset + HEADER_BYTES : offset + size] = whole[HEADER_BYTES:]
                segment.publish(offset, header, version)
    except StaleExtent:
        may_land = False
    finally:
        incoming.remove_one(write)
    return Status.OK if may_land else Status.FENCED


def _is_sound(header: memoryview, version: int, size: int) -> bool:
    try:
        fields = extent.unpack_header(header)
    except StoreError:
        return False
    whole = extent.read_bytes(fields.length) + fields.name_bytes
    return fields.version == version and whole == size
