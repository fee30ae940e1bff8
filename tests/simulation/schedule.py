"""One schedule: random load and faults, then peace, then judgement."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mooncake_client._core import reading
from mooncake_client._core.wants import Want
from mooncake_store.testing import (
    EXCUSES,
    HOLD_EXCUSES,
    Checker,
    Kind,
    Outcome,
    Rule,
    Violation,
    find_problems,
    seeded,
    settled_write,
)
from mooncake_store.wire.control import ClusterStatus, DescribeCluster
from tests.simulation.client import Failed, SimClient
from tests.simulation.faults import Chaos, Profile
from tests.simulation.load import HOLD_S_MAX, Load, conclude_read
from tests.simulation.rpc import Line
from tests.simulation.world import FAST, Plan, World

if TYPE_CHECKING:
    from mooncake_client._core.effects import Operation
    from mooncake_store.errors import StoreError
    from mooncake_store.testing import Call
    from mooncake_store.wire.control import Message
    from tests.simulation.disk import Disk

LOAD_S = 2.0
LOAD_S_LATE = 3.5
"""Late bytes need time to come, and somebody whose bytes they would hit."""
PEACE_S = 2.0
"""Longer than the deadline of a call and the time to live of an attempt, so that all is over."""
END_S = 20.0
LATE_S = 0.5
"""Time for the directory of a node that came later than that to be listed."""
DISK_SHARE = 0.5
"""Of the schedules that have disks."""
DISK_BYTES_ROOMY = 4 * 1024 * 1024
"""More than is ever written: such a disk never gives anything up to make room."""
LATENESS_S = 0.045
"""A writer on the node's own host is not cut short while it copies: 15 steps of 3 ms at most."""
SWAP_S = FAST.lease_ttl_s + FAST.acknowledge_grace_s
"""As long as the call that replaces a value has not returned, readers may see either, and one that
keeps a leased location sees the old one longer than the others."""


