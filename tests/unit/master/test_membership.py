"""Nodes come, go silent, return, lose their memory (reports 003 008 029 030)."""

from __future__ import annotations

import pytest

from mooncake_master.core.complaints import ACTIVE_S
from mooncake_store.errors import InvalidArgument, WrongPeer
from mooncake_store.limits import KIB, MIB
from mooncake_store.types import TERM_MAX, MissReason, NodeState
from mooncake_store.wire.control import (
    CommitItem,
    Committed,
    DescribeCluster,
    Locate,
    Location,
    PutCommit,
    PutExists,
    PutGrant,
    Refusal,
    Register,
    ReportTransfers,
    SegmentRecord,
)
from tests.unit.master.rig import SPACE, Rig
from tests.unit.master.test_eviction import BLOCK, fill


def states(rig: Rig) -> dict[str, NodeState]:
    status = rig.ask(DescribeCluster())
    return {node.record.name: NodeState(node.record.state) for node in status.nodes}


def test_a_silent_node_becomes_suspect_then_dead_then_forgotten() -> None:
    rig = Rig(MIB, MIB, suspect_after_s=2.0, dead_after_s=6.0, forget_after_s=20.0)
    quiet = rig.nodes["n1"]
    keys = [f"k{number}" for number in range(20)]
    rig.put(*keys)
    held = [
        key
        for key, item in zip(keys, rig.locate(*keys), strict=True)
        if isinstance(item, Location) and item.replicas[0].incarnation in quiet.segments
    ]
    index, quiet.index = quiet.index, -1  # no heartbeats from now on
    rig.sleep(2.5)
    assert states(rig) == {"n0": NodeState.LIVE, "n1": NodeState.SUSPECT}
    assert isinstance(rig.locate(*held)[0], Location), "it may still be there: read last"
    rig.sleep(4.0)
    assert states(rig)["n1"] is NodeState.DEAD
    assert set(rig.locate(*held)) == {MissReason.NODE_DOWN}
    assert rig.exists(*held) == [False] * len(held)
    quiet.index = index
    rig.sleep(0.2)
    assert states(rig)["n1"] is NodeState.LIVE
    assert all(isinstance(item, Location) for item in rig.locate(*held))
    quiet.index = -1
    rig.sleep(25.0)
    rig.sleep(1.0)
    assert set(states(rig)) == {"n0"}
    assert set(rig.locate(*held)) == {MissReason.LOST}
    assert rig.counter('mooncake_master_replicas_lost_total{node="n1"}') == len(held)
    rig.check()


def test_report_008_a_pause_of_the_master_is_no_death_of_its_nodes() -> None:
    rig = Rig(MIB, MIB, MIB, suspect_after_s=2.0, dead_after_s=3.0)
    keys = fill(rig, 100, length=100)
    rig.tick()
    rig.tick(10.0)
    assert set(states(rig).values()) == {NodeState.LIVE}
    assert all(isinstance(item, Location) for item in rig.locate(*keys))
    assert rig.counter("mooncake_master_pauses_total") == 1
    rig.sleep(4.0)
    assert set(states(rig).values()) == {NodeState.LIVE}


def test_report_008_writers_get_time_after_a_pause_of_the_master() -> None:
    rig = Rig(MIB, put_ttl_s=1.0)
    started = rig.start("k")
    rig.tick(10.0)
    assert isinstance(rig.commit(started).items[0], Committed)


def test_a_node_that_is_not_live_gets_no_new_objects() -> None:
    rig = Rig(MIB, MIB)
    rig.cut(rig.nodes["n1"])
    for number in range(20):
        (grant,) = rig.start(f"k{number}").items
        assert rig.node_of(grant.replicas[0].incarnation).name == "n0"


def test_with_a_node_away_a_put_is_stored_with_fewer_copies_and_says_so() -> None:
    rig = Rig(MIB, MIB)
    rig.cut(rig.nodes["n1"])
    (result,) = rig.put("k", replicas=2)
    assert isinstance(result, Committed)
    assert result.replicas == 1


