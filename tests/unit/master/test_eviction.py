"""Room is made: eviction, windows, pins, groups, chains (reports 006 007 024 040 041 042 043)."""

from __future__ import annotations

import pytest

from mooncake_store.errors import InvalidArgument, PinLimitReached, TooManyObjects
from mooncake_store.limits import KIB, MIB
from mooncake_store.testing import seeded
from mooncake_store.types import MissReason, Pin
from mooncake_store.wire.control import (
    Committed,
    Location,
    MatchPrefix,
    Probe,
    PutGrant,
    PutItem,
    PutStart,
    Refusal,
    SetPin,
    Stat,
)
from tests.unit.master.rig import Free, Rig

BLOCK = 15 * KIB  # with header and names 15.5 KiB: 66 of them in a mebibyte
ON_DEMAND: dict[str, Free] = {"high_watermark": 1.0, "low_watermark": 1.0}


def fill(rig: Rig, count: int, *, prefix: str = "k", length: int = BLOCK) -> list[str]:
    keys = [f"{prefix}{number}" for number in range(count)]
    for key in keys:
        (result,) = rig.put(key, length=length)
        assert isinstance(result, Committed), result
    return keys


def set_pin(rig: Rig, pin: Pin, *keys: str, pin_s: float = 0.0) -> list[bool]:
    reply = rig.ask(SetPin(rig.slot, rig.epoch, list(keys), int(pin), pin_s))
    return [bool(found) for found in reply.found]


def test_the_least_recently_used_goes_first() -> None:
    rig = Rig(MIB, lease_ttl_s=0.0, **ON_DEMAND)
    keys = fill(rig, 66)
    rig.locate(*keys[:33])
    fill(rig, 33, prefix="new")
    assert rig.exists(*keys) == [True] * 33 + [False] * 33
    assert rig.locate(keys[-1]) == [MissReason.EVICTED]
    rig.check()


def test_first_in_first_out_does_not_care_about_reads() -> None:
    rig = Rig(MIB, lease_ttl_s=0.0, policy="fifo", **ON_DEMAND)
    keys = fill(rig, 66)
    rig.locate(*keys[:33])
    fill(rig, 33, prefix="new")
    assert rig.exists(*keys) == [False] * 33 + [True] * 33


def test_eviction_begins_at_the_high_watermark_and_ends_at_the_low_one() -> None:
    rig = Rig(4 * MIB, high_watermark=0.9, low_watermark=0.7)
    fill(rig, 240)
    rig.tick(0.02)
    used = rig.check().used_bytes
    assert 0.6 * 4 * MIB < used <= 0.7 * 4 * MIB


def test_watermark_eviction_is_done_in_slices() -> None:
    rig = Rig(4 * MIB, high_watermark=0.5, low_watermark=0.1, evict_slice=10)
    fill(rig, 160)
    before = rig.check().objects
    rig.tick(0.02)
    assert rig.check().objects == before - 10


def test_report_006_probing_everything_protects_nothing() -> None:
    rig = Rig(MIB, **ON_DEMAND)
    keys = fill(rig, 66)
    for number in range(200):
        rig.exists(*keys)
        rig.ask(Probe(rig.slot, rig.epoch, keys))
        rig.ask(MatchPrefix(rig.slot, rig.epoch, keys))
        (result,) = rig.put(f"new{number}", length=BLOCK)
        assert isinstance(result, Committed)


def test_report_006_what_is_being_read_is_not_evicted() -> None:
    rig = Rig(MIB, lease_ttl_s=60.0, **ON_DEMAND)
    keys = fill(rig, 66)
    read = keys[::3]
    rig.locate(*read)
    fill(rig, 200, prefix="new")
    assert rig.exists(*read) == [True] * len(read)


def test_report_007_no_put_fails_for_lack_of_space_while_evictable_bytes_exist() -> None:
    rig = Rig(4 * MIB, 4 * MIB, lease_ttl_s=0.5, **ON_DEMAND)
    random_ = seeded(7)
    written = 0
    while written < 4 * 8 * MIB:
        length = random_.choice([4 * KIB, 64 * KIB, 500 * KIB])
        keys = [f"k{written}.{n}" for n in range(random_.randint(1, 4))]
        started = rig.start(*keys, length=length)
        assert all(isinstance(item, PutGrant) for item in started.items)
        rig.commit(started)
        if random_.random() < 0.2:
            rig.locate(*keys)
        written += length * len(keys)
    rig.check()


