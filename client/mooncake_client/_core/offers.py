"""One object on its way into the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mooncake_store import extent
from mooncake_store.extent import Identity, Names, Sealed
from mooncake_store.fingerprint import fingerprint
from mooncake_store.types import Pin

if TYPE_CHECKING:
    from mooncake_client._results import PutResult
    from mooncake_store.errors import StoreError
    from mooncake_store.wire.control import PutGrant


class PutOptions(NamedTuple):
    """What a call says about all of its objects."""

    replicas: int = 1
    replace: bool = False
    together: bool = False
    pin: Pin = Pin.NONE
    pin_s: float = 0.0
    preferred: tuple[str, ...] = ()
    durable: bool = False


class Offer:
    """One object that an operation writes.

    Attributes:
        key: Its name.
        parts: Its bytes, as flat views; None while the caller still fills them in.
        length: How many.
        frame_bytes: Upper bound of what it takes in a frame.
        outcome: The result, or why there is none. Meaningless until ``is_over``.
        grant: Room for the attempt under way.
        tries: Attempts so far, those not counted whose nodes were all being left alone.
        opens_s: When one of the nodes of its grant may be tried again, where none may be now; 0
            where one was tried.
        written: Bit i: replica i of the grant is written.
    """

    __slots__ = (
        "_checksum",
        "_digests",
        "_fingerprint",
        "_names_bytes",
        "_tail",
        "expected_version",
        "frame_bytes",
        "grant",
        "group",
        "is_over",
        "key",
        "length",
        "opens_s",
        "outcome",
        "parent",
        "parts",
        "tries",
        "written",
    )

    def __init__(
        self,
        key: str,
        parts: list[memoryview] | None,
        length: int | None = None,
        *,
        group: str = "",
        parent: str = "",
        expected_version: int = -1,
    ) -> None:
        self.key = key
        self.parts = parts
        if length is None:
            length = sum(map(len, parts or ()))
        self.length = length
        self.group = group
        self.parent = parent
        self.expected_version = expected_version
        self.frame_bytes = 4 * (len(key) + len(group) + len(parent)) + 32
        self.outcome: PutResult | StoreError | None = None
        self.is_over = False
        self.grant: PutGrant | None = None
        self.written = self.tries = 0
        self.opens_s = 0.0
        self._fingerprint = self._tail = b""
        self._digests: list[int] = []
        self._checksum = self._names_bytes = 0

    @property
    def is_prepared(self) -> bool:
        """Whether the payload was hashed."""
        return bool(self._digests)

    def end(self, outcome: PutResult | StoreError) -> None:
        """Note how it ended."""
        self.outcome = outcome
        self.is_over = True

    def settle(self) -> PutResult | StoreError | None:
        """Return the outcome and let go of it, and of the value; as ``Want.settle``."""
        outcome, self.outcome = self.outcome, None
        self.parts = None
        return outcome

    def begin(self) -> None:
        """Begin another attempt."""
        self.grant = None
        self.written = 0
        self.opens_s = 0.0
        self.tries += 1

    def prepare(self, namespace: str, options: PutOptions) -> None:
        """Do everything that does not depend on the grant: hash, and pack the names."""
        if self._digests or self.parts is None:
            return
        self._digests = extent.hash_payload(self.parts)
        self._checksum = extent.checksum_of(self._digests)
        block = extent.pack_names(self._names(namespace, options))
        self._names_bytes = len(block)
        self._tail = extent.pack_table(self._digests) + block
        self._fingerprint = fingerprint(namespace, self.key)

    def identity(self, namespace: str, slot: int, epoch: int) -> Identity:
        """Return what the attempt's extents say of themselves."""
        assert self.grant is not None
        if not self._fingerprint:
            self._fingerprint = fingerprint(namespace, self.key)
        return Identity(self._fingerprint, self.grant.version, slot, epoch, self.length)

    def seal(
        self, namespace: str, slot: int, epoch: int, options: PutOptions
    ) -> tuple[Identity, Sealed]:
        """Return identity, and header and tail, of the attempt's extents."""
        grant = self.grant
        assert grant is not None
        identity = self.identity(namespace, slot, epoch)
        tail, size = self._tail, self._names_bytes
        if grant.set_count or grant.pin_ends_s:
            names = self._names(namespace, options)._replace(
                pin_ends_s=grant.pin_ends_s, set_id=grant.set_id, set_count=grant.set_count
            )
            block = extent.pack_names(names)
            tail, size = extent.pack_table(self._digests) + block, len(block)
        return identity, Sealed(extent.pack_header(identity, self._checksum, size), tail)

    def _names(self, namespace: str, options: PutOptions) -> Names:
        return Names(
            namespace, self.key, self.group, self.parent, options.pin, 0.0, options.replicas
        )
