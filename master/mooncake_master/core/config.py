"""Settings of the master's decisions; the shell fills them from flags, environment and file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mooncake_store.errors import ConfigError
from mooncake_store.limits import GIB, MIB


class Randomness(Protocol):
    """What the core needs of ``random.Random``; the caller seeds it."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...


POLICY_NAMES = ("fifo", "lru")


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """Settings of one master; ``validate`` reports all problems at once."""

    lease_ttl_s: float = 5.0
    """Time a read protects its object. Shorter: slow reads renew more often. Longer: a full pool
    makes writers wait longer for what readers have left behind."""
    put_ttl_s: float = 30.0
    """Time from grant to commit. Shorter: slow writers lose their work. Longer: the room of a dead
    writer whose connection stays open returns later."""
    hold_s_max: float = 600.0
    """Longest hold a probe may ask for; longer ones are cut."""
    high_watermark: float = 0.95
    """Share of a node's bytes in use at which eviction starts. 1 turns it off: only puts that find
    no room evict. Lower: fewer puts wait, less is cached."""
    low_watermark: float = 0.90
    """Share at which eviction stops again."""
    policy: str = "lru"
    """What is evicted first: ``lru`` or ``fifo`` (``eviction.POLICIES``)."""
    pinned_share_max: float = 0.5
    """Share of the pool that may be pinned; above it eviction has too little to work with."""
    keys_max: int = 0
    """Most objects in the index, 0: no bound. Up to 700 bytes of the master's memory each."""
    heartbeat_s: float = 0.5
    """Interval of a node's heartbeats."""
    suspect_after_s: float = 2.0
    """Silence after which a node gets no new objects and is read last."""
    dead_after_s: float = 6.0
    """Silence after which a node's copies count as away."""
    forget_after_s: float = 3600.0
    """Silence after which a node's copies count as lost and their entries go."""
    transfer_failures_max: int = 5
    """Failed transfers in a row, as clients report them, that make a node suspect."""
    suspicion_s: float = 10.0
    """Time such a node stays suspect, unless a transfer succeeds before."""
    ramp_s: float = 30.0
    """Time in which a new node's share of new objects grows to its full weight."""
    recovery_grace_s: float = 2.0
    """Time after a restart in which misses wait for nodes that did not come back yet."""
    acknowledge_grace_s: float = 1.0
    """Time a remove, replace or clear waits for the acknowledgement of a node that is connected
    and silent, when no lease keeps it waiting anyway."""
    gone_keys_max: int = 65_536
    """Keys whose reason of disappearance is remembered (about 100 bytes each)."""
    probes_max: int = 4_096
    """Probe ids whose answers are remembered."""
    probe_memory_s: float = 30.0
    """Time for which requests of one probe id get one answer."""
    evict_slice: int = 1_024
    """Objects evicted, cleared or dropped in one turn (about 3 ms)."""
    free_batch: int = 1_024
    """Extents in one ``FreeExtents``."""
    directory_page: int = 1_024
    """Objects in one ``ListDirectory`` page (about 6 ms of the master's time)."""
    demote: bool = True
    """Write what memory evicts to a disk of the same node first, where there is one. Off: disks
    hold only what was put with ``durable``."""
    store_patience_s: float = 3.0
    """Time that a disk has to take one extent. Smaller: hiccups of a disk cost copies. Larger: a
    put that waits for it has less of its own time left."""
    promote_reads: int = 2
    """Reads within ``promote_window_s`` that bring an object from disk back to memory; 0: none do.
    Smaller: scans push hot objects out of memory; larger: warm ones are read from disk for
    longer."""
    promote_window_s: float = 60.0
    """Time within which those reads have to come."""
    copy_rate: float = 256.0 * MIB
    """Bytes per second that a node sends or takes for background copies: repairs, promotions,
    drains. Smaller: lost copies are rebuilt later; larger: clients notice it more."""
    rebalance_rate: float = 0.0
    """Bytes per second that move from full nodes to emptier ones; 0: none do."""
    hot_replicas_max: int = 3
    """Most replicas of an object that more readers ask for than one node's share; 1: as asked."""
    dram_bytes_per_s: float = 2.0 * GIB
    """Bandwidth that a probe's estimate assumes."""
    dram_latency_us: int = 200
    """Fixed time of a fetch that a probe's estimate assumes."""
    ssd_bytes_per_s: float = 1.0 * GIB
    """The same for replicas on disk."""
    ssd_latency_us: int = 1_000

    def validate(self) -> None:
        """Check ranges and relations.

        Raises:
            ConfigError: The message names every setting that is out of range.
        """
        problems = self._not_positive()
        low, high = self.low_watermark, self.high_watermark
        if not 0 < low <= high <= 1:
            problems.append(f"0 < low_watermark {low} <= high_watermark {high} <= 1 does not hold")
        if not 0 <= self.pinned_share_max <= 1:
            problems.append(f"pinned_share_max is {self.pinned_share_max}, not in 0 to 1")
        silences = (
            self.heartbeat_s,
            self.suspect_after_s,
            self.dead_after_s,
            self.forget_after_s,
        )
        if sorted(silences) != list(silences):
            problems.append(
                "heartbeat_s <= suspect_after_s <= dead_after_s <= forget_after_s does not hold:"
                f" {silences}"
            )
        if self.policy not in POLICY_NAMES:
            problems.append(f"policy is {self.policy!r}, not one of {', '.join(POLICY_NAMES)}")
        if problems:
            raise ConfigError("; ".join(problems))

    def _not_positive(self) -> list[str]:
        names = (
            "put_ttl_s", "heartbeat_s", "transfer_failures_max", "gone_keys_max", "probes_max",
            "evict_slice", "free_batch", "directory_page", "copy_rate", "dram_bytes_per_s",
            "ssd_bytes_per_s", "store_patience_s",
        )  # fmt: skip
        may_be_zero = (
            "rebalance_rate", "hot_replicas_max",
            "lease_ttl_s", "hold_s_max", "keys_max", "suspicion_s", "ramp_s", "recovery_grace_s",
            "acknowledge_grace_s", "probe_memory_s", "dram_latency_us", "ssd_latency_us",
            "promote_reads", "promote_window_s",
        )  # fmt: skip
        return [
            *(f"{name} is {getattr(self, name)}, not above 0"
              for name in names if getattr(self, name) <= 0),
            *(f"{name} is {getattr(self, name)}, below 0"
              for name in may_be_zero if getattr(self, name) < 0),
        ]  # fmt: skip
