"""Disks of nodes in the master's index: demotion, reads, removal, recovery, promotion, durable."""

from __future__ import annotations

import pytest

from mooncake_master.core.demotion import FAILURES_MAX
from mooncake_store.limits import KIB, MIB
from mooncake_store.types import MissReason, Presence, Tier
from mooncake_store.wire.control import (
    Clear,
    CopyExtents,
    FreeExtents,
    ListDirectory,
    Location,
    Probe,
    Refusal,
    ReportDropped,
    Stat,
    StoreStatus,
    Why,
)
from tests.unit.master.disks import OBJECT, copies, disk_of, fill, small, tiers
from tests.unit.master.rig import SPACE, FakeNode, Rig


def report(rig: Rig, node: FakeNode, key: str, reason: str = "evicted") -> None:
    rig.ask(ReportDropped(node.index, [node.forget(key, reason)]))


def test_a_node_that_holds_it_in_memory_and_on_disk_is_named_once() -> None:
    rig = small()
    rig.put("k", length=OBJECT, durable=True)
    assert tiers(rig, "k") == [Tier.DRAM, Tier.SSD]
    assert rig.ask(Why(rig.slot, rig.epoch, "k")).detail.endswith("is readable on disk")


# --- demotion ----------------------------------------------------------------------------------


def test_fr_010_what_memory_gives_up_is_readable_from_disk() -> None:
    rig = small()
    fill(rig, *"abcdef")
    assert rig.exists(*"abcdef") == [True] * 6
    assert tiers(rig, "a") == [Tier.SSD]
    assert tiers(rig, "f") == [Tier.DRAM]
    assert copies(rig, "demotion", "done") == 4
    assert rig.gauge('mooncake_master_tier_replicas_count{tier="ssd"}') == 4
    rig.check()


def test_a_put_waits_for_the_disk_and_not_longer_than_its_deadline() -> None:
    rig = small()
    fill(rig, "a", "b")
    rig.automatic = False
    number = rig.begin("c", length=OBJECT, deadline_s=1.0)
    late = rig.begin("d", length=OBJECT, deadline_s=0.5)
    rig.tick(0.2)
    assert number not in rig.replies, "the disk has not answered"
    assert rig.exists("a", "b") == [True, True], "readable until it is written"
    rig.tick(0.4)
    assert isinstance(rig.replies.pop(late).items[0], Refusal)
    rig.settle()
    rig.tick()
    rig.settle()
    assert rig.replies.pop(number).items[0].replicas
    rig.check()


def test_what_is_on_the_disk_already_is_not_written_twice() -> None:
    rig = small(promote_reads=1)
    fill(rig, "a", "b", "c", "d")
    rig.remove("c", "d")
    assert rig.locate("a")  # brings it back to memory
    rig.tick(0.1)
    assert tiers(rig, "a") == [Tier.DRAM, Tier.SSD]
    fill(rig, "e", "f", "g")
    assert copies(rig, "demotion", "present") >= 1
    assert tiers(rig, "a") == [Tier.SSD]
    rig.check()


@pytest.mark.parametrize("code", ["not_admitted", "over_budget", "no_space"])
def test_fr_010_what_the_disk_does_not_take_is_counted_under_its_reason(code: str) -> None:
    rig = small()
    disk_of(rig).refusals = [code] * 4
    fill(rig, "a", "b", "c")
    assert rig.exists("a") == [False]
    assert rig.locate("a") == [MissReason.EVICTED]
    assert copies(rig, "demotion", code) >= 1
    rig.check()


def test_fr_053_a_disk_that_fails_again_and_again_is_left_alone_for_a_moment() -> None:
    rig = small()
    disk_of(rig).disk_fails = True
    fill(rig, *"abcdefghij")
    assert copies(rig, "demotion", "overloaded") == FAILURES_MAX
    assert copies(rig, "demotion", "degraded") >= 2
    disk_of(rig).disk_fails = False
    rig.sleep(1.5)
    fill(rig, "k", "l", "m")
    assert copies(rig, "demotion", "done") >= 2
    rig.check()


