"""RDMA devices without hardware: a fabric in this process, with faults to order.

A queue pair of one ``FakeDevice`` reaches those of every device on the same ``FakeFabric``.
Requests are carried out one by one, in order within a queue pair and in a seeded order between
them, when somebody polls or a test calls ``step``. Keys, ranges and access rights are checked as a
card does, so a stale key or a range that is too long ends in an error and not in wrong bytes.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random
from threading import RLock
from typing import TYPE_CHECKING, Final

from mooncake_store.errors import ConfigError, NotSupported, Unreachable
from mooncake_store.memory import address_of, move
from mooncake_store.transport.rdma.loading import load_pyverbs
from mooncake_store.transport.rdma.nearness import NOWHERE
from mooncake_store.transport.rdma.pyverbs_device import device_names
from mooncake_store.transport.rdma.verbs import Access, Completion, DeviceLimits
from mooncake_store.wire.rdma import Endpoint, LinkLayer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_store.cuda import Exported
    from mooncake_store.transport.rdma.verbs import WorkRequest

FLUSHED: Final = "flushed: the queue pair is in the error state"


def has_devices() -> bool:
    """Return whether this host has real devices, and a pyverbs to use them by."""
    if not device_names():
        return False
    try:
        load_pyverbs()
    except NotSupported:
        return False
    return True


@dataclass
class FabricFaults:
    """What goes wrong.

    Attributes:
        before: Called with each request before it is carried out; what it returns, where not
            empty, is the completion error.
        before_on: The same, told the queue pair too.
        is_cut: Nothing arrives, and nothing is told: what a lost link looks like until the
            device gives up.
        refuse: Queue pairs cannot be connected.
        memlock_bytes: Memory that may be registered; -1: any.
        steps: Requests carried out by one poll; -1: all there are.
    """

    before: Callable[[WorkRequest], str] = field(default=lambda _: "")
    before_on: Callable[[FakeQueuePair, WorkRequest], str] = field(default=lambda *_: "")
    is_cut: bool = False
    refuse: bool = False
    memlock_bytes: int = -1
    steps: int = -1


class FakeRegistration:
    """Registered memory."""

    def __init__(self, device: FakeDevice, address: int, size: int, access: Access) -> None:
        self.local_key = self.remote_key = device.fabric.next_key()
        self.address = address
        self.size = size
        self.access = access
        self.mapping: mmap.mmap | None = None
        """Memory of another device, whose addresses count from the start of its dma-buf."""
        self._device = device

    @property
    def base(self) -> int:
        """What is added to an address to reach the byte in this process."""
        return 0 if self.mapping is None else address_of(self.mapping)

    def close(self) -> None:
        """As ``Registration.close``."""
        self._device.forget(self)


class FakeQueuePair:
    """One end of a connection."""

    def __init__(self, device: FakeDevice, requests_max: int, rail: int) -> None:
        self.device = device
        self.endpoint = Endpoint(
            device.fabric.next_number(),
            7,
            device.gid,
            0,
            LinkLayer.ETHERNET,
            2,
            device.mtu_bytes,
            16,
            rail,
        )
        self.peer: Endpoint | None = None
        self.problem = ""
        self.is_closed = False
        self.moved = 0
        """Bytes of requests posted here."""
        self._requests_max = requests_max
        self._waiting: deque[WorkRequest] = deque()
        self._completed: deque[Completion] = deque()
        self._unpolled = 0
        self._armed = False
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        device.fabric.queue_pairs[self.endpoint.number] = self

    def connect(self, peer: Endpoint) -> None:
        """As ``QueuePair.connect``."""
        fabric = self.device.fabric
        if fabric.faults.refuse or self.device.refuse or peer.gid not in fabric.gids:
            raise Unreachable(f"no way to {peer.gid.hex()}")
        self.peer = peer

    def post(self, requests: Sequence[WorkRequest]) -> None:
        """As ``QueuePair.post``."""
        fabric = self.device.fabric
        with fabric.lock:
            self.device.check()
            if self.is_closed or self.problem:
                raise Unreachable(f"the queue pair takes no requests: {self.problem or 'closed'}")
            self._unpolled += len(requests)
            assert self._unpolled <= self._requests_max, "the send queue is full"
            fabric.counts["doorbells"] += 1
            fabric.counts["requests"] += len(requests)
            self._waiting.extend(requests)

    def poll(self) -> list[Completion]:
        """As ``QueuePair.poll``."""
        fabric = self.device.fabric
        with fabric.lock:
            self.device.check()
            fabric.step(fabric.faults.steps)
            told = list(self._completed)
            self._completed.clear()
            fabric.counts["completions"] += len(told)
            return told

    def arm(self) -> None:
        """As ``QueuePair.arm``."""
        self._armed = True

    def fileno(self) -> int:
        """As ``QueuePair.fileno``."""
        return self._event

    def disarm(self) -> None:
        """As ``QueuePair.disarm``."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return

    def close(self) -> None:
        """As ``QueuePair.close``."""
        fabric = self.device.fabric
        with fabric.lock:
            if self.is_closed:
                return
            self.is_closed = True
            self._armed = False  # The number of the descriptor is anybody's from now on.
            self._waiting.clear()
            self._completed.clear()
            del fabric.queue_pairs[self.endpoint.number]
            os.close(self._event)

    def fail(self, problem: str) -> None:
        """Move to the error state; what waits is flushed."""
        with self.device.fabric.lock:
            self.problem = self.problem or problem
            for request in self._waiting:
                self._tell(Completion(request.number, FLUSHED))
            self._waiting.clear()

    @property
    def peer_device(self) -> FakeDevice:
        """The device of the other end, which is there."""
        assert self.peer is not None
        return self.device.fabric.queue_pairs[self.peer.number].device

    @property
    def has_work(self) -> bool:
        """Whether a request waits to be carried out."""
        return bool(self._waiting)

    def carry_out(self) -> None:
        """Carry out the next request."""
        request = self._waiting.popleft()
        fabric = self.device.fabric
        faults = fabric.faults
        problem = faults.before(request) or faults.before_on(self, request) or self._move(request)
        self._unpolled -= 1
        if problem:
            self._tell(Completion(request.number, problem))
            self.fail(problem)
        elif request.signalled:
            self._tell(Completion(request.number, ""))

    def _move(self, request: WorkRequest) -> str:
        fabric = self.device.fabric
        peer = fabric.queue_pairs.get(self.peer.number) if self.peer else None
        if peer is None or peer.problem or peer.is_closed:
            return "transport retry counter exceeded"
        limits = self.device.limits
        size = sum(piece[1] for piece in request.pieces)
        if len(request.pieces) > limits.pieces_max or size > limits.message_bytes_max:
            return "local length error"
        access = Access.READ_WRITE if request.write else Access.READ
        if not peer.device.find(request.key, request.remote, size, access):
            peer.fail("remote access error")
            return "remote access error"
        at = request.remote
        for address, length, key in request.pieces:
            local = self.device.find(key, address, length, Access.LOCAL)
            if local is None:
                return "local protection error"
            here = address + local.base
            move(*((at, here) if request.write else (here, at)), length)
            at += length
        self.moved += size
        fabric.counts["bytes_written" if request.write else "bytes_read"] += size
        return ""

    def _tell(self, completion: Completion) -> None:
        self._completed.append(completion)
        if self._armed:
            self._armed = False
            os.eventfd_write(self._event, 1)


