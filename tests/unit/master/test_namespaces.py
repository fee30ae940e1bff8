"""Namespaces, clearing and removing (reports 014 030 047 067)."""

from __future__ import annotations

import pytest

from mooncake_store.errors import (
    DeadlineExceeded,
    InvalidArgument,
    ManifestMismatch,
    NotSupported,
    ObjectNotFound,
    Overloaded,
    StaleEpoch,
)
from mooncake_store.limits import KIB, MIB
from mooncake_store.types import MissReason, Pin
from mooncake_store.wire.control import (
    Clear,
    CommitItem,
    Hello,
    ListNamespaces,
    OpenNamespace,
    PutCommit,
    Refusal,
    SetEpochs,
)
from tests.unit.master.rig import SPACE, Rig
from tests.unit.master.test_eviction import BLOCK, ON_DEMAND, fill


def test_a_namespace_is_made_at_first_use_and_the_nodes_know_its_epoch_first() -> None:
    rig = Rig(automatic=False)
    rig.settle()
    node = rig.nodes["n0"]
    number = rig.send(OpenNamespace("new"))
    assert number not in rig.replies
    assert isinstance(node.inbox[0][1], SetEpochs)
    rig.settle()
    record = rig.replies[number]
    assert node.epochs[record.slot] == record.epoch == 1


def test_a_frozen_node_does_not_keep_namespaces_from_opening() -> None:
    rig = Rig(automatic=False, acknowledge_grace_s=1.0)
    before = rig.now_s
    rig.open("new")
    assert rig.now_s - before < 1.2


def test_a_manifest_that_differs_is_refused_and_says_how() -> None:
    """Report 014."""
    rig = Rig()
    rig.open("model", {"model": "a", "dtype": "bf16"})
    rig.open("model", {"dtype": "bf16", "model": "a"})
    assert rig.open("model").manifest == {"model": "a", "dtype": "bf16"}
    with pytest.raises(ManifestMismatch, match="dtype: 'bf16' there, 'fp8' stated"):
        rig.open("model", {"model": "a", "dtype": "fp8"})
    with pytest.raises(ManifestMismatch):
        rig.open("model", {})


def test_a_manifest_can_be_stated_later() -> None:
    rig = Rig()
    rig.open("model")
    rig.open("model", {"model": "a"})
    with pytest.raises(ManifestMismatch):
        rig.open("model", {"model": "b"})


@pytest.mark.parametrize("name", ["", "a\0b", "n" * 300])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        Rig().open(name)


def test_a_manifest_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="manifest"):
        Rig().open("model", {"model": "x" * 20_000})


def test_a_key_that_came_back_and_went_after_a_clear_has_the_later_reason() -> None:
    rig = Rig(4 * MIB, evict_slice=10)
    fill(rig, 200, length=KIB)
    record = rig.ask(Clear(SPACE))
    rig.slot, rig.epoch = record.slot, record.epoch
    rig.put("k0")
    rig.remove("k0")
    assert rig.locate("k0") == [MissReason.REMOVED]
    rig.sleep(3.0)
    assert rig.locate("k0", "k1") == [MissReason.REMOVED, MissReason.CLEARED]


def test_the_number_of_namespaces_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooncake_master.core.catalog.NAMESPACES_MAX", 3)
    rig = Rig()
    rig.open("two")
    rig.open("three")
    with pytest.raises(Overloaded, match="namespaces"):
        rig.open("four")
    names = [space.name for space in rig.ask(ListNamespaces()).namespaces]
    assert names == sorted([SPACE, "two", "three"])


def test_namespaces_do_not_see_each_other() -> None:
    rig = Rig()
    rig.put("k")
    record = rig.open("other")
    rig.slot, rig.epoch = record.slot, record.epoch
    assert rig.exists("k") == [False]
    rig.put("k")
    assert {s.name: s.objects for s in rig.ask(ListNamespaces()).namespaces} == {
        SPACE: 1,
        "other": 1,
    }


def test_report_067_a_clear_is_one_step_and_everything_older_is_gone() -> None:
    rig = Rig(4 * MIB, evict_slice=10)
    keys = fill(rig, 200, length=KIB)
    rig.locate(*keys[:20])
    old = (rig.slot, rig.epoch)
    writing = rig.start("late", peer=2)
    record = rig.ask(Clear(SPACE))
    assert (record.epoch, record.objects) == (2, 0)
    with pytest.raises(StaleEpoch, match="it was cleared"):
        rig.exists("k0")
    (late,) = rig.ask(PutCommit([CommitItem(writing.items[0].version, 1)])).items
    assert isinstance(late, Refusal)
    assert late.code == "stale_epoch"
    rig.slot, rig.epoch = record.slot, record.epoch
    assert rig.exists(*keys, "late") == [False] * 201
    assert rig.locate(*keys) == [MissReason.CLEARED] * 200, "freed or not yet"
    assert rig.locate("never") == [MissReason.ABSENT]
    assert rig.gauge("mooncake_master_objects_count") == 0
    rig.put("k0")
    rig.sleep(3.0)
    assert rig.locate("k0", "k1")[1] == MissReason.CLEARED
    walk = rig.check()
    assert walk.objects == 1
    assert walk.freeing == 0
    assert rig.counter('mooncake_master_objects_gone_total{reason="cleared"}') == 200
    rig.slot, rig.epoch = old
    with pytest.raises(StaleEpoch):
        rig.start("k")


