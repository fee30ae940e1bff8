"""Real RDMA devices, through the distribution's pyverbs. The only module that knows it.

pyverbs says nothing of types, so what it gives is ``Any`` here and nowhere else.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import importlib
import os
import secrets
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mooncake_store.errors import ConfigError, NotSupported, StoreError, Unreachable
from mooncake_store.transport.rdma.gids import Gid, choose_gid
from mooncake_store.transport.rdma.loading import load_pyverbs
from mooncake_store.transport.rdma.nearness import spot_of_device
from mooncake_store.transport.rdma.verbs import Access, Completion, DeviceLimits
from mooncake_store.transport.rdma.work_requests import Poster, find, release
from mooncake_store.wire.rdma import MTUS, Endpoint, LinkLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_store.cuda import Exported
    from mooncake_store.transport.rdma.verbs import WorkRequest

SYSTEM: Final = Path("/sys/class/infiniband")
"""Where the kernel lists RDMA devices."""

POLL_MAX: Final = 64
"""Completions taken with one call."""

TIMEOUT: Final = 14
"""Exponent of the time after which a packet is sent again: 4.096 us << 14 is 67 ms."""

POINTER_BYTES: Final = 8
"""Of the machines that ``work_requests`` is written for."""

RETRIES: Final = 7
"""How often; with ``TIMEOUT`` a lost peer is known after about half a second."""

_pyverbs: dict[str, Any] = {}
_load_lock = threading.Lock()
_live: weakref.WeakSet[object] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child: let nothing of the parent's be given back when objects die here."""
    for held in list(_live):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


os.register_at_fork(after_in_child=_leave_to_parent)


def _module(name: str) -> Any:  # noqa: ANN401 - pyverbs is untyped
    """Return a module of pyverbs.

    Raises:
        NotSupported: There is no pyverbs for this Python.
    """
    with _load_lock:
        if name not in _pyverbs:
            load_pyverbs()
            _pyverbs[name] = importlib.import_module(f"pyverbs.{name}")
        return _pyverbs[name]


def device_names() -> list[str]:
    """Return the names of this host's devices, without opening any."""
    try:
        return sorted(entry.name for entry in SYSTEM.iterdir())
    except OSError:
        return []


def open_devices(names: Sequence[str] = ()) -> tuple[list[VerbsDevice], list[str]]:
    """Open devices.

    Args:
        names: Which; empty takes all there are.

    Returns:
        The devices that can be used, and a sentence for each that cannot, or for all.
    """
    found = device_names()
    if not found:
        return [], ["this host has no RDMA device"]
    devices: list[VerbsDevice] = []
    problems: list[str] = []
    for name in names or found:
        try:
            if name not in found:
                raise ConfigError(f"there is no RDMA device {name}: {', '.join(found)}")
            devices.append(VerbsDevice(name))
        except NotSupported as error:
            return [], [str(error)]
        except StoreError as error:
            problems.append(str(error))
    return devices, problems


def _own_nodes() -> set[int]:
    """Return the NUMA nodes whose processors this process may use."""
    own = os.sched_getaffinity(0)
    return {
        int(entry.name.removeprefix("node"))
        for entry in Path("/sys/devices/system/node").glob("node[0-9]*")
        if any((entry / f"cpu{cpu}").exists() for cpu in own)
    }


def _why(error: Exception) -> str:
    code = getattr(error, "error_code", 0)
    return os.strerror(code) if code > 0 else str(error)


class VerbsRegistration:
    """Registered memory."""

    def __init__(self, region: Any) -> None:  # noqa: ANN401 - pyverbs is untyped
        self._region = region
        self.local_key: int = region.lkey
        self.remote_key: int = region.rkey
        _live.add(self)

    def close(self) -> None:
        """As ``Registration.close``."""
        self._region.close()


