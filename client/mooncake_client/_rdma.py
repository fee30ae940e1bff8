"""The RDMA devices of one client: opened at the first need, none where there are none."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Self

from mooncake_store import device_memory
from mooncake_store.device_memory import KnownMemory
from mooncake_store.errors import ConfigError, NotSupported
from mooncake_store.memory import address_of
from mooncake_store.transport.rdma import RdmaContext
from mooncake_store.transport.rdma.nearness import spot_of_pci
from mooncake_store.transport.rdma.pyverbs_device import open_devices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_client._memory import Registrable
    from mooncake_store.transport.rdma import RegisteredBuffer

logger = logging.getLogger(__name__)


class RegisteredMemory:
    """Memory of the caller that RDMA uses without a copy, until ``close`` or the end of ``with``.

    Close it when no call that uses the memory is under way. Where there is no RDMA it is nothing,
    but that of a GPU becomes usable by it: what is read goes through memory of the host.

    Attributes:
        is_registered: Whether a device has it.
        problem: Why none has that of a GPU.
    """

    def __init__(self) -> None:
        self.problem = ""
        self._buffers: list[RegisteredBuffer] = []
        self._known: list[KnownMemory] = []

    @property
    def is_registered(self) -> bool:
        """Whether a device has it."""
        return bool(self._buffers)

    def add(self, context: RdmaContext, view: memoryview) -> None:
        """Register memory of the host.

        Raises:
            ConfigError: It may not be locked.
        """
        self._buffers.append(context.register(view))

    def add_of_gpu(self, context: RdmaContext | None, view: memoryview) -> None:
        """Make memory of a GPU known, and register it where devices can use it."""
        address = address_of(view)
        self._known.append(KnownMemory(address, len(view)))
        if context is None:
            self.problem = "this host has no RDMA"
            return
        try:
            driver = device_memory.driver()
            exported = driver.export(address, len(view))
            try:
                spot = spot_of_pci(driver.bus_id(address))
                self._buffers.append(context.register_exported(view, exported, spot))
            finally:
                os.close(exported.descriptor)
        except NotSupported as error:
            self.problem = str(error)
            logger.info("memory of a GPU goes through the host: %s", error)

    def close(self) -> None:
        """Take the memory back. Idempotent."""
        buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            buffer.close()
        known, self._known = self._known, []
        for memory in known:
            memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def register(context: RdmaContext | None, pieces: Sequence[Registrable]) -> RegisteredMemory:
    """Register memory of the caller with the devices, if there are any.

    Raises:
        ConfigError: It may not be locked.
        InvalidArgument: It is to be a GPU's, and its driver does not know it.
    """
    memory = RegisteredMemory()
    try:
        for view, is_on_gpu in pieces:
            if is_on_gpu:
                memory.add_of_gpu(context, view)
            elif context is not None:
                memory.add(context, view)
    except BaseException:
        memory.close()
        raise
    return memory


class Fabric:
    """What a client may use of RDMA."""

    def __init__(self, transport: str, queue_pairs: int = 0) -> None:
        """Take the client's choice; ``rdma`` insists, ``auto`` takes what there is.

        Args:
            transport: The choice.
            queue_pairs: As ``RdmaContext``.
        """
        self._queue_pairs = queue_pairs
        self._is_wanted = transport in {"auto", "rdma"}
        self.is_alone = transport == "rdma"
        self._lock = threading.Lock()
        self._is_open = False
        self._context: RdmaContext | None = None

    def context(self) -> RdmaContext | None:
        """Return the devices; None: use something else.

        Raises:
            ConfigError: Only RDMA may be used, and there is none.
        """
        if not self._is_wanted:
            return None
        if not self._is_open:
            self._open()
        return self._context

    def register(self, pieces: Sequence[Registrable]) -> RegisteredMemory:
        """Register the caller's memory where there is RDMA; raises as ``register``."""
        return register(self.context(), pieces)

    def close(self) -> None:
        """Give the devices back, after all paths were closed."""
        with self._lock:
            context, self._context = self._context, None
            self._is_wanted = False
        if context is not None:
            context.close()

    def after_fork(self) -> None:
        """In a forked child: leave the parent's devices alone and open some again when needed."""
        self._lock = threading.Lock()
        self._is_open = False
        self._context = None

    def _open(self) -> None:
        with self._lock:
            if self._is_open:
                return
            devices, problems = open_devices()
            if devices:
                self._context = RdmaContext(devices, self._queue_pairs)
            elif self.is_alone:
                raise ConfigError(f"transport rdma cannot be used: {'; '.join(problems)}")
            self._is_open = True
