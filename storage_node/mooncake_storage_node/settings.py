"""The node's options: what memory it gives, where it listens, which master it joins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from mooncake_store.errors import ConfigError
from mooncake_store.limits import GIB, MIB, SEGMENT_BYTES_MAX, SEGMENTS_PER_NODE_MAX
from mooncake_store.settings import ByteSize, Conflict, Duration, RoleSettings, TextList, setting
from mooncake_store.units import parse_bytes
from mooncake_store.wire.address import Address, is_wildcard, parse_address

if TYPE_CHECKING:
    from mooncake_storage_node.ssd import Options
    from mooncake_storage_node.stores import StorePlan

MASTER_PORT: Final = 50051


class NodeSettings(RoleSettings, role="node"):
    """How one storage node runs."""

    master: TextList = setting(
        (f"localhost:{MASTER_PORT}",),
        about="""Where the master is, host:port; several with commas between them where there are
        standbys. Names are resolved again at each try.""",
    )
    name: str = setting(
        "",
        about="""Name of the node, unique in the cluster and on its host: up to 63 letters, digits,
        dots, dashes, underscores. A node that starts again under its name on the same host goes on
        with its contents. Default: the host's name and the first free number.""",
    )
    dram: ByteSize = setting(
        1 * GIB,
        least=1 * MIB,
        most=SEGMENT_BYTES_MAX,
        about="""Memory to give to the pool. It is shared memory of this host and is taken for as
        long as the node runs. Smaller: objects are evicted sooner; larger: less for others.""",
    )
    ssd: TextList = setting(
        (),
        about="""Directories for extents that leave the memory, each with what it may take of its
        disk, as PATH:SIZE; several with commas between them, or the option several times. Each
        exists, is on a disk of its own, and belongs to this node alone. What is in it is there
        again after a restart.""",
    )
    ssd_admission: Literal["all", "second-hit"] = setting(
        "all",
        about="""Which extents are written to disk: all, or those that were offered before. The
        latter spares the disk what is used once, and loses what is evicted for the first time.""",
    )
    ssd_write_budget: ByteSize = setting(
        0,
        least=0,
        most=1 << 60,
        about="""Bytes that may be written to each disk in a day, its upkeep included; 0: no
        budget. A flash disk's data sheet says how many it endures. Smaller: it lives longer and
        keeps less.""",
    )
    ssd_staging: ByteSize = setting(
        64 * MIB,
        least=8 * MIB,
        most=16 * GIB,
        about="""Memory, for each disk, that reads from it pass through. Smaller: fewer reads at a
        time; larger: less memory for others.""",
    )
    bind: TextList = setting(
        ("localhost",),
        about="""Addresses of the data port, with commas between them: host, host:port, IPv6 as
        [::1]:port; 0.0.0.0 or :: for every interface. The default serves this machine only; there
        is no authentication, so open it to networks that you trust.""",
    )
    port: int = setting(
        0,
        unit="port",
        least=0,
        most=65_535,
        about="Data port where an address of --bind has none; 0 takes a free one.",
    )
    advertise: str = setting(
        "",
        about="""Address that clients are told, host or host:port. Default: the first address of
        --bind; for a wildcard, the one from which this host reaches the master.""",
    )
    labels: TextList = setting(
        (),
        about="""Where the node stands, as key=value with commas between them (host, rack, zone):
        replicas of one object then go to different ones, not only to different nodes.""",
    )
    threads: int = setting(
        2,
        unit="threads",
        least=1,
        most=64,
        about="""Threads of the data port. Fewer: clients wait for each other; more: they compete
        for the interpreter. One moves 2 to 4 GB/s.""",
    )
    connections_max: int = setting(
        4096,
        unit="connections",
        least=8,
        most=1_000_000,
        about="""Data connections at one time; over it, the longest idle one is closed. Smaller:
        clients reconnect; larger: idle ones cost 8 KiB each.""",
    )
    stall_timeout_s: Duration = setting(
        5.0,
        least=0.5,
        most=600.0,
        about="""Time in which a client must move 64 KiB in the middle of a transfer. Smaller: slow
        links lose transfers; larger: a stuck client holds a connection for longer.""",
    )
    rdma_devices: TextList = setting(
        ("auto",),
        about="""RDMA devices to offer, with commas between them; auto: all that this host has;
        none: no RDMA. The whole pool is locked in memory for it, before the node serves.""",
    )
    populate: Literal["background", "start", "no"] = setting(
        "background",
        about="""When the pool gets its pages: after start, before start is over, or at first use,
        which halves the speed of first writes but takes memory only as it fills.""",
    )
    huge_pages: Literal["no", "transparent"] = setting(
        "no",
        about="""transparent: ask for 2 MiB pages, refused where the kernel gives none for shared
        memory. Fewer page faults and TLB misses; memory is taken in larger pieces.""",
    )
    numa_node: int = setting(
        -1,
        unit="NUMA node",
        least=-1,
        most=1023,
        about="NUMA node to take the memory from, refused where there is none; -1: any.",
    )
    memory_root: str = setting(
        "/dev/shm",  # noqa: S108 - the node makes a folder of its own and checks its owner
        about="""Folder of a memory file system (tmpfs, hugetlbfs) in which the pool lies. Clients
        of this host must see it under the same path to use shared memory.""",
    )
    on_stop: Literal["release", "keep"] = setting(
        "release",
        about="""What a clean stop does with the memory: release it, or keep it, contents and all,
        for the next start under the same name. After a kill it is always kept.""",
    )
    register_timeout_s: Duration = setting(
        0.0,
        least=0.0,
        most=86_400.0,
        about="How long to look for a master at start before giving up; 0: for ever.",
    )
    scrub_rate: ByteSize = setting(
        16 * MIB,
        least=0,
        most=100 * GIB,
        about="""Bytes a second that are verified in the background, memory and disks in turn; what
        is damaged is dropped and copied anew from another replica. 0: none. Smaller: damage is
        found later, and by a reader; larger: that much less for clients.""",
    )
    drain_timeout_s: Duration = setting(
        20.0,
        least=0.0,
        most=86_400.0,
        about="""Longest time after SIGTERM in which what only this node holds is copied to others;
        a second signal ends it, Ctrl-C skips it, 0 turns it off. Smaller: more is lost with a node
        that goes for good; larger: a stop takes longer (Kubernetes kills after 30s).""",
    )
    stop_timeout_s: Duration = setting(
        5.0,
        least=0.0,
        most=600.0,
        about="""Time for transfers under way after SIGTERM. Smaller: clients see broken
        connections; larger: a stop takes longer.""",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", about="Least severity that is logged."
    )

    def conflicts(self) -> list[Conflict]:
        """Return what does not fit together."""
        found = []
        for field, texts in (("master", self.master), ("bind", self.bind)):
            if not texts:
                found.append(Conflict((field,), "names no address"))
            for text in texts:
                try:
                    parse_address(text, 0)
                except ValueError as error:
                    found.append(Conflict((field,), f"{text!r} {error}"))
        for text in self.labels:
            key, equals, value = text.partition("=")
            if not (key and equals and value):
                found.append(Conflict(("labels",), f"{text!r} is not key=value"))
        if self.advertise:
            found += self._advertise_conflicts()
        return found + self._device_conflicts() + self._ssd_conflicts()

    def _ssd_conflicts(self) -> list[Conflict]:
        found: list[Conflict] = []
        plans: list[StorePlan] = []
        for text in self.ssd:
            try:
                plan = _store_plan(text)
            except ValueError as error:
                found.append(Conflict(("ssd",), f"{text!r} {error}"))
                continue
            near = next((p for p in plans if _share_files(p.directory, plan.directory)), None)
            if near is not None:
                found.append(
                    Conflict(("ssd",), f"{plan.directory} and {near.directory} are not apart")
                )
            plans.append(plan)
        if len(self.ssd) >= SEGMENTS_PER_NODE_MAX:
            found.append(Conflict(("ssd",), f"names more than {SEGMENTS_PER_NODE_MAX - 1} stores"))
        return found

    def _device_conflicts(self) -> list[Conflict]:
        alone = {"auto", "none"} & set(self.rdma_devices)
        if not self.rdma_devices or (alone and len(self.rdma_devices) > 1):
            return [Conflict(("rdma_devices",), "is auto, none, or names of devices")]
        return []

    def store_plans(self) -> list[StorePlan]:
        """Return the stores that were asked for."""
        return [_store_plan(text) for text in self.ssd]

    def store_options(self) -> Options:
        """Return how they are run."""
        from mooncake_storage_node.ssd import Admission, Options  # noqa: PLC0415 - --help does without

        return Options(
            admission=Admission(self.ssd_admission),
            write_budget_bytes_per_day=self.ssd_write_budget,
            staging_bytes=self.ssd_staging,
        )

    def _advertise_conflicts(self) -> list[Conflict]:
        try:
            address = parse_address(self.advertise, 0)
        except ValueError as error:
            return [Conflict(("advertise",), str(error))]
        if is_wildcard(address.host):
            return [Conflict(("advertise",), "nobody can connect to a wildcard address")]
        return []

    def master_addresses(self) -> list[Address]:
        """Return where masters may be."""
        return [parse_address(text, MASTER_PORT) for text in self.master]

    def data_addresses(self) -> list[Address]:
        """Return what to bind."""
        return [parse_address(text, self.port) for text in self.bind]

    def label_map(self) -> dict[str, str]:
        """Return the labels as they were given."""
        return dict(text.split("=", 1) for text in self.labels)


def _store_plan(text: str) -> StorePlan:
    """Read ``PATH:SIZE``.

    Raises:
        ValueError: What is wrong, continuing "<text> ".
    """
    from mooncake_storage_node.ssd.core.layout import (  # noqa: PLC0415 - --help needs none of it
        check_capacity,
    )
    from mooncake_storage_node.stores import StorePlan  # noqa: PLC0415 - the same

    path, colon, size = text.rpartition(":")
    if not colon or not path:
        raise ValueError("is not PATH:SIZE, such as /var/cache/mooncake:100GiB")
    try:
        capacity_bytes = parse_bytes(size)
        check_capacity(capacity_bytes)
    except ValueError as error:
        raise ValueError(f"has no size: {size!r} {error}") from error
    except ConfigError as error:
        raise ValueError(f"has an impossible size: {error}") from error
    return StorePlan(Path(path).absolute(), capacity_bytes)


def _share_files(one: Path, other: Path) -> bool:
    """Return whether two directories are one, or one lies in the other."""
    first, second = one.resolve(), other.resolve()
    return first.is_relative_to(second) or second.is_relative_to(first)