def test_fr_053_a_disk_that_does_not_answer_costs_copies_not_puts() -> None:
    rig = small()
    fill(rig, "a", "b")
    rig.automatic = False
    number = rig.begin("c", length=OBJECT, deadline_s=10.0)
    node = disk_of(rig)
    for _ in range(40):
        rig.tick(0.1)
        rig.beat()
        # Memory goes on answering.
        for which, (_, message) in enumerate(list(node.inbox)):
            if isinstance(message, FreeExtents) and message.items[0].incarnation in node.segments:
                rig.deliver(node, which=which)
                break
    assert rig.replies.pop(number).items[0].replicas
    assert copies(rig, "demotion", "deadline_exceeded") == 1
    rig.automatic = True
    rig.settle()
    assert not node.on_disk(), "what was taken too late is erased"
    rig.check()


def test_a_disk_has_time_for_an_extent_by_its_size() -> None:
    rig = Rig(MIB, lease_ttl_s=0.0, high_watermark=1.0, low_watermark=1.0)
    node = rig.add_node(96 * MIB, name="disk")
    rig.give_disk(node, 256 * MIB)
    rig.put("large", length=60 * MIB)
    rig.automatic = False
    number = rig.begin("next", length=95 * MIB, deadline_s=60.0)
    rig.tick(0.1)
    for _ in range(100):
        rig.tick(0.1)
        rig.beat()
    assert copies(rig, "demotion", "deadline_exceeded") == 0, "60 MiB at 8 MiB/s, and 3 s"
    ((_, message),) = node.inbox
    assert isinstance(message, CopyExtents)
    assert message.extra_s == pytest.approx(7.5, abs=0.1)
    rig.automatic = True
    rig.settle()
    assert rig.replies.pop(number).items[0].replicas
    assert copies(rig, "demotion", "done") == 1
    assert tiers(rig, "large") == [Tier.SSD]
    rig.check()


def test_a_degraded_disk_is_not_asked_and_shown_with_its_reason() -> None:
    rig = small()
    node = disk_of(rig)
    (incarnation,) = node.disks
    node.stores = (StoreStatus(incarnation, "/ssd", "degraded", "no such device", 64 * MIB, 0, 0),)
    rig.beat()
    fill(rig, "a", "b", "c")
    assert copies(rig, "demotion", "degraded") == 1
    status = rig.status()
    shown = next(node for node in status.nodes if node.record.name == "disk")
    assert shown.note == "/ssd: degraded, no such device"
    assert shown.stores == node.stores
    assert shown.ssd_capacity_bytes == 64 * MIB


def test_watermarks_demote_ahead_of_need() -> None:
    rig = Rig(1 * KIB, lease_ttl_s=0.0, high_watermark=0.5, low_watermark=0.3)
    rig.give_disk(rig.add_node(64 * KIB, name="disk"))
    fill(rig, *"abcdefgh")
    rig.sleep(0.5)
    used = rig.gauge('mooncake_master_node_used_bytes{node="disk"}')
    assert used <= 0.5 * 64 * KIB
    assert rig.exists(*"abcdefgh") == [True] * 8
    rig.check()


def test_an_object_that_is_read_while_it_is_demoted_stays_in_memory() -> None:
    rig = small(lease_ttl_s=1.0)
    fill(rig, "a", "b")
    rig.sleep(1.5)
    rig.automatic = False
    number = rig.begin("c", length=OBJECT, deadline_s=5.0)
    rig.send_locate("a")
    rig.settle()
    rig.tick()
    assert tiers(rig, "a") == [Tier.DRAM, Tier.SSD], "leased: not before the lease ends"
    assert number not in rig.replies
    rig.automatic = True
    rig.sleep(3.0)
    assert rig.replies.pop(number).items[0].replicas
    rig.check()


def test_an_object_removed_while_a_window_waits_for_it_gives_its_room_to_the_window() -> None:
    rig = small()
    fill(rig, "a", "b")
    rig.automatic = False
    number = rig.begin("c", length=OBJECT, deadline_s=5.0)
    removal = rig.send_remove("a")
    rig.automatic = True
    rig.settle()
    rig.tick()
    assert rig.replies.pop(removal).removed == b"\1"
    assert rig.replies.pop(number).items[0].replicas
    assert "a" not in disk_of(rig).on_disk()
    rig.check()


def test_groups_need_not_go_together_to_a_disk() -> None:
    rig = small()
    fill(rig, "a", "b", item={"group": "g"})
    fill(rig, "c")
    assert rig.exists("a", "b", "c") == [True] * 3
    assert sorted(disk_of(rig).on_disk()) == ["a"]
    rig.check()


def test_demotion_can_be_turned_off() -> None:
    rig = small(demote=False)
    fill(rig, "a", "b", "c")
    assert rig.exists("a") == [False]
    assert not disk_of(rig).on_disk()


def test_the_bound_on_keys_counts_those_on_disk() -> None:
    rig = small(keys_max=3)
    fill(rig, *"abcdef")
    assert rig.gauge("mooncake_master_objects_count") <= 3
    rig.check()


# --- reads -------------------------------------------------------------------------------------


def test_a_probe_and_a_stat_say_ssd() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    probed = rig.ask(Probe(rig.slot, rig.epoch, ["a", "c"]))
    assert [item.presence for item in probed.items] == [Presence.SSD, Presence.DRAM]
    (record,) = rig.ask(Stat(rig.slot, rig.epoch, ["a"])).items
    assert [replica.tier for replica in record.replicas] == ["ssd"]


def test_a_node_that_is_away_takes_its_disk_with_it() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    rig.cut(disk_of(rig))
    assert rig.locate("a") == [MissReason.NODE_DOWN]
    rig.register(disk_of(rig))
    assert tiers(rig, "a") == [Tier.SSD]


# --- removal -----------------------------------------------------------------------------------


def test_a_removal_is_answered_when_the_disk_has_forgotten_it() -> None:
    rig = small(acknowledge_grace_s=5.0)
    fill(rig, "a", "b", "c")
    rig.automatic = False
    number = rig.send_remove("a")
    assert number not in rig.replies
    rig.settle()
    assert rig.replies.pop(number).removed == b"\1"
    assert "a" not in disk_of(rig).on_disk()
    rig.check()


def test_memory_is_freed_without_waiting_for_the_disk() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    rig.automatic = False
    rig.send_remove("a", "b")
    node = disk_of(rig)
    messages = [message for _, message in node.inbox if isinstance(message, FreeExtents)]
    assert len(messages) == 2
    assert all(len({item.incarnation for item in m.items}) == 1 for m in messages)


def test_a_replaced_value_on_disk_is_gone_when_the_put_returns() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    fill(rig, "a", replace=True)
    entry = disk_of(rig).on_disk().get("a")
    (found,) = rig.locate("a")
    assert isinstance(found, Location)
    assert entry is None or entry.version == found.version
    rig.check()


def test_a_clear_takes_what_is_on_disk() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    rig.ask(Clear(SPACE))
    rig.open(SPACE)
    rig.sleep(0.5)
    assert rig.exists("a", "b", "c") == [False] * 3
    assert not disk_of(rig).on_disk()
    rig.check()


def test_fr_055_a_removed_key_stays_removed_when_its_disk_was_closed_meanwhile() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    rig.add_node(1 * MIB, name="other")
    node = disk_of(rig)
    assert "a" in node.on_disk()
    node.closed_disks = set(node.disks)
    rig.cut(node)
    rig.register(node)
    assert rig.locate("a") == [MissReason.NODE_DOWN]
    assert rig.remove("a") == [True]
    rig.restart()
    for each in rig.nodes.values():
        rig.register(each)
    rig.open(SPACE)
    node.closed_disks = set()
    rig.cut(node)
    rig.register(node)
    rig.sleep(0.5)
    assert rig.exists("a") == [False]
    assert "a" not in node.on_disk()
    rig.check()


