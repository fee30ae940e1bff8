"""Pins that were set or taken away after the put are known to the next master."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mooncake_master.core import later_pins
from mooncake_master.core.places import PINS
from mooncake_master.core.records import FOREVER, NEVER
from mooncake_store.limits import KIB, MIB
from mooncake_store.types import Pin
from mooncake_store.wire.control import SetPin
from tests.unit.master.rig import SPACE, Free, Rig


def rig_of(*, keeps: bool, **settings: Free) -> Rig:
    return Rig(MIB, MIB, keeps=keeps, **settings)


def set_pin(rig: Rig, *keys: str, pin: Pin | int = Pin.HARD, pin_s: float = 0.0) -> None:
    rig.ask(SetPin(rig.slot, rig.epoch, list(keys), int(pin), pin_s))


def put_pinned(rig: Rig, key: str, **item: Free) -> None:
    """Put an object that its extent says is pinned, as a real node's does."""
    rig.put(key, pin=int(Pin.HARD), **item)
    for node in rig.nodes.values():
        for place, entry in node.entries.items():
            if entry.key == key:
                node.entries[place] = replace(entry, pin=int(Pin.HARD))


def restart(rig: Rig) -> None:
    rig.restart()
    for node in rig.nodes.values():
        rig.register(node)
    rig.open(SPACE)
    rig.sleep(1.0)


def noted(rig: Rig) -> int:
    if rig.kept is not None:
        return sum(note.incarnation == PINS for note in rig.kept.get("notes", {}).values())  # type: ignore[attr-defined]
    return len({place for node in rig.nodes.values() for place in node.notes if place[0] == PINS})


@pytest.fixture(params=[True, False], ids=["data directory", "nodes"])
def keeps(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_a_hard_pin_set_later_outlives_the_master(*, keeps: bool) -> None:
    rig = rig_of(keeps=keeps)
    rig.put("a", "b", "c", "d")
    set_pin(rig, "b", "c")
    for _ in range(3):
        restart(rig)
        assert [rig.find(key).pin_s for key in "abcd"] == [NEVER, FOREVER, FOREVER, NEVER]
        assert rig.check().pinned_bytes > 0


def test_a_pin_that_was_taken_away_does_not_come_back(*, keeps: bool) -> None:
    rig = rig_of(keeps=keeps)
    put_pinned(rig, "a")
    put_pinned(rig, "b")
    set_pin(rig, "a", pin=0)
    restart(rig)
    assert [rig.find(key).pin_s for key in "ab"] == [NEVER, FOREVER]
    set_pin(rig, "a")
    set_pin(rig, "a", pin=0)
    restart(rig)
    assert rig.find("a").pin_s == NEVER


def test_a_soft_pin_ends_when_it_was_promised(*, keeps: bool) -> None:
    rig = rig_of(keeps=keeps)
    rig.put("a", "b")
    set_pin(rig, "a", pin=Pin.SOFT, pin_s=100.0)
    set_pin(rig, "b", pin=Pin.SOFT, pin_s=2.0)
    end_s = rig.now_s + 100.0
    rig.sleep(3.0)
    restart(rig)
    assert rig.find("a").pin_s == pytest.approx(end_s, abs=0.2)
    assert rig.find("b").pin_s == NEVER


def test_a_new_version_is_not_pinned_by_what_was_asked_for_the_old_one(*, keeps: bool) -> None:
    rig = rig_of(keeps=keeps)
    rig.put("a", "b")
    set_pin(rig, "a", "b")
    rig.put("a", replace=True)
    rig.remove("b")
    rig.sleep(1.0)
    assert noted(rig) == 0
    restart(rig)
    assert rig.find("a").pin_s == NEVER


def test_what_nobody_has_any_more_is_forgotten(*, keeps: bool) -> None:
    rig = rig_of(keeps=keeps)
    rig.put("a", "b", length=4 * KIB)
    set_pin(rig, "a", "b")
    for node in rig.nodes.values():
        node.entries = {place: e for place, e in node.entries.items() if e.key != "a"}
    restart(rig)
    rig.sleep(3.0)
    assert rig.find("b").pin_s == FOREVER
    assert noted(rig) == 1


def test_too_many_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later_pins, "NOTED_MAX", 2)
    rig = rig_of(keeps=True)
    rig.put("a", "b", "c")
    set_pin(rig, "a", "b", "c")
    assert rig.counter("mooncake_master_pins_unnoted_total") == 1
    assert all(rig.find(key).pin_s == FOREVER for key in "abc")
    set_pin(rig, "a", pin=0)
    restart(rig)
    assert [rig.find(key).pin_s for key in "ab"] == [NEVER, FOREVER]


def test_a_note_of_a_late_keeper_pins_what_was_adopted_without_it() -> None:
    rig = Rig(MIB, MIB, MIB, keeps=False)
    rig.put("a", "b", preferred=("n0",))
    put_pinned(rig, "c", preferred=("n0",))
    set_pin(rig, "a")
    set_pin(rig, "c", pin=0)
    rig.restart(recovery_grace_s=0.5)
    notes = rig.nodes["n2"].notes
    for node in rig.nodes.values():
        node.notes = {}
    rig.register(rig.nodes["n0"])
    rig.register(rig.nodes["n1"])
    rig.open(SPACE)
    rig.sleep(3.0)
    assert [rig.find(key).pin_s for key in "abc"] == [NEVER, NEVER, FOREVER]
    rig.nodes["n2"].notes = notes
    rig.register(rig.nodes["n2"])
    rig.sleep(1.0)
    for _ in range(2):
        assert [rig.find(key).pin_s for key in "abc"] == [FOREVER, NEVER, NEVER]
        rig.check()
        restart(rig)
    rig.remove("a")
    rig.sleep(1.0)
    assert noted(rig) == 1