class VerbsDevice:
    """One opened device: its first active port, and the address that was chosen there."""

    def __init__(self, name: str) -> None:
        """Open it.

        Raises:
            NotSupported: There is no pyverbs.
            ConfigError: It may not be opened, no port is active, or it has no address to use.
        """
        self.name = name
        self.spot = spot_of_device(name)
        self.is_near = self.spot.node < 0 or self.spot.node in _own_nodes()
        self.enums: Any = _module("enums")
        self.error: type[Exception] = _module("pyverbs_error").PyverbsError
        try:
            self.context: Any = _module("device").Context(name=name)
            attributes = self.context.query_device()
            self.port_number, port = self._active_port(attributes.phys_port_cnt)
            self.domain: Any = _module("pd").PD(self.context)
        except self.error as error:
            raise ConfigError(self._no_access(error)) from error
        self.link = (
            LinkLayer.ETHERNET
            if port.link_layer == self.enums.IBV_LINK_LAYER_ETHERNET
            else LinkLayer.INFINIBAND
        )
        self.lid: int = port.lid
        self.mtu_bytes = MTUS[port.active_mtu - self.enums.IBV_MTU_256]
        self.gid = choose_gid(self._gids(), self.link, name)
        self.reads_answered = min(255, attributes.max_qp_rd_atom)
        self.reads_sent = min(255, attributes.max_qp_init_rd_atom)
        self.completions_max: int = attributes.max_cqe
        self.limits = DeviceLimits(
            pieces_max=max(1, min(16, attributes.max_sge)),
            requests_max=min(attributes.max_qp_wr, attributes.max_cqe - 1),
            message_bytes_max=port.max_msg_sz,
        )
        _live.add(self)

    def register(self, address: int, size: int, access: Access) -> VerbsRegistration:
        """As ``Device.register``."""
        enums = self.enums
        flags = enums.IBV_ACCESS_LOCAL_WRITE
        if access >= Access.READ:
            flags |= enums.IBV_ACCESS_REMOTE_READ
        if access >= Access.READ_WRITE:
            flags |= enums.IBV_ACCESS_REMOTE_WRITE
        try:
            return VerbsRegistration(_module("mr").MR(self.domain, size, flags, address=address))
        except self.error as error:
            raise ConfigError(self._not_registered(size, error)) from error

    def register_exported(self, memory: Exported, size: int) -> VerbsRegistration:
        """As ``Device.register_exported``.

        pyverbs gives the region its offset for an address, whatever the memory's own is.
        """
        mr = _module("mr")
        if not hasattr(mr, "DmaBufMR"):
            raise NotSupported("this pyverbs cannot register memory of GPUs: rdma-core 34 or newer")
        flags = self.enums.IBV_ACCESS_LOCAL_WRITE
        try:
            region = mr.DmaBufMR(
                self.domain, size, flags, dmabuf=memory.descriptor, offset=memory.offset
            )
        except self.error as error:
            raise NotSupported(
                f"{self.name} cannot register {size} bytes of a GPU (dma-buf): {_why(error)}"
            ) from error
        return VerbsRegistration(region)

    def create_queue_pair(self, requests_max: int, rail: int = 0) -> VerbsQueuePair:
        """As ``Device.create_queue_pair``."""
        try:
            return VerbsQueuePair(self, min(requests_max, self.limits.requests_max), rail)
        except self.error as error:
            raise Unreachable(f"{self.name} makes no queue pair: {_why(error)}") from error

    def close(self) -> None:
        """As ``Device.close``."""
        try:
            self.domain.close()
            self.context.close()
        except self.error as error:
            raise ConfigError(f"{self.name} is still in use: {_why(error)}") from error

    def _active_port(self, count: int) -> tuple[int, Any]:
        for number in range(1, count + 1):
            port = self.context.query_port(number)
            if port.state == self.enums.IBV_PORT_ACTIVE:
                return number, port
        raise ConfigError(f"{self.name} has no active port: is its network interface up?")

    def _gids(self) -> list[Gid]:
        enums = self.enums
        versions = {enums.IBV_GID_TYPE_ROCE_V1: 1, enums.IBV_GID_TYPE_ROCE_V2: 2}
        return [
            Gid(
                entry.gid_index,
                bytes.fromhex(entry.gid_str().replace(":", "")),
                versions.get(entry.gid_type, 0),
            )
            for entry in self.context.query_gid_table(256)
            if entry.port_num == self.port_number
        ]

    def _no_access(self, error: Exception) -> str:
        if getattr(error, "error_code", 0) in {errno.EACCES, errno.EPERM}:
            return (
                f"{self.name} may not be opened by this user: allow /dev/infiniband/uverbs* (group"
                " rdma, or the container's devices)"
            )
        return f"{self.name} cannot be opened: {_why(error)}"

    def _not_registered(self, size: int, error: Exception) -> str:
        if getattr(error, "error_code", 0) == errno.ENOMEM:
            return (
                f"{self.name} may not lock {size} bytes: raise the limit (ulimit -l unlimited,"
                " LimitMEMLOCK=infinity)"
            )
        return f"{self.name} cannot register {size} bytes: {_why(error)}"


