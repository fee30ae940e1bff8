"""The node's RDMA devices: its segments registered with each, and queue pairs made on them."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING, Final

from mooncake_store.errors import ConfigError, StoreError, Unreachable
from mooncake_store.memory import address_of
from mooncake_store.transport.rdma.pyverbs_device import open_devices
from mooncake_store.transport.rdma.verbs import Access
from mooncake_store.wire.rdma import Region

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_store.segment import Segment
    from mooncake_store.transport.rdma.verbs import Device, QueuePair, Registration
    from mooncake_store.wire.rdma import Endpoint

logger = logging.getLogger(__name__)

AUTO: Final = "auto"
NONE: Final = "none"

SEND_REQUESTS: Final = 1
"""The node posts none; a queue pair has room for one at least."""


class Port:
    """One device with the segments registered.

    Attributes:
        device: The device.
        regions: The segments, as clients must know them.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.regions: list[Region] = []
        self._held: list[Registration] = []

    def register(self, segment: Segment) -> None:
        """Let clients read all of a segment and write its extents; takes its pages for good.

        Raises:
            ConfigError: They may not be locked.
        """
        control = address_of(segment.memory)
        extents = address_of(segment.extents)
        reading = self.device.register(control, extents - control, Access.READ)
        self._held.append(reading)
        writing = self.device.register(extents, segment.bytes, Access.READ_WRITE)
        self._held.append(writing)
        self.regions.append(
            Region(
                segment.incarnation,
                segment.bytes,
                control,
                extents,
                reading.remote_key,
                writing.remote_key,
            )
        )

    def close(self) -> None:
        """Take the memory back from the device, and give the device back."""
        held, self._held, self.regions = self._held, [], []
        for registration in held:
            registration.close()
        try:
            self.device.close()
        except ConfigError as error:
            logger.warning("%s", error)


class RdmaPorts:
    """All devices of the node that work.

    Attributes:
        opened: Queue pairs made for clients.
        refused: Clients that got none.
        revoked: Queue pairs destroyed because an extent was freed that was being written.
    """

    def __init__(self, devices: Sequence[Device], segments: Sequence[Segment]) -> None:
        """Take devices over; ``register`` makes them useful."""
        self.opened = 0
        self.refused = 0
        self.revoked = 0
        self._segments = segments
        self._waiting = [Port(device) for device in devices]
        self._ports: list[Port] = []

    def register(self) -> None:
        """Register the segments with every device; one that cannot is left out and said.

        Takes all their pages: about half a second a GiB, in which this process does nothing else
        (pyverbs keeps the interpreter's lock). So it comes before the node serves.
        """
        waiting, self._waiting = self._waiting, []
        for port in waiting:
            try:
                for segment in self._segments:
                    port.register(segment)
            except ConfigError as error:
                logger.warning("no RDMA over %s: %s", port.device.name, error)
                port.close()
                continue
            self._ports.append(port)

    @property
    def names(self) -> list[str]:
        """Devices that serve now."""
        return [port.device.name for port in self._ports]

    def connect(self, peer: Endpoint) -> tuple[Port, QueuePair]:
        """Make a queue pair on the device that a client would like, by number, and connect it.

        Raises:
            Unreachable: There is no device, it finds no way to the peer, or has no room.
        """
        try:
            if not self._ports:
                raise Unreachable("no device of it could register its memory (see its log)")
            port = self._ports[peer.rail % len(self._ports)]
            pair = port.device.create_queue_pair(SEND_REQUESTS, peer.rail)
            try:
                pair.connect(peer)
            except BaseException:
                pair.close()
                raise
        except StoreError as error:
            self.refused += 1
            logger.info("no queue pair for a client: %s", error)
            raise
        self.opened += 1
        return port, pair

    def stop(self) -> None:
        """Give everything back; queue pairs went with their connections."""
        ports, self._ports, self._waiting = [*self._ports, *self._waiting], [], []
        for port in ports:
            port.close()


def open_ports(
    wanted: Sequence[str], segments: Sequence[Segment], *, lock: int
) -> RdmaPorts | None:
    """Open the devices that ``--rdma-devices`` names; None where there are none to use.

    Args:
        wanted: The setting.
        segments: What they will serve.
        lock: Descriptor of the lock on the node's memory, which has to be free only when the
            devices are closed.

    Raises:
        ConfigError: One that was named cannot be used.
    """
    if tuple(wanted) == (NONE,):
        return None
    named = () if tuple(wanted) == (AUTO,) else tuple(wanted)
    with _above(lock):
        devices, problems = open_devices(named)
    if named and problems:
        for device in devices:
            device.close()
        raise ConfigError(f"--rdma-devices: {'; '.join(problems)}")
    for problem in problems:
        logger.info("no RDMA: %s", problem)
    return RdmaPorts(devices, segments) if devices else None


@contextlib.contextmanager
def _above(descriptor: int) -> Iterator[None]:
    """Have what is opened in the block get higher descriptors than this one.

    The kernel closes those of a dying process from the highest down. So whoever gets a lock that
    lay below a device's descriptor knows that the device's queue pairs are destroyed.
    """
    with contextlib.ExitStack() as fillers:
        while True:
            filler = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            if filler > descriptor:
                os.close(filler)
                break
            fillers.callback(os.close, filler)
        yield
