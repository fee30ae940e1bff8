"""What the RDMA paths of one process share: devices, registered memory, staging slabs.

A *rail* is one device. Callers' buffers that were registered move without a copy; everything else
goes through a slab, of which there is a bounded number.
"""

from __future__ import annotations

import bisect
import logging
import mmap
import threading
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from mooncake_store.device_memory import is_gpu_view
from mooncake_store.errors import ConfigError, InvalidArgument, Overloaded
from mooncake_store.limits import MIB, QUEUE_PAIRS_MAX
from mooncake_store.memory import address_of, numa_node_of
from mooncake_store.transport.rdma.nearness import NOWHERE, Spot, nearest
from mooncake_store.transport.rdma.verbs import SCATTER_MAX, Access

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_store.cuda import Exported
    from mooncake_store.transport.rdma.verbs import Device, Registration

logger = logging.getLogger(__name__)

SLAB_BYTES: Final = 2 * MIB
"""Registered memory of one connection, in two halves: one is filled or hashed while the device
works on the other. Smaller: more doorbells for large objects. Larger: more locked memory."""

SLABS_MAX: Final = 32
"""Slabs of one device, so connections that may be open at one time: 64 MiB of locked memory. Over
it a transfer takes another way."""


class Slab:
    """Registered memory of this process.

    Attributes:
        memory: All of it.
        address: Of its first byte.
        key: For pieces.
    """

    __slots__ = ("_mapping", "_registration", "address", "key", "memory")

    def __init__(self, device: Device, size: int = SLAB_BYTES) -> None:
        """Take memory and register it.

        Raises:
            ConfigError: It may not be locked.
        """
        self._mapping = mmap.mmap(-1, size)
        self.memory = memoryview(self._mapping)
        self.address = address_of(self.memory)
        self._registration = device.register(self.address, size, Access.LOCAL)
        self.key = self._registration.local_key

    def close(self) -> None:
        """Take it back from the device."""
        self._registration.close()


class _Range(NamedTuple):
    start: int
    end: int
    key: int
    shift: int
    """From an address to what the device calls it."""