def test_suspect_replicas_are_read_last() -> None:
    rig = Rig(MIB, MIB, suspicion_s=5.0)
    rig.put("k", replicas=2)
    bad = rig.nodes["n0"]
    rig.ask(ReportTransfers(bad.index, 5, 0, "unreachable"))
    assert states(rig)["n0"] is NodeState.SUSPECT
    for _ in range(4):
        (found,) = rig.locate("k")
        assert isinstance(found, Location)
        assert rig.node_of(found.replicas[-1].incarnation) is bad
    rig.sleep(6.0)
    assert states(rig)["n0"] is NodeState.LIVE


def test_report_003_failures_in_a_row_make_a_node_suspect_and_a_success_clears_it() -> None:
    rig = Rig(MIB, MIB)
    index = rig.nodes["n0"].index
    for _ in range(4):
        rig.ask(ReportTransfers(index, 1, 0))
    rig.ask(ReportTransfers(index, 0, 3))
    rig.ask(ReportTransfers(index, 4, 0))
    assert states(rig)["n0"] is NodeState.LIVE
    rig.ask(ReportTransfers(index, 1, 0))
    assert states(rig)["n0"] is NodeState.SUSPECT
    (grant,) = rig.start("k").items
    assert rig.node_of(grant.replicas[0].incarnation).name == "n1"
    rig.ask(ReportTransfers(index, 0, 1))
    rig.tick(0.02)
    assert states(rig)["n0"] is NodeState.LIVE
    assert rig.counter("mooncake_master_transfer_failures_total") == 9
    rig.ask(ReportTransfers(999, 1, 0))
    with pytest.raises(InvalidArgument):
        rig.ask(ReportTransfers(index, -1, 0))


UNCONFIRMED = "mooncake_master_complaints_unconfirmed_total"


def test_one_client_of_several_makes_no_node_suspect() -> None:
    rig = Rig(MIB, MIB)
    index = rig.nodes["n0"].index
    rig.put("k", peer=7)
    for _ in range(20):
        rig.ask(ReportTransfers(index, 5, 0, "unreachable"), peer=8)
    assert states(rig)["n0"] is NodeState.LIVE
    assert rig.counter(UNCONFIRMED) == 20
    rig.ask(ReportTransfers(index, 2, 0, "unreachable"), peer=7)
    assert states(rig)["n0"] is NodeState.SUSPECT
    rig.ask(ReportTransfers(index, 0, 1), peer=7)
    rig.tick(0.02)
    assert states(rig)["n0"] is NodeState.LIVE


def test_the_only_client_at_work_is_believed() -> None:
    rig = Rig(MIB, MIB)
    index = rig.nodes["n0"].index
    rig.put("k", peer=7)
    rig.put("l", peer=9)
    rig.sleep(ACTIVE_S + 1.0)
    rig.perform(rig.master.peer_lost(9, rig.now_s))
    rig.ask(ReportTransfers(index, 5, 0, "unreachable"), peer=8)
    assert states(rig)["n0"] is NodeState.SUSPECT


def test_what_a_client_said_long_ago_confirms_nothing() -> None:
    rig = Rig(MIB, MIB, suspicion_s=2.0)
    index = rig.nodes["n0"].index
    rig.put("k", peer=7)
    rig.ask(ReportTransfers(index, 4, 0, "unreachable"), peer=7)
    rig.sleep(3.0)
    rig.ask(ReportTransfers(index, 4, 0, "unreachable"), peer=8)
    assert states(rig)["n0"] is NodeState.LIVE
    rig.ask(ReportTransfers(index, 4, 0, "unreachable"), peer=7)
    assert states(rig)["n0"] is NodeState.SUSPECT
    rig.sleep(3.0)
    assert states(rig)["n0"] is NodeState.LIVE


def test_a_client_that_reports_every_node_does_not_stop_the_others() -> None:
    rig = Rig(MIB, MIB)
    for node in rig.nodes.values():
        rig.ask(ReportTransfers(node.index, 5, 0, "unreachable"))
    assert set(states(rig).values()) == {NodeState.SUSPECT}
    rig.put("k", replicas=2)
    assert isinstance(rig.locate("k")[0], Location)


