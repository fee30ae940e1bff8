"""Long batches, cut to what one control frame may hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from mooncake_store import fingerprint
from mooncake_store.errors import InvalidArgument
from mooncake_store.limits import BATCH_BYTES_MAX, BATCH_KEYS_MAX, KEY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

_SURELY_SHORT: Final = KEY_BYTES_MAX // 4
"""Characters that are within the limit whatever they are: UTF-8 takes at most four bytes each."""


def check_keys(keys: Iterable[str]) -> list[str]:
    """Return the keys as a list if each can name an object.

    Raises:
        InvalidArgument: One cannot; the message names its place in the batch.
    """
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise InvalidArgument("keys are a sequence of str, not one")
    listed = list(keys)
    try:
        joined = "".join(listed)
        is_plain = joined.isascii() and all(listed) and len(max(listed, key=len)) <= _SURELY_SHORT
    except (TypeError, ValueError):  # not strings; an empty batch
        is_plain = False
    if not is_plain:
        for at, key in enumerate(listed):
            try:
                fingerprint.check_key(key)
            except InvalidArgument as error:
                raise InvalidArgument(f"key {at} of the batch: {error}") from error
    return listed


def cut(
    items: Sequence[T], bytes_of: Callable[[T], int], bytes_max: int = BATCH_BYTES_MAX
) -> list[Sequence[T]]:
    """Cut a batch into parts of at most ``BATCH_KEYS_MAX`` items and ``bytes_max`` bytes.

    An item that is larger than that by itself becomes a part of its own.
    """
    if len(items) <= BATCH_KEYS_MAX and sum(map(bytes_of, items)) <= bytes_max:
        return [items] if items else []
    parts: list[Sequence[T]] = []
    start = total = 0
    for at, item in enumerate(items):
        size = bytes_of(item)
        if at > start and (at - start >= BATCH_KEYS_MAX or total + size > bytes_max):
            parts.append(items[start:at])
            start, total = at, 0
        total += size
    parts.append(items[start:])
    return parts


def key_bytes(key: str) -> int:
    """Return an upper bound of what a key takes in a frame; a call more would be too many."""
    return 4 * len(key) + 8


def cut_keys(keys: list[str]) -> list[Sequence[str]]:
    """Cut a batch of keys into what one frame may hold."""
    return cut(keys, key_bytes)