class VerbsQueuePair:
    """One end of a reliable connection, with a completion queue of its own."""

    def __init__(self, device: VerbsDevice, requests_max: int, rail: int) -> None:
        self._device = device
        enums = device.enums
        self._channel, self._descriptor = _new_channel(device)
        entries = min(requests_max + 1, device.completions_max)
        self._queue: Any = _module("cq").CQ(device.context, entries, None, self._channel, 0)
        qp = _module("qp")
        room = qp.QPCap(
            max_send_wr=requests_max,
            max_recv_wr=1,
            max_send_sge=device.limits.pieces_max,
            max_recv_sge=1,
        )
        wanted = qp.QPInitAttr(
            qp_type=enums.IBV_QPT_RC, scq=self._queue, rcq=self._queue, cap=room, sq_sig_all=0
        )
        self._pair: Any = qp.QP(device.domain, wanted)
        self._is_closed = False
        self.endpoint = Endpoint(
            self._pair.qp_num,
            secrets.randbits(24),
            device.gid.address,
            device.lid,
            device.link,
            device.gid.roce,
            device.mtu_bytes,
            device.reads_answered,
            rail,
        )
        self._post = _new_post(device.enums)
        self._explain: Any = _module("cq").cqe_status_to_str
        _live.add(self)

    def connect(self, peer: Endpoint) -> None:
        """As ``QueuePair.connect``."""
        device, enums = self._device, self._device.enums
        if peer.link != device.link or peer.roce != device.gid.roce:
            raise Unreachable(
                f"the two ends speak different RDMA: {_dialect(peer.link, peer.roce)} there,"
                f" {_dialect(device.link, device.gid.roce)} at {device.name}"
            )
        attributes = _module("qp").QPAttr(port_num=device.port_number)
        attributes.qp_access_flags = enums.IBV_ACCESS_REMOTE_READ | enums.IBV_ACCESS_REMOTE_WRITE
        try:
            self._pair.to_init(attributes)
            attributes.ah_attr = self._way_to(peer)
            mtu = min(peer.mtu_bytes, device.mtu_bytes)
            attributes.path_mtu = enums.IBV_MTU_256 + MTUS.index(mtu)
            attributes.dest_qp_num = peer.number
            attributes.rq_psn = peer.first_psn
            attributes.max_dest_rd_atomic = device.reads_answered
            attributes.min_rnr_timer = 12
            self._pair.to_rtr(attributes)
            attributes.sq_psn = self.endpoint.first_psn
            attributes.max_rd_atomic = max(1, min(device.reads_sent, peer.reads_max))
            attributes.timeout = TIMEOUT
            attributes.retry_cnt = RETRIES
            attributes.rnr_retry = RETRIES
            self._pair.to_rts(attributes)
        except device.error as error:
            raise Unreachable(f"{device.name} finds no way to the peer: {_why(error)}") from error

    def post(self, requests: Sequence[WorkRequest]) -> None:
        """As ``QueuePair.post``."""
        try:
            self._post(self._pair.post_send, requests)
        except self._device.error as error:
            raise Unreachable(f"{self._device.name} takes no requests: {_why(error)}") from error

    def poll(self) -> list[Completion]:
        """As ``QueuePair.poll``."""
        try:
            _, completions = self._queue.poll(POLL_MAX)
        except self._device.error as error:
            raise Unreachable(f"{self._device.name} tells no completions: {_why(error)}") from error
        return [
            Completion(each.wr_id, self._explain(each.status) if each.status else "")
            for each in completions
        ]

    def arm(self) -> None:
        """As ``QueuePair.arm``."""
        self._queue.req_notify()

    def fileno(self) -> int:
        """As ``QueuePair.fileno``."""
        return self._descriptor

    def disarm(self) -> None:
        """As ``QueuePair.disarm``."""
        try:
            self._channel.get_cq_event(self._queue)
        except self._device.error:  # There is none: the descriptor does not wait.
            return
        self._queue.ack_events(1)

    def close(self) -> None:
        """As ``QueuePair.close``: destroying waits until the device has let go of all memory."""
        if self._is_closed:
            return
        self._is_closed = True
        for part in (self._pair, self._queue, self._channel):
            try:
                part.close()
            except self._device.error as error:
                # Only a device that was removed refuses; its memory accesses ended with it.
                if getattr(error, "error_code", 0) not in {errno.EIO, errno.ENODEV}:
                    raise

    def _way_to(self, peer: Endpoint) -> Any:  # noqa: ANN401 - pyverbs is untyped
        addr, device = _module("addr"), self._device
        is_global = device.link == LinkLayer.ETHERNET or not peer.lid
        route = addr.GlobalRoute(
            dgid=addr.GID(peer.gid.hex(":", 2)), sgid_index=device.gid.place, hop_limit=64
        )
        return addr.AHAttr(
            dlid=peer.lid, is_global=int(is_global), port_num=device.port_number, gr=route
        )