def test_a_report_cannot_carry_counters_out_of_the_wire() -> None:
    rig = Rig(MIB)
    index = rig.nodes["n0"].index
    for failures, successes in ((1 << 63, 0), (0, (1 << 63) - 1)):
        with pytest.raises(InvalidArgument, match="at most"):
            rig.ask(ReportTransfers(index, failures, successes))
    assert rig.counter("mooncake_master_transfer_failures_total") == 0


def test_a_node_that_returns_with_its_memory_is_adopted_again() -> None:
    rig = Rig(MIB, MIB)
    keys = fill(rig, 40, length=KIB)
    node = rig.nodes["n1"]
    rig.cut(node)
    assert MissReason.NODE_DOWN in rig.locate(*keys)
    rig.sleep(1.0)
    rig.register(node)
    assert all(isinstance(item, Location) for item in rig.locate(*keys))
    assert rig.check().readable == 40


def test_a_node_that_returns_without_its_memory_has_lost_what_it_held() -> None:
    rig = Rig(MIB, MIB, evict_slice=7)
    keys = fill(rig, 40, length=KIB)
    node = rig.nodes["n1"]
    rig.cut(node)
    rig.wipe(node)
    rig.register(node)
    found = rig.locate(*keys)
    lost = [key for key, item in zip(keys, found, strict=True) if not isinstance(item, Location)]
    assert lost
    assert rig.exists(*lost) == [False] * len(lost)
    assert isinstance(rig.put(lost[0])[0], Committed)
    rig.sleep(1.0)
    assert set(rig.locate(*lost[1:])) == {MissReason.LOST}
    assert rig.counter('mooncake_master_replicas_lost_total{node="n1"}') >= len(lost) - 1
    rig.check()


def test_what_was_removed_meanwhile_is_erased_when_the_node_returns() -> None:
    rig = Rig(MIB, MIB)
    keys = fill(rig, 40, length=KIB)
    node = rig.nodes["n1"]
    for key in keys:  # the bytes are there
        (found,) = rig.locate(key)
        assert isinstance(found, Location)
    rig.cut(node)
    rig.sleep(6.0)
    assert rig.remove(*keys) == [True] * 40
    assert rig.check().used_bytes > 0, "what lies on the node that is away is not reused"
    rig.register(node)
    assert rig.check().used_bytes == 0
    assert rig.exists(*keys) == [False] * 40


def test_a_removal_waits_for_leases_on_a_node_that_is_away_and_no_longer() -> None:
    rig = Rig(MIB, lease_ttl_s=2.0)
    rig.put("k")
    rig.locate("k")
    rig.add_node(MIB)
    rig.cut(rig.nodes["n0"])
    before = rig.now_s
    assert rig.remove("k") == [True]
    assert 1.9 < rig.now_s - before < 2.2


def test_an_attempt_whose_node_went_away_cannot_be_committed() -> None:
    rig = Rig(MIB)
    started = rig.start("k")
    rig.cut(rig.nodes["n0"])
    (result,) = rig.commit(started).items
    assert isinstance(result, Refusal)
    assert result.code == "replicas_unavailable"


def test_a_key_whose_only_holder_is_away_can_be_put_again() -> None:
    """Report 002."""
    rig = Rig(MIB, MIB)
    keys = fill(rig, 40, length=KIB)
    node = rig.nodes["n1"]
    rig.cut(node)
    results = rig.put(*keys)
    assert {type(result) for result in results} == {Committed, PutExists}
    rig.register(node)
    assert all(isinstance(item, Location) for item in rig.locate(*keys))
    assert rig.check().objects == 40


def test_a_window_on_a_node_that_goes_away_is_given_up() -> None:
    rig = Rig(MIB, MIB, automatic=False, high_watermark=1.0, low_watermark=1.0)
    rig.settle()
    rig.automatic = True
    fill(rig, 130)
    rig.automatic = False
    number = rig.begin("large", length=500 * KIB)
    assert number not in rig.replies
    node = next(node for node in rig.nodes.values() if node.inbox)
    rig.cut(node)
    rig.automatic = True
    (grant,) = rig.wait(number).items
    assert isinstance(grant, PutGrant)
    assert rig.node_of(grant.replicas[0].incarnation) is not node
    rig.register(node)
    rig.check()


