"""What is asked of an RDMA device: the few verbs that one-sided transfers need.

``pyverbs_device`` does it with real devices, ``mooncake_store.testing.verbs`` without any and with
faults to order. Objects here belong to one thread at a time, but for ``Device``.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_store.cuda import Exported
    from mooncake_store.transport.rdma.nearness import Spot
    from mooncake_store.wire.rdma import Endpoint

Piece = tuple[int, int, int]
"""(address, bytes, local key): registered memory of this process."""


SCATTER_MAX: Final = 128
"""Registered pieces of one chunk that the device is asked to scatter over. What is cut finer is
cheaper to copy than to describe, and could fill the queue."""


class Access(enum.IntEnum):
    """What the other side may do with registered memory; this side may always write."""

    LOCAL = 0
    READ = 1
    READ_WRITE = 2


class WorkRequest(NamedTuple):
    """One RDMA READ or WRITE between contiguous remote memory and pieces of ours.

    Attributes:
        write: Ours to theirs; False: theirs to ours.
        remote: Address in the other side's memory.
        key: Its remote key.
        pieces: Our memory in order, at most ``DeviceLimits.pieces_max``.
        number: Grows by one with each request of a queue pair.
        signalled: Whether its completion is told; an error always is.
    """

    write: bool
    remote: int
    key: int
    pieces: Sequence[Piece]
    number: int
    signalled: bool


class Completion(NamedTuple):
    """A request that is over, and with it all before it.

    Attributes:
        number: Of the request.
        problem: What went wrong; empty: nothing.
    """

    number: int
    problem: str


class DeviceLimits(NamedTuple):
    """What one device can.

    Attributes:
        pieces_max: Pieces of one request.
        requests_max: Requests of one queue pair that are not over.
        message_bytes_max: Bytes of one request.
    """

    pieces_max: int
    requests_max: int
    message_bytes_max: int


class Registration(Protocol):
    """Memory that the device may use; the caller keeps the memory alive until ``close``.

    Attributes:
        local_key: For pieces.
        remote_key: For the other side.
    """

    @property
    def local_key(self) -> int:
        """For pieces."""

    @property
    def remote_key(self) -> int:
        """For the other side."""

    def close(self) -> None:
        """Take it back from the device. Idempotent."""


class QueuePair(Protocol):
    """One end of a reliable connection."""

    @property
    def endpoint(self) -> Endpoint:
        """What the other side must know."""

    def connect(self, peer: Endpoint) -> None:
        """Get ready to send and to serve the other side's requests.

        Raises:
            Unreachable: The device finds no way there, or the two ends do not fit.
        """

    def post(self, requests: Sequence[WorkRequest]) -> None:
        """Give requests to the device, linked, with one ring of its doorbell.

        Raises:
            Unreachable: The queue pair takes none any more.
        """

    def poll(self) -> list[Completion]:
        """Return completions that were not told yet, in order; empty: none."""

    def arm(self) -> None:
        """Have ``fileno`` become readable at the next completion. Poll once more after this."""

    def fileno(self) -> int:
        """Return the descriptor of the completion channel."""

    def disarm(self) -> None:
        """Take the event whose descriptor is readable, if there is one. Never waits."""

    def close(self) -> None:
        """Destroy it. Afterwards neither side's memory is touched through it. Idempotent."""


class Device(Protocol):
    """One opened device.

    Attributes:
        name: As the system calls it.
        is_near: Whether it hangs on the same NUMA node as this process's processors.
        spot: Where it is in the machine.
        limits: What it can.
    """

    @property
    def name(self) -> str:
        """As the system calls it."""

    @property
    def is_near(self) -> bool:
        """Whether it hangs on the same NUMA node as this process's processors."""

    @property
    def spot(self) -> Spot:
        """Where it is in the machine."""

    @property
    def limits(self) -> DeviceLimits:
        """What it can."""

    def register(self, address: int, size: int, access: Access) -> Registration:
        """Let the device use memory.

        Raises:
            ConfigError: It may not lock that much, or the memory is not of a kind it can use.
        """

    def register_exported(self, memory: Exported, size: int) -> Registration:
        """Let the device use memory of another device; pieces name it by its offset in there.

        The descriptor stays the caller's, and is needed no longer.

        Raises:
            NotSupported: The device, its driver or the system's library cannot.
        """

    def create_queue_pair(self, requests_max: int, rail: int = 0) -> QueuePair:
        """Make an end that is not connected yet.

        Raises:
            Unreachable: The device's port is down, or it has no room for another one.
        """

    def close(self) -> None:
        """Give the device back, after everything that was made with it.

        Raises:
            ConfigError: Something of it is still in use: the kernel takes it at our end.
        """