class Rail:
    """One device of a context.

    Attributes:
        device: The device.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._lock = threading.Lock()
        self._slabs: list[Slab] = []
        self._taken = 0
        self._known: tuple[list[int], list[_Range]] = ([], [])
        """Starts, and the ranges that begin there; replaced as one, so readers need no lock."""

    def take_slab(self) -> Slab:
        """Return a slab that is the caller's until ``give_slab``.

        Raises:
            Overloaded: All are in use.
            ConfigError: No more memory may be locked.
        """
        with self._lock:
            if self._taken >= SLABS_MAX:
                raise Overloaded(f"{SLABS_MAX} RDMA connections over {self.device.name} are open")
            self._taken += 1
            if self._slabs:
                return self._slabs.pop()
        try:
            return Slab(self.device)
        except BaseException:
            with self._lock:
                self._taken -= 1
            raise

    def give_slab(self, slab: Slab) -> None:
        """Take a slab back that no request uses any more."""
        with self._lock:
            self._taken -= 1
            self._slabs.append(slab)

    def key_of(self, address: int, size: int) -> int:
        """Return the local key of memory that was registered, -1 where it was not."""
        starts, ranges = self._known
        at = bisect.bisect_right(starts, address) - 1
        if at < 0:
            return -1
        found = ranges[at]
        return found.key if address + size <= found.end else -1

    def find(self, address: int, size: int) -> tuple[int, int]:
        """Return what the device calls memory, and its local key; -1 where it was not registered.

        ``key_of`` is for memory of the host, which the device calls by its address.
        """
        starts, ranges = self._known
        at = bisect.bisect_right(starts, address) - 1
        if at < 0 or address + size > ranges[at].end:
            return address, -1
        return address + ranges[at].shift, ranges[at].key

    def add(self, start: int, size: int, exported: Exported | None = None) -> Registration:
        """Register memory that callers name from now on; of another device, what that exported."""
        if exported is None:
            registration = self.device.register(start, size, Access.LOCAL)
            shift = 0
        else:
            registration = self.device.register_exported(exported, size)
            shift = exported.offset - start
        entry = _Range(start, start + size, registration.local_key, shift)
        with self._lock:
            self._replace([*self._known[1], entry])
        return registration

    def forget(self, start: int, registration: Registration) -> None:
        """Take registered memory back from the device."""
        key = registration.local_key
        with self._lock:
            self._replace([r for r in self._known[1] if (r.start, r.key) != (start, key)])
        registration.close()

    def close(self) -> None:
        """Give back what is not in use, then the device."""
        for slab in self._slabs:
            slab.close()
        self._slabs = []
        self.device.close()

    def _replace(self, ranges: list[_Range]) -> None:
        ranges.sort()
        self._known = ([entry.start for entry in ranges], ranges)


class RegisteredBuffer:
    """Memory that RDMA reads into and writes from without a copy, until ``close``.

    It keeps the memory alive. Close it when no call that uses the memory is under way.
    """

    def __init__(
        self, rails: Sequence[Rail], memory: memoryview, exported: Exported | None = None
    ) -> None:
        self.on_close: Callable[[], None] = lambda: None
        self._memory: memoryview | None = memory
        self._start = address_of(memory)
        self._held: list[tuple[Rail, Registration]] = []
        try:
            for rail in rails:
                self._held.append((rail, rail.add(self._start, memory.nbytes, exported)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Take the memory back from all devices. Idempotent."""
        held, self._held = self._held, []
        for rail, registration in held:
            rail.forget(self._start, registration)
        if self._memory is not None:
            self._memory = None
            self.on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RdmaContext:
    """The devices that a process uses for RDMA.

    Attributes:
        rails: Its devices.
    """

    def __init__(self, devices: Sequence[Device], queue_pairs: int = 0) -> None:
        """Take devices over.

        Args:
            devices: At least one.
            queue_pairs: Over how many a large transfer is spread; 0: one for each near device.

        Raises:
            ConfigError: There is none.
        """
        if not devices:
            raise ConfigError("RDMA needs a device, and none was found")
        self.rails = [Rail(device) for device in devices]
        near = sum(device.is_near for device in devices)
        self._queue_pairs = min(queue_pairs or max(1, near), QUEUE_PAIRS_MAX)
        self._lock = threading.Lock()
        self._places: list[tuple[int, int, tuple[int, ...]]] = []
        """Registered memory that is nearer to some devices: start, end, which; replaced as one."""

    def order(self, number: int, near: Sequence[int] = ()) -> list[Rail]:
        """Return the devices in the order in which a path's connection of that number tries them.

        Those that are near take turns; the others are for when these do not work.

        Args:
            number: Of the connection.
            near: Places of the devices that are; empty: those near this process's processors.
        """
        chosen = set(near) or {at for at, rail in enumerate(self.rails) if rail.device.is_near}
        close = [rail for at, rail in enumerate(self.rails) if at in chosen]
        far = [rail for at, rail in enumerate(self.rails) if at not in chosen]
        return _turned(close, number) + _turned(far, number)

    def lanes(self, number: int, near: Sequence[int] = ()) -> list[Rail]:
        """Return the devices of the queue pairs that a connection gets besides its first.

        Near devices take turns, from the one behind the first queue pair's on.
        """
        return [self.order(number + step, near)[0] for step in range(1, self._queue_pairs)]

    def near_to(self, buffers: Sequence[memoryview]) -> tuple[int, ...]:
        """Return the places of the devices that are nearest to registered memory; empty: any."""
        places = self._places
        if not places or not buffers:
            return ()
        address = address_of(buffers[0])
        return next((near for start, end, near in places if start <= address < end), ())

    def register(self, memory: memoryview) -> RegisteredBuffer:
        """Let RDMA use memory of the caller (1-D, format "B") without a copy.

        Raises:
            InvalidArgument: It is empty.
            ConfigError: It may not be locked.
        """
        if not memory.nbytes:
            raise InvalidArgument("there is nothing to register in an empty buffer")
        buffer = RegisteredBuffer(self.rails, memory)
        if len(self.rails) > 1:  # Asked now: its pages were made by registering it.
            node = numa_node_of(address_of(memory), memory.nbytes)
            self._place(buffer, memory, Spot(node))
        return buffer

    def register_exported(
        self, memory: memoryview, exported: Exported, spot: Spot = NOWHERE
    ) -> RegisteredBuffer:
        """As ``register``, for memory of a GPU that its driver exported.

        Raises:
            NotSupported: A device cannot reach it.
        """
        buffer = RegisteredBuffer(self.rails, memory, exported)
        self._place(buffer, memory, spot)
        return buffer

    def reaches(self, targets: Sequence[memoryview]) -> bool:
        """Return whether every device has those of the targets that are a GPU's."""
        if len(targets) > SCATTER_MAX:
            return False  # They would be copied, as what is cut that fine is.
        for view in filter(is_gpu_view, targets):
            address = address_of(view)
            if any(rail.find(address, len(view))[1] < 0 for rail in self.rails):
                return False
        return True

    def _place(self, buffer: RegisteredBuffer, memory: memoryview, spot: Spot) -> None:
        """Remember which devices are nearest to a buffer, if some are nearer than others."""
        near = nearest([rail.device.spot for rail in self.rails], spot)
        if not near:
            return
        start = address_of(memory)
        entry = (start, start + memory.nbytes, near)

        def forget() -> None:
            with self._lock:
                self._places = [other for other in self._places if other is not entry]

        with self._lock:
            self._places = [*self._places, entry]
        buffer.on_close = forget

    def close(self) -> None:
        """Give the devices back; one that the kernel still holds is said, and goes with us."""
        for rail in self.rails:
            try:
                rail.close()
            except ConfigError as error:
                logger.warning("%s", error)


def _turned(rails: list[Rail], number: int) -> list[Rail]:
    at = number % len(rails) if rails else 0
    return rails[at:] + rails[:at]
