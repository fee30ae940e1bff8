"""`doctor` says in one line what keeps RDMA from working, and what happens instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mooncake_client._cli import rdma_findings
from mooncake_client._cli.findings import Finding, Verdict
from mooncake_client._cli.rdma_findings import look_at_rdma
from mooncake_store.testing.verbs import FakeDevice
from mooncake_store.types import NodeState
from mooncake_store.wire.control import ClusterStatus, NodeRecord, NodeStatus

if TYPE_CHECKING:
    from mooncake_store.testing.verbs import FakeFabric
    from mooncake_store.wire.control import Register


@pytest.fixture
def device(fabric: FakeFabric, monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """What doctor finds on its host."""
    device = FakeDevice(fabric, "mlx5_0")
    monkeypatch.setattr(rdma_findings, "device_names", lambda: ["mlx5_0"])
    monkeypatch.setattr(rdma_findings, "open_devices", lambda: ([device], []))
    return device


def look(register: Register) -> list[Finding]:
    record = NodeRecord(
        0, register.name, register.node_id, register.host, register.port, "", NodeState.LIVE, (), {}
    )
    node = NodeStatus(record, 0, 1, 0, 0.1)
    return list(look_at_rdma(ClusterStatus("c", 1, "1", 1.0, (node,), {})))


def test_all_is_well(register: Register, device: FakeDevice) -> None:
    found = look(register)
    assert [finding.verdict for finding in found] == [Verdict.OK, Verdict.OK]
    assert found[0].text == "mlx5_0 opens and locks 8.0 MiB"
    assert found[1].text == "RDMA over mlx5_0, MTU 4096"
    assert device.registered == 0
    assert not any(pair.device is device for pair in device.fabric.queue_pairs.values())


def test_no_device(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_findings, "device_names", list)
    (found,) = look(register)
    assert found.verdict is Verdict.NOTE
    assert found.text == "no device on this host: bytes go over TCP instead"


@pytest.mark.parametrize(
    "problem",
    [
        "pyverbs is not installed: apt install python3-pyverbs",
        "mlx5_0 may not be opened by this user: allow /dev/infiniband/uverbs*",
        "mlx5_0 has RoCE v1 addresses only: give its network interface an IP address",
    ],
)
def test_a_device_that_cannot_be_opened(
    register: Register, device: FakeDevice, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    del device
    monkeypatch.setattr(rdma_findings, "open_devices", lambda: ([], [problem]))
    (found,) = look(register)
    assert found.verdict is Verdict.BAD
    assert found.text == f"{problem}; bytes go over TCP instead"


def test_too_little_memory_to_lock(
    register: Register, device: FakeDevice, fabric: FakeFabric
) -> None:
    del device
    fabric.faults.memlock_bytes = 1 << 20
    found = look(register)
    assert [finding.verdict for finding in found] == [Verdict.BAD, Verdict.BAD]
    assert all("ulimit -l" in finding.text for finding in found)


def test_another_mtu_than_the_node_s(register: Register, device: FakeDevice) -> None:
    device.mtu_bytes = 1024
    found = look(register)[1]
    assert found.verdict is Verdict.NOTE
    assert "packets of 1024 bytes, as the MTU is 1024 here and 4096 there" in found.text


def test_a_node_that_the_fabric_does_not_reach(
    register: Register, device: FakeDevice, fabric: FakeFabric
) -> None:
    del device
    fabric.faults.is_cut = True
    found = look(register)[1]
    assert found.verdict is Verdict.BAD
    assert found.text.startswith(f"RDMA to node {register.name}: ")
    assert found.text.endswith("bytes go over TCP instead")


def test_a_node_that_finds_no_way_back_says_why(
    register: Register, device: FakeDevice, fabric: FakeFabric
) -> None:
    del device
    fabric.faults.refuse = True
    found = look(register)[1]
    assert "the node refuses: no way to" in found.text
