"""Arguments of calls, checked and turned into what operations take."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from mooncake_client._core.batches import check_keys
from mooncake_client._core.offers import Offer, PutOptions
from mooncake_client._core.wants import Want
from mooncake_client._memory import source_views, target_views
from mooncake_client._results import PutItem
from mooncake_store import limits
from mooncake_store.errors import ConfigError, InvalidArgument, ObjectTooLarge
from mooncake_store.fingerprint import check_key
from mooncake_store.types import Pin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_client._memory import Buffer, Value

PinArgument: TypeAlias = "str | float | None"
"""None: no protection. "hard": until it is taken away. A number: for so many seconds."""

Items: TypeAlias = "Mapping[str, Value] | Iterable[PutItem | tuple[str, Value]]"
"""What is put together or in a batch."""


class Hints(NamedTuple):
    """What a put says about one object besides its bytes."""

    group: str = ""
    parent: str = ""
    expected_version: int | None = None


NO_HINTS: Final = Hints()

FLOAT_MAX: Final = sys.float_info.max

TRANSPORTS: Final = ("auto", "tcp", "shm", "rdma")


def parse_pin(pin: object) -> tuple[Pin, float]:
    """Return kind and seconds of a pin.

    Raises:
        InvalidArgument: It is none.
    """
    if pin is None:
        return Pin.NONE, 0.0
    if pin == "hard":
        return Pin.HARD, 0.0
    if isinstance(pin, (int, float)) and not isinstance(pin, bool) and 0 < pin <= FLOAT_MAX:
        return Pin.SOFT, float(pin)
    raise InvalidArgument(f"a pin is None, 'hard' or a positive number of seconds, not {pin!r}")


def _usual(*, together: bool) -> dict[tuple[int, bool], PutOptions]:
    """Return the options that say nothing but replicas and ``replace``."""
    return {
        (replicas, replace): PutOptions(replicas + 1, replace, together)
        for replicas in range(limits.REPLICAS_MAX)
        for replace in (False, True)
    }


_USUAL: Final = _usual(together=False)
_TOGETHER: Final = _usual(together=True)


def put_options(  # noqa: PLR0913 - options are keyword-only
    *,
    replace: bool,
    replicas: object,
    pin: PinArgument,
    preferred: object,
    expected_version: int | None = None,
    together: bool = False,
    durable: bool = False,
) -> PutOptions:
    """Check what a call says about all of its objects.

    Raises:
        InvalidArgument: A value is out of range.
    """
    if type(replicas) is not int or not 1 <= replicas <= limits.REPLICAS_MAX:
        raise InvalidArgument(
            f"an object has 1 to {limits.REPLICAS_MAX} replicas, not {replicas!r}"
        )
    if pin is None and expected_version is None and preferred == () and not durable:
        usual = _TOGETHER if together else _USUAL  # what most puts say, made once
        return usual[replicas - 1, bool(replace)]
    kind, pin_s = parse_pin(pin)
    swaps = expected_version is not None and check_version(expected_version) > 0
    names = check_preferred(preferred)
    return PutOptions(replicas, replace or swaps, together, kind, pin_s, names, bool(durable))


def check_preferred(names: object) -> tuple[str, ...]:
    """Return the names of the nodes to place objects on.

    Raises:
        InvalidArgument: They are none.
    """
    if names == ():
        return ()
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidArgument("preferred is a sequence of node names, not one")
    listed = tuple(names)
    if len(listed) > limits.NODES_MAX:
        raise InvalidArgument(f"at most {limits.NODES_MAX} nodes are preferred, not {len(listed)}")
    return tuple(map(check_node, listed))


def check_node(name: object) -> str:
    """Return the name of a node.

    Raises:
        InvalidArgument: It is no short text.
    """
    return check_hint(name, "node's name")


def offer(key: object, value: object, hints: Hints) -> Offer:
    """Check one object to be put.

    Raises:
        InvalidArgument, ObjectTooLarge: It cannot be.
    """
    if hints == NO_HINTS:
        return Offer(check_key(key), source_views(value))
    group, parent, expected = hints
    return Offer(
        check_key(key),
        source_views(value),
        group=check_hint(group, "group"),
        parent=check_hint(parent, "parent"),
        expected_version=-1 if expected is None else check_version(expected),
    )


def check_version(version: object) -> int:
    """Return an expected version.

    Raises:
        InvalidArgument: It is none.
    """
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 1 << 63:
        raise InvalidArgument(f"an expected version is 0 (absent) or a version, not {version!r}")
    return version


def empty_offer(key: object, length: object, hints: Hints) -> Offer:
    """Check an object whose bytes come later.

    Raises:
        InvalidArgument, ObjectTooLarge: It cannot be.
    """
    if isinstance(length, bool) or not isinstance(length, int) or length < 0:
        raise InvalidArgument(f"an object has a length of 0 bytes or more, not {length!r}")
    if length > limits.OBJECT_BYTES_MAX:
        raise ObjectTooLarge(f"{length} bytes are over the limit of {limits.OBJECT_BYTES_MAX}")
    made = offer(key, b"", hints)
    made.parts = None
    made.length = length
    return made


def offers(items: Items) -> list[Offer]:
    """Check a batch of objects to be put, all of them before anything moves.

    Raises:
        InvalidArgument, ObjectTooLarge: One cannot be; the message names its place.
    """
    pairs = items.items() if isinstance(items, Mapping) else items
    if not isinstance(pairs, Iterable):
        raise InvalidArgument(f"items are a mapping or pairs, not a {type(items).__name__}")
    found: list[Offer] = []
    for at, entry in enumerate(pairs):
        try:
            found.append(_offer_of(entry))
        except InvalidArgument as error:
            raise InvalidArgument(f"item {at} of the batch: {error}", key=error.key) from error
    return found


def _offer_of(entry: object) -> Offer:
    if isinstance(entry, PutItem):
        return offer(
            entry.key, entry.value, Hints(entry.group, entry.parent, entry.expected_version)
        )
    if not isinstance(entry, tuple) or len(entry) != 2:  # noqa: PLR2004 - a pair
        raise InvalidArgument(f"a {type(entry).__name__} is neither a PutItem nor a pair")
    return Offer(check_key(entry[0]), source_views(entry[1]))


def check_hint(hint: object, what: str) -> str:
    """Return a ``group`` or ``parent`` hint, or another short text.

    Raises:
        InvalidArgument: It is no text, or too long.
    """
    if not isinstance(hint, str):
        raise InvalidArgument(f"a {what} is a str, not {type(hint).__name__}")
    if _encoded_bytes(hint, what) > limits.HINT_BYTES_MAX:
        raise InvalidArgument(f"a {what} takes at most {limits.HINT_BYTES_MAX} bytes")
    return hint


def check_prefix(prefix: object) -> str:
    """Return the beginning of keys.

    Raises:
        InvalidArgument: No key can begin so.
    """
    return check_key(prefix) if prefix != "" else ""


def check_client_name(name: object) -> str:
    """Return what a client calls itself.

    Raises:
        InvalidArgument: It is no short text.
    """
    return check_hint(name, "client's name")


def check_connections(count: object) -> int:
    """Return how many connections a client may open.

    Raises:
        InvalidArgument: Not a number, or none at all.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidArgument(f"connections_max is a number from 1 on, not {count!r}")
    return count


