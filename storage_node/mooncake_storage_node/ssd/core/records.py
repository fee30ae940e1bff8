"""Records of the index on disk: packing, and checking what comes back. Pure.

A record's last eight bytes check its key and the rest. The index as a whole is checked by the sum
of all checks (``Seal``), so that a page of an older time, whose records are all right by
themselves, does not bring back what was removed.

    e + location (u32)   an entry: version, place, ... and the extent's name block
    r + number (u32)     a region: its sequence
    m + name             one of a kind: identity, epochs, wear
    z                    the seal
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import xxhash

from mooncake_storage_node.ssd.core.admission import WearState
from mooncake_storage_node.ssd.core.table import Entry
from mooncake_store.limits import GRANULE_BYTES, NAMESPACES_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

SEAL_KEY: Final = b"z"
IDENTITY_KEY: Final = b"m:identity"
EPOCHS_KEY: Final = b"m:epochs"
WEAR_KEY: Final = b"m:wear"
ENTRY_PREFIX: Final = b"e"
REGION_PREFIX: Final = b"r"

_CHECK = struct.Struct("<Q")
_ENTRY = struct.Struct("<QQIHHIQQ16s")
"""version, place, granules, slot, name bytes, epoch, length, checksum, fingerprint."""
_ROW = struct.Struct("<QQIHHI")
"""The first six of these: what is loaded into memory, see ``rows``."""
_NUMBER = struct.Struct(">I")
_KEY_BYTES: Final = 1 + _NUMBER.size
_SEAL = struct.Struct("<QQQ")
_IDENTITY = struct.Struct("<16sQ")
_WEAR = struct.Struct("<qQQQdd")
_EPOCH = struct.Struct("<HI")
_SEQUENCE = struct.Struct("<Q")
_hash = xxhash.xxh3_64_intdigest

ENTRY_OVERHEAD_BYTES: Final = _ENTRY.size + _CHECK.size + 5 + 8
"""Of a record beside its name block: fields, check, key, and LMDB's node header."""


class Seal(NamedTuple):
    """The index as a whole."""

    commits: int
    """Number of the transaction that wrote it."""
    records: int
    total: int
    """Sum of all records' checks, modulo 2**64."""


class Identity(NamedTuple):
    """Whose index it is."""

    store: bytes
    """16 random bytes of the directory."""
    incarnation: int


class EntryRecord(NamedTuple):
    """What the index says of one extent."""

    entry: Entry
    length: int
    checksum: int
    fingerprint: bytes
    names: bytes


def close_record(key: bytes, body: bytes) -> bytes:
    """Return a value for ``key``: the body and its check."""
    return body + _CHECK.pack(_hash(key + body))


def check_of(value: bytes) -> int:
    """Return the check that a value carries; 0 where it is too short for one."""
    return int.from_bytes(value[-8:], "little") if len(value) >= _CHECK.size else 0


def open_record(key: bytes, value: bytes) -> bytes | None:
    """Return the body of a value, or None where it is damaged."""
    body = value[: -_CHECK.size]
    if len(value) < _CHECK.size or _hash(key + body) != check_of(value):
        return None
    return body


# --- entries ------------------------------------------------------------------------------------


def entry_key(location: int) -> bytes:
    """Return the key of the entry at a location; keys are in the order of locations."""
    return ENTRY_PREFIX + _NUMBER.pack(location)


def pack_entry(location: int, record: EntryRecord) -> tuple[bytes, bytes]:
    """Return key and value of an entry."""
    entry = record.entry
    body = _ENTRY.pack(
        entry.version,
        entry.place,
        entry.size // GRANULE_BYTES,
        entry.slot,
        entry.name_bytes,
        entry.epoch,
        record.length,
        record.checksum,
        record.fingerprint,
    )
    key = entry_key(location)
    return key, close_record(key, body + record.names)