_Post = Callable[[Callable[[Any], object], "Sequence[WorkRequest]"], None]


@functools.cache
def _request_at() -> int:
    wr = _module("wr")
    return find(wr.SendWR, wr.SGE) if ctypes.sizeof(ctypes.c_void_p) == POINTER_BYTES else -1


def _new_post(enums: Any) -> _Post:  # noqa: ANN401 - pyverbs is untyped
    """Return what posts requests of one queue pair: chains of our own where that can be done."""
    wr, at = _module("wr"), _request_at()
    opcodes = (enums.IBV_WR_RDMA_READ, enums.IBV_WR_RDMA_WRITE)
    signalled: int = enums.IBV_SEND_SIGNALED
    if at < 0:
        return functools.partial(_post_objects, wr.SendWR, wr.SGE, opcodes, signalled)
    head = wr.SendWR(wr_id=0, opcode=opcodes[0], num_sge=1, sg=[wr.SGE(0, 0, 0)], send_flags=0)
    return Poster(head, at, opcodes, signalled).post


def _post_objects(
    new_request: Any,  # noqa: ANN401 - pyverbs is untyped
    new_piece: Any,  # noqa: ANN401 - pyverbs is untyped
    opcodes: tuple[int, int],
    signalled: int,
    post_send: Callable[[Any], object],
    requests: Sequence[WorkRequest],
) -> None:
    """Post requests as objects of pyverbs, which do not free their memory by themselves."""
    linked: list[tuple[Any, list[Any]]] = []
    try:
        for write, remote, key, pieces, number, is_signalled in requests:
            parts = [new_piece(*piece) for piece in pieces]
            request = new_request(
                wr_id=number,
                opcode=opcodes[write],
                num_sge=len(parts),
                sg=parts,
                send_flags=signalled if is_signalled else 0,
            )
            request.set_wr_rdma(key, remote)
            if linked:
                linked[-1][0].next_wr = request
            linked.append((request, parts))
        post_send(linked[0][0])
    finally:
        for request, parts in linked:
            release(request, parts)


def _dialect(link: int, roce: int) -> str:
    return "InfiniBand" if link == LinkLayer.INFINIBAND else f"RoCE v{roce}"


_channel_lock = threading.Lock()


def _new_channel(device: VerbsDevice) -> tuple[Any, int]:
    """Return a completion channel and its descriptor, which pyverbs keeps to itself."""
    with _channel_lock:
        before = _event_descriptors()
        channel = _module("cq").CompChannel(device.context)
        fresh = _event_descriptors() - before
    if len(fresh) != 1:
        channel.close()
        raise Unreachable(f"another library opened completion channels of {device.name} just now")
    descriptor = fresh.pop()
    os.set_blocking(descriptor, False)
    return channel, descriptor


def _event_descriptors() -> set[int]:
    found = set()
    for entry in os.scandir("/proc/self/fd"):
        try:
            if "infinibandevent" in os.readlink(entry.path):  # noqa: PTH115 - a name, no path
                found.add(int(entry.name))
        except OSError:  # It was closed meanwhile, or is the one that lists them.
            continue
    return found
