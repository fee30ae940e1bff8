"""A node's devices: which are opened, how they are named, and when a dead process lets go."""

from __future__ import annotations

import os
import signal
import socket
from select import EPOLLET, EPOLLRDHUP, epoll
from typing import TYPE_CHECKING

import pytest

from mooncake_storage_node import rdma_ports
from mooncake_storage_node.rdma_ports import open_ports
from mooncake_storage_node.settings import NodeSettings
from mooncake_store.errors import ConfigError
from mooncake_store.testing.verbs import FakeDevice, FakeFabric

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_storage_node.app import StorageNode


def test_no_devices_where_none_are_wanted(fabric: FakeFabric) -> None:
    del fabric
    assert open_ports(["none"], [], lock=0) is None
    assert open_ports(["auto"], [], lock=0) is not None


def test_what_keeps_a_named_device_from_working_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fabric = FakeFabric()

    def opened(names: Sequence[str]) -> tuple[list[FakeDevice], list[str]]:
        return [FakeDevice(fabric, name) for name in names[1:]], ["there is no RDMA device mlx5_9"]

    monkeypatch.setattr(rdma_ports, "open_devices", opened)
    with pytest.raises(ConfigError, match="--rdma-devices: there is no RDMA device mlx5_9"):
        open_ports(["mlx5_9", "mlx5_0"], [], lock=0)
    assert not fabric.gids
    caplog.set_level("INFO")
    assert open_ports(["auto"], [], lock=0) is None
    assert "there is no RDMA device mlx5_9" in caplog.text


@pytest.mark.parametrize("devices", [(), ("auto", "mlx5_0"), ("none", "mlx5_0")])
def test_a_list_of_devices_that_means_nothing_is_refused(devices: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="is auto, none, or names of devices"):
        NodeSettings(rdma_devices=devices)


def test_a_node_that_may_not_lock_its_pool_serves_without_rdma(
    fabric: FakeFabric,
    start_node: Callable[..., StorageNode],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fabric.faults.memlock_bytes = 1 << 20
    node = start_node()
    assert "rdma=none" in node.describe()
    assert "no RDMA over node0" in caplog.text


def test_devices_are_opened_above_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    hole, lock = os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_RDONLY)
    os.close(hole)
    opened = []

    def open_devices(_names: Sequence[str]) -> tuple[list[FakeDevice], list[str]]:
        opened.append(os.open(os.devnull, os.O_RDONLY))
        return [], []

    monkeypatch.setattr(rdma_ports, "open_devices", open_devices)
    open_ports(["auto"], [], lock=lock)
    assert opened[0] > lock
    for descriptor in (lock, *opened):
        os.close(descriptor)


def test_the_kernel_closes_the_highest_descriptor_of_a_dying_process_first() -> None:
    """What makes the lock on a node's memory prove that the dead owner's device is closed."""
    pairs = [socket.socketpair() for _ in range(6)]
    child = os.fork()
    if not child:
        for ours, _ in pairs:
            ours.close()
        signal.pause()
        os._exit(0)
    with epoll() as poll:
        order = {}
        for place, (ours, theirs) in enumerate(pairs):
            theirs.close()
            poll.register(ours, EPOLLRDHUP | EPOLLET)
            order[ours.fileno()] = place
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        closed = [order[descriptor] for descriptor, _ in poll.poll(1)]
    for ours, _ in pairs:
        ours.close()
    assert closed == [5, 4, 3, 2, 1, 0]
