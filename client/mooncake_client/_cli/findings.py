"""What ``doctor`` can tell from looking: the cluster's own account of itself, and this host."""

from __future__ import annotations

import enum
import os
import resource
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mooncake_client._cli.output import about_bytes, about_seconds, share
from mooncake_store.types import NodeState
from mooncake_store.wire.address import format_address, is_loopback, is_wildcard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_store.wire.control import ClusterStatus, NodeStatus

FULL_SHARE: Final = 0.98
"""Use of a node's memory above which eviction does not keep up or everything is protected: it
starts by default at 0.95."""

SILENCE_S_MAX: Final = 2.0
"""Age of a node's last heartbeat that is worth a word; they come every half second."""

OPEN_FILES_MIN: Final = 4_096
"""File descriptors a process of the store may want: a node serves some connections to each of a
thousand clients."""

SHM: Final = Path("/dev/shm")  # noqa: S108 - where the kernel keeps shared memory, no file of ours


class Verdict(enum.StrEnum):
    """How good a finding is."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        subject: The process or the host it is about.
        verdict: How good it is.
        text: What was found, and what to do where that is not obvious.
    """

    subject: str
    verdict: Verdict
    text: str


def ok(subject: str, text: str) -> Finding:
    """Return a finding that is as it should be."""
    return Finding(subject, Verdict.OK, text)


def note(subject: str, text: str) -> Finding:
    """Return a finding that is worth knowing."""
    return Finding(subject, Verdict.NOTE, text)


def bad(subject: str, text: str) -> Finding:
    """Return a finding that somebody should do something about."""
    return Finding(subject, Verdict.BAD, text)


def look_at_cluster(status: ClusterStatus, software: str, master: str) -> Iterator[Finding]:
    """Yield what the master says about itself and its nodes.

    Args:
        status: Its description of the cluster.
        software: Version of this program.
        master: Host under which it was reached.
    """
    about = f"term {status.term}, up {about_seconds(status.uptime_s)}, version {status.software}"
    if status.software == software:
        yield ok("master", about)
    else:
        yield bad("master", f"{about}; this is {software}: run one version everywhere")
    serving = [node for node in status.nodes if node.record.state == NodeState.LIVE]
    if not serving:
        yield bad("cluster", "no live node: start one with mooncake-store node --master HOST:PORT")
    for node in sorted(status.nodes, key=lambda node: node.record.name):
        yield from _look_at_node(node, master)


def _look_at_node(node: NodeStatus, master: str) -> Iterator[Finding]:
    name, state = node.record.name, NodeState(node.record.state)
    if state is NodeState.LIVE:
        yield ok(name, f"live, heard of {about_seconds(node.heartbeat_age_s)} ago")
    else:
        told = f" ({node.note})" if node.note else ""
        wished = state in {NodeState.DRAINING, NodeState.DRAINED}  # somebody asked for it
        yield (note if wished else bad)(name, f"{state.name.lower()}{told}")
    if state is NodeState.LIVE and node.heartbeat_age_s > SILENCE_S_MAX:
        yield bad(name, f"no heartbeat for {about_seconds(node.heartbeat_age_s)}")
    yield _look_at_address(node, master)
    yield _look_at_room(node)


def _look_at_address(node: NodeStatus, master: str) -> Finding:
    record = node.record
    address = format_address(record.host, record.port)
    if not record.port:
        return bad(record.name, "has no data port: other hosts cannot read from it")
    if is_wildcard(record.host):
        return bad(record.name, f"advertises {address}, which nobody can connect to (--advertise)")
    if is_loopback(record.host) and not is_loopback(master):
        return bad(
            record.name,
            f"advertises {address}, which other hosts take for themselves (--advertise)",
        )
    return ok(record.name, f"advertises {address}")


def _look_at_room(node: NodeStatus) -> Finding:
    used = share(node.used_bytes, node.capacity_bytes)
    text = f"{used} of {about_bytes(node.capacity_bytes)} used, {node.objects} objects"
    if not node.capacity_bytes:
        return bad(node.record.name, "pools no memory (--dram)")
    if node.used_bytes > FULL_SHARE * node.capacity_bytes:
        return bad(node.record.name, f"{text}: full, and eviction does not make room")
    return ok(node.record.name, text)


def look_at_host(pooled_bytes: int) -> Iterator[Finding]:
    """Yield what limits of this host are too small.

    Args:
        pooled_bytes: Memory that nodes of this host pool.
    """
    if pooled_bytes:
        yield _look_at_shm(pooled_bytes)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or files >= OPEN_FILES_MIN:
        yield ok("host", f"{'any number of' if files < 0 else files} open files per process")
    else:
        yield bad("host", f"only {files} open files per process (ulimit -n): want {OPEN_FILES_MIN}")
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if locked == resource.RLIM_INFINITY or locked >= pooled_bytes:
        yield ok("host", "enough memory may be locked for RDMA")
    else:
        yield note(
            "host",
            f"{about_bytes(locked)} of memory may be locked (ulimit -l): RDMA needs the whole pool,"
            f" shared memory and TCP need none",
        )


def _look_at_shm(pooled_bytes: int) -> Finding:
    try:
        place = os.statvfs(SHM)
    except OSError as error:
        return bad("host", f"{SHM} cannot be used: {error.strerror}")
    size = place.f_blocks * place.f_frsize
    text = f"{SHM} takes {about_bytes(size)}, nodes here pool {about_bytes(pooled_bytes)}"
    if size < pooled_bytes:
        return bad("host", f"{text}: they die when it is full; enlarge it or lower --dram")
    return ok("host", text)


def is_this_host(host: str) -> bool:
    """Return whether an address is one of this machine's: a socket can be bound to it."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as sock:
            try:
                sock.bind(address)
            except OSError:  # An address of another host; the name may have more.
                continue
            return True
    return False
