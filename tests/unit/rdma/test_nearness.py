"""Which device is nearest to memory, told by a sysfs of the test's own."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import pytest

from mooncake_store.memory import address_of, numa_node_of
from mooncake_store.testing.verbs import FakeDevice, FakeFabric
from mooncake_store.transport.rdma import RdmaContext
from mooncake_store.transport.rdma import context as context_module
from mooncake_store.transport.rdma.nearness import (
    NOWHERE,
    OTHER_NODE,
    SAME_HOST_BRIDGE,
    SAME_NODE,
    SAME_SWITCH,
    UNKNOWN,
    Spot,
    nearest,
    nearness,
    spot_of_device,
    spot_of_pci,
)

if TYPE_CHECKING:
    from pathlib import Path

DEVICES = {
    # A GPU and a card behind one switch, a card at the same host bridge, one at the other socket.
    "gpu": ("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:10.0/0000:3d:00.0", 0),
    "mlx5_0": ("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:14.0/0000:3e:00.0", 0),
    "mlx5_1": ("pci0000:3a/0000:3a:02.0/0000:41:00.0", 0),
    "mlx5_2": ("pci0000:16/0000:16:01.0/0000:17:00.0", 0),
    "mlx5_3": ("pci0000:b8/0000:b8:01.0/0000:b9:00.0", 1),
}
CARDS = ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")


@pytest.fixture
def system(tmp_path: Path) -> Path:
    names = tmp_path / "class" / "infiniband"
    bus = tmp_path / "bus" / "pci" / "devices"
    names.mkdir(parents=True)
    bus.mkdir(parents=True)
    for name, (path, node) in DEVICES.items():
        folder = tmp_path / "devices" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "numa_node").write_text(f"{node}\n")
        (bus / folder.name).symlink_to(folder)
        if name != "gpu":
            (names / name).mkdir()
            (names / name / "device").symlink_to(folder)
    (names / "rxe0").mkdir()
    return tmp_path


def test_a_gpu_s_memory_is_nearest_to_the_card_at_its_switch(system: Path) -> None:
    gpu = spot_of_pci("0000:3d:00.0", system)
    cards = [spot_of_device(name, system) for name in CARDS]
    assert [nearness(card, gpu) for card in cards] == [
        SAME_SWITCH, SAME_HOST_BRIDGE, SAME_NODE, OTHER_NODE,
    ]  # fmt: skip
    assert nearest(cards, gpu) == (0,)
    assert nearest(cards[1:], gpu) == (0,)
    assert nearest(cards[2:3], gpu) == ()


def test_memory_of_the_host_is_near_to_all_cards_of_its_node(system: Path) -> None:
    cards = [spot_of_device(name, system) for name in CARDS]
    assert nearest(cards, Spot(0)) == (0, 1, 2)
    assert nearest(cards, Spot(1)) == (3,)
    assert nearest(cards, Spot(-1)) == ()
    assert nearness(cards[0], NOWHERE) == UNKNOWN


def test_what_sysfs_does_not_tell_does_not_matter(system: Path) -> None:
    assert spot_of_device("rxe0", system) == NOWHERE
    assert spot_of_device("gone", system) == NOWHERE
    assert spot_of_pci("0000:00:00.0", system) == NOWHERE
    (system / "devices" / DEVICES["mlx5_3"][0] / "numa_node").write_text("nonsense")
    assert spot_of_device("mlx5_3", system).node == -1


def test_memory_is_on_a_node_once_it_was_touched() -> None:
    memory = mmap.mmap(-1, 64 * mmap.PAGESIZE)
    address = address_of(memory)
    assert numa_node_of(address, len(memory)) == -1
    memory[mmap.PAGESIZE : 3 * mmap.PAGESIZE] = bytes(2 * mmap.PAGESIZE)
    touched = numa_node_of(address + mmap.PAGESIZE, 2 * mmap.PAGESIZE)
    if touched == -1:
        pytest.skip("this kernel does not tell where memory is (move_pages)")
    assert touched >= 0
    assert numa_node_of(address + mmap.PAGESIZE + 5, 1) == touched


def test_devices_take_turns_among_those_nearest_to_a_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = FakeFabric()
    devices = [FakeDevice(fabric, f"d{number}") for number in range(4)]
    for number, device in enumerate(devices):
        device.spot = Spot(number // 2)
    context = RdmaContext(devices, queue_pairs=2)
    monkeypatch.setattr(context_module, "numa_node_of", lambda *_: 1)
    memory = memoryview(bytearray(8192))
    with context.register(memory):
        near = context.near_to([memory[100:200]])
        assert near == (2, 3)
        names = [[rail.device.name for rail in context.order(number, near)] for number in (0, 1)]
        assert names == [["d2", "d3", "d0", "d1"], ["d3", "d2", "d1", "d0"]]
        assert [rail.device.name for rail in context.lanes(0, near)] == ["d3"]
        assert context.near_to([memoryview(bytearray(10))]) == ()
    assert context.near_to([memory]) == ()
    monkeypatch.setattr(context_module, "numa_node_of", lambda *_: -1)
    with context.register(memory):
        assert context.near_to([memory]) == ()
