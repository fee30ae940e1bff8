"""What ``nodes --disks`` says of stores: what they gave up and did not take, and why."""

from __future__ import annotations

import pytest
from typer import Typer
from typer.testing import CliRunner

from mooncake_client._cli import cluster
from mooncake_store.types import NodeState
from mooncake_store.wire.control import ClusterStatus, NodeRecord, NodeStatus, StoreStatus

RECORD = NodeRecord(0, "node-1", "0" * 32, "10.0.0.7", 7001, "", NodeState.LIVE, (), {})
FIGURES = {
    "reads": 7.0, "stored": 20.0, "evicted": 3.0, "refused": 5.0, "refused_over_budget": 4.0,
    "refused_queue_full": 1.0, "lost": 0.0, "written_bytes": 3.0 * (1 << 20),
    "write_amplification": 1.25,
}  # fmt: skip
WELL = StoreStatus(1, "/mnt/a", "ready", "fine", 100, 50, 17, FIGURES)
SICK = StoreStatus(2, "/mnt/b", "degraded", "no room for a region", 100, 0, 0, {})


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of a node with two stores."""
    node = NodeStatus(RECORD, 10, 100, 1, 0.2, stores=(WELL, SICK))
    counters = {cluster.COPIES.format("demotion"): 20, cluster.COPIES.format("promotion"): 2}
    status = ClusterStatus("c", 3, "1.0", 60.0, (node,), counters)

    class Connected:
        def __enter__(self) -> Connected:  # noqa: PYI034 - never a subclass
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def describe_cluster(self) -> ClusterStatus:
            return status

    monkeypatch.setattr(cluster, "connect", lambda _: Connected())

    app = Typer()
    app.command()(cluster.nodes)
    done = CliRunner().invoke(app, ["--disks"])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_what_a_store_did_not_take_is_shown_by_reason(shown: list[str]) -> None:
    assert "5 (over_budget 4, queue_full 1)" in shown[1]
    assert "1.25 x" in shown[1]
    assert "3.0 MiB" in shown[1]


def test_a_store_in_trouble_says_why_and_one_that_is_well_says_nothing(shown: list[str]) -> None:
    assert "fine" not in shown[1]
    assert shown[2].endswith("no room for a region")


def test_demotions_and_promotions_are_counted(shown: list[str]) -> None:
    assert shown[3] == "since the master started: demoted 20 objects, promoted 2"
