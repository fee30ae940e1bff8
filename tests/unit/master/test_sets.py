"""A set of which a member is gone: what is left comes back after a restart, and only that."""

from __future__ import annotations

import pytest

from mooncake_master.core import sets
from mooncake_master.core.places import SETS
from mooncake_store.limits import MIB
from mooncake_store.wire.control import Location, PutItem, PutStart, ReportReplica
from tests.unit.master.rig import SPACE, Free, Rig

KEYS = [f"k{number}" for number in range(6)]
UNNOTED = "mooncake_master_sets_unnoted_total"


def rig_of(*, keeps: bool, **settings: Free) -> Rig:
    rig = Rig(MIB, MIB, MIB, keeps=keeps, **settings)
    rig.put(*KEYS, together=True)
    return rig


def restart(rig: Rig) -> None:
    rig.restart()
    for node in rig.nodes.values():
        rig.register(node)
    rig.open(SPACE)
    rig.sleep(5.0)


def noted(rig: Rig) -> int:
    """Return how many notes about sets there are, wherever they are kept."""
    if rig.kept is not None:
        return sum(note.incarnation == SETS for note in rig.kept.get("notes", {}).values())  # type: ignore[attr-defined]
    return len({place for node in rig.nodes.values() for place in node.notes if place[0] == SETS})


def all_of(rig: Rig) -> list[bool]:
    return rig.exists(*KEYS)