def test_a_put_waits_for_leases_within_its_deadline() -> None:
    rig = Rig(MIB, lease_ttl_s=2.0, **ON_DEMAND)
    keys = fill(rig, 66)
    rig.locate(*keys)
    before = rig.now_s
    (result,) = rig.put("new", length=BLOCK)
    assert isinstance(result, Committed)
    assert 1.5 < rig.now_s - before < 2.5


def test_a_put_that_finds_no_room_says_why_at_its_deadline() -> None:
    rig = Rig(MIB, lease_ttl_s=60.0, **ON_DEMAND)
    rig.locate(*fill(rig, 66))
    before = rig.now_s
    (result,) = rig.start("new", length=BLOCK, deadline_s=2.0).items
    assert isinstance(result, Refusal)
    assert result.code == "no_space"
    assert rig.now_s - before <= 2.0
    assert rig.check().objects == 66


def test_room_for_a_batch_is_taken_from_several_victims() -> None:
    rig = Rig(MIB, **ON_DEMAND)
    fill(rig, 66)
    results = rig.put(*(f"n{number}" for number in range(40)), length=BLOCK)
    assert all(isinstance(result, Committed) for result in results)
    assert rig.check().objects == 66


def test_a_batch_larger_than_the_pool_gets_what_there_is_and_is_told_the_rest() -> None:
    rig = Rig(MIB, **ON_DEMAND)
    before = rig.now_s
    items = rig.start(*(f"n{number}" for number in range(80)), length=BLOCK).items
    assert sum(isinstance(item, PutGrant) for item in items) == 66
    assert rig.now_s == before, "that it cannot be is known at once"


def test_two_batches_that_need_the_whole_pool_do_not_wait_for_each_other() -> None:
    rig = Rig(MIB, automatic=False, **ON_DEMAND)
    rig.settle()
    rig.automatic = True
    holder = rig.start(*(f"h{number}" for number in range(60)), length=BLOCK)
    first = rig.begin(*(f"a{number}" for number in range(40)), length=BLOCK, peer=2)
    second = rig.begin(*(f"b{number}" for number in range(40)), length=BLOCK, peer=3)
    assert first not in rig.replies
    assert second not in rig.replies
    rig.commit(holder)
    granted = rig.wait(first)
    assert all(isinstance(item, PutGrant) for item in granted.items)
    rig.commit(granted, peer=2)
    granted = rig.wait(second)
    assert all(isinstance(item, PutGrant) for item in granted.items)


def test_a_small_put_is_not_kept_back_by_a_large_one_that_waits() -> None:
    rig = Rig(MIB, lease_ttl_s=60.0, **ON_DEMAND)
    rig.locate(*fill(rig, 64))
    large = rig.begin("large", length=500 * KIB, peer=2)
    (small,) = rig.start("small", length=KIB).items
    assert isinstance(small, PutGrant)
    assert large not in rig.replies


# --- report 024: holes ---------------------------------------------------------------------------


def test_report_024_large_objects_fit_where_every_second_small_one_was_removed() -> None:
    rig = Rig(32 * MIB, lease_ttl_s=0.0, **ON_DEMAND)
    length = 4 * KIB - 300
    keys = [f"k{number}" for number in range(8 * 1024)]
    for at in range(0, len(keys), 256):
        rig.put(*keys[at : at + 256], length=length)
    for at in range(0, len(keys), 1024):
        rig.remove(*keys[at : at + 1024 : 2])
    for number in range(4):  # 25 % of the pool would be one; the rule must hold beyond that
        (result,) = rig.put(f"large{number}", length=7 * MIB)
        assert isinstance(result, Committed), result
    walk = rig.check()
    assert walk.objects > 4


def test_report_024_after_removing_everything_one_object_of_90_percent_fits() -> None:
    rig = Rig(16 * MIB)
    keys = [f"k{number}" for number in range(1000)]
    for at in range(0, 1000, 100):
        rig.put(*keys[at : at + 100], length=4 * KIB)
    rig.remove(*keys)
    assert rig.check().used_bytes == 0
    (result,) = rig.put("huge", length=int(16 * MIB * 0.9))
    assert isinstance(result, Committed)


