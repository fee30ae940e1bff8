"""``python -m tests.faults.soak``: load with random kills of everything, judged in the end.

Every acknowledgement stands in a journal. When the time is over everything is healed, all keys are
read, and the journals are judged: nothing acknowledged may be missing (the pool is larger than what
is put, so nothing is evicted), nothing wrong, nothing that was removed or replaced may be seen, no
call may end after its deadline, no server may grow. One JSON object is printed at the end.

``--long`` is the long form: it harms more often, and goes on until the master, the nodes and the
clients were killed at least 100 times each. Every node has a store on disk, whose directory is
taken away now and then while the node runs, as where a mount fails.

The master is not harmed again before it has served for ``SERVICE_S``: calls that find no master
test nothing. ``served_share`` says for which part of the time it served; ``quiet_first`` and
``quiet_last`` are puts acknowledged per second while nothing was harmed, before and after it all.

``--ha`` has three masters over a real etcd, which is harmed like the others. Whoever leads, or
etcd, is harmed only while all nodes are live: without a data directory a node that is away for a
whole reign comes back empty (ADR 41), which no rule here excuses.

Every miss is in its journal with the reason that the master gave with it; stderr says how many
there were of each. ``--keep DIRECTORY`` copies the journals, the logs and ``harms.log`` (what was
harmed when, on the clock of the journals) there in the end, for whoever looks for a cause.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from mooncake_client import Client, StoreError
from mooncake_store.testing import (
    EXCUSES,
    Call,
    Checker,
    Kind,
    Outcome,
    Process,
    ProcessCluster,
    Rule,
    Violation,
    seeded,
    settled_write,
    stamped_version,
)
from mooncake_store.types import NodeState
from mooncake_store.wire.control import DescribeCluster
from tests.faults.soak.journal import excuse_pauses, read_journals
from tests.faults.soak.service import Watch
from tests.faults.soak.several import SeveralMasters
from tests.faults.soak.worker import CLEARED, miss_note
from tests.integration.ha.etcd import MISSING, PROGRAM

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.testing import History
    from mooncake_store.testing.cluster import MasterProcess, NodeProcess
    from mooncake_store.wire.control import ClusterStatus

KEYS = 120
SETTLE_S = 3.0
"""Time after which descriptors and memory under load are what they stay."""

QUIET_S = 5.0
"""Time without harm after that, and in the end, whose puts are counted."""

SERVICE_S = 1.0
"""Time that a master serves at least before it is harmed."""

LOOK_S_MAX = 0.5
"""Longest time that the master may take to say that it serves."""

GROWTH = (32, 4, 48 << 20)
"""Descriptors, threads and bytes by which a server may differ from what it was at the beginning."""

SWAP_S = 2.0
"""Lease and grace: before a replace has returned, some readers may see the old value this long."""

LATENESS_S = 0.5
"""What field report 033 allows."""

MASTER = {
    "suspect-after": "1s",
    "dead-after": "2.5s",
    "recovery-grace": "1s",
    "lease-ttl": "1s",
    "put-ttl": "2s",
    "heartbeat": "0.3s",
}
NODES = {"dram": "48MiB"}
SSD = "64MiB"
ROLES = ("master", "node", "client")
HA_ROLES = (*ROLES, *ROLES, "etcd")
"""With several masters; what is in it twice is harmed twice as often."""
LONG_KILLS = 100
"""Of each role, in the long form."""
LONG_S_MAX = 1500.0
"""The long form ends then, whatever was reached, and says so."""
HARM_S = (0.5, 4.0)
HARM_S_LONG = (0.2, 2.2)
"""Least and most time between two harms."""
REPORT = (
    "seconds",
    "violations",
    "acknowledged",
    "kept",
    "lost_acknowledged",
    "wrong_bytes",
    "revived",
    "late_calls",
    "kills",
    "kills_master",
    "kills_node",
    "kills_client",
    "kills_etcd",
    "reigns",
    "disks_taken",
    "pauses",
    "grown",
    "served_share",
    "quiet_first",
    "quiet_last",
)
EXCUSED = EXCUSES - {"evicted", "lost", "corrupt"}
"""Nothing is evicted, no memory is lost, nothing damages bytes."""


class Soak:
    """A cluster, clients, and the one who harms them."""

    def __init__(
        self,
        cluster: ProcessCluster,
        clients: int,
        seed: int,
        *,
        kills_each: int,
        harm_s: tuple[float, float],
    ) -> None:
        self._kills_each = kills_each
        self._harm_every_s = harm_s
        self._cluster = cluster
        self._random = seeded(seed, "soak")
        self._seed = seed
        self._next_seed = seed * 10_000 + 1
        self.workers = [self._worker(number) for number in range(clients)]
        self._several = cluster if isinstance(cluster, SeveralMasters) else None
        self._roles = ROLES if self._several is None else HA_ROLES
        self.kills = dict.fromkeys(HA_ROLES, 0)
        self.disks_taken = 0
        self.seconds = 0.0
        self.begun_s = self.harmed_s = self.healed_s = 0.0
        self.pauses: dict[str, list[tuple[float, float]]] = {}
        self.journals: list[Path] = []
        self.watch = Watch(self._serves)
        self.quiet: list[tuple[float, float]] = []
        self._owed: Process | None = None
        self._live: set[str] = set()
        """Nodes that the master said are live."""
        self.terms: set[int] = set()
        """Of the reigns that were seen."""
        self.before: dict[str, tuple[int, int, int]] = {}
        self.after: dict[str, tuple[int, int, int]] = {}
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._diary = cluster.directory / "harms.log"

    def _did(self, what: str) -> None:
        """Write down what was harmed or healed just now."""
        with self._diary.open("a") as diary:
            diary.write(f"{time.monotonic():.6f} {what}\n")

    def _worker(self, number: int) -> Process:
        return Process(f"client-{number}", [], self._cluster.directory / f"client-{number}.log")

    def start_worker(self, worker: Process) -> None:
        """Start a client; each life has its own journal and its own versions."""
        if worker.is_running:
            return
        self._next_seed += 1
        name = f"{worker.name}.{worker.lives + 1}"
        path = self._cluster.directory / f"{name}.journal"
        path.touch()
        self.journals.append(path)
        worker.command = [
            sys.executable, "-m", "tests.faults.soak.worker", self._cluster.address, name,
            str(self._next_seed), str(path), str(KEYS),
        ]  # fmt: skip
        worker.start()

    def resources(self) -> dict[str, tuple[int, int, int]]:
        """Return {process: (open files, threads, resident bytes of its own)} of the servers."""
        return {
            process.name: (process.open_files(), process.threads(), process.memory_bytes())
            for process in (*self._masters, *self._cluster.nodes)
        }

    def run(self, seconds: float) -> None:
        """Harm and heal, until the time is over and everything is well again."""
        with self.watch:
            self._run(seconds)

    def _run(self, seconds: float) -> None:
        self.begun_s = begun_s = time.monotonic()
        until_s = begun_s + seconds
        for worker in self.workers:
            self.start_worker(worker)
        time.sleep(SETTLE_S)
        self.before = self.resources()
        self._count_quiet()
        self.harmed_s = harm_s = time.monotonic()
        while time.monotonic() < until_s or (
            any(self.kills[role] < self._kills_each for role in ROLES)
            and time.monotonic() < begun_s + LONG_S_MAX
        ):
            now_s = time.monotonic()
            for at_s, action in [due for due in self._due if due[0] <= now_s]:
                self._due = [due for due in self._due if due[1] is not action]
                del at_s
                action()
            if self._owed is not None and self._may_harm_service:
                victim, self._owed = self._owed, None
                if self._is_well(victim):
                    self._strike(victim)
            if now_s >= harm_s:
                self._harm()
                harm_s = now_s + self._random.uniform(*self._harm_every_s)
            time.sleep(0.02)
        self.healed_s = time.monotonic()
        for _, action in self._due:
            action()
        self._cluster.wait_ready()
        time.sleep(SETTLE_S)  # the load goes on for a while in peace
        self._count_quiet()
        self.after = self.resources()
        for worker in self.workers:
            worker.kill()
        self.seconds = time.monotonic() - begun_s

    def _count_quiet(self) -> None:
        """Let the load go on in peace, and remember when that was."""
        begin_s = time.monotonic()
        time.sleep(QUIET_S)
        self.quiet.append((begin_s, time.monotonic()))

    def _serves(self) -> bool:
        """Return whether the master answers, and has a live node."""
        try:
            with self._cluster.wire(deadline_s=LOOK_S_MAX) as wire:
                status: ClusterStatus = wire.ask(DescribeCluster())
        except (StoreError, OSError):
            return False
        self._live = {
            node.record.name for node in status.nodes if node.record.state == NodeState.LIVE
        }
        self.terms.add(status.term)
        return bool(self._live)

    @property
    def _masters(self) -> list[MasterProcess]:
        return [self._cluster.master] if self._several is None else [*self._several.masters]

    def _carries_service(self, victim: Process) -> bool:
        """Return whether nobody is served while a process is away."""
        return victim is self._cluster.master or (
            self._several is not None and victim in self._several.etcd.members
        )

    @property
    def _may_harm_service(self) -> bool:
        """Return whether whoever carries it may be harmed now."""
        if self.watch.service.current_s < SERVICE_S:
            return False
        if self._several is None:
            return self._is_well(self._cluster.master)
        members, nodes = self._several.etcd.members, self._cluster.nodes
        return (
            all(map(self._is_well, (*members, *nodes)))
            and self._live >= {node.name for node in nodes}
            and all(member.is_healthy() for member in members)
        )

    def _is_well(self, process: Process) -> bool:
        return process.is_running and f"{process.name}.{process.lives}" not in self._paused

    @property
    def served_share(self) -> float:
        """Share of the time of harm in which the cluster served."""
        return self.watch.service.share(self.harmed_s, self.healed_s)

    def _harm(self) -> None:
        role = self._random.choice(self._roles)
        victims: dict[str, list[Process]] = {
            "master": self._master_odds(),
            "node": [*self._cluster.nodes],
            "client": self.workers,
            "etcd": [] if self._several is None else [*self._several.etcd.members],
        }
        victim = self._random.choice(victims[role])
        if self._random.random() < DISK_SHARE:
            self._take_disk(self._random.choice(self._cluster.nodes))
            return
        if self._carries_service(victim) and not self._may_harm_service:
            self._owed = victim
            return
        if self._owed is not None and self._several is not None and role == "node":
            return  # All nodes are to be live when what is owed is paid.
        if self._is_well(victim):
            self._strike(victim)

    def _master_odds(self) -> list[Process]:
        """Return the masters to choose from: as often the one that leads as one that does not."""
        leader = self._cluster.master
        others: list[Process] = [each for each in self._masters if each is not leader]
        return [leader] * max(1, len(others)) + others

    def _strike(self, victim: Process) -> None:
        """Kill a process, or stop it for a while."""
        if self._carries_service(victim):
            self.watch.service.broken()
        if self._random.random() < PAUSE_SHARE:
            self._pause(victim)
        else:
            self._kill(victim)

    @property
    def _paused(self) -> set[str]:
        """Lives that are stopped now, as ``client-1.3``."""
        return {name for name, spans in self.pauses.items() if spans and spans[-1][1] == _OPEN}

    def _pause(self, victim: Process) -> None:
        victim.pause()
        name = f"{victim.name}.{victim.lives}"
        self._did(f"paused {name}")
        begin_s = time.monotonic()
        spans = self.pauses.setdefault(name, [])
        spans.append((begin_s, _OPEN))

        def resume() -> None:
            victim.resume()
            self._did(f"resumed {name}")
            spans[-1] = (begin_s, time.monotonic() + 0.2)

        self._due.append((begin_s + self._random.uniform(0.1, 4.0), resume))

    def _take_disk(self, node: NodeProcess) -> None:
        """Take the directory of a node's store away for a while, under whoever uses it."""
        assert node.ssd is not None
        away = node.ssd.with_name(f"{node.ssd.name}.away")
        if away.exists():
            return
        self.disks_taken += 1
        node.ssd.rename(away)
        self._did(f"took the disk of {node.name}")

        def give_back() -> None:
            assert node.ssd is not None
            away.rename(node.ssd)
            self._did(f"gave {node.name} its disk back")

        self._due.append((time.monotonic() + self._random.uniform(0.2, 4.0), give_back))

    def _kill(self, victim: Process) -> None:
        kind = victim.name.partition("-")[0]
        self.kills[kind] += 1
        victim.kill()
        self._did(f"killed {victim.name}.{victim.lives}")

        def start() -> None:
            if victim in self.workers:
                self.start_worker(victim)
            elif not victim.is_running:
                victim.start()
            self._did(f"started {victim.name}.{victim.lives}")

        away_s = self._random.uniform(0.0, ETCD_AWAY_S if kind == "etcd" else AWAY_S)
        self._due.append((time.monotonic() + away_s, start))