def unpack_entry(key: bytes, value: bytes) -> tuple[int, EntryRecord] | None:
    """Return location and record, or None where they are damaged."""
    body = open_record(key, value)
    if body is None or len(key) != 1 + _NUMBER.size or len(body) < _ENTRY.size:
        return None
    (version, place, granules, slot, names, epoch, length, checksum, fingerprint) = (
        _ENTRY.unpack_from(body)
    )
    entry = Entry(version, place, granules * GRANULE_BYTES, slot, epoch, names)
    block = body[_ENTRY.size :]
    if len(block) != names or slot >= NAMESPACES_MAX:
        return None
    (location,) = _NUMBER.unpack_from(key, 1)
    return location, EntryRecord(entry, length, checksum, fingerprint, block)


def row_of(key: bytes, value: bytes) -> tuple[int, tuple[int, ...] | None]:
    """Return the check of an entry's record, and its row, or None where it is damaged.

    It is called for every entry when a store is opened, so it does no more than it must.
    """
    body = value[:-8]
    check = int.from_bytes(value[-8:], "little")
    if _hash(key + body) != check or len(body) < _ENTRY.size or len(key) != _KEY_BYTES:
        return check_of(value), None
    return check, _ROW.unpack_from(body)


def location_of(key: bytes) -> int:
    """Return the location that an entry's key names."""
    return int.from_bytes(key[1:], "big")


def index_bytes(name_bytes: int) -> int:
    """Return what an entry with a name block of this length takes in the index."""
    return ENTRY_OVERHEAD_BYTES + name_bytes


# --- one of a kind ------------------------------------------------------------------------------


def pack_seal(seal: Seal) -> bytes:
    """Return the seal's value."""
    return close_record(SEAL_KEY, _SEAL.pack(*seal))


def unpack_seal(value: bytes | None) -> Seal | None:
    """Return the seal, or None where there is none or it is damaged."""
    body = open_record(SEAL_KEY, value or b"")
    return Seal(*_SEAL.unpack(body)) if body and len(body) == _SEAL.size else None


def pack_identity(identity: Identity) -> tuple[bytes, bytes]:
    """Return key and value of the identity."""
    return IDENTITY_KEY, close_record(IDENTITY_KEY, _IDENTITY.pack(*identity))


def unpack_identity(body: bytes | None) -> Identity | None:
    """Return the identity from the body of its record."""
    return Identity(*_IDENTITY.unpack(body)) if body and len(body) == _IDENTITY.size else None


def pack_epochs(epochs: Mapping[int, int]) -> tuple[bytes, bytes]:
    """Return key and value of {slot: epoch}."""
    body = b"".join(_EPOCH.pack(slot, epoch) for slot, epoch in sorted(epochs.items()))
    return EPOCHS_KEY, close_record(EPOCHS_KEY, body)


def unpack_epochs(body: bytes | None) -> dict[int, int]:
    """Return {slot: epoch} from the body of its record."""
    if not body or len(body) % _EPOCH.size:
        return {}
    return {slot: epoch for slot, epoch in _EPOCH.iter_unpack(body) if slot < NAMESPACES_MAX}


def pack_wear(state: WearState) -> tuple[bytes, bytes]:
    """Return key and value of what was written so far."""
    return WEAR_KEY, close_record(WEAR_KEY, _WEAR.pack(*state))


def unpack_wear(body: bytes | None) -> WearState | None:
    """Return what was written so far from the body of its record."""
    return WearState(*_WEAR.unpack(body)) if body and len(body) == _WEAR.size else None


def pack_region(number: int, sequence: int) -> tuple[bytes, bytes]:
    """Return key and value of a region."""
    key = REGION_PREFIX + _NUMBER.pack(number)
    return key, close_record(key, _SEQUENCE.pack(sequence))


def unpack_region(key: bytes, body: bytes) -> tuple[int, int] | None:
    """Return number and sequence from the key and body of a region's record."""
    if len(key) != 1 + _NUMBER.size or len(body) != _SEQUENCE.size:
        return None
    return _NUMBER.unpack_from(key, 1)[0], _SEQUENCE.unpack(body)[0]
