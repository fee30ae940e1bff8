"""What doctor says of clusters and hosts that are well, and of ones that are not."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from mooncake_client._cli import findings
from mooncake_client._cli.findings import Finding, Verdict, is_this_host, look_at_cluster
from mooncake_store.types import NodeState
from mooncake_store.wire.control import ClusterStatus, NodeRecord, NodeStatus

RECORD = NodeRecord(
    index=0,
    name="node-1",
    node_id="0" * 32,
    host="10.0.0.7",
    port=7001,
    local_path="",
    state=NodeState.LIVE,
    segments=(),
    labels={},
)
NODE = NodeStatus(record=RECORD, used_bytes=10, capacity_bytes=100, objects=1, heartbeat_age_s=0.2)
STATUS = ClusterStatus(
    cluster_id="c", term=3, software="1.0", uptime_s=60.0, nodes=(NODE,), counters={}
)


def bad_findings(status: ClusterStatus, master: str = "10.0.0.1") -> list[Finding]:
    found = list(look_at_cluster(status, "1.0", master))
    return [finding for finding in found if finding.verdict is Verdict.BAD]


def with_node(*, record: dict[str, object] | None = None, **changes: object) -> ClusterStatus:
    changed = msgspec.structs.replace(RECORD, **(record or {}))
    node = msgspec.structs.replace(NODE, record=changed, **changes)
    return msgspec.structs.replace(STATUS, nodes=(node,))


def test_nothing_is_wrong_with_a_healthy_cluster() -> None:
    assert bad_findings(STATUS) == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (msgspec.structs.replace(STATUS, software="0.9"), "run one version everywhere"),
        (msgspec.structs.replace(STATUS, nodes=()), "no live node"),
        (with_node(record={"state": NodeState.SUSPECT}, note="2 failures"), "suspect (2 failures)"),
        (with_node(record={"state": NodeState.DEAD}), "no live node"),
        (with_node(heartbeat_age_s=4.0), "no heartbeat for 4.0 s"),
        (with_node(record={"host": "127.0.0.1"}), "take for themselves"),
        (with_node(record={"host": "::"}), "nobody can connect"),
        (with_node(record={"port": 0}), "has no data port"),
        (with_node(used_bytes=99), "does not make room"),
        (with_node(capacity_bytes=0), "pools no memory"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_said(status: ClusterStatus, said: str) -> None:
    assert said in " ".join(finding.text for finding in bad_findings(status))


def test_a_node_that_is_drained_is_worth_knowing_and_nothing_bad() -> None:
    other = msgspec.structs.replace(NODE, record=msgspec.structs.replace(RECORD, name="node-2"))
    drained = with_node(record={"state": NodeState.DRAINED}, note="7 objects moved")
    status = msgspec.structs.replace(drained, nodes=(*drained.nodes, other))
    assert bad_findings(status) == []
    texts = [finding.text for finding in look_at_cluster(status, "1.0", "10.0.0.1")]
    assert "drained (7 objects moved)" in texts


def test_loopback_is_right_where_everything_is_on_one_host() -> None:
    assert bad_findings(with_node(record={"host": "127.0.0.1"}), master="localhost") == []


def test_limits_that_are_too_small_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _which: (256, 256))
    texts = {finding.text: finding.verdict for finding in findings.look_at_host(1 << 60)}
    assert any(
        "256 open files" in text and verdict is Verdict.BAD for text, verdict in texts.items()
    )
    assert any("enlarge it" in text and verdict is Verdict.BAD for text, verdict in texts.items())
    assert any("RDMA needs" in text and verdict is Verdict.NOTE for text, verdict in texts.items())


def test_a_host_without_nodes_needs_no_shared_memory() -> None:
    assert not any(str(findings.SHM) in finding.text for finding in findings.look_at_host(0))


def test_only_addresses_of_this_machine_are_this_host() -> None:
    assert is_this_host("127.0.0.1")
    assert is_this_host("localhost")
    assert not is_this_host("192.0.2.1")
    assert not is_this_host("no such name.invalid")


def test_findings_are_plain_data() -> None:
    assert dataclasses.asdict(findings.ok("a", "b")) == {
        "subject": "a",
        "verdict": "ok",
        "text": "b",
    }