class FakeDevice:
    """One device on a fabric.

    Attributes:
        is_busy: It cannot be closed.
        is_gone: It was taken away: nothing of it answers but to be closed.
        has_dma_buf: Whether it registers memory of GPUs.
        refuse: As that of ``FabricFaults``, for this device.
        memlock_bytes: As that of ``FabricFaults``, for this device.
    """

    def __init__(self, fabric: FakeFabric, name: str = "fake0") -> None:
        self.fabric = fabric
        self.name = name
        self.is_near = True
        self.spot = NOWHERE
        self.limits = DeviceLimits(pieces_max=16, requests_max=4096, message_bytes_max=1 << 20)
        self.gid = (len(fabric.gids) + 1).to_bytes(16, "big")
        self.mtu_bytes = 4096
        self.has_dma_buf = True
        self.is_busy = False
        self.is_gone = False
        self.refuse = False
        self.memlock_bytes = -1
        self.registered = 0
        fabric.gids.add(self.gid)
        self._regions: dict[int, FakeRegistration] = {}

    def register(self, address: int, size: int, access: Access) -> FakeRegistration:
        """As ``Device.register``."""
        limits = (self.memlock_bytes, self.fabric.faults.memlock_bytes)
        if any(0 <= most < self.registered + size for most in limits):
            raise ConfigError(f"{size} bytes cannot be locked (ulimit -l)")
        with self.fabric.lock:
            self.registered += size
            registration = FakeRegistration(self, address, size, access)
            self._regions[registration.local_key] = registration
        return registration

    def forget(self, registration: FakeRegistration) -> None:
        """Take memory back."""
        with self.fabric.lock:
            if self._regions.pop(registration.local_key, None) is not None:
                self.registered -= registration.size

    def register_exported(self, memory: Exported, size: int) -> FakeRegistration:
        """As ``Device.register_exported``."""
        if not self.has_dma_buf:
            raise NotSupported(f"{self.name} cannot register {size} bytes of a GPU (dma-buf)")
        registration = self.register(memory.offset, size, Access.LOCAL)
        registration.mapping = mmap.mmap(memory.descriptor, 0)
        return registration

    def check(self) -> None:
        """Raise what every verb says of a device that is gone."""
        if self.is_gone:
            raise Unreachable(f"{self.name}: No such device")

    def find(self, key: int, address: int, size: int, access: Access) -> FakeRegistration | None:
        """Return what a key stands for, if that allows so much access to that range."""
        found = self._regions.get(key)
        if (
            found is None
            or found.access < access
            or address < found.address
            or address + size > found.address + found.size
        ):
            return None
        return found

    def create_queue_pair(self, requests_max: int, rail: int = 0) -> FakeQueuePair:
        """As ``Device.create_queue_pair``."""
        self.check()
        return FakeQueuePair(self, min(requests_max, self.limits.requests_max), rail)

    def close(self) -> None:
        """As ``Device.close``."""
        if self.is_busy:
            raise ConfigError(f"{self.name} is still in use: Device or resource busy")
        self.fabric.gids.discard(self.gid)


