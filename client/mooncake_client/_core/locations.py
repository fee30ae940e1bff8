"""Locations that are still leased: a read of one needs no master.

A stale entry is harmless, because every read checks the extent's header; the lease only says how
long the extents are kept for us. It is counted from before the request was sent, so it ends here
before it ends at the master.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mooncake_store.extent import Identity
    from mooncake_store.wire.control import Replica

ENTRIES_MAX: Final = 65_536
"""About 40 MB at most (600 bytes an entry). An engine of 64 KiB blocks reads 4 GiB from so many."""


class Entry:
    """Where one version of a key lies, while its lease lasts.

    Attributes:
        identity: What its extents hold.
        replicas: Its copies, best first.
        ends_s: When the lease ends, on the client's clock.
        path: The driver's data path to ``place``; None until a read went well.
        place: The replica that was read last.
        verified: Whether a view of ``place`` has hashed the payload.
    """

    __slots__ = ("ends_s", "identity", "path", "place", "replicas", "verified")

    def __init__(self, identity: Identity, replicas: tuple[Replica, ...], ends_s: float) -> None:
        self.identity = identity
        self.replicas = replicas
        self.ends_s = ends_s
        self.path: object = None
        self.place: Replica | None = None
        self.verified = False

    def found(self, path: object, replica: Replica) -> None:
        """Note that a read of ``replica`` through ``path`` went well: the next one goes there."""
        if replica is not self.place:
            self.verified = False
            self.place = replica
        self.path = path


class LocationCache:
    """Leased locations of one namespace, in two generations: the older one is dropped as a whole.

    So both the bound and the forgetting cost nothing per entry, and the newest ones are always
    there, half of ``entries_max`` in number; those that were forgotten since are among them.
    (Dropping the first entry of one dictionary, again and again, would pass over the holes of all
    those dropped before.)

    Threads may share one: every step is a single dictionary operation.

    Attributes:
        entries: {key: entry} of the younger generation; read directly by the fast path, which
            checks ``ends_s`` itself. Always the same dictionary.
    """

    __slots__ = ("_half", "_older", "entries")

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self.entries: dict[str, Entry] = {}
        self._older: dict[str, Entry] = {}
        self._half = entries_max // 2

    def __len__(self) -> int:
        return len(self.entries) + len(self._older)

    def get(self, key: str, now_s: float) -> Entry | None:
        """Return the entry of ``key`` if its lease lasts; an expired one is dropped."""
        entry = self.entries.get(key)
        if entry is None:
            entry = self._older.pop(key, None)
            if entry is None:
                return None
            self.put(key, entry)
        if entry.ends_s <= now_s:
            self.entries.pop(key, None)
            return None
        return entry

    def put(self, key: str, entry: Entry) -> None:
        """Remember a location; the older half makes room."""
        if len(self.entries) >= self._half and key not in self.entries:
            if not self._half:
                return
            self._older = self.entries.copy()
            self.entries.clear()
        self.entries[key] = entry

    def forget(self, key: str) -> None:
        """Drop the location of ``key``, if there is one."""
        self.entries.pop(key, None)
        self._older.pop(key, None)

    def clear(self) -> None:
        """Drop everything."""
        self.entries.clear()
        self._older.clear()