# --- reports -----------------------------------------------------------------------------------


def test_fr_055_what_a_store_evicts_leaves_the_index() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    report(rig, disk_of(rig), "a")
    assert rig.locate("a") == [MissReason.EVICTED]
    assert rig.counter('mooncake_master_replicas_dropped_total{reason="evicted"}') == 1
    rig.check()


def test_what_a_store_finds_bad_is_corrupt_not_evicted() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    report(rig, disk_of(rig), "a", "checksum_mismatch")
    assert rig.locate("a") == [MissReason.CORRUPT]
    report_unknown = disk_of(rig)
    fill(rig, "d")
    report(rig, report_unknown, "b", "a reason that nobody knows")
    assert rig.counter('mooncake_master_replicas_dropped_total{reason="unknown"}') == 1
    rig.check()


def test_a_report_that_overtakes_the_arrival_is_not_forgotten() -> None:
    rig = small()
    fill(rig, "a", "b")
    rig.automatic = False
    rig.begin("c", length=OBJECT)
    node = disk_of(rig)
    which = next(i for i, (_, m) in enumerate(node.inbox) if isinstance(m, CopyExtents))
    token, message = node.inbox.pop(which)
    answer = node.answer(message)
    number = rig.send(ReportDropped(node.index, [node.forget("a")]))
    assert number in rig.replies
    rig.perform(rig.master.node_replied(node.peer, token, answer, rig.now_s))
    rig.automatic = True
    rig.settle()
    assert tiers(rig, "a") == []
    rig.check()


def test_a_row_that_was_given_to_another_version_drops_the_one_before() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    node = disk_of(rig)
    node.forget("a")  # and the report is still on its way
    fill(rig, "d")
    assert tiers(rig, "a") == []
    assert tiers(rig, "b") == [Tier.SSD]
    rig.check()


# --- recovery ----------------------------------------------------------------------------------


def test_fr_011_a_new_master_finds_what_is_on_disk() -> None:
    rig = small()
    fill(rig, *"abcdef")
    before = {key: rig.locate(key)[0].version for key in "abcdef"}  # type: ignore[union-attr]
    rig.restart(recovery_grace_s=1.0)
    for node in rig.nodes.values():
        rig.register(node)
    rig.open(SPACE)
    after = {key: rig.locate(key)[0].version for key in "abcdef"}  # type: ignore[union-attr]
    assert after == before
    assert tiers(rig, "a") == [Tier.SSD]
    rig.remove(*"abcdef")
    assert not disk_of(rig).entries
    rig.check()


def test_a_rebooted_host_keeps_what_is_on_its_disk() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    node = disk_of(rig)
    rig.cut(node)
    rig.wipe(node)
    rig.register(node)
    rig.sleep(0.2)
    assert rig.exists("a", "b", "c") == [True, False, False]
    assert rig.locate("b") == [MissReason.LOST]
    rig.check()


def test_a_host_that_comes_back_under_a_new_identity_brings_its_disk() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    node = disk_of(rig)
    rig.cut(node)
    rig.wipe(node)
    node.node_id = "f" * 32
    rig.register(node)
    rig.sleep(0.5)
    assert rig.exists("a", "b", "c") == [True, False, False]
    rig.remove("a")
    assert not node.on_disk()
    rig.check()


def test_a_disk_that_is_found_after_it_was_given_up_comes_back_empty() -> None:
    rig = small(forget_after_s=10.0)
    fill(rig, "a", "b", "c")
    node = disk_of(rig)
    rig.cut(node)
    rig.sleep(15.0)
    assert rig.locate("a") == [MissReason.LOST]
    rig.register(node)
    rig.sleep(0.5)
    assert rig.exists("a", "b", "c") == [False] * 3
    assert not node.entries
    fill(rig, "d", "e", "f")
    assert rig.exists("d", "e", "f") == [True] * 3, "it is in use again"
    rig.check()


