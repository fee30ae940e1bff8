"""Every error the store raises on purpose.

StoreError
  CallerError                the request cannot succeed as written
    InvalidArgument          a value of the wrong type, shape or range
    ObjectNotFound           no readable object under this key (``stat``, the CLI, REST)
    ObjectTooLarge           larger than any segment or than ``limits.OBJECT_BYTES_MAX``
    BufferTooSmall           the caller's buffer is smaller than the object
    ReplicasImpossible       more replicas asked than there are nodes to hold them
    ManifestMismatch         the namespace exists with another manifest
    StaleEpoch               the namespace was cleared since this client opened it
    VersionConflict          ``expected_version`` is not the version that is there
    PutUnderWay              another writer holds the key and did not finish before the deadline
    AttemptExpired           a message about a write that is over (timed out, aborted, replaced)
    PinLimitReached          the pinned share of the pool is at its limit
    UnknownNode              no node of that name
    NotSupported             this peer or build cannot do that
    Closed                   the client, view or reservation was closed before
  ConfigError                a flag, variable or file cannot be used as it stands
  PeerError                  a peer broke the protocol or went away
    Unreachable              no connection before the deadline
    DeadlineExceeded         the call's own deadline passed
    ProtocolError            bytes that are no message of ours
    ProtocolMismatch         the peer speaks another protocol version
    NotLeader                this master does not lead; the message names the one that does
    WrongPeer                another process answers on the address of a known node
    StaleTerm                the message belongs to an older master's reign
    StaleExtent              the extent no longer holds the version that was asked for
    ChecksumMismatch         stored bytes differ from the checksum of their writer
    ReplicasUnavailable      the object exists but no replica could be read
  CapacityError              the cluster is healthy but full
    NoSpace                  nothing evictable made room before the deadline
    TooManyObjects           a limit on entries, not on bytes, was reached
    Overloaded               a bounded queue or table of a peer is full
    DrainIncomplete          a node still holds something that no other node has
  InternalError              a bug in this project; never caught, always reported

A code is stable: it is what travels on the wire, in metrics labels, in ``--json`` and in REST.
"""

from __future__ import annotations

from typing import ClassVar


class StoreError(Exception):
    """Base of every error raised on purpose.

    Attributes:
        code: Stable identifier of the cause.
        retryable: True where the same call may succeed later, or on another replica.
        exit_code: What a command exits with (0 ok, 1 failed, 2 usage, 3 not found, 4 unreachable).
        key: Object the error is about, where there is one.
        node: Name or address of the peer it is about, where there is one.
    """

    code: ClassVar[str] = "store_error"
    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, key: str | None = None, node: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.node = node


class CallerError(StoreError):
    """The request cannot succeed as written."""

    code = "caller_error"


class InvalidArgument(CallerError):
    """A value of the wrong type, shape or range; the message names it."""

    code = "invalid_argument"
    exit_code = 2


class ObjectNotFound(CallerError):
    """No readable object under this key."""

    code = "object_not_found"
    exit_code = 3


class ObjectTooLarge(CallerError):
    """Larger than any segment, or than ``limits.OBJECT_BYTES_MAX``; said when the put starts."""

    code = "object_too_large"


class BufferTooSmall(CallerError):
    """The caller's buffer is smaller than the object; nothing was written into it."""

    code = "buffer_too_small"


class ReplicasImpossible(CallerError):
    """More replicas asked than there are nodes to hold them; nothing was evicted."""

    code = "replicas_impossible"


class ManifestMismatch(CallerError):
    """The namespace exists with another manifest, so its bytes would mean something else."""

    code = "manifest_mismatch"


class StaleEpoch(CallerError):
    """The namespace was cleared since this client opened it; open it again to go on."""

    code = "stale_epoch"


class VersionConflict(CallerError):
    """``expected_version`` is not the version that is there; the old value is untouched."""

    code = "version_conflict"


class PutUnderWay(CallerError):
    """Another writer holds the key and did not finish before the deadline."""

    code = "put_under_way"
    retryable = True


class AttemptExpired(CallerError):
    """A message about a write that is over: timed out, aborted or replaced."""

    code = "attempt_expired"
    retryable = True