def test_report_029_a_newcomer_does_not_get_everything_at_once() -> None:
    rig = Rig(4 * MIB, 4 * MIB, 4 * MIB, ramp_s=30.0)
    fill(rig, 3 * 4 * 58)
    rig.sleep(60.0)
    newcomer = rig.add_node(4 * MIB)
    counts = dict.fromkeys(rig.nodes, 0)
    for batch in range(10):
        started = rig.start(*(f"b{batch}.{n}" for n in range(32)), length=BLOCK // 16)
        here = dict.fromkeys(rig.nodes, 0)
        for grant in started.items:
            here[rig.node_of(grant.replicas[0].incarnation).name] += 1
        assert max(here.values()) < 32, "a whole batch went to one node"
        for name, count in here.items():
            counts[name] += count
        rig.commit(started)
        rig.sleep(1.0)
    assert counts[newcomer.name] <= 0.6 * 320
    assert counts[newcomer.name] >= 0.1 * 320


def test_nobody_evicts_while_another_node_has_room() -> None:
    rig = Rig(MIB, 4 * MIB, lease_ttl_s=0.0, high_watermark=1.0, low_watermark=1.0)
    fill(rig, 5 * 66 - 5)
    assert rig.counter("mooncake_master_evicted_replicas_total") == 0


def test_objects_are_spread_in_proportion_to_free_space() -> None:
    rig = Rig(2 * MIB, 6 * MIB)
    fill(rig, 200)
    status = rig.ask(DescribeCluster())
    small, large = (node.objects for node in status.nodes)
    assert 2.0 < large / small < 4.0


def test_the_writers_own_node_comes_first_while_it_has_room_then_preferred_names() -> None:
    rig = Rig(MIB, 16 * MIB, 16 * MIB, high_watermark=1.0, low_watermark=1.0)
    near = rig.nodes["n0"]
    for number in range(66):
        (grant,) = rig.start(f"k{number}", length=BLOCK, near=(near.index,)).items
        assert rig.node_of(grant.replicas[0].incarnation) is near
    (grant,) = rig.start("more", length=BLOCK, near=(near.index,)).items
    assert rig.node_of(grant.replicas[0].incarnation) is not near
    (grant,) = rig.start("named", near=(near.index,), preferred=("n2",)).items
    assert rig.node_of(grant.replicas[0].incarnation).name == "n2"


def test_of_many_nodes_a_few_are_drawn() -> None:
    rig = Rig(*[MIB] * 40)
    used = set()
    for number in range(200):
        (grant,) = rig.start(f"k{number}").items
        used.add(rig.node_of(grant.replicas[0].incarnation).name)
    assert len(used) == 40


def test_report_026_copies_are_on_different_hosts_racks_and_zones_where_possible() -> None:
    rig = Rig(MIB)
    rig.nodes.clear()
    rig.restart()
    rig.open(SPACE)
    for rack in "ab":
        for host in "12":
            for slot in "xy":
                rig.add_node(MIB, name=f"{rack}{host}{slot}", host=f"{rack}{host}", rack=rack)
    for number in range(20):
        (grant,) = rig.start(f"k{number}", replicas=2).items
        racks = {rig.node_of(r.incarnation).labels["rack"] for r in grant.replicas}
        assert len(racks) == 2
        (grant,) = rig.start(f"m{number}", replicas=4).items
        hosts = {rig.node_of(r.incarnation).labels["host"] for r in grant.replicas}
        assert len(hosts) == 4
    (refusal,) = rig.start("too many", replicas=5).items
    assert refusal.code == "replicas_impossible"
    assert "there are 4" in refusal.message


def test_membership_is_told_once_per_change() -> None:
    rig = Rig(MIB)
    first = rig.ask(Locate(rig.slot, rig.epoch, [], membership=-1)).membership
    assert [node.name for node in first.nodes] == ["n0"]
    again = rig.ask(Locate(rig.slot, rig.epoch, [], membership=first.number))
    assert again.membership is None
    rig.add_node(MIB)
    news = rig.ask(Locate(rig.slot, rig.epoch, [], membership=first.number)).membership
    assert [node.name for node in news.nodes] == ["n0", "n1"]


def test_a_second_connection_of_a_node_closes_the_first() -> None:
    rig = Rig(MIB)
    node = rig.nodes["n0"]
    fill(rig, 5)
    old = node.peer
    rig.register(node)
    assert rig.closed == [old]
    rig.perform(rig.master.peer_lost(old, rig.now_s))
    assert states(rig)["n0"] is NodeState.LIVE
    assert rig.check().readable == 5


def register(**fields: object) -> Register:
    values: dict[str, object] = {
        "name": "x", "node_id": "f" * 32, "host": "h", "port": 1, "local_path": "", "labels": {},
        "segments": (SegmentRecord(77, MIB),),
    }  # fmt: skip
    return Register(**(values | fields))  # type: ignore[arg-type]  # any mixture is tried


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"node_id": ""},
        {"segments": ()},
        {"segments": (SegmentRecord(1_000 + n, MIB) for n in range(17))},
        {"segments": (SegmentRecord(7, MIB), SegmentRecord(7, MIB))},
        {"segments": (SegmentRecord(7, 0),)},
        {"segments": (SegmentRecord(7, 1_000),)},
        {"segments": (SegmentRecord(7, 1 << 60),)},
        {"segments": (SegmentRecord(0, MIB),)},
        {"segments": (SegmentRecord(-4, MIB),)},
        {"segments": (SegmentRecord(1 << 64, MIB),)},
        {"segments": (SegmentRecord(7, MIB, 7),)},
        {"port": -1},
        {"port": 1 << 16},
        {"term": -1},
        {"term": TERM_MAX},
    ],
)
def test_a_registration_that_makes_no_sense_is_refused(fields: dict[str, object]) -> None:
    if "segments" in fields:
        fields = {"segments": tuple(fields["segments"])}  # type: ignore[arg-type]  # a generator
    rig = Rig(MIB)
    with pytest.raises(InvalidArgument):
        rig.ask(register(**fields), peer=50)
    assert set(states(rig)) == {"n0"}