def test_a_clear_while_a_put_waits_for_room_ends_that_put() -> None:
    rig = Rig(MIB, lease_ttl_s=60.0, **ON_DEMAND)
    rig.locate(*fill(rig, 66))
    number = rig.begin("new", length=BLOCK)
    assert number not in rig.replies
    rig.ask(Clear(SPACE))
    rig.tick(0.02)
    assert isinstance(rig.replies[number], StaleEpoch)
    assert rig.check().attempts == 0


def test_room_of_a_cleared_namespace_is_there_at_once_even_when_it_was_pinned() -> None:
    rig = Rig(MIB, pinned_share_max=1.0, evict_slice=3, **ON_DEMAND)
    rig.put(*(f"k{n}" for n in range(66)), length=BLOCK, pin=int(Pin.HARD))
    record = rig.ask(Clear(SPACE))
    rig.slot, rig.epoch = record.slot, record.epoch
    results = rig.put(*(f"n{number}" for number in range(40)), length=BLOCK)
    assert not any(isinstance(result, Refusal) for result in results)
    rig.sleep(3.0)
    assert rig.check().objects == 40


def test_a_clear_is_answered_when_every_node_knows_or_every_lease_has_ended() -> None:
    rig = Rig(MIB, MIB, lease_ttl_s=2.0, acknowledge_grace_s=0.1)
    keys = fill(rig, 10)
    rig.locate(*keys)
    rig.automatic = False
    number = rig.send(Clear(SPACE))
    rig.deliver(rig.nodes["n0"])
    rig.sleep(1.0)
    assert number not in rig.replies
    rig.sleep(1.2)
    assert number in rig.replies


def test_a_clear_waits_for_the_leases_of_readers_of_a_node_that_is_away() -> None:
    rig = Rig(MIB, MIB, keeps=True, lease_ttl_s=2.0, acknowledge_grace_s=0.1)
    rig.put("a", preferred=("n1",))
    rig.locate("a")
    rig.cut(rig.nodes["n1"])
    number = rig.send(Clear(SPACE))
    rig.sleep(1.0)
    assert number not in rig.replies, "whoever has the lease may still read there"
    rig.sleep(1.2)
    assert number in rig.replies


def test_clearing_what_is_not_there_says_so() -> None:
    with pytest.raises(ObjectNotFound, match="no namespace"):
        Rig().ask(Clear("never"))


def test_report_047_remove_is_right_at_the_first_try() -> None:
    rig = Rig(lease_ttl_s=5.0)
    rig.put("a", "b")
    rig.locate("a")
    rig.exists("a", "b")
    before = rig.now_s
    assert rig.remove("a", "absent", "b", "a") == [True, False, True, False]
    assert rig.now_s == before, "the nodes have confirmed: nothing to wait for"
    assert rig.locate("a") == [MissReason.REMOVED]
    assert rig.check().used_bytes == 0


def test_report_047_a_removal_ends_by_its_deadline_and_stands() -> None:
    rig = Rig(automatic=False, lease_ttl_s=60.0)
    rig.settle()
    rig.automatic = True
    rig.put("k")
    rig.locate("k")
    rig.automatic = False
    with pytest.raises(DeadlineExceeded, match="the change stands"):
        rig.remove("k", deadline_s=1.0)
    assert rig.exists("k") == [False]


def test_report_030_gauges_equal_a_full_walk_after_everything() -> None:
    rig = Rig(MIB, 2 * MIB, lease_ttl_s=0.0)
    fill(rig, 100)
    rig.check()
    rig.put("k1", replace=True)
    rig.check()
    rig.remove("k2", "k3")
    rig.check()
    fill(rig, 300, prefix="more")
    rig.check()
    node = rig.nodes["n1"]
    rig.cut(node)
    rig.check()
    rig.register(node)
    rig.check()
    rig.cut(node)
    rig.wipe(node)
    rig.register(node)
    rig.sleep(1.0)
    rig.check()
    rig.ask(Clear(SPACE))
    rig.sleep(1.0)
    walk = rig.check()
    assert (walk.objects, walk.used_bytes) == (0, 0)
    assert all(value >= 0 for value in rig.master.statistics().gauges.values())


def test_a_message_that_is_no_request_is_refused() -> None:
    with pytest.raises(NotSupported, match="Hello"):
        Rig().ask(Hello(1, "client", "c", "s"))


def test_opening_a_namespace_does_not_wait_long_for_a_frozen_node() -> None:
    rig = Rig(16 * MIB, 16 * MIB)
    rig.automatic = False
    began_s = rig.now_s
    rig.open("new")
    assert rig.now_s - began_s < 0.5
