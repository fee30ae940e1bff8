"""A page of plain entries is entered as each entry by itself would be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_master.core.adoption import Adoption
from mooncake_store.limits import KIB, MIB
from mooncake_store.types import Pin
from tests.unit.master.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Sequence

OPTIONS: Sequence[dict[str, Any]] = (
    {}, {}, {}, {"replicas": 2}, {"pin": int(Pin.HARD)}, {"together": True},
)  # fmt: skip
"""Of puts: mostly plain ones."""


def fill(rig: Rig, chosen: list[tuple[int, int]]) -> list[str]:
    keys = []
    for number, (option, size) in enumerate(chosen):
        key = f"key-{number}" if size % 3 else f"schlüssel-{number}"
        rig.put(key, length=size, **OPTIONS[option])
        keys.append(key)
    rig.remove(*keys[::4])
    rig.put(*keys[1:2], length=KIB, replace=True)
    return keys


def recovered(chosen: list[tuple[int, int]]) -> tuple[object, ...]:
    rig = Rig(16 * MIB, 16 * MIB)
    keys = fill(rig, chosen)
    rig.restart()
    for node in rig.nodes.values():
        rig.register(node)
    rig.sleep(5)
    walk = rig.check()
    places = rig.locate(*keys)
    versions = [getattr(place, "version", place) for place in places]
    return versions, walk, rig.counter("mooncake_master_objects_recovered_total")


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(OPTIONS) - 1), st.integers(0, 5000)), min_size=2)
)  # fmt: skip
def test_the_index_is_the_same_either_way(chosen: list[tuple[int, int]]) -> None:
    quick = recovered(chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Adoption, "take", lambda _self, _segment, _entries, start: start)
        slow = recovered(chosen)
    assert quick == slow
    assert quick[2]


def test_plain_entries_are_entered_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = Adoption.take

    def count(self: Adoption, segment: Any, entries: Any, start: int) -> int:  # noqa: ANN401
        end = take(self, segment, entries, start)
        taken.append(end - start)
        return end

    monkeypatch.setattr(Adoption, "take", count)
    recovered([(0, 100)] * 40)
    assert sum(taken) >= 25
