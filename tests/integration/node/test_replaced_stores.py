"""A node whose store begins anew in its place says so, and which store is gone with it (ADR 82)."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node.ssd import Options
from mooncake_storage_node.stores import GONE, GONE_MAX, KNOWN_FILE, StorePlan, Stores
from mooncake_store.limits import MIB
from mooncake_store.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mooncake_storage_node.app import StorageNode
    from mooncake_store.wire import control

    from .fake_master import FakeMaster
    from .support import NodeUnderTest

    Start = Callable[..., StorageNode]
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
        wait_until(lambda: all(slot.opened.is_set() for slot in stores._slots), 30)
        return stores

    yield start
    for stores in lives:
        stores.close(1.0)


def spoil_index(directory: Path) -> None:
    with (directory / "mooncake-ssd" / "index" / "data.mdb").open("r+b") as file:
        file.write(b"\xa5" * MIB)
        file.flush()
        os.fsync(file.fileno())


def incarnations(stores: Stores) -> list[int]:
    return [record.incarnation for record in stores.records()]


def store_of(register: control.Register) -> int:
    return register.segments[1].incarnation


def test_a_node_registers_what_its_store_has_replaced_and_its_next_life_does_again(
    master: FakeMaster, start_process: Callable[..., NodeUnderTest], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    node = start_process("n", ssd=f"{disk}:{CAPACITY >> 20}MiB")
    first = master.wait_registered_with_stores()
    assert first.replaced == ()
    node.kill()
    spoil_index(disk)
    node.start()
    again = master.wait_registered_with_stores(replaced=True)
    assert again.replaced == (store_of(first),)
    assert store_of(again) != store_of(first)
    node.kill()
    master.forget()
    node.start()
    assert store_of(master.wait_registered()) == store_of(again)
    third = master.wait_registered_with_stores(replaced=True)
    assert third.replaced == again.replaced
    assert store_of(third) == store_of(again)


def test_a_store_that_is_opened_late_has_its_statement_registered(
    master: FakeMaster, start_process: Callable[..., NodeUnderTest], tmp_path: Path
) -> None:
    """Its incarnation is known from the life before, and is no news by itself."""
    disk, aside = tmp_path / "disk", tmp_path / "aside"
    disk.mkdir()
    node = start_process("n", ssd=f"{disk}:{CAPACITY >> 20}MiB")
    old = store_of(master.wait_registered_with_stores())
    node.kill()
    spoil_index(disk)
    node.start()
    assert master.wait_registered_with_stores(replaced=True).replaced == (old,)
    node.kill()
    master.forget()
    disk.rename(aside)
    node.start()
    late = master.wait_registered()
    assert store_of(late) != old
    assert late.replaced == ()
    aside.rename(disk)
    wait_until(lambda: master.registers[-1].replaced == (old,), 30, what="it says so again")


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
    assert stores.replaced() == ()
    stores.close(1.0)
    swap()
    stores = open_stores("a", "b")
    assert incarnations(stores) == before
    assert stores.replaced() == ()


def test_no_order_reaches_a_store_that_has_just_become_another(
    tmp_path: Path, open_stores: Open
) -> None:
    """Between what the directory is now and the news of it there is a moment (seen in CI)."""
    stores = open_stores("a")
    (before,) = incarnations(stores)
    (store,) = stores.all_open()
    with stores._lock:  # News of a store waits for it.
        shutil.rmtree(tmp_path / "a")
        (tmp_path / "a").mkdir()
        wait_until(lambda: store.incarnation != before, 30, what="the store is another")
        assert stores.find(before) is None
        assert stores.owns(before), "it may have moved, for all that is known by now"
        # It can be registered at any moment; its orders must not miss it then.
        assert stores.find(store.incarnation) is store
        assert stores.owns(store.incarnation)
    wait_until(lambda: not stores.owns(before), 30, what="the news arrived")


def test_another_path_leaves_the_store_before_alone(open_stores: Open) -> None:
    stores = open_stores("a")
    before = incarnations(stores)
    stores = open_stores("b")
    assert incarnations(stores) != before
    assert stores.replaced() == ()
    stores = open_stores("a")
    assert incarnations(stores) == before


@pytest.mark.parametrize("live", [False, True])
def test_a_node_does_not_take_a_copy_of_a_store_that_is_gone(
    tmp_path: Path,
    open_stores: Open,
    live: bool,  # noqa: FBT001 - pytest passes it
) -> None:
    stores = open_stores("a")
    (old,) = incarnations(stores)
    stores.close(1.0)
    backup = tmp_path / "backup"
    shutil.copytree(tmp_path / "a", backup)
    spoil_index(tmp_path / "a")
    stores = open_stores("a")
    (new,) = incarnations(stores)
    if live:
        (tmp_path / "a").rename(tmp_path / "aside")
        backup.rename(tmp_path / "a")
        wait_until(lambda: incarnations(stores) != [new], 30, what="it is another store")
    else:
        stores.close(1.0)
        shutil.rmtree(tmp_path / "a")
        backup.rename(tmp_path / "a")
        stores = open_stores("a")
    assert old not in incarnations(stores)
    assert stores.replaced() == (old,)


def test_what_is_gone_is_remembered_within_bounds_and_taken_as_it_is(
    tmp_path: Path, folder: Path, open_stores: Open
) -> None:
    (folder / KNOWN_FILE).write_text(json.dumps({GONE: [*range(1, GONE_MAX + 1), "x", -1, None]}))
    stores = open_stores("a")
    (old,) = incarnations(stores)
    spoil_index(tmp_path / "a")
    open_stores("a")
    kept = json.loads((folder / KNOWN_FILE).read_text())[GONE]
    assert kept == [*range(2, GONE_MAX + 1), old]
    (folder / KNOWN_FILE).write_text(json.dumps({GONE: 7}))
    assert incarnations(open_stores("a"))