@dataclass(slots=True)
class Report:
    """What came of one schedule, or of many."""

    schedules: int = 0
    violations: int = 0
    acknowledged: int = 0
    kept: int = 0
    lost_acknowledged: int = 0
    wrong_bytes: int = 0
    revived: int = 0
    late_calls: int = 0
    kills: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Take another one's numbers over."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def record(self) -> dict[str, int]:
        """Return the numbers, for JSON."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "failures"}


class Schedule:
    """One seed's schedule."""

    def __init__(
        self, seed: int, profile: Profile | None = None, *, disks: bool | None = None
    ) -> None:
        """Plan it.

        Args:
            seed: Decides everything that is not named.
            profile: Which faults there are.
            disks: Whether nodes have SSD stores.
        """
        self.profile = profile or list(Profile)[seed % len(Profile)]
        generator = seeded(seed, "schedule")
        pool_bytes = generator.choice((32 * 1024, 64 * 1024, 512 * 1024))
        self.is_roomy = pool_bytes == 512 * 1024
        self.plan = plan = Plan(
            nodes=generator.choice((1, 2, 2, 3)),
            clients=generator.choice((2, 3)),
            extents_bytes=pool_bytes,
            config=replace(FAST, rebalance_rate=generator.choice((0.0, 1e6, 1e9))),
            has_data_directory=generator.random() < 0.5 or self.profile is Profile.FULL,
        )
        self.seed = seed
        self.keys = [f"key-{number}" for number in range(generator.choice((3, 8, 16)))]
        self.fault_count = generator.choice((0, 2, 4, 8))
        has_disks = generator.random() < DISK_SHARE if disks is None else disks
        if has_disks:
            # So little memory that much of what is put goes to the disks.
            pool_bytes = generator.choice((16 * 1024, 24 * 1024, 32 * 1024, 512 * 1024))
            self.is_roomy = pool_bytes == 512 * 1024
            self.keys = [f"key-{number}" for number in range(generator.choice((8, 16, 24)))]
            self.plan = plan = replace(
                plan,
                extents_bytes=pool_bytes,
                disk_bytes=generator.choice((64 * 1024, DISK_BYTES_ROOMY)),
                disk_admits=generator.choice((1.0, 1.0, 0.7)),
            )
        self.world = World(seed, plan)
        self.loads = {
            client: Load(self.world, client, seed, self.keys) for client in self.world.clients
        }
        self.chaos = Chaos(self.world, seed, self.loads, self.profile)
        self._problems: list[str] = []

    def run(self) -> Report:
        """Run it to its end."""
        world = self.world
        world.start()
        for load in self.loads.values():
            load.begin()
        load_s = LOAD_S_LATE if self.profile is Profile.LATE else LOAD_S
        self.chaos.plan(self.fault_count, load_s)
        world.clock.run_until(load_s)
        for load in self.loads.values():
            load.stop()
        self.chaos.heal()
        world.clock.advance(PEACE_S)
        if not self._are_back():
            assert world.clock.run_until_true(self._are_back, END_S), "a node did not come back"
            world.clock.advance(LATE_S)
        reads = self._read_everything()
        ghosts = self._ghosts()
        self._audit()
        self._problems += ghosts
        return self._judge(reads)

    def _are_back(self) -> bool:
        return all(node.is_member for node in self.world.nodes.values())

    # --- the end --------------------------------------------------------------------------------

    def _read_everything(self) -> list[Call]:
        """Read every key through a client that knows nothing."""
        reader = SimClient(self.world, "reader", "default", host="elsewhere")
        reader.begin_life()
        calls = []
        for key in self.keys:
            want = Want(key)
            record = self.world.history.read(reader.name, key, deadline_s=5.0)
            result = self._finish(reader, reading.read(reader.session, [want]), 5.0)
            outcome = result.error if isinstance(result, Failed) else want.outcome
            conclude_read(record, want, outcome, reader)
            calls.append(record.call)
        return calls

    def _finish(
        self, client: SimClient, operation: Operation[None], deadline_s: float
    ) -> Failed | None:
        results: list[Failed | None] = []
        client.run(operation, deadline_s, results.append)
        clock = self.world.clock
        assert clock.run_until_true(lambda: bool(results), clock.now_s + deadline_s + 1.0), (
            "a call did not end"
        )
        return results[0]

    def _audit(self) -> None:
        """Have the numbers add up."""
        clock = self.world.clock
        for _ in range(40):
            self._problems = find_problems(_Asker(self.world))  # type: ignore[arg-type]
            if not self._problems:
                return
            clock.advance(2.0)

    def _ghosts(self) -> list[str]:
        """Find stores that the master lists though their nodes have said that they are gone."""
        status = _Asker(self.world).ask(DescribeCluster())
        assert isinstance(status, ClusterStatus)
        listed = {s.incarnation for node in status.nodes for s in node.record.segments}
        gone = {number for disk in self._opened() for number in disk.replaced}
        return [f"the store {number:#x} is gone, and listed" for number in listed & gone]

    def _opened(self) -> list[Disk]:
        """Return the disks of which the store is open as it is on them now."""
        return [
            disk
            for disk in self.world.disks()
            if any(
                node.disk is disk and node.has_opened(disk.incarnation)
                for node in self.world.nodes.values()
            )
        ]

    # --- judgement ------------------------------------------------------------------------------

    def _judge(self, reads: list[Call]) -> Report:
        violations = Checker(
            self.world.history,
            excused=self._excuses,
            hold_excused=self._excuses_of_holds,
            lateness_s=LATENESS_S,
            swap_s=SWAP_S,
        ).check()
        violations += [Violation(Rule.LOST, "", problem) for problem in self._problems]
        lost = self._lost(reads)
        violations += lost
        calls = self.world.history.calls
        report = Report(
            schedules=1,
            violations=len(violations),
            acknowledged=sum(
                call.kind is Kind.WRITE and call.outcome is Outcome.DONE for call in calls
            ),
            kept=sum(call.found for call in reads),
            lost_acknowledged=sum(v.rule is Rule.LOST for v in violations),
            wrong_bytes=sum(v.rule is Rule.WRONG_BYTES for v in violations),
            revived=sum(v.rule in {Rule.REVIVED, Rule.VERSION_WENT_BACK} for v in violations),
            late_calls=sum(v.rule is Rule.LATE for v in violations),
            kills=self.chaos.kills,
        )
        if violations:
            shown = "\n".join(map(str, violations[:5]))
            log = "\n  ".join(self.chaos.log)
            report.failures.append(f"seed {self.seed}:\n{shown}\n  faults:\n  {log}")
        return report

    def _excuses(self, call: Call) -> bool:
        """Say whether a miss during the run may be: the master's reason must fit the story."""
        reason, chaos = call.note, self.chaos
        if reason == "corrupt":
            return chaos.damages > 0
        if reason == "evicted":
            return self._may_be_evicted() and not self._is_on_a_disk(call)
        if not self.fault_count and reason in {"node_down", "lost", "recovering"}:
            return False
        if reason in {"absent", "removed", "cleared"}:
            return self.world.master.lives > 1  # a new master does not know why something went
        if reason == "lost":
            lost = chaos.reboots + chaos.damages + sum(disk.losses for disk in self.world.disks())
            return lost > 0 and not self._is_on_a_disk(call)
        return reason in EXCUSES

    def _may_be_evicted(self) -> bool:
        """Return whether there was ever too little room for what was put."""
        plan = self.plan
        if not self.is_roomy:
            # A disk that is well, and has room, takes all that memory gives up.
            is_kept = plan.disk_bytes == DISK_BYTES_ROOMY and plan.disk_admits == 1.0
            return bool(self.fault_count) or not is_kept
        return 0 < plan.disk_bytes < DISK_BYTES_ROOMY and self.chaos.reboots > 0

    def _is_on_a_disk(self, call: Call) -> bool:
        """Return whether a disk must have what was missed, as it was put durable."""
        last = settled_write(self.world.history, "default", call.key, before=call)
        return last is not None and self._is_kept(last)

    def _is_kept(self, write: Call) -> bool:
        """Return whether a value was acknowledged as durable, and no disk has given it up.

        What others evict while its disk's node is taken out goes altogether: that node goes.
        """
        version = write.store_version
        return (
            write.number in self.world.durable
            and not self.chaos.drains
            and not any(version in disk.given_up for disk in self.world.disks())
        )

    def _is_kept_back(self, key: str) -> bool:
        """Return whether the master waits for the rest of a set, which a disk has lost.

        A master that has begun anew cannot tell it from one that was never committed (ADR 43).
        """
        has_lost = any(disk.losses for disk in self.world.disks())
        kept_back = {name for _, name in self.world.master.core._recovery._set_ids}
        return has_lost and self.world.master.lives > 1 and key in kept_back

    def _excuses_of_holds(self, call: Call) -> bool:
        """Say whether a held value may be missed.

        A new master may not know an absent node. And it does not know of holds: what was there
        is protected for one lease from when it was listed.
        """
        if call.note == "absent":
            return self.world.master.lives > 1 and not self.plan.has_data_directory
        if call.note == "evicted":
            until_s = call.returned_s - self.plan.config.lease_ttl_s
            return any(HOLD_S_MAX > until_s - at_s > 0 for at_s in self.world.master.births_s[1:])
        return call.note in HOLD_EXCUSES

    def _lost(self, reads: list[Call]) -> list[Violation]:
        """Find acknowledged values that are missed although a node still holds them, or has to."""
        held = set[int]().union(*(node.held() for node in self.world.nodes.values()))
        found = []
        for read in reads:
            if read.found:
                continue
            last = settled_write(self.world.history, "default", read.key)
            if last is None:
                continue
            what = "a node holds it" if last.store_version in held else ""
            if not what and self._is_kept(last):
                what = "it was put durable, and no disk gave it up"
            if what and not self._is_kept_back(read.key):
                found.append(
                    Violation(
                        Rule.LOST, read.key, f"missed ({read.note}) though {what}", (last, read)
                    )
                )
        return found


class _Asker:
    """Asks the master and runs the clock until it answers."""

    def __init__(self, world: World) -> None:
        self._world = world
        stream = world.network.connect("auditor", "master")
        self._line = Line(stream.near)
        world.master.accept(stream.far)

    def ask(self, message: Message) -> Message:
        """Return the reply."""
        answers: list[Message | StoreError] = []
        self._line.ask(message, 5.0, answers.append)
        clock = self._world.clock
        assert clock.run_until_true(lambda: bool(answers), clock.now_s + 10.0)
        answer = answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer
