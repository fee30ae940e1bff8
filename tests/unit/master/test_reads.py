"""Reads of the index: leases, probes, prefixes, waiting, pages (reports 002 019 020 031 039)."""

from __future__ import annotations

import pytest

from mooncake_store.errors import InvalidArgument
from mooncake_store.limits import KIB, MIB
from mooncake_store.testing import seeded
from mooncake_store.types import MissReason, Presence
from mooncake_store.wire.control import (
    Committed,
    DescribeCluster,
    Exists,
    Locate,
    Location,
    MatchPrefix,
    Probe,
    PutAbort,
    Renew,
    ReportReplica,
    Scan,
    Stat,
    Why,
)
from tests.unit.master.rig import Rig
from tests.unit.master.test_eviction import BLOCK, ON_DEMAND, fill


def test_results_are_in_the_order_of_the_request() -> None:
    rig = Rig()
    rig.put("a", "c")
    first, second, third, fourth = rig.locate("a", "b", "c", "a")
    assert isinstance(first, Location)
    assert second == MissReason.ABSENT
    assert isinstance(third, Location)
    assert fourth == first
    assert rig.exists("c", "b", "a") == [True, False, True]


def test_a_get_waits_for_a_put_that_is_under_way() -> None:
    rig = Rig()
    started = rig.start("k")
    number = rig.send(Locate(rig.slot, rig.epoch, ["k"], wait_ms=1_000))
    assert number not in rig.replies
    rig.commit(started)
    assert isinstance(rig.wait(number).items[0], Location)


def test_a_get_that_waits_for_a_put_learns_that_it_failed() -> None:
    rig = Rig()
    started = rig.start("k")
    number = rig.send(Locate(rig.slot, rig.epoch, ["k"], wait_ms=1_000))
    rig.ask(PutAbort([started.items[0].version]))
    assert rig.wait(number).items == [MissReason.ABSENT]


def test_a_get_waits_no_longer_than_it_said() -> None:
    rig = Rig()
    rig.start("k")
    before = rig.now_s
    assert rig.locate("k", wait_ms=500) == [MissReason.WRITING]
    assert 0.4 < rig.now_s - before < 0.6


def test_a_get_does_not_wait_where_an_older_version_is_readable() -> None:
    rig = Rig()
    rig.put("k")
    rig.start("k", replace=True)
    before = rig.now_s
    assert isinstance(rig.locate("k", wait_ms=500)[0], Location)
    assert rig.now_s == before


def test_report_002_what_a_probe_was_promised_is_there_for_that_time() -> None:
    rig = Rig(MIB, lease_ttl_s=0.5, **ON_DEMAND)
    random_ = seeded(2)
    fill(rig, 66)
    count = 66
    for _ in range(300):
        keys = [f"k{random_.randrange(count)}" for _ in range(8)]
        probed = rig.ask(Probe(rig.slot, rig.epoch, keys, hold_s=1.0))
        promised = [
            key for key, item in zip(keys, probed.items, strict=True)
            if item.presence == Presence.DRAM
        ]  # fmt: skip
        for _ in range(4):
            (result,) = rig.put(f"k{count}", length=BLOCK)
            assert isinstance(result, Committed)
            count += 1
        rig.tick(0.05)
        assert all(isinstance(item, Location) for item in rig.locate(*promised))


def test_report_002_a_replica_that_cannot_be_read_is_dropped_and_the_key_can_be_put() -> None:
    rig = Rig()
    rig.put("k")
    (found,) = rig.locate("k")
    assert isinstance(found, Location)
    replica = found.replicas[0]
    report = ReportReplica(
        rig.slot, rig.epoch, "k", found.version, replica.incarnation, replica.offset,
        "checksum_mismatch",
    )  # fmt: skip
    rig.ask(report)
    assert rig.exists("k") == [False]
    assert rig.locate("k") == [MissReason.CORRUPT]
    name = 'mooncake_master_replicas_dropped_total{reason="checksum_mismatch"}'
    assert rig.counter(name) == 1
    rig.ask(report)
    assert rig.counter(name) == 1, "it is not there any more"
    assert isinstance(rig.put("k")[0], Committed)
    rig.check()


def test_a_report_of_one_replica_leaves_the_others() -> None:
    rig = Rig(MIB, MIB)
    rig.put("k", replicas=2)
    (found,) = rig.locate("k")
    assert isinstance(found, Location)
    bad, good = found.replicas
    rig.ask(
        ReportReplica(rig.slot, rig.epoch, "k", found.version, bad.incarnation, bad.offset, "x\n")
    )
    (found,) = rig.locate("k")
    assert isinstance(found, Location)
    assert found.replicas == (good,)
    assert rig.counter('mooncake_master_replicas_dropped_total{reason="unknown"}') == 1


def test_reads_are_spread_over_the_replicas() -> None:
    rig = Rig(MIB, MIB)
    rig.put("k", replicas=2)
    firsts = set()
    for _ in range(4):
        (found,) = rig.locate("k")
        assert isinstance(found, Location)
        firsts.add(found.replicas[0].incarnation)
    assert len(firsts) == 2


def test_a_probe_speaks_of_what_there_is() -> None:
    rig = Rig(dram_latency_us=100, dram_bytes_per_s=float(MIB))
    rig.put("there", length=MIB)
    rig.start("coming")
    there, coming, absent = rig.ask(Probe(rig.slot, rig.epoch, ["there", "coming", "absent"])).items
    assert (there.presence, there.length) == (Presence.DRAM, MIB)
    assert there.estimate_us == 100 + 1_000_000
    assert coming.presence == Presence.WRITING
    assert absent.presence == Presence.ABSENT


def test_report_020_ranks_that_ask_with_one_id_get_one_answer_that_holds() -> None:
    rig = Rig(2 * MIB, lease_ttl_s=0.0, **ON_DEMAND)
    chain = [f"c{number}" for number in range(100)]
    rig.put(*chain, length=BLOCK)
    answers = []
    for rank in range(8):
        message = MatchPrefix(rig.slot, rig.epoch, chain, hold_s=5.0, probe_id="batch 7")
        answers.append(rig.ask(message, peer=rank).count)
        fill(rig, 60, prefix=f"r{rank}.")
        rig.tick(0.1)
    assert answers == [100] * 8
    assert all(isinstance(item, Location) for item in rig.locate(*chain))


def test_report_020_the_first_answer_stands_even_when_more_has_come() -> None:
    rig = Rig()
    rig.put("a")
    first = rig.ask(MatchPrefix(rig.slot, rig.epoch, ["a", "b"], probe_id="x", hold_s=2.0))
    rig.put("b")
    rig.tick(0.5)
    second = rig.ask(MatchPrefix(rig.slot, rig.epoch, ["a", "b"], probe_id="x", hold_s=2.0))
    assert (first.count, second.count) == (1, 1)
    assert second.hold_s == pytest.approx(1.5)
    assert rig.ask(MatchPrefix(rig.slot, rig.epoch, ["a", "b"], probe_id="y")).count == 2
    rig.sleep(40.0)
    assert rig.ask(MatchPrefix(rig.slot, rig.epoch, ["a", "b"], probe_id="x")).count == 2


def test_probe_ids_are_remembered_for_probes_too_and_bounded() -> None:
    rig = Rig(probes_max=10)
    first = rig.ask(Probe(rig.slot, rig.epoch, ["k"], probe_id="x"))
    rig.put("k")
    again = rig.ask(Probe(rig.slot, rig.epoch, ["k"], probe_id="x"))
    assert first.items == again.items
    for number in range(10):
        rig.ask(Probe(rig.slot, rig.epoch, ["k"], probe_id=f"other {number}"))
    forgotten = rig.ask(Probe(rig.slot, rig.epoch, ["k"], probe_id="x"))
    assert forgotten.items[0].presence == Presence.DRAM


def test_a_prefix_ends_at_the_first_gap() -> None:
    rig = Rig()
    rig.put("a", "b", "d")
    assert rig.ask(MatchPrefix(rig.slot, rig.epoch, ["a", "b", "c", "d"])).count == 2
    assert rig.ask(MatchPrefix(rig.slot, rig.epoch, [])).count == 0