@pytest.fixture(params=[True, False], ids=["data directory", "nodes"])
def keeps(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_what_is_left_of_a_set_comes_back_when_a_member_was_removed(*, keeps: bool) -> None:
    rig = rig_of(keeps=keeps)
    assert noted(rig) == 0
    rig.remove(KEYS[0])
    assert noted(rig) == 1
    for _ in range(3):
        restart(rig)
        assert all_of(rig) == [False] + [True] * 5
        rig.check()
    rig.sleep(70.0)
    assert all_of(rig) == [False] + [True] * 5


def test_what_is_left_of_a_set_comes_back_when_a_member_was_replaced(*, keeps: bool) -> None:
    rig = rig_of(keeps=keeps)
    rig.put(KEYS[0], replace=True, length=300)
    restart(rig)
    assert all_of(rig) == [True] * 6
    (found,) = rig.locate(KEYS[0])
    assert isinstance(found, Location)
    assert found.length == 300
    rig.check()


def test_what_is_left_of_a_set_comes_back_when_a_member_was_damaged(*, keeps: bool) -> None:
    rig = rig_of(keeps=keeps)
    (found,) = rig.locate(KEYS[0])
    assert isinstance(found, Location)
    bad = found.replicas[0]
    rig.ask(ReportReplica(rig.slot, rig.epoch, KEYS[0], found.version, bad.incarnation, bad.offset,
                          "checksum_mismatch"))  # fmt: skip
    restart(rig)
    assert all_of(rig) == [False] + [True] * 5


def test_a_set_that_was_never_committed_does_not_come_back(*, keeps: bool) -> None:
    rig = rig_of(keeps=keeps)
    rig.remove(KEYS[0])
    other = [f"o{number}" for number in range(3)]
    started = rig.start(*other, together=True)
    for key, grant in zip(other[:2], started.items[:2], strict=True):
        rig.write(grant.replicas[0], grant, key, 1024)
    restart(rig)
    assert rig.exists(*other) == [False] * 3
    assert all_of(rig) == [False] + [True] * 5


def test_the_note_goes_with_the_last_member(*, keeps: bool) -> None:
    rig = rig_of(keeps=keeps)
    rig.remove(*KEYS[:2])
    rig.remove(KEYS[2])
    assert noted(rig) == 1
    restart(rig)
    rig.remove(*KEYS[3:])
    rig.sleep(1.0)
    assert noted(rig) == 0


def test_a_set_that_ends_as_a_whole_is_never_noted(*, keeps: bool) -> None:
    rig = rig_of(keeps=keeps)
    written = []
    keep = rig.perform

    def perform(instructions: Free) -> None:
        keep(instructions)
        written.append(noted(rig) if rig.kept is None else 0)

    rig.perform = perform  # type: ignore[method-assign]
    rig.remove(*KEYS)
    rig.sleep(1.0)
    assert set(written) == {0}
    assert noted(rig) == 0


def test_a_note_of_which_nobody_has_a_member_is_dropped_when_all_is_listed(*, keeps: bool) -> None:
    rig = rig_of(keeps=keeps)
    rig.remove(KEYS[0])
    for node in rig.nodes.values():
        node.entries.clear()
    restart(rig)
    rig.sleep(1.0)
    assert noted(rig) == 0


@pytest.mark.parametrize("groups", [("a",), ("a", ""), ("a", "b")], ids=str)
def test_a_set_may_be_spread_over_groups(*, keeps: bool, groups: tuple[str, ...]) -> None:
    rig = Rig(MIB, MIB, keeps=keeps)
    items = [PutItem(key, 1024, group=groups[at % len(groups)]) for at, key in enumerate(KEYS)]
    started = rig.ask(PutStart(rig.slot, rig.epoch, items, together=True))
    rig.land(started, tuple(KEYS), 1024)
    rig.commit(started)
    rig.remove(KEYS[0])
    assert noted(rig) == 1
    restart(rig)
    assert all_of(rig) == [False] + [True] * 5
    rig.remove(*KEYS[1:])
    rig.sleep(1.0)
    assert noted(rig) == 0


def test_members_of_a_group_that_is_full_are_a_set_all_the_same(
    *, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mooncake_master.core.catalog.GROUP_MEMBERS_MAX", 3)
    rig = Rig(MIB, MIB, keeps=keeps)
    rig.put(*KEYS, together=True, item={"group": "full"})
    rig.remove(KEYS[5])
    assert noted(rig) == 1
    restart(rig)
    assert all_of(rig) == [True] * 5 + [False]


def test_too_many_broken_sets_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "BROKEN_MAX", 1)
    rig = rig_of(keeps=True)
    other = ["x", "y", "z"]
    rig.put(*other, together=True)
    rig.remove(KEYS[0])
    rig.remove("x")
    assert rig.counter(UNNOTED) == 1
    assert noted(rig) == 1
    assert rig.exists("y", "z") == [True, True]
    rig.check()


def test_a_late_keeper_brings_back_what_was_kept_back() -> None:
    rig = rig_of(keeps=False)
    rig.remove(KEYS[0])
    rig.restart(recovery_grace_s=0.5)
    notes = {name: node.notes for name, node in rig.nodes.items()}
    for node in rig.nodes.values():
        node.notes = {}
    rig.register(rig.nodes["n0"])
    rig.register(rig.nodes["n1"])
    rig.open(SPACE)
    rig.sleep(3.0)
    assert True not in all_of(rig)
    rig.nodes["n2"].notes = notes["n2"]
    rig.register(rig.nodes["n2"])
    rig.sleep(1.0)
    assert all_of(rig) == [False] + [True] * 5
    rig.check()


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_member_that_ended_before_it_was_listed_is_there_all_the_same(how: str) -> None:
    """What lies on a node that is late was written, so the set was whole."""
    rig = rig_of(keeps=True)
    late = rig.nodes["n2"]
    key = next(entry.key for entry in late.entries.values() if entry.key)
    rig.restart(recovery_grace_s=0.5)
    rig.register(rig.nodes["n0"])
    rig.register(rig.nodes["n1"])
    rig.open(SPACE)
    rig.sleep(1.0)
    if how == "removed":
        rig.remove(key)
    else:
        rig.put(key, replace=True)
    rig.register(late)
    rig.sleep(5.0)
    assert all_of(rig) == [each != key or how == "replaced" for each in KEYS]
    for _ in range(2):
        restart(rig)
        assert all_of(rig) == [each != key or how == "replaced" for each in KEYS]
    rig.check()
