"""The master's options: where it listens, what it allows, how it looks after its objects."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import Final, Literal

from mooncake_master.core import CoreConfig
from mooncake_master.leadership.location import Location, parse_location
from mooncake_store.limits import GIB, MIB
from mooncake_store.settings import ByteSize, Conflict, Duration, RoleSettings, TextList, setting
from mooncake_store.transport.spinning import SPIN_S
from mooncake_store.wire.address import Address, parse_address

RPC_PORT: Final = 50051
ADMIN_PORT: Final = 9003
CLUSTER_ID_CHARACTERS_MAX: Final = 64

_CORE: Final = CoreConfig()


class MasterSettings(RoleSettings, role="master"):
    """How one master runs."""

    bind: TextList = setting(
        ("localhost",),
        about="""Addresses to listen on for nodes and clients, with commas between them: names,
        IPv4 or IPv6 (::1, [::1]:50051); 0.0.0.0 or :: for every interface. The default serves this
        machine only; there is no authentication, so open it to networks that you trust.""",
    )
    port: int = setting(
        RPC_PORT,
        unit="port",
        least=0,
        most=65_535,
        about="Port where an address of --bind has none; 0 takes a free one.",
    )
    advertise: str = setting(
        "",
        about="""Address that nodes and clients are told, host or host:port. Default: the first
        address of --bind that other machines reach, this machine's name for a wildcard.""",
    )
    admin_bind: TextList = setting(
        ("localhost",),
        about="""Addresses of the admin API (health, metrics, REST), as --bind. Whoever reaches
        them may remove objects.""",
    )
    admin_port: int = setting(
        ADMIN_PORT,
        unit="port",
        least=0,
        most=65_535,
        about="Port where an address of --admin-bind has none; 0 takes a free one.",
    )
    cluster_id: str = setting(
        "",
        about="""Name of the cluster in listings and logs, at most 64 characters; chosen at random
        at start where not given.""",
    )
    data_dir: Path | None = setting(
        None,
        about="""Directory of this master's own for what no node can tell it after a restart: which
        nodes there were, the manifests of namespaces, what absent nodes still have to erase.
        Default: none, that is forgotten then.""",
    )
    ha: str = setting(
        "",
        about="""etcd through which several masters agree on who leads, as
        etcd://host:2379,host:2379/name; the name, where it is given, tells apart the pools of one
        etcd. Drains, limits and manifests are kept there, too. Default: this master is the only one
        and leads.""",
    )
    ha_lease_s: Duration = setting(
        5.0,
        least=2.0,
        most=300.0,
        about="""Length of the leader's lease, in whole seconds. Smaller: another master takes over
        sooner when the leader is gone; larger: etcd may be away for longer without an election.""",
    )
    lease_ttl_s: Duration = setting(
        _CORE.lease_ttl_s,
        least=0.05,
        most=3600.0,
        about="""Time that a read protects its object from eviction and reuse. Smaller: slow reads
        renew more often; larger: a full pool makes writers wait for what readers left behind.""",
    )
    put_ttl_s: Duration = setting(
        _CORE.put_ttl_s,
        least=0.1,
        most=3600.0,
        about="""Time that a writer has from getting room to saying that it is done. Smaller: slow
        writers lose their work; larger: room of a writer that died returns later.""",
    )
    hold_s_max: Duration = setting(
        _CORE.hold_s_max,
        least=0.0,
        most=86_400.0,
        about="""Longest protection that a probe may ask for; longer ones are cut to it. Smaller:
        objects that were counted on may be gone; larger: probes can fill the pool.""",
    )
    policy: Literal["lru", "fifo"] = setting(
        "lru", about="What is evicted first: what was read longest ago, or written longest ago."
    )
    high_watermark: float = setting(
        _CORE.high_watermark,
        unit="share",
        least=0.01,
        most=1.0,
        about="""Share of a node's bytes in use from which objects are evicted ahead of need; 1:
        only when a put finds no room. Smaller: fewer puts wait; larger: more stays cached.""",
    )
    low_watermark: float = setting(
        _CORE.low_watermark,
        unit="share",
        least=0.01,
        most=1.0,
        about="""Share of a node's bytes in use at which that eviction ends. Smaller: rarer, longer
        rounds of eviction; larger: more stays cached.""",
    )
    pinned_share_max: float = setting(
        _CORE.pinned_share_max,
        unit="share",
        least=0.0,
        most=1.0,
        about="""Share of the pool that may be pinned. Smaller: pins are refused sooner; larger:
        eviction has less to work with, so everything else is kept for a shorter time.""",
    )
    keys_max: int = setting(
        _CORE.keys_max,
        unit="objects",
        least=0,
        most=1_000_000_000,
        about="""Most objects in the index, 0: as many as the pool holds. Each takes up to 700
        bytes of the master's memory; at the limit, old ones are evicted.""",
    )
    heartbeat_s: Duration = setting(
        _CORE.heartbeat_s,
        least=0.05,
        most=60.0,
        about="""Time between two heartbeats of a node. Smaller: more messages; larger: a node
        that is gone is noticed later.""",
    )
    suspect_after_s: Duration = setting(
        _CORE.suspect_after_s,
        least=0.1,
        most=600.0,
        about="""Silence after which a node gets no new objects and is read last. Smaller: short
        pauses move load away; larger: more calls meet a node that is gone.""",
    )
    dead_after_s: Duration = setting(
        _CORE.dead_after_s,
        least=0.2,
        most=3600.0,
        about="""Silence after which a node's copies count as away. Smaller: a pause costs its hits;
        larger: readers try a dead node for longer.""",
    )
    forget_after_s: Duration = setting(
        _CORE.forget_after_s,
        least=1.0,
        most=604_800.0,
        about="""Silence after which a node's copies count as lost. Smaller: a node that comes back
        late starts empty in the index; larger: lost entries take memory for longer.""",
    )
    transfer_failures_max: int = setting(
        _CORE.transfer_failures_max,
        unit="failures",
        least=1,
        most=1_000_000,
        about="""Failed transfers in a row, as clients report them, that make a node suspect; one of
        several clients counts for half of it at most.
        Smaller: single faults move load away; larger: a node with a broken data path keeps it.""",
    )
    suspicion_s: Duration = setting(
        _CORE.suspicion_s,
        least=0.0,
        most=3600.0,
        about="""Time that such a node stays suspect, unless a transfer succeeds before. Smaller: it
        is tried again sooner; larger: a node that recovered stays idle for longer.""",
    )
    ramp_s: Duration = setting(
        _CORE.ramp_s,
        least=0.0,
        most=86_400.0,
        about="""Time in which the share of new objects that a new node gets grows to its full
        weight. Smaller: it takes the rush of all writers; larger: its room is used later.""",
    )
    recovery_grace_s: Duration = setting(
        _CORE.recovery_grace_s,
        least=0.0,
        most=600.0,
        about="""Time after a start in which misses wait for nodes that did not come back yet.
        Smaller: what a late node holds counts as missing; larger: misses after a restart are
        slower.""",
    )
    acknowledge_grace_s: Duration = setting(
        _CORE.acknowledge_grace_s,
        least=0.0,
        most=60.0,
        about="""Time that a remove, replace or clear waits for a node that is connected and silent.
        Smaller: a busy node may not have erased it when the call returns (leases still hold);
        larger: one frozen node slows removals.""",
    )
    demote: bool = setting(
        _CORE.demote,
        about="""Write what memory evicts to a disk of the same node first, where there is one. Off:
        disks hold only what was put durable.""",
    )
    promote_reads: int = setting(
        _CORE.promote_reads,
        unit="reads",
        least=0,
        most=1_000,
        about="""Reads within --promote-window that bring an object from disk back to memory; 0:
        none do. Smaller: scans push hot objects out of memory; larger: warm ones are read from
        disk for longer.""",
    )
    promote_window_s: Duration = setting(
        _CORE.promote_window_s,
        least=0.0,
        most=86_400.0,
        about="""Time within which those reads have to come. Smaller: only what is hot now comes
        back; larger: more does.""",
    )
    copy_rate: ByteSize = setting(
        int(_CORE.copy_rate),
        least=1 * MIB,
        most=1024 * GIB,
        about="""Bytes per second that a node sends or takes for background copies: repairs,
        promotions, drains. Smaller: lost copies are rebuilt later; larger: clients notice it
        more.""",
    )
    rebalance_rate: ByteSize = setting(
        int(_CORE.rebalance_rate),
        least=0,
        most=1024 * GIB,
        about="""Bytes per second that move from full nodes to emptier ones, such as new ones, while
        nobody reads them; 0: none do, emptier nodes fill by new objects alone. Smaller: it takes
        longer; larger: clients notice it more (--copy-rate bounds it, too).""",
    )
    hot_replicas_max: int = setting(
        _CORE.hot_replicas_max,
        unit="replicas",
        least=1,
        most=64,
        about="""Most replicas of an object that more readers ask for than one node's share of them;
        it gets more, one by one, in free memory, and gives them back a minute after. 1: none gets
        more than was asked. Smaller: one node may be busy while others are idle; larger: a rush
        takes more memory.""",
    )
    connections_max: int = setting(
        10_000,
        unit="connections",
        least=16,
        most=1_000_000,
        about="""Connections at one time; a node needs two, a client one to four. More are refused
        with a reason. The limit of open files of the process lowers it (and a warning says so).""",
    )
    handshake_timeout_s: Duration = setting(
        5.0,
        least=0.1,
        most=300.0,
        about="""Time from connecting to a complete handshake. Smaller: peers on slow links are
        turned away; larger: strangers occupy connections for longer.""",
    )
    write_buffer_bytes_max: ByteSize = setting(
        32 * MIB,
        least=1 * MIB,
        most=1 * GIB,
        about="""Unread replies at which a peer that does not read is cut off. Smaller: a peer that
        pauses for a moment loses its connection; larger: each such peer costs more memory.""",
    )
    instruct_timeout_s: Duration = setting(
        5.0,
        least=0.1,
        most=300.0,
        about="""Time that a node has to answer a request of the master before it counts as failed.
        Smaller: busy nodes count as failing; larger: removals on a frozen node wait longer.""",
    )
    awake_s: Duration = setting(
        SPIN_S,
        least=0.0,
        most=0.01,
        about="""Time after the answer to a small request in which the master does not sleep, since
        a client's next one often follows at once; it stops where none does, and on one CPU. 0:
        never. Smaller: it has to be woken more often, some 20 us each time; larger: it uses more of
        a CPU between requests.""",
    )
    stop_timeout_s: Duration = setting(
        5.0,
        least=0.0,
        most=600.0,
        about="""Longest time between SIGTERM and the end of the process; requests under way are
        answered within it. Smaller: waiting requests are cut; larger: restarts may take longer.""",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", about="Least severe messages that are logged; requests and misses never are."
    )
    log_format: Literal["text", "json"] = setting(
        "text", about="Lines for people, or one JSON object a line for collectors."
    )

    def conflicts(self) -> list[Conflict]:
        """Return what does not fit together."""
        found = [
            Conflict((field,), problem)
            for field, port in (("bind", self.port), ("admin_bind", self.admin_port))
            for problem in _address_problems(getattr(self, field), port)
        ]
        if self.advertise:
            found += [Conflict(("advertise",), p) for p in _address_problems([self.advertise], 1)]
        if len(self.cluster_id) > CLUSTER_ID_CHARACTERS_MAX:
            found.append(Conflict(("cluster_id",), "is longer than 64 characters"))
        if self.port and self.port == self.admin_port and set(self.bind) & set(self.admin_bind):
            found.append(Conflict(("port", "admin_port"), "one port cannot serve both"))
        if self.low_watermark > self.high_watermark:
            found.append(
                Conflict(("low_watermark", "high_watermark"), "the low one is above the high one")
            )
        found += self._leadership_conflicts()
        silences = ("heartbeat_s", "suspect_after_s", "dead_after_s", "forget_after_s")
        found += [
            Conflict((shorter, longer), "the first has to be below the second")
            for shorter, longer in pairwise(silences)
            if getattr(self, shorter) >= getattr(self, longer)
        ]
        return found

    def _leadership_conflicts(self) -> list[Conflict]:
        if not self.ha:
            return []
        found = []
        try:
            parse_location(self.ha)
        except ValueError as error:
            found.append(Conflict(("ha",), f"{self.ha!r} {error}"))
        if self.ha_lease_s != int(self.ha_lease_s):
            found.append(Conflict(("ha_lease_s",), "etcd counts whole seconds"))
        if self.data_dir is not None:
            found.append(
                Conflict(
                    ("ha", "data_dir"),
                    "with ha, etcd keeps what a data directory would: leave data_dir out",
                )
            )
        return found

    def location(self) -> Location | None:
        """Return where masters agree on who leads, None where this is the only one."""
        return parse_location(self.ha) if self.ha else None

    def core_config(self) -> CoreConfig:
        """Return what the core is to know: those of its settings that are options here."""
        names = set(CoreConfig.__slots__) & set(type(self).model_fields)
        return CoreConfig(**{name: getattr(self, name) for name in names})

    def rpc_addresses(self) -> list[Address]:
        """Return what to bind for nodes and clients."""
        return [parse_address(text, self.port) for text in self.bind]

    def admin_addresses(self) -> list[Address]:
        """Return what to bind for the admin API."""
        return [parse_address(text, self.admin_port) for text in self.admin_bind]


def _address_problems(texts: tuple[str, ...] | list[str], port: int) -> list[str]:
    problems = [] if texts else ["names no address"]
    for text in texts:
        try:
            parse_address(text, port)
        except ValueError as error:
            problems.append(f"{text!r} {error}")
    return problems