@pytest.mark.parametrize("hold_s", [-1.0, float("nan")])
def test_a_hold_that_makes_no_sense_is_refused(hold_s: float) -> None:
    rig = Rig()
    with pytest.raises(InvalidArgument):
        rig.ask(Probe(rig.slot, rig.epoch, ["k"], hold_s=hold_s))


def test_a_probe_id_that_is_too_long_is_refused() -> None:
    rig = Rig()
    with pytest.raises(InvalidArgument, match="probe id"):
        rig.ask(Probe(rig.slot, rig.epoch, ["k"], probe_id="x" * 1_000))


def test_report_019_a_long_read_renews_its_lease() -> None:
    rig = Rig(MIB, lease_ttl_s=0.5, **ON_DEMAND)
    keys = fill(rig, 66)
    (found,) = rig.locate(keys[0])
    assert isinstance(found, Location)
    for number in range(10):
        rig.tick(0.3)
        renewed = rig.ask(Renew(rig.slot, rig.epoch, [keys[0]], [found.version]))
        assert renewed.renewed == b"\1"
        assert renewed.lease_s == 0.5
        fill(rig, 66, prefix=f"n{number}.")
    assert rig.exists(keys[0]) == [True]
    rig.tick(0.6)
    fill(rig, 66, prefix="last")
    assert rig.ask(Renew(rig.slot, rig.epoch, [keys[0]], [found.version])).renewed == b"\0"


def test_renewals_name_a_version_for_each_key() -> None:
    rig = Rig()
    with pytest.raises(InvalidArgument, match="to renew"):
        rig.ask(Renew(rig.slot, rig.epoch, ["k"], []))


def test_misses_are_counted_under_their_reason() -> None:
    """Report 030."""
    rig = Rig(MIB, **ON_DEMAND)
    keys = fill(rig, 67)
    rig.remove(keys[5])
    rig.start("writing")
    rig.locate(keys[0], keys[5], "never", "writing")
    for reason in ("evicted", "removed", "absent", "writing"):
        assert rig.counter(f'mooncake_master_misses_total{{reason="{reason}"}}') == 1, reason
    assert rig.ask(Why(rig.slot, rig.epoch, keys[0])).reason == MissReason.EVICTED
    assert rig.ask(Why(rig.slot, rig.epoch, keys[5])).reason == MissReason.REMOVED
    assert rig.ask(Why(rig.slot, rig.epoch, "never")).reason == MissReason.ABSENT
    readable = rig.ask(Why(rig.slot, rig.epoch, keys[9]))
    assert readable.reason == -1
    assert "n0" in readable.detail


def test_the_memory_of_gone_keys_is_bounded() -> None:
    rig = Rig(gone_keys_max=10)
    keys = fill(rig, 30, length=KIB)
    rig.remove(*keys)
    assert rig.locate(keys[0], keys[-1]) == [MissReason.ABSENT, MissReason.REMOVED]


def test_report_039_one_request_looks_at_a_bounded_number_of_keys() -> None:
    rig = Rig()
    for message in (Locate(rig.slot, rig.epoch, ["k"] * 4_097),
                    Stat(rig.slot, rig.epoch, ["k"] * 4_097)):  # fmt: skip
        with pytest.raises(InvalidArgument, match="at most 4096"):
            rig.ask(message)


def test_report_031_stat_tells_where_copies_are_and_leaves_no_trace() -> None:
    rig = Rig(MIB, MIB, lease_ttl_s=3.0)
    rig.put("k", replicas=2, item={"group": "g", "parent": "p"})
    rig.locate("k")
    rig.tick(1.0)
    record, missing = rig.ask(Stat(rig.slot, rig.epoch, ["k", "absent"])).items
    assert missing == MissReason.ABSENT
    assert {replica.node for replica in record.replicas} == {"n0", "n1"}
    assert {(r.tier, r.state) for r in record.replicas} == {("dram", "readable")}
    assert record.lease_left_s == pytest.approx(2.0)
    assert (record.group, record.parent, record.wanted_replicas) == ("g", "p", 2)
    (again,) = rig.ask(Stat(rig.slot, rig.epoch, ["k"])).items
    assert again == record