_OPEN = float("inf")
AWAY_S = 3.0
"""A process that was killed is started again within this time."""
ETCD_AWAY_S = 8.0
"""The same for etcd: twice the lease of a leader, who steps down then."""
DISK_SHARE = 0.1
"""Of the harms that take a disk; of the others, ``PAUSE_SHARE`` stop a process for a while."""
PAUSE_SHARE = 0.25


def read_everything(cluster: ProcessCluster, history: History) -> dict[str, int]:
    """Read every key through fresh clients; add the reads to the history and count them."""
    counts = {"kept": 0, "gone": 0}
    for namespace in ("default", CLEARED):
        with Client(cluster.address, namespace=namespace, deadline_s=10.0) as client:
            for number in range(KEYS):
                key = f"key-{number}"
                call = Call(
                    len(history.calls) + 1, "reader", Kind.READ, namespace, key,
                    time.monotonic(), 10.0,
                )  # fmt: skip
                history.calls.append(call)
                try:
                    value = client.get(key)
                except StoreError as error:
                    call.note = error.code
                    call.returned_s = time.monotonic()
                    counts["gone"] += 1
                    continue
                call.returned_s = time.monotonic()
                call.outcome = Outcome.DONE
                if value is None:
                    counts["gone"] += 1
                    call.note = miss_note(client, key)
                else:
                    counts["kept"] += 1
                    call.found = True
                    call.version = stamped_version(value, key)
                    call.wrong = "" if call.version is not None else "no payload"
    return counts


