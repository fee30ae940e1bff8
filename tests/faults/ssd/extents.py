"""Extents to store, and what tests know about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_store import extent
from mooncake_store.extent import Identity, Names
from mooncake_store.fingerprint import fingerprint
from mooncake_store.testing import payload

if TYPE_CHECKING:
    from collections.abc import Iterable


def make_extent(
    key: str, version: int, size: int, *, slot: int = 1, epoch: int = 1, names: Names | None = None
) -> bytes:
    """Return an extent as it lies in DRAM, its payload derived from key and version."""
    names = names or Names("ns", key)
    identity = Identity(fingerprint(names.namespace, key), version, slot, epoch, size)
    body = payload(key, version, size)
    sealed = extent.seal(identity, extent.hash_payload([memoryview(body)]), names)
    whole = sealed.header + body + sealed.tail
    size = extent.extent_bytes(size, len(extent.pack_names(names)))
    return whole + bytes(size - len(whole))


def extents(count: int, size: int, first: int = 1) -> Iterable[tuple[int, bytes]]:
    """Yield (version, extent) of ``count`` objects; the key of version n is ``key-n``."""
    for version in range(first, first + count):
        yield version, make_extent(f"key-{version}", version, size)