@pytest.mark.slow
def test_report_024_the_bimodal_mix_never_fails() -> None:
    """91 % below 16 KiB, 9 % of 8 to 16 MiB, 70 % of the pool live, 20,000 puts."""
    rig = Rig(256 * MIB, lease_ttl_s=0.0, **ON_DEMAND)
    random_ = seeded(24)
    live: dict[str, int] = {}
    live_bytes = 0
    for number in range(20_000):
        small = random_.random() < 0.91
        length = random_.randrange(16 * KIB) if small else random_.randrange(8 * MIB, 16 * MIB)
        while live and live_bytes + length > 0.7 * 256 * MIB:
            key = random_.choice(list(live)) if len(live) < 200 else next(iter(live))
            live_bytes -= live.pop(key)
            rig.remove(key)
        (result,) = rig.put(f"k{number}", length=length)
        assert isinstance(result, Committed), (number, length, result)
        live[f"k{number}"] = length
        live_bytes += length
    evicted = rig.counter('mooncake_master_objects_gone_total{reason="evicted"}')
    assert evicted < 1_000, "the mix strands so much space that eviction never rests"
    rig.check()


def test_small_objects_that_nobody_reads_do_not_outstay_large_ones_that_come_later() -> None:
    """Four of them take a little more room than a large one, and are older than all of those."""
    rig = Rig(4 * MIB, lease_ttl_s=0.0, **ON_DEMAND)
    old = fill(rig, 13, prefix="old")
    fill(rig, 3 * 70, prefix="large", length=4 * BLOCK)
    assert sum(rig.exists(*old)) <= 1  # The thirteenth, which is a quarter of a window by itself.
    rig.check()


def test_a_window_takes_its_room_even_when_others_come_in_between() -> None:
    rig = Rig(MIB, automatic=False, **ON_DEMAND)
    rig.settle()
    rig.automatic = True
    keys = fill(rig, 66)
    rig.remove(*keys[::2])
    rig.automatic = False
    number = rig.begin("large", length=900 * KIB)
    assert number not in rig.replies
    small = [rig.begin(f"s{n}", length=KIB, peer=2) for n in range(20)]
    rig.settle()
    (grant,) = rig.replies.pop(number).items
    assert isinstance(grant, PutGrant)
    rig.automatic = True
    for waiting in small:
        assert isinstance(rig.wait(waiting).items[0], PutGrant | Refusal)
    rig.check()


def test_a_hole_that_the_allocator_overlooks_is_found_as_a_window() -> None:
    """The allocator looks at a few holes of a size class only; the others are not lost."""
    rig = Rig(2 * MIB, lease_ttl_s=60.0, **ON_DEMAND)
    fits, small, between = 131 * 512 - 200, 128 * 512 - 200, 512 - 200
    rig.put("fits", length=fits)
    rig.put("b", length=between)
    for number in range(12):
        rig.put(f"s{number}", length=small)
        rig.put(f"b{number}", length=between)
    room = rig.check().free_bytes
    rig.put("rest", length=room - 200)
    keys = ["fits", *(f"s{number}" for number in range(12))]
    rig.locate("b", *(f"b{number}" for number in range(12)), "rest")
    rig.remove(*keys)
    (grant,) = rig.start("new", length=130 * 512 - 200).items
    assert isinstance(grant, PutGrant)
    assert rig.counter("mooncake_master_evicted_replicas_total") == 0
    rig.check()


def test_a_window_whose_put_is_gone_becomes_free() -> None:
    rig = Rig(MIB, automatic=False, **ON_DEMAND)
    rig.settle()
    rig.automatic = True
    fill(rig, 66)
    rig.automatic = False
    rig.begin("large", length=900 * KIB, peer=2)
    rig.perform(rig.master.peer_lost(2, rig.now_s))
    rig.settle()
    walk = rig.check()
    assert walk.attempts == 0
    assert walk.freeing == 0
    assert walk.used_bytes == sum(1 for _ in range(walk.objects)) * (BLOCK + 512)


# --- report 040: chains --------------------------------------------------------------------------