class PinLimitReached(CallerError):
    """The pinned share of the pool is at its limit."""

    code = "pin_limit_reached"


class UnknownNode(CallerError):
    """No node of that name is known to the master."""

    code = "unknown_node"
    exit_code = 3


class NotSupported(CallerError):
    """This peer or build cannot do that; the message says what is missing."""

    code = "not_supported"


class Closed(CallerError):
    """The client, view or reservation was closed before."""

    code = "closed"


class ConfigError(StoreError):
    """A flag, variable or file cannot be used as it stands; the message names it."""

    code = "config_error"
    exit_code = 2


class PeerError(StoreError):
    """A peer broke the protocol or went away."""

    code = "peer_error"
    retryable = True
    exit_code = 4


class Unreachable(PeerError):
    """No connection to the peer before the deadline."""

    code = "unreachable"


class DeadlineExceeded(PeerError):
    """The call's own deadline passed; whether a write took effect is not known."""

    code = "deadline_exceeded"


class ProtocolError(PeerError):
    """Bytes that are no message of ours."""

    code = "protocol_error"
    retryable = False


class ProtocolMismatch(PeerError):
    """The peer speaks another protocol version; the message says which side to upgrade."""

    code = "protocol_mismatch"
    retryable = False


class NotLeader(PeerError):
    """This master does not lead; ``node`` is the address of the one that does, if known."""

    code = "not_leader"


class WrongPeer(PeerError):
    """Another process answers on the address of a known node."""

    code = "wrong_peer"


class StaleTerm(PeerError):
    """The message belongs to an older master's reign."""

    code = "stale_term"


class StaleExtent(PeerError):
    """The extent no longer holds the version that was asked for."""

    code = "stale_extent"


class ChecksumMismatch(PeerError):
    """Stored bytes differ from the checksum their writer recorded."""

    code = "checksum_mismatch"


class ReplicasUnavailable(PeerError):
    """The object exists but none of its replicas could be read."""

    code = "replicas_unavailable"


class CapacityError(StoreError):
    """The cluster is healthy but full."""

    code = "capacity_error"
    retryable = True


class NoSpace(CapacityError):
    """Nothing evictable made room before the deadline."""

    code = "no_space"


class TooManyObjects(CapacityError):
    """A limit on entries, not on bytes, was reached and nothing could be evicted for it."""

    code = "too_many_objects"


class Overloaded(CapacityError):
    """A bounded queue or table of a peer, or of this process, is full."""

    code = "overloaded"


class DrainIncomplete(CapacityError):
    """The time of a drain is over, and the node still holds something that no other node has."""

    code = "drain_incomplete"


class InternalError(StoreError):
    """A bug in this project; never caught, always reported."""

    code = "internal_error"


def _leaves(kind: type[StoreError]) -> list[type[StoreError]]:
    return [kind, *(leaf for sub in kind.__subclasses__() for leaf in _leaves(sub))]


BY_CODE: dict[str, type[StoreError]] = {kind.code: kind for kind in _leaves(StoreError)}
"""{code: class}; ``from_code`` turns an error reply of a peer back into its exception."""


def from_code(
    code: str, message: str, *, key: str | None = None, node: str | None = None
) -> StoreError:
    """Rebuild the exception a peer reported; an unknown code (newer peer) keeps its message."""
    kind = BY_CODE.get(code)
    if kind is None:
        return PeerError(f"{message} (code {code!r})", key=key, node=node)
    return kind(message, key=key, node=node)


def without_frames(error: StoreError) -> StoreError:
    """Return an error that holds no frame it came through, so nothing that these frames use.

    Who keeps an error, and is held by a frame of it, makes a circle: it keeps buffers of callers in
    use, or connections open, until the collector of circles comes by, if ever.
    A bug keeps its frames: they are needed.
    """
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()  # One may be the context of its own cause.
    while chain:
        link = chain.pop()
        if link is not None and id(link) not in seen and not isinstance(link, InternalError):
            seen.add(id(link))
            link.__traceback__ = None
            chain += link.__cause__, link.__context__
    return error
