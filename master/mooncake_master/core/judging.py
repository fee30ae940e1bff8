"""Whether an object may be written at all, decided before anything is evicted for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from mooncake_master.core import accounting
from mooncake_store import limits
from mooncake_store.errors import (
    InvalidArgument,
    ObjectTooLarge,
    PutUnderWay,
    StoreError,
    TooManyObjects,
    VersionConflict,
)
from mooncake_store.extent import HEADER_BYTES, extent_bytes
from mooncake_store.fingerprint import check_key
from mooncake_store.limits import CHUNK_BYTES, GRANULE_BYTES
from mooncake_store.types import Pin
from mooncake_store.wire.control import PutExists, Refusal

if TYPE_CHECKING:
    from mooncake_master.core.catalog import Catalog
    from mooncake_master.core.context import Context
    from mooncake_master.core.evictor import Evictor
    from mooncake_master.core.pins import Pins
    from mooncake_master.core.placement import Placement
    from mooncake_master.core.records import Generation, Namespace, Stored
    from mooncake_store.wire.control import PutItem, PutStart

    Verdicts: TypeAlias = list[PutExists | Refusal | int]


PIN_S_MAX: Final = 10 * 365 * 86_400.0
"""Longest soft pin: a hard pin says "for ever" better than a number does."""


class Judge:
    """Judges the items of a `PutStart`."""

    def __init__(
        self, context: Context, catalog: Catalog, placement: Placement, evictor: Evictor,
        pins: Pins,
    ) -> None:  # fmt: skip
        self._context = context
        self._catalog = catalog
        self._placement = placement
        self._evictor = evictor
        self._pins = pins

    def check(self, message: PutStart) -> None:
        """Check what concerns the whole request.

        Raises:
            InvalidArgument: A value is out of range.
        """
        if not 1 <= message.replicas <= limits.REPLICAS_MAX:
            raise InvalidArgument(
                f"replicas lies in 1 to {limits.REPLICAS_MAX}, not at {message.replicas}"
            )
        check_batch(len(message.items))
        check_pin(message.pin, message.pin_s)

    def judge(self, message: PutStart, home: Generation) -> Verdicts:
        """Return an answer for each item that needs no room, for the others what they take."""
        verdicts: Verdicts = []
        pinning = 0
        new: set[str] = set()
        for item in message.items:
            try:
                exists = self._existing(item, message, home)
                if exists is not None:
                    verdicts.append(exists)
                    continue
                if item.key in new:
                    raise InvalidArgument(f"the key {item.key!r} is twice in one batch")
                granules = granules_of(home.space, item)
                self._placement.check(granules, message.replicas)
                if message.pin:
                    pinning += granules * message.replicas
                    self._pins.check(home, pinning)
                if self._context.config.keys_max:
                    self._check_count(len(new))
                new.add(item.key)
                verdicts.append(granules)
            except StoreError as error:
                self._context.counters[accounting.refused(error.code)] += 1
                verdicts.append(Refusal(error.code, str(error)))
        return verdicts

    def _existing(self, item: PutItem, message: PutStart, home: Generation) -> PutExists | None:
        """Return the answer for a key that is there and is to stay, None where it is written.

        Raises:
            InvalidArgument: The item makes no sense.
            ObjectTooLarge: Above ``limits.OBJECT_BYTES_MAX``.
            PutUnderWay: Somebody else writes it still.
            VersionConflict: It is not the version that the writer expects.
        """
        key = item.key
        stored = home.objects.get(key)
        if stored is not None and not message.replace and item.expected_version < 0:
            if stored.readable:
                self._context.counters[accounting.ALREADY] += 1
                for extent in stored.extents():  # whoever offers a block again has a use for it
                    extent.segment.touched(extent)
                if stored.hints is not None:
                    self._catalog.find_parent(stored)
                return PutExists(stored.version)
        elif stored is None:
            check_key(key)
        _check_sizes(item)
        if key in home.writing:
            raise PutUnderWay(f"another writer holds {key!r} and did not finish in time", key=key)
        if item.expected_version >= 0:
            _check_version(stored, item)
        return None

    def _check_count(self, new: int) -> None:
        """Make room for one more entry where their number is bounded."""
        bound = self._context.config.keys_max
        while self._catalog.count + self._context.attempts + new >= bound:
            if not self._evictor.evict_one():
                raise TooManyObjects(f"the index is bounded to {bound} keys and none may go now")


def granules_of(space: Namespace, item: PutItem) -> int:
    """Return what a replica of an item takes in a segment."""
    names = space.name_bytes
    for text in (item.key, item.group, item.parent) if item.group or item.parent else (item.key,):
        names += len(text) if text.isascii() else len(text.encode())
    length = item.length
    if length <= CHUNK_BYTES:  # what ``extent_bytes`` says of one chunk, without three calls
        return -(-(HEADER_BYTES + length + names) // GRANULE_BYTES)
    return extent_bytes(length, names) // GRANULE_BYTES


def _check_sizes(item: PutItem) -> None:
    length = item.length
    if length < 0:
        raise InvalidArgument(f"an object has {length} bytes", key=item.key)
    if length > limits.OBJECT_BYTES_MAX:
        raise ObjectTooLarge(
            f"the object has {length} bytes, the limit is {limits.OBJECT_BYTES_MAX}", key=item.key
        )
    for hint in (item.group, item.parent) if item.group or item.parent else ():
        if hint.startswith("\0") or len(hint.encode()) > limits.HINT_BYTES_MAX:
            raise InvalidArgument(
                f"a hint takes at most {limits.HINT_BYTES_MAX} bytes and begins with no NUL",
                key=item.key,
            )


def _check_version(stored: Stored | None, item: PutItem) -> None:
    there = stored.version if stored is not None else 0
    if there != item.expected_version:
        state = f"at version {there}" if there else "not there"
        raise VersionConflict(
            f"{item.key!r} is {state}, not at version {item.expected_version}", key=item.key
        )


def check_batch(count: int) -> None:
    """Check the number of keys of a request.

    Raises:
        InvalidArgument: More than ``limits.BATCH_KEYS_MAX``.
    """
    if count > limits.BATCH_KEYS_MAX:
        raise InvalidArgument(f"a batch has at most {limits.BATCH_KEYS_MAX} keys, not {count}")


def check_pin(pin: int, pin_s: float) -> None:
    """Check a pin's kind and time.

    Raises:
        InvalidArgument: There is no such kind, or a soft pin without a finite time.
    """
    if not pin:
        return
    if pin not in (Pin.SOFT, Pin.HARD):
        raise InvalidArgument(f"a pin is 0 (none), 1 (soft) or 2 (hard), not {pin}")
    if pin == Pin.SOFT and not 0 < pin_s < PIN_S_MAX:
        raise InvalidArgument(f"a soft pin lasts between 0 and {PIN_S_MAX:g} s, not {pin_s} s")