def put_chain(rig: Rig, chain: int, blocks: int, *, hint: bool) -> None:
    keys = [f"c{chain}.{number}" for number in range(blocks)]
    items = [
        PutItem(key, BLOCK, parent=keys[at - 1] if hint and at else "")
        for at, key in enumerate(keys)
    ]
    started = rig.ask(PutStart(rig.slot, rig.epoch, items))
    rig.commit(started)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_report_040_chains_lose_their_tails_before_their_heads(nodes: int) -> None:
    room = 30 * 40 * 16 * KIB
    rig = Rig(*[room // nodes // 512 * 512] * nodes, lease_ttl_s=0.0, **ON_DEMAND)
    random_ = seeded(40)
    for chain in range(50):
        put_chain(rig, chain, 40, hint=True)
        if chain > 5:
            other = random_.randrange(chain)
            rig.locate(*(f"c{other}.{number}" for number in range(40)))
    orphans = blocks = 0
    for chain in range(50):
        there = rig.exists(*(f"c{chain}.{number}" for number in range(40)))
        blocks += sum(there)
        orphans += sum(there[at] and not all(there[:at]) for at in range(40))
    assert blocks > 0.7 * 30 * 40
    assert orphans <= 0.05 * blocks
    rig.check()


def test_a_parent_that_is_pinned_or_absent_is_no_obstacle() -> None:
    rig = Rig(MIB, lease_ttl_s=0.0, **ON_DEMAND)
    put_chain(rig, 0, 10, hint=True)
    set_pin(rig, Pin.HARD, "c0.9")
    rig.put("alone", length=BLOCK, item={"parent": "never"})
    fill(rig, 200)
    there = rig.exists(*(f"c0.{number}" for number in range(10)))
    assert there == [False] * 9 + [True]
    rig.check()


def test_a_chain_that_bites_its_tail_is_no_obstacle() -> None:
    rig = Rig(MIB, lease_ttl_s=0.0, **ON_DEMAND)
    rig.put("a", length=BLOCK, item={"parent": "b"})
    rig.put("b", length=BLOCK, item={"parent": "a"})
    rig.put("a", length=BLOCK, item={"parent": "b"}, replace=True)
    rig.put("self", length=BLOCK, item={"parent": "self"})
    rig.put("self", length=BLOCK, item={"parent": "self"}, replace=True)
    fill(rig, 100)
    assert rig.exists("a", "b", "self") == [False] * 3
    rig.check()


# --- report 041: pins ----------------------------------------------------------------------------


def test_report_041_a_hard_pin_survives_five_pools_of_writes() -> None:
    rig = Rig(MIB, lease_ttl_s=0.0, **ON_DEMAND)
    rig.put("pinned", length=BLOCK, pin=int(Pin.HARD))
    fill(rig, 5 * 66)
    assert rig.exists("pinned") == [True]
    set_pin(rig, Pin.NONE, "pinned")
    fill(rig, 70, prefix="more")
    assert rig.exists("pinned") == [False]


def test_report_041_a_soft_pin_ends_when_promised_however_often_it_is_read() -> None:
    rig = Rig(MIB, lease_ttl_s=0.1, **ON_DEMAND)
    rig.put("pinned", length=BLOCK, pin=int(Pin.SOFT), pin_s=2.0)
    end_s = rig.now_s + 2.0
    while rig.now_s < end_s - 0.1:
        rig.sleep(0.1)
        rig.locate("pinned")
        fill(rig, 10, prefix=f"n{rig.now_s}")
    assert rig.exists("pinned") == [True]
    rig.sleep(0.3)
    fill(rig, 70, prefix="more")
    assert rig.exists("pinned") == [False]
    assert rig.check().pinned_bytes == 0


def test_report_041_pinning_beyond_the_limit_is_refused_with_a_reason() -> None:
    rig = Rig(MIB, pinned_share_max=0.5)
    results = rig.put(*(f"k{n}" for n in range(50)), length=BLOCK, pin=int(Pin.HARD))
    refused = [result for result in results if isinstance(result, Refusal)]
    assert len(refused) == 50 - 33
    assert refused[0].code == "pin_limit_reached"
    keys = fill(rig, 30, prefix="free")
    with pytest.raises(PinLimitReached, match="bytes are pinned"):
        set_pin(rig, Pin.HARD, *keys)
    assert rig.check().pinned_bytes <= MIB // 2


def test_report_041_a_pool_full_of_pins_makes_puts_fail_fast() -> None:
    rig = Rig(MIB, pinned_share_max=1.0, lease_ttl_s=0.0, **ON_DEMAND)
    rig.put(*(f"k{n}" for n in range(66)), length=BLOCK, pin=int(Pin.HARD))
    before = rig.now_s
    (result,) = rig.start("new", length=BLOCK).items
    assert isinstance(result, Refusal)
    assert result.code == "no_space"
    assert "are pinned" in result.message
    assert rig.now_s == before


def test_pins_that_cut_the_pool_in_pieces_make_large_puts_fail_fast() -> None:
    rig = Rig(MIB, pinned_share_max=1.0, lease_ttl_s=0.0, **ON_DEMAND)
    keys = fill(rig, 66)
    set_pin(rig, Pin.HARD, *keys[::8])
    before = rig.now_s
    (result,) = rig.start("new", length=200 * KIB).items
    assert isinstance(result, Refusal)
    assert rig.now_s == before
    (fits,) = rig.start("fits", length=90 * KIB).items
    assert isinstance(fits, PutGrant)


def test_a_soft_pin_that_ends_in_time_is_waited_for() -> None:
    rig = Rig(MIB, pinned_share_max=1.0, lease_ttl_s=0.0, **ON_DEMAND)
    rig.put(*(f"k{n}" for n in range(66)), length=BLOCK, pin=int(Pin.SOFT), pin_s=2.0)
    (result,) = rig.put("new", length=BLOCK)
    assert isinstance(result, Committed)


def test_a_pin_of_what_is_not_there_says_so_and_a_wrong_one_is_refused() -> None:
    rig = Rig()
    rig.put("k")
    assert set_pin(rig, Pin.HARD, "k", "absent") == [True, False]
    (record,) = rig.ask(Stat(rig.slot, rig.epoch, ["k"])).items
    assert record.pin == "hard"
    with pytest.raises(InvalidArgument):
        set_pin(rig, Pin.SOFT, "k", pin_s=-1.0)


def test_a_replace_does_not_inherit_the_pin() -> None:
    rig = Rig()
    rig.put("k", pin=int(Pin.HARD))
    rig.put("k", replace=True)
    assert rig.check().pinned_bytes == 0
    rig.put("k", replace=True, pin=int(Pin.HARD))
    rig.remove("k")
    assert rig.check().pinned_bytes == 0


# --- report 042: groups --------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2])
def test_report_042_groups_are_there_whole_or_gone_whole(replicas: int) -> None:
    rig = Rig(4 * MIB, 4 * MIB, lease_ttl_s=0.0, **ON_DEMAND)
    groups = [f"g{number}" for number in range(500)]
    for group in groups:
        keys = [f"{group}.{part}" for part in range(4)]
        rig.put(*keys, length=BLOCK, item={"group": group}, replicas=replicas)
    whole = 0
    for group in groups:
        there = rig.exists(*(f"{group}.{part}" for part in range(4)))
        assert len(set(there)) == 1, group
        whole += there[0]
    assert whole > 50
    rig.check()


def test_a_group_is_kept_while_one_of_it_is_leased_or_being_written() -> None:
    rig = Rig(MIB, lease_ttl_s=60.0, **ON_DEMAND)
    rig.put("a", "b", length=BLOCK, item={"group": "g"})
    rig.put("c", length=BLOCK, item={"group": "h"})
    rig.locate("b")
    started = rig.start("d", length=BLOCK, item={"group": "h"})
    fill(rig, 100)
    assert rig.exists("a", "b", "c") == [True] * 3
    rig.commit(started)
    fill(rig, 100, prefix="more")
    assert rig.exists("a", "b", "c", "d") == [True, True, False, False]
    rig.check()


def test_a_group_is_bounded_in_size() -> None:
    rig = Rig(16 * MIB, **ON_DEMAND)
    for at in range(0, 5_000, 500):
        rig.put(*(f"k{n}" for n in range(at, at + 500)), length=100, item={"group": "all"})
    (record,) = rig.ask(Stat(rig.slot, rig.epoch, ["k4999"])).items
    assert record.group == ""
    rig.check()


# --- report 043: entries -------------------------------------------------------------------------


def test_report_043_a_bound_on_keys_evicts_instead_of_growing() -> None:
    rig = Rig(16 * MIB, keys_max=100)
    fill(rig, 500, length=64)
    assert rig.check().objects == 100
    assert rig.exists("k499", "k400", "k399") == [True, True, False]


def test_a_bound_on_keys_that_may_not_go_refuses() -> None:
    rig = Rig(16 * MIB, keys_max=10, lease_ttl_s=60.0)
    rig.locate(*fill(rig, 10, length=64))
    (result,) = rig.start("k10").items
    assert isinstance(result, Refusal)
    assert result.code == TooManyObjects.code


def test_a_replica_goes_alone_where_another_one_stays() -> None:
    rig = Rig(MIB, 16 * MIB, lease_ttl_s=0.0, **ON_DEMAND)
    keys = [f"k{number}" for number in range(60)]
    rig.put(*keys, length=BLOCK, replicas=2)
    fill(rig, 60, prefix="two.")
    rig.put(*(f"more{number}" for number in range(100)), length=BLOCK, replicas=2)
    assert all(rig.exists(*keys))
    found = rig.locate(*keys)
    counts = [len(item.replicas) for item in found if isinstance(item, Location)]
    assert counts.count(1) > 30
    assert rig.counter('mooncake_master_objects_gone_total{reason="evicted"}') == 0
    rig.check()
