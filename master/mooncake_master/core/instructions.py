"""What the shell has to do because of an event, in the order of the list.

msgspec structs, not dataclasses: one is made for every request, and they are made five times
faster. The garbage collector does not track them.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from mooncake_master.core.remembered import Entry  # noqa: TC001 - msgspec reads the annotations
from mooncake_store.errors import StoreError  # noqa: TC001 - msgspec reads the annotations
from mooncake_store.wire.control import Message  # noqa: TC001 - msgspec reads the annotations


class Reply(msgspec.Struct, frozen=True, gc=False):
    """Answer a request."""

    peer: int
    request_id: int
    message: Message


class Fail(msgspec.Struct, frozen=True, gc=False):
    """Answer a request with an error."""

    peer: int
    request_id: int
    error: StoreError


class Instruct(msgspec.Struct, frozen=True, gc=False):
    """Ask a node over its registration connection; its answer goes to ``Master.node_replied``."""

    peer: int
    token: int
    message: Message


class Close(msgspec.Struct, frozen=True, gc=False):
    """Close a connection: another one took its place."""

    peer: int


class Remember(msgspec.Struct, frozen=True, gc=False):
    """Keep an entry over a restart, in the place of one with its key.

    Done before any reply that follows it in the list is written; if it cannot be done, those
    replies become errors. Survives the end of the process at any moment; a power failure may cost
    the last second.
    """

    table: str
    """One of ``remembered.TABLES``."""
    key: str
    entry: Entry


class Forget(msgspec.Struct, frozen=True, gc=False):
    """Keep an entry no longer; done like `Remember`, and harmless where there is none."""

    table: str
    key: str


Instruction: TypeAlias = Reply | Fail | Instruct | Close | Remember | Forget