def check_queue_pairs(count: object) -> int:
    """Return over how many queue pairs a transfer is spread; 0: as many as near devices.

    Raises:
        InvalidArgument: It is no such number.
    """
    most = limits.QUEUE_PAIRS_MAX
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= most:
        raise InvalidArgument(f"rdma_queue_pairs is a number from 0 to {most}, not {count!r}")
    return count


def _encoded_bytes(text: str, what: str) -> int:
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"a {what} holds a lone surrogate: {error}") from error


def check_range(start: object, length: object) -> None:
    """Check a range of bytes.

    Raises:
        InvalidArgument: It is none.
    """
    if not isinstance(start, int) or start < 0:
        raise InvalidArgument(f"a range starts at a byte from 0 on, not at {start!r}")
    if length is not None and (not isinstance(length, int) or length < 0):
        raise InvalidArgument(f"a range has a length of 0 bytes or more, not {length!r}")


def want(
    key: object,
    views: list[memoryview] | None,
    start: int = 0,
    length: int | None = None,
    *,
    verify: bool = True,
) -> Want:
    """Check one object to be read; without ``views`` the store allocates.

    Raises:
        InvalidArgument: An argument is wrong.
    """
    checked = check_key(key)
    if start or length is not None:
        check_range(start, length)
    return Want(checked, views, start, length, verify=verify)


