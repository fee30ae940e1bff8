"""What a master keeps over its restarts: membership and decisions that no node can tell it.

The core says what to keep (``Remember``, ``Forget``); the shell keeps it, and hands everything back
at the next start as `Remembered`. Without a place to keep it the instructions do nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from mooncake_store.fingerprint import fingerprint
from mooncake_store.wire.control import SegmentRecord  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Mapping


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of what is kept; fields are only ever added, at the end, with a default."""


class Reign(Entry, frozen=True):
    """Table ``reign``, key ``""``: which cluster this is, and how often it had a master."""

    cluster_id: str
    term: int
    """Highest one used."""


class KnownNode(Entry, frozen=True):
    """Table ``nodes``, by node id: a node that may come back with what it holds."""

    name: str
    node_id: str
    host: str
    port: int
    local_path: str
    labels: dict[str, str]
    segments: tuple[SegmentRecord, ...]
    seen_s: float
    """Seconds since 1970 when it registered last, or went."""


class KnownNamespace(Entry, frozen=True):
    """Table ``namespaces``, by name."""

    slot: int
    name: str
    epoch: int
    manifest: dict[str, str] | None = None


class Limits(Entry, frozen=True):
    """Table ``limits``, by namespace, ``""`` for the cluster: what operators allowed."""

    pinned_share_max: float


class Note(Entry, frozen=True):
    """Table ``notes``, by `note_key`: an extent that its absent node still has to free."""

    node_id: str
    incarnation: int
    offset: int
    bytes: int
    attempt: int
    """Number of the write that put it there: nothing newer at that place is meant."""


class DrainJob(Entry, frozen=True):
    """Table ``drains``, by node id: a node that gets nothing new and is being emptied."""

    node_id: str
    name: str
    until_s: float
    """Seconds since 1970 when it is given up."""
    state: str = "draining"
    """``draining``, ``drained`` or ``incomplete``."""


class Tomb(Entry, frozen=True):
    """Table ``removed``, by `tomb_key`: a key of which an absent node may hold older versions."""

    slot: int
    key: str
    version: int
    """Newest one that is gone."""


E = TypeVar("E", bound=Entry)

TABLES: Final[dict[str, type[Entry]]] = {
    "reign": Reign,
    "nodes": KnownNode,
    "namespaces": KnownNamespace,
    "limits": Limits,
    "notes": Note,
    "drains": DrainJob,
    "removed": Tomb,
}
"""{table: what it holds}"""


class Remembered:
    """Everything that was kept, as it was at the start of this master.

    Attributes:
        reign: The last one of this cluster; None at the very first start.
        nodes: {node id: node}.
        namespaces: {name: namespace}.
        limits: {namespace: limits}.
        notes: {key: note}.
        drains: {node id: job}.
        removed: {key: tomb}.
        lasting: All that the core says from now on is kept, too; False where this is only a copy
            of what another master knew.
        kept: Tables of which what the core says from now on is kept.
    """

    __slots__ = (
        "drains", "kept", "lasting", "limits", "namespaces", "nodes", "notes", "reign", "removed",
    )  # fmt: skip

    def __init__(
        self, tables: Mapping[str, Mapping[str, Entry]] | None = None, *, lasting: bool = True,
        kept: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """Sort what was read, ``{table: {key: entry}}``."""
        self.lasting = lasting
        self.kept = frozenset(TABLES) if lasting else kept
        entries = tables or {}
        reign = entries.get("reign", {}).get("")
        self.reign = reign if isinstance(reign, Reign) else None
        self.nodes = _of(entries, "nodes", KnownNode)
        self.namespaces = _of(entries, "namespaces", KnownNamespace)
        self.limits = _of(entries, "limits", Limits)
        self.notes = _of(entries, "notes", Note)
        self.drains = _of(entries, "drains", DrainJob)
        self.removed = _of(entries, "removed", Tomb)


def note_key(incarnation: int, offset: int, attempt: int) -> str:
    """Return the key of a `Note`."""
    return f"{incarnation:016x}:{offset:x}:{attempt:x}"


def tomb_key(slot: int, key: str) -> str:
    """Return the key of a `Tomb`."""
    return f"{slot:x}:{fingerprint(str(slot), key).hex()}"


def _of(tables: Mapping[str, Mapping[str, Entry]], table: str, kind: type[E]) -> dict[str, E]:
    return {key: entry for key, entry in tables.get(table, {}).items() if isinstance(entry, kind)}
