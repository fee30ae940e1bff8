"""A node's SSD stores: registered, copied to and from, freed, listed, never in the way."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node.settings import NodeSettings
from mooncake_storage_node.ssd import Admission, Options, Store
from mooncake_storage_node.stores import StorePlan, Stores
from mooncake_store.deadline import Deadline
from mooncake_store.errors import ConfigError, InvalidArgument
from mooncake_store.settings import load
from mooncake_store.testing import wait_until
from mooncake_store.types import Tier
from mooncake_store.wire import control

from .fake_master import FakeMaster
from .support import MIB, Thing, make_thing, put, tcp_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from mooncake_storage_node.app import StorageNode

    from .support import NodeUnderTest

    Start = Callable[..., StorageNode]

NEW_NUMBER = 1 << 40 | 1 << 30


class Rig:
    """One node with one store, and what a master would order."""

    def __init__(
        self,
        start: Start,
        master: FakeMaster,
        directory: Path,
        size: str = "64MiB",
        **options: object,
    ) -> None:
        self.directory = directory
        self.node = start(ssd=(f"{directory}:{size}",), **options)
        self.master = master
        self.register = master.wait_registered_with_stores()
        self.number = NEW_NUMBER

    @property
    def dram(self) -> int:
        return self.register.segments[0].incarnation

    @property
    def store(self) -> int:
        return self.register.segments[1].incarnation

    def thing(self, size: int, *, key: str = "k", offset: int = 0) -> Thing:
        thing = make_thing(self.dram, offset, size, key=key)
        with tcp_of(self.register) as path:
            put(path, thing)
        return thing

    def demotion(self, thing: Thing, *, wanted: bool = False) -> control.CopyItem:
        self.number += 1
        return control.CopyItem(
            "", "", 0, thing.incarnation, thing.offset, 0, thing.identity.version, thing.bytes,
            self.store, -1, self.number, wanted,
        )  # fmt: skip

    def promotion(self, thing: Thing, location: int, offset: int) -> control.CopyItem:
        self.number += 1
        return control.CopyItem(
            "", "", 0, self.store, location, 0, thing.identity.version, thing.bytes,
            self.dram, offset, self.number,
        )  # fmt: skip

    def copy(self, *items: control.CopyItem) -> list[control.CopyResult]:
        order = control.CopyExtents(self.master.term, list(items))
        return self.master.order(order, control.Copied, 30.0).items

    def demote(self, thing: Thing) -> int:
        (result,) = self.copy(self.demotion(thing))
        assert result.code == "", result
        return result.offset

    def free_on_disk(self, location: int, version: int) -> bytes:
        return self.master.free(control.FreeItem(self.store, location, 512, version))

    def listed(self) -> list[control.DirectoryEntry]:
        order = control.ListDirectory(self.master.term, self.store)
        return self.master.order(order, control.DirectoryPage).entries

    def status(self) -> control.StoreStatus:
        """Return what a heartbeat says that was composed after this call.

        That is the second one to come: the first may have been on its way.
        """
        beats = len(self.master.heartbeats)
        wait_until(lambda: len(self.master.heartbeats) > beats + 1, 20, what="two heartbeats")
        return self.master.heartbeats[-1].stores[0]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    directory = tmp_path / "disk"
    directory.mkdir()
    return directory


@pytest.fixture
def rig(start_node: Start, master: FakeMaster, disk: Path) -> Rig:
    return Rig(start_node, master, disk)


def test_a_store_is_registered_and_shown_in_heartbeats(rig: Rig) -> None:
    memory, store = rig.register.segments
    assert (memory.tier, store.tier) == (Tier.DRAM, Tier.SSD)
    assert store.bytes == 64 * MIB
    status = rig.status()
    assert (status.state, status.reason, status.entries) == ("ready", "", 0)
    assert (status.incarnation, status.path) == (store.incarnation, str(rig.directory))


def test_an_extent_goes_to_disk_and_comes_back_as_it_was(rig: Rig) -> None:
    for number, size in enumerate((0, 1000, 300_000, 2_500_000)):
        thing = rig.thing(size, key=f"k{size}", offset=4 * number * MIB)
        location = rig.demote(thing)
        rig.master.free(thing.item)
        item = rig.promotion(thing, location, 16 * MIB)
        assert rig.copy(item)[0].code == ""
        task = replace(thing.read_task(), offset=item.offset, attempt=item.attempt)
        with tcp_of(rig.register) as path:
            path.read([task], Deadline(10))
        assert task.error is None
        assert bytes(task.targets[0]) == thing.content
        rig.master.free(control.FreeItem(rig.dram, item.offset, item.bytes, item.attempt))
    assert [entry.key for entry in rig.listed()] == ["k0", "k1000", "k300000", "k2500000"]
    assert rig.status().entries == 4
    assert rig.status().counters["stored"] == 4


def test_pages_that_are_none_are_refused_and_the_index_goes_on(rig: Rig) -> None:
    """FR-050: numbers of no page must not end the index process or take the store away."""
    thing = rig.thing(1000)
    location = rig.demote(thing)
    before = rig.node.stores.statuses()[0]
    for cursor in (-1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1):
        page = control.ListDirectory(rig.master.term, rig.store, cursor)
        with pytest.raises(InvalidArgument):
            rig.master.order(page, control.DirectoryPage)
    for limit in (-1, 0, (1 << 64) - 1):
        page = control.ListDirectory(rig.master.term, rig.store, 0, limit)
        entries = rig.master.order(page, control.DirectoryPage).entries
        assert [entry.offset for entry in entries] == [location]
    assert rig.node.stores.statuses()[0].state == before.state == "ready"


def test_what_is_there_already_is_not_written_again(rig: Rig) -> None:
    """FR-010: a duplicate in a batch costs nothing and refuses nothing."""
    first, second = rig.thing(1000), rig.thing(1000, key="other", offset=MIB)
    location = rig.demote(first)
    results = rig.copy(rig.demotion(first), rig.demotion(second))
    assert [result.code for result in results] == ["", ""]
    assert results[0].offset == location
    assert rig.status().counters["present"] == 1


def test_removed_is_gone_by_version_and_by_attempt_and_nothing_else_is(rig: Rig) -> None:
    """FR-057: nothing that was freed comes back, restarts included."""
    things = [rig.thing(1000, key=f"k{n}", offset=n * MIB) for n in range(4)]
    items = [rig.demotion(thing) for thing in things]
    places = [result.offset for result in rig.copy(*items)]
    assert rig.free_on_disk(places[0], things[0].identity.version) == b"\x01"
    assert rig.free_on_disk(places[1], items[1].attempt) == b"\x01"
    assert rig.free_on_disk(-1, items[2].attempt) == b"\x01"
    # An order that is given again, while the row has gone to an older version.
    assert rig.free_on_disk(places[3], rig.number + 1000) == b"\x01"
    assert [entry.key for entry in rig.listed()] == ["k3"]
    assert rig.free_on_disk(places[3], things[3].identity.version) == b"\x01"
    assert rig.listed() == []
    assert rig.free_on_disk(places[0], things[0].identity.version) == b"\x01"


def test_a_copy_that_was_freed_before_it_began_never_lands(rig: Rig) -> None:
    for number in range(20):
        thing = rig.thing(1000, key=f"k{number}")
        item = rig.demotion(thing)
        name = item.attempt if number % 2 else item.version
        free = control.FreeItem(rig.store, -1, item.bytes, name)
        answers = rig.master.order_all(
            control.CopyExtents(1, [item]), control.FreeExtents(1, [free])
        )
        assert answers[1] == control.Freed(b"\x01")
        assert rig.listed() == []
        rig.master.free(thing.item)


def test_a_changed_source_is_never_stored(rig: Rig) -> None:
    thing = rig.thing(300_000)
    rig.node.pool.segment.extents[5000] ^= 1
    assert rig.copy(rig.demotion(thing))[0].code == "checksum_mismatch"
    rig.master.free(thing.item)
    assert rig.copy(rig.demotion(thing))[0].code == "stale_extent"
    assert rig.listed() == []


def test_another_node_takes_an_extent_straight_to_its_disk(
    rig: Rig, start_node: Start, tmp_path: Path
) -> None:
    directory = tmp_path / "other"
    directory.mkdir()
    thing = rig.thing(2_500_000)
    with FakeMaster() as second:
        start_node(name="other", master=(f"127.0.0.1:{second.port}",), ssd=(f"{directory}:64MiB",))
        there = second.wait_registered_with_stores()
        item = control.CopyItem(
            rig.register.node_id, rig.register.host, rig.register.port, rig.dram, thing.offset, 0,
            thing.identity.version, thing.bytes, there.segments[1].incarnation, -1, NEW_NUMBER,
        )  # fmt: skip
        copied = second.order(control.CopyExtents(1, [item]), control.Copied, 30.0).items[0]
        assert copied.code == ""
        order = control.ListDirectory(1, there.segments[1].incarnation)
        page = second.order(order, control.DirectoryPage)
    assert [(entry.key, entry.offset) for entry in page.entries] == [("k", copied.offset)]


def test_admission_and_budget_are_codes_and_a_wanted_copy_passes_them(
    start_node: Start, master: FakeMaster, disk: Path
) -> None:
    rig = Rig(start_node, master, disk, ssd_admission="second-hit")
    first, second = rig.thing(1000), rig.thing(1000, key="other", offset=MIB)
    assert rig.copy(rig.demotion(first))[0].code == "not_admitted"
    assert rig.copy(rig.demotion(first))[0].code == ""
    assert rig.copy(rig.demotion(second, wanted=True))[0].code == ""


def test_a_raised_epoch_clears_the_disk_too(rig: Rig) -> None:
    rig.demote(rig.thing(1000))
    rig.master.order(control.SetEpochs(1, {0: 2}), control.Done)
    assert rig.listed() == []


def test_a_store_knows_what_was_cleared_while_it_was_opened_before_it_is_found(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = Stores([StorePlan(disk, 64 * MIB)], Options(), tmp_path)
    stores.set_epochs({0: 2})
    set_epochs = Store.set_epochs
    found: list[Store | None] = []

    def find_before(store: Store, epochs: dict[int, int]) -> Future[None]:
        found.append(stores.find(store.incarnation))
        return set_epochs(store, epochs)

    monkeypatch.setattr(Store, "set_epochs", find_before)
    stores.open()
    try:
        wait_until(lambda: len(stores.records()) == 1, 30, what="the store")
        assert found == [None]
        assert stores.all_open()[0].epochs() == {0: 2}
    finally:
        stores.close(5.0)


def test_what_the_disk_evicts_is_reported(rig: Rig) -> None:
    """FR-009, FR-055: the tier stays under its cap, and its index and ours do not drift apart."""
    stored = 0
    for number in range(24):
        thing = rig.thing(3 * MIB, key=f"k{number}")
        rig.demote(thing)
        rig.master.free(thing.item)
        stored += 1
    wait_until(lambda: rig.master.dropped, 30, what="evictions are reported")
    wait_until(
        lambda: stored - len(rig.master.dropped) == len(rig.listed()), 30, what="all are reported"
    )
    assert {item.reason for item in rig.master.dropped} == {"evicted"}
    assert {item.incarnation for item in rig.master.dropped} == {rig.store}
    used = sum(file.stat().st_blocks * 512 for file in rig.directory.rglob("*") if file.is_file())
    assert used <= 64 * MIB


def test_reports_are_repeated_until_a_master_takes_them(rig: Rig) -> None:
    rig.master.refuse_reports = True
    item = control.DroppedItem(rig.store, 7, 8, "evicted")
    rig.node.reports.add([item])
    wait_until(lambda: rig.master.reports_refused > 1, 20, what="reports are tried again")
    rig.master.refuse_reports = False
    wait_until(lambda: rig.master.dropped, 20, what="it is reported")
    wait_until(lambda: not len(rig.node.reports), 20, what="the node has the confirmation")
    assert rig.master.dropped == [item]


def test_a_missing_directory_costs_the_tier_only_and_comes_back(
    start_node: Start, master: FakeMaster, tmp_path: Path
) -> None:
    """FR-053: registration, memory and heartbeats do not care."""
    late = tmp_path / "late"
    start_node(ssd=(f"{late}:64MiB",))
    register = master.wait_registered()
    assert len(register.segments) == 1
    thing = make_thing(register.segments[0].incarnation, 0, 1000)
    with tcp_of(register) as path:
        put(path, thing)
    wait_until(lambda: master.heartbeats, 20, what="a heartbeat")
    status = master.heartbeats[-1].stores[0]
    assert status.state == "degraded"
    assert "there is no directory" in status.reason
    late.mkdir()
    again = master.wait_registered(2)
    assert [segment.tier for segment in again.segments] == [Tier.DRAM, Tier.SSD]
    assert master.beside == [False, True], "the node was never away"
    wait_until(lambda: master.connected == 2, 20, what="the connection before is closed")


def test_a_store_whose_disk_goes_away_answers_not_yet_and_then_does_it(
    rig: Rig, tmp_path: Path
) -> None:
    """A removal is confirmed when it is on the disk, or not at all."""
    thing = rig.thing(1000)
    location = rig.demote(thing)
    moved = tmp_path / "moved"
    rig.directory.rename(moved)
    wait_until(lambda: rig.status().state == "degraded", 30, what="the store is degraded")
    assert rig.free_on_disk(location, thing.identity.version) == b"\x00"
    assert rig.copy(rig.demotion(thing))[0].code == "overloaded"
    moved.rename(rig.directory)
    wait_until(lambda: rig.status().state == "ready", 30, what="the store is ready")
    assert rig.free_on_disk(location, thing.identity.version) == b"\x01"
    assert rig.listed() == []


def test_a_killed_node_comes_back_with_its_disk(
    master: FakeMaster, start_process: Callable[..., NodeUnderTest], disk: Path
) -> None:
    """FR-011, on a whole node."""
    node = start_process("n", ssd=f"{disk}:64MiB")
    register = master.wait_registered_with_stores()
    memory, store = (segment.incarnation for segment in register.segments)
    things = [make_thing(memory, n * MIB, 200_000, key=f"k{n}") for n in range(8)]
    with tcp_of(register) as path:
        put(path, *things)
    items = [
        control.CopyItem("", "", 0, memory, thing.offset, 0, thing.identity.version, thing.bytes,
                         store, -1, NEW_NUMBER + n)
        for n, thing in enumerate(things)
    ]  # fmt: skip
    copied = master.order(control.CopyExtents(1, items), control.Copied, 30.0).items
    node.kill()
    master.forget()
    node.start()
    again = master.wait_registered()
    assert [segment.incarnation for segment in again.segments] == [memory, store]
    # A store that a slow machine opens late counts as one until then.
    assert again.landed in {8 + 1, 8 + 8}
    wait_until(
        lambda: any(beat.stores[0].state == "ready" for beat in master.heartbeats), 60,
        what="the store is open",
    )  # fmt: skip
    page = master.order(control.ListDirectory(1, store), control.DirectoryPage)
    # In the order of locations, which several writers of the store give out as they come.
    assert [(entry.offset, entry.key) for entry in page.entries] == sorted(
        (result.offset, f"k{n}") for n, result in enumerate(copied)
    )


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("/a", "is not PATH:SIZE"),
        (":1GiB", "is not PATH:SIZE"),
        ("/a:", "has no size"),
        ("/a:100", "has no size"),
        ("/a:100G", "has no size"),
        ("/a:lots", "has no size"),
        ("/a:1MiB", "has an impossible size"),
        ("/a:1GiB,/a:2GiB", "are not apart"),
        ("/a:1GiB,/a/../a/b:2GiB", "are not apart"),
        (",".join(f"/d{n}:1GiB" for n in range(16)), "names more than 15 stores"),
    ],
)
def test_fr_063_a_wrong_store_is_one_line_that_names_option_and_value(
    value: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(NodeSettings, flags={"ssd": value}, environment={})
    (line,) = str(caught.value).splitlines()
    assert line.startswith("ssd: ")
    assert "(--ssd)" in line
    assert problem in line


def test_stores_come_from_flags_environment_and_file(tmp_path: Path) -> None:
    wanted = [StorePlan(Path("/a"), 1 << 30), StorePlan(Path("/b"), 2 << 30)]
    texts = "/a:1GiB,/b:2GiB"
    file = tmp_path / "c.yaml"
    file.write_text("node:\n  ssd:\n    - /a:1GiB\n    - /b:2GiB\n")
    for settings in (
        load(NodeSettings, flags={"ssd": texts}, environment={}),
        load(NodeSettings, flags={}, environment={"MOONCAKE_STORE_NODE_SSD": texts}),
        load(NodeSettings, flags={}, config=file, environment={}),
    ):
        assert settings.store_plans() == wanted


def test_options_of_the_tier_reach_its_stores() -> None:
    flags = {"ssd_admission": "second-hit", "ssd_write_budget": "2TiB", "ssd_staging": "16MiB"}
    options = load(NodeSettings, flags=flags, environment={}).store_options()
    assert options.admission is Admission.SECOND_HIT
    assert options.write_budget_bytes_per_day == 2 << 40
    assert options.staging_bytes == 16 * MIB


def test_fr_066_a_directory_in_use_ends_the_start_with_one_line(
    rig: Rig, start_process: Callable[..., NodeUnderTest], tmp_path: Path
) -> None:
    node = start_process("second", ssd=f"{rig.directory}:64MiB")
    assert node.wait(30) == 2
    line = node.output.strip().splitlines()[-1]
    assert f"--ssd {rig.directory}" in line
    assert "in use" in line
    assert "Traceback" not in node.output
    flags = ["--ssd", f"{tmp_path}/x:64MiB", "--ssd", f"{tmp_path}/y:64MiB", "--print-config"]
    shown = subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-m", "mooncake_store", "node", *flags],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert f"{tmp_path}/x:64MiB,{tmp_path}/y:64MiB" in shown


def test_a_folder_that_takes_no_record_of_the_stores_costs_no_store(
    disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stores = Stores([StorePlan(disk, 64 * MIB)], Options(), tmp_path / "missing")
    stores.open()
    try:
        wait_until(lambda: len(stores.records()) == 1, 20, what="the store")
        wait_until(lambda: "was not recorded" in caplog.text, 20, what="it is said")
    finally:
        stores.close(5.0)