def scan(rig: Rig, prefix: str = "", limit: int = 7) -> list[str]:
    keys: list[str] = []
    cursor = ""
    while True:
        page = rig.ask(Scan(rig.slot, rig.epoch, prefix, cursor, limit))
        assert len(page.items) <= limit
        keys += [record.key for record in page.items]
        cursor = page.cursor
        if not cursor:
            return keys


def test_report_031_a_scan_lists_every_object_once_in_the_order_of_making() -> None:
    rig = Rig()
    keys = fill(rig, 1_000, length=10)
    rig.put(keys[3], replace=True)
    assert scan(rig, limit=64) == keys
    assert scan(rig, "k99") == [key for key in keys if key.startswith("k99")]
    assert scan(rig, "nothing") == []


def test_a_scan_lists_what_is_there_all_the_time_exactly_once() -> None:
    rig = Rig()
    random_ = seeded(3)
    stable = fill(rig, 300, prefix="s", length=10)
    other = fill(rig, 300, prefix="o", length=10)
    seen: list[str] = []
    cursor = ""
    for number in range(10_000):
        page = rig.ask(Scan(rig.slot, rig.epoch, "", cursor, 5))
        seen += [record.key for record in page.items]
        cursor = page.cursor
        if not cursor:
            break
        rig.remove(random_.choice(other))
        rig.put(random_.choice(stable), length=10, replace=True)
        rig.put(f"n{number}", length=10)
    assert sorted(key for key in seen if key.startswith("s")) == sorted(stable)
    assert len(seen) == len(set(seen))


def test_a_scan_over_few_survivors_stays_cheap_and_complete() -> None:
    rig = Rig()
    keys = fill(rig, 3_000, length=10)
    kept = keys[::300]
    rig.remove(*(key for key in keys if key not in set(kept)))
    assert scan(rig, limit=3) == kept
    rig.remove(*kept[::2])
    rig.put("new", length=10)
    assert scan(rig, limit=3) == [*kept[1::2], "new"]
    rig.check()


def test_a_page_looks_at_a_bounded_number_of_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooncake_master.core.inspection.EXAMINED_MAX", 300)
    rig = Rig()
    fill(rig, 2_000, length=10)
    page = rig.ask(Scan(rig.slot, rig.epoch, "nothing"))
    assert page.items == []
    assert page.cursor
    assert len(scan(rig, limit=1_000)) == 2_000


@pytest.mark.parametrize(
    "cursor",
    ["x", "1", "1.2", "1.1.x", "1.-1.0", "1.1.2.3", "1.²", "1.1.²", "1." + "9" * 100 + ".0"],
)
def test_a_cursor_that_is_none_is_refused(cursor: str) -> None:
    rig = Rig()
    with pytest.raises(InvalidArgument, match="cursor"):
        rig.ask(Scan(rig.slot, rig.epoch, cursor=cursor))


@pytest.mark.parametrize("limit", [0, -1, 1_001])
def test_a_page_size_that_makes_no_sense_is_refused(limit: int) -> None:
    rig = Rig()
    with pytest.raises(InvalidArgument, match="page"):
        rig.ask(Scan(rig.slot, rig.epoch, limit=limit))


def test_report_030_counters_do_not_move_when_nothing_happens() -> None:
    rig = Rig()
    fill(rig, 10)
    before = rig.master.statistics()
    rig.sleep(10.0)
    assert rig.master.statistics() == before


def test_exists_is_counted_and_leaves_no_trace() -> None:
    rig = Rig(MIB, **ON_DEMAND)
    keys = fill(rig, 66)
    reply = rig.ask(Exists(rig.slot, rig.epoch, [*keys, "absent"]))
    assert reply.found == b"\1" * 66 + b"\0"
    assert rig.counter("mooncake_master_keys_probed_total") == 67
    fill(rig, 1, prefix="new")
    assert rig.exists(keys[0]) == [False], "exists is no use"


def test_the_cluster_describes_itself() -> None:
    rig = Rig(MIB)
    rig.put("k")
    status = rig.ask(DescribeCluster())
    (node,) = status.nodes
    assert node.record.name == "n0"
    assert node.objects == 1
    assert node.capacity_bytes == MIB
    assert status.counters["mooncake_master_objects_count"] == 1
    assert status.counters["mooncake_master_objects_acknowledged_total"] == 1