def judge(history: History) -> list[Violation]:
    """Return everything that is wrong."""
    found = Checker(
        history, excused=lambda call: call.note in EXCUSED, lateness_s=LATENESS_S, swap_s=SWAP_S
    ).check()
    for call in history.calls:
        if call.client != "reader" or call.found:
            continue
        last = settled_write(history, call.namespace, call.key)
        if last is not None:
            found.append(
                Violation(Rule.LOST, call.key, f"not there in the end: {call.note}", (last, call))
            )
    return found


def is_miss(call: Call) -> bool:
    """Return whether a call is a read that found nothing."""
    return call.kind is Kind.READ and call.outcome is Outcome.DONE and not call.found


def leaks(soak: Soak) -> list[str]:
    """Return a sentence for every server that has grown."""
    return [
        f"{name} grew from {before} to {soak.after[name]} (descriptors, threads, bytes)"
        for name, before in soak.before.items()
        if any(
            now > was + more
            for was, now, more in zip(before, soak.after[name], GROWTH, strict=True)
        )
    ]


def main() -> int:
    """Run the soak."""
    parser = argparse.ArgumentParser(prog="tests.faults.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--long", action="store_true", help="at least 100 kills of each role")
    parser.add_argument("--ha", action="store_true", help="three masters over an etcd")
    parser.add_argument("--keep", type=Path, help="where to copy the logs to")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10_000)
    options = parser.parse_args()
    sys.stderr.write(f"seed {options.seed}\n")
    if options.ha and PROGRAM is None:
        parser.error(MISSING)
    kind = SeveralMasters if options.ha else ProcessCluster
    with kind(options.nodes, master_options=MASTER, node_options=NODES, ssd=SSD) as cluster:
        soak = Soak(
            cluster,
            options.clients,
            options.seed,
            kills_each=LONG_KILLS if options.long else 0,
            harm_s=HARM_S_LONG if options.long else HARM_S,
        )
        soak.run(options.seconds)
        history = read_journals(soak.journals)
        excuse_pauses(history, soak.pauses)
        counts = read_everything(cluster, history)
        violations = judge(history)
        grown = leaks(soak)
        for line in [*map(str, violations[:20]), *grown]:
            sys.stderr.write(f"{line}\n")
        missing = [role for role in ROLES if options.long and soak.kills[role] < LONG_KILLS]
        for role in missing:
            sys.stderr.write(f"{role} was killed {soak.kills[role]} times, not {LONG_KILLS}\n")
        sys.stderr.write(f"kills {soak.kills}, calls {len(history.calls)}, in the end {counts}\n")
        misses = Counter(call.note for call in history.calls if is_miss(call))
        sys.stderr.write(f"misses {dict(misses.most_common())}\n")
        report = make_report(history, violations, counts)
        if options.keep is not None:
            shutil.copytree(
                cluster.directory, options.keep, ignore=shutil.ignore_patterns("ssd*"),
                dirs_exist_ok=True,
            )  # fmt: skip
    report |= {
        "seconds": round(soak.seconds, 1),
        "violations": len(violations) + len(grown) + len(missing),
        "kills": sum(soak.kills.values()),
        "reigns": len(soak.terms),
        "disks_taken": soak.disks_taken,
        "pauses": sum(map(len, soak.pauses.values())),
        "grown": len(grown),
        "served_share": round(soak.served_share, 3),
        **quiet_rates(history, soak.quiet),
        **{f"kills_{role}": count for role, count in soak.kills.items()},
    }
    sys.stdout.write(json.dumps({name: report[name] for name in REPORT}) + "\n")
    return 1 if report["violations"] else 0


def quiet_rates(history: History, quiet: list[tuple[float, float]]) -> dict[str, float]:
    """Return the puts that were acknowledged per second of each quiet time."""
    ends = [call.returned_s for call in history.calls
            if call.kind is Kind.WRITE and call.outcome is Outcome.DONE]  # fmt: skip
    return {
        name: round(sum(begin_s <= at_s < end_s for at_s in ends) / (end_s - begin_s), 1)
        for name, (begin_s, end_s) in zip(("quiet_first", "quiet_last"), quiet, strict=True)
    }


def make_report(
    history: History, violations: list[Violation], counts: dict[str, int]
) -> dict[str, float]:
    """Return the numbers that the history gives."""
    broken = [violation.rule for violation in violations]
    return {
        "acknowledged": sum(
            call.kind is Kind.WRITE and call.outcome is Outcome.DONE for call in history.calls
        ),
        "kept": counts["kept"],
        "lost_acknowledged": broken.count(Rule.LOST),
        "wrong_bytes": broken.count(Rule.WRONG_BYTES),
        "revived": broken.count(Rule.REVIVED) + broken.count(Rule.VERSION_WENT_BACK),
        "late_calls": broken.count(Rule.LATE),
    }


if __name__ == "__main__":
    sys.exit(main())
