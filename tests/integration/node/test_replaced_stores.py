"""Directories of stores that change under a node, or between two of its lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node.ssd import Options
from mooncake_storage_node.stores import StorePlan, Stores
from mooncake_store.limits import MIB
from mooncake_store.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Open = Callable[..., Stores]

CAPACITY = 32 * MIB


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    folder.mkdir()
    return folder


@pytest.fixture
def open_stores(tmp_path: Path, folder: Path) -> Iterator[Open]:
    """Open the stores of a node, as each of its lives does; the life before is over then."""
    lives: list[Stores] = []

    def start(*names: str) -> Stores:
        for stores in lives:
            stores.close(1.0)
        plans = []
        for name in names:
            (tmp_path / name).mkdir(exist_ok=True)
            plans.append(StorePlan(tmp_path / name, CAPACITY))
        stores = Stores(plans, Options(probe_s=0.05), folder)
        lives.append(stores)
        stores.open()
        return stores

    yield start
    for stores in lives:
        stores.close(1.0)


def incarnations(stores: Stores) -> list[int]:
    return [record.incarnation for record in stores.records()]


def test_directories_that_changed_places_keep_their_stores(
    tmp_path: Path, open_stores: Open
) -> None:
    """Under a live node, and while it was away: no store is gone, none is without its orders."""
    stores = open_stores("a", "b")
    before = incarnations(stores)
    a, b, aside = tmp_path / "a", tmp_path / "b", tmp_path / "aside"

    def swap() -> None:
        a.rename(aside)
        b.rename(a)
        aside.rename(b)

    def changed_places() -> bool:
        first, second = stores.all_open()
        return [second.incarnation, first.incarnation] == before

    swap()
    wait_until(changed_places, 30, what="both are opened where they are now")
    wait_until(lambda: all(map(stores.find, before)), 30, what="both are found")
    for incarnation in before:
        found = stores.find(incarnation)
        assert found is not None
        assert found.incarnation == incarnation
    stores.close(1.0)
    swap()
    stores = open_stores("a", "b")
    assert incarnations(stores) == before