class FakeFabric:
    """What connects fake devices.

    Attributes:
        faults: What goes wrong.
        counts: ``doorbells``, ``requests``, ``completions``, ``bytes_read``, ``bytes_written``.
        queue_pairs: {number: queue pair that was not closed}.
        gids: Of devices that are there.
    """

    def __init__(self, seed: int = 0) -> None:
        self.faults = FabricFaults()
        self.counts: Counter[str] = Counter()
        self.queue_pairs: dict[int, FakeQueuePair] = {}
        self.gids: set[bytes] = set()
        self.lock = RLock()
        self._order = Random(seed)  # noqa: S311 - an order of events, no secret
        self._keys = itertools.count(1000)
        self._numbers = itertools.count(17)

    def shuffle(self, seed: int) -> None:
        """Begin another order between queue pairs."""
        self._order.seed(seed)

    def next_key(self) -> int:
        """Return a key that nothing had before."""
        return next(self._keys)

    def next_number(self) -> int:
        """Return the number of another queue pair."""
        return next(self._numbers)

    def step(self, count: int = 1) -> int:
        """Carry out that many requests, -1 for all; return how many there were."""
        done = 0
        with self.lock:
            while done != count and not self.faults.is_cut:
                ready = [pair for pair in self.queue_pairs.values() if pair.has_work]
                if not ready:
                    break
                self._order.choice(ready).carry_out()
                done += 1
        return done