def test_a_disk_that_cannot_be_listed_does_not_stop_the_others() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    node = disk_of(rig)
    rig.restart()
    node.disk_fails = True
    for each in rig.nodes.values():
        rig.register(each)
    rig.open(SPACE)
    assert rig.exists("b", "c") == [True, True]
    assert not rig.master.recovering
    assert rig.locate("a") == [MissReason.NODE_DOWN], "it may be there, for all that is known"
    node.disk_fails = False
    rig.sleep(0.5)
    assert tiers(rig, "a") == [Tier.SSD]
    rig.check()


def test_what_memory_gives_up_while_its_disk_cannot_be_listed_is_found_there_later() -> None:
    rig = small()
    started = rig.start("a", length=OBJECT, durable=True)
    rig.land(started, ("a",), OBJECT)
    rig.commit(started)
    node = disk_of(rig)
    rig.restart()
    node.disk_fails = True
    for each in rig.nodes.values():
        rig.register(each)
    rig.open(SPACE)
    fill(rig, "b", "c")
    assert rig.locate("a") == [MissReason.EVICTED]
    node.disk_fails = False
    rig.sleep(0.5)
    assert tiers(rig, "a") == [Tier.SSD]
    rig.check()


def test_what_memory_gives_up_while_its_disk_is_away_is_not_erased_there() -> None:
    rig = small()
    plain = rig.add_node(14 * KIB, name="plain")
    started = rig.start("a", length=OBJECT, durable=True, preferred=("plain",))
    rig.land(started, ("a",), OBJECT)
    rig.commit(started)
    assert tiers(rig, "a") == [Tier.DRAM, Tier.SSD]
    rig.cut(disk_of(rig))
    fill(rig, "b", "c", preferred=("plain",))
    assert not any(entry.key == "a" for entry in plain.entries.values())
    assert rig.locate("a") == [MissReason.NODE_DOWN]
    rig.register(disk_of(rig))
    rig.sleep(0.5)
    assert tiers(rig, "a") == [Tier.SSD]
    rig.check()


def test_what_a_disk_lost_while_it_was_away_is_dropped_when_it_is_listed_again() -> None:
    rig = small()
    fill(rig, *"abcd")
    node = disk_of(rig)
    rig.cut(node)
    node.forget("a")
    rig.register(node)
    rig.sleep(0.2)
    assert rig.exists(*"abcd") == [False, True, True, True]
    assert rig.locate("a") == [MissReason.LOST]
    rig.check()


def test_a_disk_that_moved_to_another_node_is_found_there() -> None:
    rig = small()
    fill(rig, "a", "b", "c")
    rig.add_node(14 * KIB, name="new")
    old, new = disk_of(rig), rig.nodes["new"]
    rig.cut(old)
    new.disks, old.disks = old.disks, {}
    moved = {p: e for p, e in old.entries.items() if p[0] in new.disks}
    old.entries = {p: e for p, e in old.entries.items() if p not in moved}
    new.entries |= moved
    rig.register(old)
    rig.cut(new)
    rig.register(new)
    rig.sleep(0.2)
    assert rig.exists("a", "b", "c") == [True] * 3
    rig.check()


def test_directories_of_disks_are_listed_in_pages() -> None:
    rig = small(directory_page=2)
    fill(rig, *"abcdefgh")
    rig.restart()
    rig.automatic = False
    for node in rig.nodes.values():
        rig.begin_registration(node)
    asked = 0
    while any(node.inbox for node in rig.nodes.values()):
        for node in rig.nodes.values():
            while node.inbox:
                asked += isinstance(node.inbox[0][1], ListDirectory)
                rig.deliver(node)
    assert asked >= 4
    rig.automatic = True
    rig.open(SPACE)
    assert rig.exists(*"abcdefgh") == [True] * 8
