"""Keys that were removed while somebody was away of whom a new master knows nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_master.core import tombs
from mooncake_store.limits import MIB
from mooncake_store.wire.control import Location
from tests.unit.master.rig import SPACE, Free, Rig

if TYPE_CHECKING:
    import pytest


def restart(rig: Rig, *names: str) -> None:
    """Begin with a new master; only these nodes come back."""
    for node in rig.nodes.values():
        node.peer = 0
    rig.numbers = (rig.numbers[0] + 1, 0)
    rig.restart()
    for name in names:
        rig.register(rig.nodes[name])
    rig.open(SPACE)


def rig_of_two(**settings: Free) -> Rig:
    rig = Rig(1 * MIB, 1 * MIB, keeps=True, lease_ttl_s=1.0, **settings)
    rig.put("a", replicas=2)
    restart(rig, "n0")
    return rig


def test_a_key_removed_between_two_restarts_does_not_come_back_with_an_absent_node() -> None:
    rig = rig_of_two()
    assert rig.remove("a") == [True]
    restart(rig, "n0", "n1")
    rig.sleep(0.5)
    assert rig.exists("a") == [False]
    assert not rig.nodes["n1"].entries
    rig.sleep(1.0)
    assert rig.kept is not None
    assert not rig.kept["removed"], "everybody is back"
    rig.check()


def test_a_key_that_nobody_else_held_stays_removed_as_well() -> None:
    rig = Rig(1 * MIB, 1 * MIB, keeps=True, lease_ttl_s=1.0)
    rig.put("a", preferred=("n1",))
    restart(rig, "n0")
    assert rig.remove("a") == [False]
    restart(rig, "n0", "n1")
    assert rig.exists("a") == [False]
    rig.put("a")
    assert rig.exists("a") == [True]


def test_a_value_replaced_between_two_restarts_does_not_come_back() -> None:
    rig = rig_of_two()
    rig.put("a", replace=True)
    (new,) = rig.locate("a")
    assert isinstance(new, Location)
    rig.cut(rig.nodes["n0"])
    restart(rig, "n1")
    assert not isinstance(rig.locate("a")[0], Location)
    rig.register(rig.nodes["n0"])
    (found,) = rig.locate("a")
    assert isinstance(found, Location)
    assert found.version == new.version
    rig.check()


def test_a_value_that_a_replace_could_not_see_does_not_come_back() -> None:
    rig = Rig(1 * MIB, 1 * MIB, keeps=True, lease_ttl_s=1.0)
    rig.put("a", preferred=("n1",))
    restart(rig, "n0")
    rig.put("a", replace=True)
    (new,) = rig.locate("a")
    assert isinstance(new, Location)
    restart(rig, "n1")
    assert not isinstance(rig.locate("a")[0], Location), "not the old value"
    rig.register(rig.nodes["n0"])
    (found,) = rig.locate("a")
    assert isinstance(found, Location)
    assert found.version == new.version


def test_nothing_is_remembered_where_everybody_is_there() -> None:
    rig = Rig(1 * MIB, 1 * MIB, keeps=True, lease_ttl_s=1.0)
    rig.put("a")
    rig.remove("a")
    assert rig.kept is not None
    assert not rig.kept.get("removed")


def test_too_much_to_remember_makes_the_absent_come_back_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tombs, "TOMBS_MAX", 2)
    rig = Rig(1 * MIB, 1 * MIB, keeps=True, lease_ttl_s=1.0)
    keys = ("a", "b", "c", "d")
    rig.put(*keys, replicas=2)
    restart(rig, "n0")
    rig.remove("a", "b", "c")
    restart(rig, "n0", "n1")
    rig.sleep(0.5)
    assert rig.exists(*keys) == [False, False, False, True]
    assert len(rig.nodes["n1"].entries) <= 1
    rig.check()


def test_a_disk_that_cannot_be_listed_yet_does_not_bring_back_what_was_removed() -> None:
    rig = Rig(1 * MIB, keeps=True, lease_ttl_s=1.0)
    node = rig.nodes["n0"]
    rig.give_disk(node)
    started = rig.start("a", durable=True)
    rig.land(started, ("a",), 1024)
    rig.commit(started)
    node.entries = {place: e for place, e in node.entries.items() if place[0] in node.disks}
    node.disk_fails = True
    restart(rig, "n0")
    rig.remove("a")
    restart(rig, "n0")
    node.disk_fails = False
    rig.sleep(1.0)
    assert rig.exists("a") == [False]
    assert not node.on_disk()


def test_what_was_put_after_a_removal_that_could_not_see_the_key_is_kept() -> None:
    rig = Rig(1 * MIB, 1 * MIB, keeps=True, lease_ttl_s=1.0)
    rig.put("a", preferred=("n1",))
    restart(rig, "n0")
    assert rig.remove("a") == [False]
    rig.put("a")
    (new,) = rig.locate("a")
    assert isinstance(new, Location)
    restart(rig, "n0", "n1")
    (found,) = rig.locate("a")
    assert isinstance(found, Location)
    assert found.version == new.version
    rig.check()


def test_a_write_that_ends_after_a_removal_that_could_not_see_the_key_is_kept() -> None:
    rig = Rig(1 * MIB, 1 * MIB, keeps=True, lease_ttl_s=1.0)
    rig.put("a", preferred=("n1",))
    restart(rig, "n0")
    started = rig.start("a")
    rig.land(started, ("a",), 4096)
    assert rig.remove("a") == [False]
    rig.commit(started)
    restart(rig, "n0", "n1")
    assert isinstance(rig.locate("a")[0], Location)
    rig.check()