def wants(
    keys: Iterable[str],
    buffers: Sequence[Buffer] | None = None,
    ranges: Sequence[tuple[int, int | None]] | None = None,
    *,
    verify: bool = True,
) -> list[Want]:
    """Check a batch of objects to be read, all of them before anything moves.

    Raises:
        InvalidArgument: An argument is wrong; the message names its place.
    """
    checked = check_keys(keys)
    for name, given in (("buffers", buffers), ("ranges", ranges)):
        if given is not None and len(given) != len(checked):
            raise InvalidArgument(f"{len(checked)} keys cannot go with {len(given)} {name}")
    found: list[Want] = []
    for at, key in enumerate(checked):
        start, length = (0, None) if ranges is None else _pair(ranges[at], at)
        views = None if buffers is None else target_views(buffers[at], what=f"buffers[{at}]")
        found.append(Want(key, views, start, length, verify=verify))
    return found


def _pair(given: object, at: int) -> tuple[int, int | None]:
    if not isinstance(given, (tuple, list)) or len(given) != 2:  # noqa: PLR2004 - a pair
        raise InvalidArgument(f"ranges[{at}] is no pair of start and length: {given!r}")
    start, length = given
    check_range(start, length)
    return start, length


def check_seconds(seconds: object, what: str) -> float:
    """Return a duration.

    Raises:
        InvalidArgument: It is negative or no number.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidArgument(f"{what} is a number of seconds, not {seconds!r}")
    if not 0 <= seconds <= limits.DEADLINE_S_MAX:
        raise InvalidArgument(f"{what} lies between 0 and {limits.DEADLINE_S_MAX:g} s")
    return float(seconds)


def check_manifest(manifest: object) -> dict[str, str] | None:
    """Return a copy of a manifest.

    Raises:
        InvalidArgument: It is no mapping of text to text, or too long.
    """
    if manifest is None:
        return None
    if not isinstance(manifest, Mapping):
        raise InvalidArgument("a manifest maps text to text")
    copied = dict(manifest)
    if not all(isinstance(text, str) for pair in copied.items() for text in pair):
        raise InvalidArgument("a manifest maps text to text")
    size = sum(_encoded_bytes(name + value, "manifest") for name, value in copied.items())
    if size > limits.MANIFEST_BYTES_MAX:
        raise InvalidArgument(f"a manifest takes at most {limits.MANIFEST_BYTES_MAX} bytes")
    return copied


def check_transport(transport: object) -> str:
    """Return the name of a transport.

    Raises:
        ConfigError: It is none.
    """
    if transport not in TRANSPORTS:
        raise ConfigError(f"transport {transport!r} is none of {', '.join(TRANSPORTS)}")
    return str(transport)


def milliseconds(wait_s: float) -> int:
    """Return a duration as the wire has it.

    Raises:
        InvalidArgument: It is none.
    """
    return int(check_seconds(wait_s, "wait_s") * 1000) if wait_s else 0
