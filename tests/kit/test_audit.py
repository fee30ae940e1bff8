"""The audit finds what does not add up."""

from __future__ import annotations

from typing import Self

import pytest

from mooncake_store.testing import audit, find_problems, overlaps, parse_metrics
from mooncake_store.testing.audit import shared_rows
from mooncake_store.wire import control

NODE = control.NodeRecord(
    0, "node-1", "0" * 32, "127.0.0.1", 1, "", 0, (control.SegmentRecord(7, 1 << 20),), {}
)


def record(key: str, offset: int, length: int = 1000) -> control.ObjectRecord:
    return control.ObjectRecord(
        key, 1, length, (control.ReplicaRecord("node-1", "dram", "live", 7, offset),)
    )


class FakeWire:
    """A master with one namespace and one node."""

    def __init__(self, objects: list[control.ObjectRecord], **wrong: int) -> None:
        self.objects = objects
        self.wrong = wrong

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, message: control.Message) -> control.Message:
        match message:
            case control.ListNamespaces():
                total = sum(item.length for item in self.objects)
                count = self.wrong.get("listed", len(self.objects))
                space = control.NamespaceRecord(1, "default", 1, {}, count, total)
                return control.NamespaceList((space,))
            case control.Scan(cursor=cursor):
                at = int(cursor or 0)
                more = str(at + 2) if at + 2 < len(self.objects) else ""
                return control.Scanned(self.objects[at : at + 2], more)
            case _:
                return self.status()

    def status(self) -> control.ClusterStatus:
        used = self.wrong.get("used", 1536 * len(self.objects))
        node = control.NodeStatus(NODE, used, 1 << 20, len(self.objects), 0.0)
        counters = {
            "mooncake_master_objects_acknowledged_total": self.wrong.get(
                "acknowledged", len(self.objects) + 1
            ),
            "mooncake_master_objects_recovered_total": 0,
            'mooncake_master_objects_gone_total{reason="evicted"}': 1,
        }
        return control.ClusterStatus("c", 1, "s", 0.0, (node,), counters)


THREE = [record("a", 0), record("b", 1536), record("c", 3072)]


def test_a_cluster_that_adds_up_passes() -> None:
    assert find_problems(FakeWire(THREE)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"listed": 5}, "says 5 objects"),
        ({"used": 0}, "says 0 bytes used"),
        ({"acknowledged": 9}, "acknowledged 9 + recovered 0 is not listed 3"),
        ({"acknowledged": -1}, "_total is -1"),
    ],
)
def test_what_does_not_add_up_is_named(wrong: dict[str, int], sentence: str) -> None:
    assert any(sentence in problem for problem in find_problems(FakeWire(THREE, **wrong)))  # type: ignore[arg-type]


def test_overlapping_extents_are_named() -> None:
    found = overlaps([("default", record("a", 0)), ("default", record("b", 512))])
    assert len(found) == 1
    assert "default/a version 1 on node-1 ends at 1536, default/b" in found[0]


def test_two_objects_in_one_row_of_a_store_are_named() -> None:
    on_disk = [
        ("default", control.ObjectRecord(key, 1, 9, (replica,)))
        for key in "ab"
        for replica in (control.ReplicaRecord("node-1", "ssd", "live", 8, 3),)
    ]
    (found,) = shared_rows(on_disk)
    assert found == (
        "row 3 of a store has default/a version 1 on node-1 and default/b version 1 on node-1"
    )
    assert not shared_rows(on_disk[:1])


def test_a_failed_audit_lists_everything() -> None:
    with pytest.raises(AssertionError, match="says 0 bytes used"):
        audit(lambda: FakeWire(THREE, used=0), settle_s=0.01)  # type: ignore[arg-type,return-value]


def test_metrics_are_read() -> None:
    page = '# HELP x y\n# TYPE x counter\nx{a="b c"} 3\ny 1.5e3\n'
    assert parse_metrics(page) == {'x{a="b c"}': 3.0, "y": 1500.0}
