"""Addresses of ports, offers on the wire, and where pyverbs is found."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from mooncake_store.errors import ConfigError, NotSupported, Overloaded, ProtocolError
from mooncake_store.testing.verbs import FakeDevice, FakeFabric
from mooncake_store.transport.rdma import RdmaContext
from mooncake_store.transport.rdma import context as context_module
from mooncake_store.transport.rdma.context import Rail
from mooncake_store.transport.rdma.gids import Gid, choose_gid
from mooncake_store.transport.rdma.loading import load_pyverbs
from mooncake_store.wire.rdma import (
    ENDPOINT_BYTES,
    Endpoint,
    LinkLayer,
    Region,
    decode_endpoint,
    decode_offer,
    encode_endpoint,
    encode_offer,
)

if TYPE_CHECKING:
    from pathlib import Path

LOCAL = bytes.fromhex("fe80") + bytes(13) + b"\x01"
GLOBAL = bytes.fromhex("2001") + bytes(13) + b"\x01"
IPV4 = bytes(10) + b"\xff\xff\x0a\x63\x00\x01"
PEER = Endpoint(17, 99, IPV4, 3, LinkLayer.ETHERNET, 2, 1024, 16, 1)


def test_the_address_that_is_reached_from_furthest_is_chosen() -> None:
    table = [Gid(0, LOCAL, 1), Gid(1, LOCAL, 2), Gid(2, GLOBAL, 2), Gid(3, IPV4, 1),
             Gid(4, IPV4, 2), Gid(5, bytes(16), 2)]  # fmt: skip
    for expected in (4, 2, 1):
        assert choose_gid(table, LinkLayer.ETHERNET, "mlx5_0").place == expected
        table = [gid for gid in table if gid.place != expected]
    with pytest.raises(ConfigError, match="RoCE v1 addresses only"):
        choose_gid(table, LinkLayer.ETHERNET, "mlx5_0")
    with pytest.raises(ConfigError, match="mlx5_0 has no address"):
        choose_gid([], LinkLayer.ETHERNET, "mlx5_0")
    assert choose_gid([Gid(0, LOCAL, 0)], LinkLayer.INFINIBAND, "mlx5_0").place == 0
    with pytest.raises(ConfigError, match="subnet manager"):
        choose_gid([], LinkLayer.INFINIBAND, "mlx5_0")


def test_an_endpoint_and_an_offer_are_read_as_they_were_written() -> None:
    regions = [Region(5, 1 << 30, 4096, 1 << 21, 7, 8), Region(6, 512, 1 << 40, 1 << 41, 9, 10)]
    assert decode_endpoint(encode_endpoint(PEER)) == PEER
    offer = encode_offer(3, PEER, regions)[28:]
    assert decode_offer(offer) == (PEER, regions)


@pytest.mark.parametrize(
    "change",
    [{"number": 1 << 24}, {"first_psn": 1 << 24}, {"link": 3}, {"mtu_bytes": 1500}],
)
def test_what_no_queue_pair_can_have_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ProtocolError):
        decode_endpoint(encode_endpoint(PEER._replace(**change)))  # type: ignore[arg-type]


def test_pieces_of_offers_are_refused() -> None:
    offer = encode_offer(3, PEER, [Region(1, 2, 3, 4, 5, 6)])[28:]
    for cut in (0, 10, ENDPOINT_BYTES - 1, ENDPOINT_BYTES + 1, len(offer) - 1):
        with pytest.raises(ProtocolError):
            decode_offer(offer[:cut])


def forget_pyverbs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyverbs"]:
        monkeypatch.delitem(sys.modules, name)


def test_pyverbs_is_told_to_be_installed_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_pyverbs(monkeypatch)
    with pytest.raises(NotSupported, match="apt install python3-pyverbs"):
        load_pyverbs([tmp_path])


def test_a_pyverbs_for_another_python_is_said_to_be_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_pyverbs(monkeypatch)
    folder = tmp_path / "pyverbs"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "device.cpython-27-x86_64-linux-gnu.so").touch()
    with pytest.raises(NotSupported, match="built for another Python"):
        load_pyverbs([tmp_path])


def test_only_pyverbs_is_taken_from_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_pyverbs(monkeypatch)
    folder = tmp_path / "pyverbs"
    folder.mkdir()
    (folder / "__init__.py").write_text("here = True\n")
    (folder / "device.py").touch()
    suffix = f"cpython-{sys.version_info.major}{sys.version_info.minor}-x86_64-linux-gnu.so"
    (folder / f"device.{suffix}").touch()
    (tmp_path / "stranger.py").touch()
    before = list(sys.path)
    with pytest.raises(NotSupported, match="cannot be loaded"):
        load_pyverbs([tmp_path])  # The extension module is an empty file.
    assert sys.path == before
    assert "pyverbs" not in sys.modules


def test_near_devices_take_turns_and_far_ones_wait() -> None:
    fabric = FakeFabric()
    devices = [FakeDevice(fabric, name) for name in ("far0", "near0", "near1", "far1")]
    for device in devices:
        device.is_near = device.name.startswith("near")
    context = RdmaContext(devices)
    orders = [[rail.device.name for rail in context.order(number)] for number in range(3)]
    assert orders == [
        ["near0", "near1", "far0", "far1"],
        ["near1", "near0", "far1", "far0"],
        ["near0", "near1", "far0", "far1"],
    ]
    with pytest.raises(ConfigError):
        RdmaContext([])


def test_a_device_that_stays_in_use_is_said_and_the_others_are_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fabric = FakeFabric()
    devices = [FakeDevice(fabric, "busy"), FakeDevice(fabric, "other")]
    devices[0].is_busy = True
    RdmaContext(devices).close()
    assert [record.message for record in caplog.records] == [
        "busy is still in use: Device or resource busy"
    ]
    assert fabric.gids == {devices[0].gid}


def test_slabs_are_bounded_and_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "SLABS_MAX", 2)
    rail = Rail(FakeDevice(FakeFabric()))
    first, second = rail.take_slab(), rail.take_slab()
    with pytest.raises(Overloaded):
        rail.take_slab()
    rail.give_slab(first)
    assert rail.take_slab() is first
    rail.give_slab(second)
    monkeypatch.setattr(rail.device.fabric.faults, "memlock_bytes", 0)  # type: ignore[attr-defined]
    assert rail.take_slab() is second
    rail.give_slab(first)
    rail._slabs.clear()
    with pytest.raises(ConfigError):
        rail.take_slab()
    rail.close()
