"""Bytes that say what they are: derived from key and version, so that a wrong byte has a name.

A payload begins with a stamp (whose it is, which version, how long) and goes on with bytes that
follow from the same three. Two payloads differ in every block of 64 bytes, so a read that mixes
two of them, is shifted, cut short or belongs to another key is never equal to what was expected,
and ``identify`` says which version the bytes are, if they are one.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import xxhash

from mooncake_store.testing.seeds import seeded

if TYPE_CHECKING:
    from collections.abc import Iterable

_STAMP: Final = struct.Struct("<QQQ")
"""Whose (a hash of the key), which version, how many bytes in all."""

_SIZE_BYTES_MAX: Final = 1 << 30
"""Larger sizes in a stamp are no sizes."""

_PERIOD_BYTES: Final = 4093
"""Length after which the body repeats: prime, so that no offset that a store would mistake for
another one (multiples of 512, of 4 KiB, of 256 KiB) shows the same bytes below 2 MiB."""


def payload(key: str, version: int, size: int) -> bytes:
    """Return the ``size`` bytes of one version of ``key``; equal arguments give equal bytes."""
    stamp = _STAMP.pack(key_hash(key), version, size)
    if size <= len(stamp):
        return seeded(stamp.hex()).randbytes(size)
    period = seeded(stamp.hex()).randbytes(min(_PERIOD_BYTES, size - len(stamp)))
    body = period * -(-(size - len(stamp)) // len(period))
    return stamp + body[: size - len(stamp)]


def payload_range(key: str, version: int, size: int, start: int, length: int) -> bytes:
    """Return ``length`` bytes from ``start`` on of ``payload(key, version, size)``."""
    return payload(key, version, size)[start : start + length]


def identify(data: bytes | bytearray | memoryview, key: str, versions: Iterable[int]) -> int | None:
    """Return which of ``versions`` of ``key`` these bytes are, wholly and exactly, or None."""
    seen = memoryview(data).cast("B")
    for version in versions:
        if seen == payload(key, version, len(seen)):
            return version
    return None


def stamped_version(data: bytes | bytearray | memoryview, key: str) -> int | None:
    """Return which version of ``key`` these bytes are, by their own stamp, or None.

    Works where nobody knows which versions there are; needs the first 24 bytes of the payload.

    Args:
        data: What was read: the whole payload, or a part of it that begins at its first byte.
        key: Whose it should be.
    """
    seen = memoryview(data).cast("B")
    if len(seen) <= _STAMP.size:
        return None
    owner, version, size = _STAMP.unpack_from(seen)
    if owner != key_hash(key) or size > _SIZE_BYTES_MAX or len(seen) > size:
        return None
    return version if seen == payload_range(key, version, size, 0, len(seen)) else None


def describe(data: bytes | bytearray | memoryview, names: dict[int, str] | None = None) -> str:
    """Say what bytes that were not expected look like, for the message of a failed check.

    Args:
        data: The bytes.
        names: {hash of a key, as ``key_hash`` gives it: key}, to name the owner of a stamp.
    """
    seen = bytes(data)
    if not seen:
        return "no bytes"
    if not any(seen):
        return f"{len(seen)} zero bytes"
    if len(seen) > _STAMP.size:
        owner, version, size = _STAMP.unpack_from(seen)
        name = (names or {}).get(owner)
        if name is not None:
            whole = "all" if seen == payload(name, version, len(seen)) else "only the beginning"
            return f"{len(seen)} bytes, {whole} of version {version} of {name!r} ({size} bytes)"
    return f"{len(seen)} bytes that no payload begins with: {seen[:24].hex()}..."


def key_hash(key: str) -> int:
    """Return how a stamp names its key."""
    return xxhash.xxh3_64_intdigest(key.encode())