def test_two_nodes_cannot_have_one_name_or_one_segment() -> None:
    rig = Rig(MIB)
    node = rig.nodes["n0"]
    (incarnation,) = node.segments
    with pytest.raises(WrongPeer, match="another identity"):
        rig.ask(register(name="n0"), peer=50)
    with pytest.raises(WrongPeer, match="belongs to node"):
        rig.ask(register(segments=(SegmentRecord(incarnation, MIB),)), peer=50)
    fill(rig, 5)
    rig.cut(node)
    rig.ask(register(name="n0"), peer=51)
    rig.sleep(1.0)
    assert set(states(rig)) == {"n0"}
    assert rig.locate("k0") == [MissReason.LOST]
    rig.check()


def test_a_heartbeat_of_an_unknown_node_asks_it_to_register() -> None:
    rig = Rig(MIB)
    node = rig.nodes["n0"]
    assert rig.heartbeat(node).known
    rig.restart()
    assert not rig.heartbeat(node).known


def test_a_node_with_several_segments_is_filled_in_all_of_them() -> None:
    rig = Rig(MIB)
    rig.cut(rig.nodes["n0"])
    node = rig.add_node(MIB, MIB, MIB)
    fill(rig, 3 * 58)
    walk = rig.check()
    assert walk.objects == 3 * 58
    assert len(node.segments) == 3


def test_frees_that_a_node_answers_with_an_error_are_sent_again() -> None:
    rig = Rig(MIB, automatic=False)
    rig.settle()
    rig.automatic = True
    rig.put("k")
    rig.automatic = False
    number = rig.send_remove("k")
    node = rig.nodes["n0"]
    rig.deliver(node, lose=True)
    assert number not in rig.replies
    for _ in range(5):
        rig.tick(0.05)
    rig.settle()
    assert number in rig.replies
    assert rig.check().used_bytes == 0


def test_commits_after_the_node_lost_its_memory_are_refused() -> None:
    rig = Rig(MIB)
    started = rig.start("k")
    node = rig.nodes["n0"]
    rig.cut(node)
    rig.wipe(node)
    rig.register(node)
    message = PutCommit([CommitItem(started.items[0].version, 1)])
    (result,) = rig.ask(message).items
    assert isinstance(result, Refusal)
    rig.sleep(0.5)
    assert rig.check().used_bytes == 0
