"""Identity of keys outside a process: the same in every process, version and machine.

Python's own ``hash`` is salted per process and never leaves it (field report 013).
"""

from __future__ import annotations

import xxhash

from mooncake_store import limits
from mooncake_store.errors import InvalidArgument

FINGERPRINT_BYTES = 16


def fingerprint(namespace: str, key: str) -> bytes:
    """Return the 16-byte identity of (namespace, key): XXH3-128 of both, split by a NUL.

    A namespace's name holds no NUL (``check_namespace``), so no two pairs share their input.
    """
    return xxhash.xxh3_128_digest(f"{namespace}\0{key}".encode())


def check_key(key: object) -> str:
    """Return ``key`` if it can name an object.

    Raises:
        InvalidArgument: Not a string, empty, not encodable, or over ``limits.KEY_BYTES_MAX``.
    """
    return _check_name(key, "key", limits.KEY_BYTES_MAX)


def check_namespace(name: object) -> str:
    """Return ``name`` if it can name a namespace: non-empty, bounded, without NUL.

    Raises:
        InvalidArgument: It cannot.
    """
    checked = _check_name(name, "namespace", limits.NAMESPACE_BYTES_MAX)
    if "\0" in checked:
        raise InvalidArgument("a namespace's name cannot hold a NUL character")
    return checked


def _check_name(name: object, what: str, bytes_max: int) -> str:
    if not isinstance(name, str):
        raise InvalidArgument(f"a {what} is a str, not {type(name).__name__}")
    if not name:
        raise InvalidArgument(f"a {what} cannot be empty")
    try:
        count = len(name) if name.isascii() else len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"a {what} holds a lone surrogate: {error}") from error
    if count > bytes_max:
        raise InvalidArgument(
            f"a {what} takes at most {bytes_max} bytes as UTF-8, this one has {count}"
        )
    return name
