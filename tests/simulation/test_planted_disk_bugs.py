"""The simulation finds bugs of the ways to disks and back: each is planted, and seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mooncake_master.core.barriers import Barrier
from mooncake_master.core.copying import Copier
from mooncake_master.core.demotion import DEMOTION
from mooncake_master.core.durability import Durability
from mooncake_master.core.membership import Members
from mooncake_master.core.notes import Notes
from mooncake_master.core.records import Gone
from mooncake_master.core.recovery import Recovery
from mooncake_master.core.tombs import Tombs
from mooncake_storage_node.store_orders import StoreOrders
from tests.simulation.faults import Profile
from tests.simulation.schedule import Report, Schedule
from tests.simulation.store import SimStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_master.core.copying import Start
    from mooncake_master.core.nodes import Node
    from mooncake_master.core.records import Extent, Generation, Stored
    from mooncake_store.wire.control import (
        DirectoryEntry,
        FreeItem,
        Refusal,
        Register,
        SegmentRecord,
    )

SEEDS_MAX = 1_000
"""As in ``test_planted_bugs``."""

pytestmark = pytest.mark.timeout(600)


def hunt(profile: Profile, *, faults: int = 8) -> Report:
    """Run schedules with disks until one shows a violation."""
    total = Report()
    for seed in range(SEEDS_MAX):
        schedule = Schedule(seed, profile, disks=True)
        schedule.fault_count = faults
        total.add(schedule.run())
        if total.violations:
            return total
    return total


def test_memory_that_is_freed_before_its_disk_has_confirmed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Copier.store

    def free_at_once(self: Copier, stored: Stored, source: Extent, *args: object, **kwargs: object) -> Start:  # fmt: skip  # noqa: E501
        start = store(self, stored, source, *args, **kwargs)  # type: ignore[arg-type]
        if kwargs["purpose"] == DEMOTION:
            self.flush()
            self._catalog.drop(stored, source, Gone.EVICTED)
        return start

    monkeypatch.setattr(Copier, "store", free_at_once)
    assert hunt(Profile.NODES, faults=0).violations


def test_a_durable_put_that_is_answered_before_a_disk_has_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ensure = Durability.ensure

    def answer_at_once(
        self: Durability, stored: Stored, barrier: Barrier, refuse: Callable[[Refusal], None]
    ) -> None:
        ensure(self, stored, Barrier(barrier.peer, barrier.request_id, barrier.deadline_s), refuse)

    monkeypatch.setattr(Durability, "ensure", answer_at_once)
    assert hunt(Profile.NODES).lost_acknowledged


def test_a_directory_that_is_taken_without_what_was_removed_meanwhile_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tombs, "covers", lambda *_: False)
    monkeypatch.setattr(Notes, "covers", lambda *_: False)
    assert hunt(Profile.FULL).revived


def test_an_old_version_on_a_disk_that_takes_the_place_of_a_newer_one_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    show = Recovery._show

    def take_whatever_comes(
        self: Recovery, extent: Extent, entry: DirectoryEntry, home: Generation
    ) -> None:
        stored = home.objects.get(entry.key)
        if extent.segment.tier and stored is not None and stored.version > entry.version:
            self._catalog.forget(stored, Gone.LOST)
        show(self, extent, entry, home)

    monkeypatch.setattr(Recovery, "_show", take_whatever_comes)
    assert hunt(Profile.FULL).violations


def test_a_node_that_does_not_erase_what_is_on_its_disk_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pretend(
        self: StoreOrders,  # noqa: ARG001
        items: list[FreeItem],
        limit_s: float,  # noqa: ARG001
        over: Callable[[list[bool]], None],
    ) -> None:
        over([True] * len(items))

    monkeypatch.setattr(StoreOrders, "free", pretend)
    assert hunt(Profile.MASTER).revived


def test_a_store_that_forgets_a_removal_when_it_is_opened_again_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delete = SimStore._delete
    monkeypatch.setattr(
        SimStore, "_delete", lambda self, _locations, removal: delete(self, [], removal)
    )
    assert hunt(Profile.FULL).revived


def test_a_store_that_confirms_what_it_has_not_recorded_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crash = SimStore.crash

    def lose_the_newest(self: SimStore) -> None:
        crash(self)
        for location in list(self._disk.rows)[-3:]:
            del self._disk.rows[location]

    monkeypatch.setattr(SimStore, "crash", lose_the_newest)
    assert hunt(Profile.NODES).lost_acknowledged


def test_a_master_that_keeps_a_store_that_is_gone_for_good_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def keep(self: Members, _node: Node, message: Register) -> dict[int, SegmentRecord]:
        self._context.unseen.pop(message.node_id, None)
        return {}

    monkeypatch.setattr(Members, "_give_up", keep)
    found = hunt(Profile.MASTER)
    assert "is gone, and listed" in found.failures[0]
