"""The handshake, and what a peer of another version or with other ideas meets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from mooncake_store import limits
from mooncake_store.errors import (
    NotSupported,
    ProtocolError,
    ProtocolMismatch,
    StoreError,
    Unreachable,
)
from mooncake_store.testing import MasterProcess, WireClient
from mooncake_store.wire import control, frames

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.processes

HELLO_OF_VERSION_1 = bytes.fromhex(
    "1b000000010000000100000088130000"
    "9401a6636c69656e74a474657374ac31206f6620746865206f6e65"
)  # fmt: skip
"""Recorded: what the first release sends; it has to work for as long as the version is 1."""


def raw(master: MasterProcess) -> WireClient:
    return WireClient("127.0.0.1", master.port, greet=False)


def body_frame(kind: int, fields: Sequence[object], request_id: int = 1, flags: int = 0) -> bytes:
    body = msgspec.msgpack.encode(fields)
    return frames.HEADER.pack(len(body), kind, flags, request_id, 5000) + body


def test_a_client_is_welcomed_and_told_the_cluster_and_its_times(wire: WireClient) -> None:
    welcome = wire.welcome
    assert welcome.protocol == limits.PROTOCOL_VERSION
    assert welcome.software.startswith("mooncake-store ")
    assert len(welcome.cluster_id) == 16
    assert welcome.lease_ttl_s == pytest.approx(0.2)
    assert welcome.put_ttl_s == pytest.approx(30.0)


@pytest.mark.parametrize(("protocol", "older"), [(2, "master"), (0, "client"), (99, "master")])
def test_a_peer_of_another_protocol_version_is_told_which_side_to_upgrade(
    master: MasterProcess, protocol: int, older: str
) -> None:
    with raw(master) as wire:
        with pytest.raises(ProtocolMismatch, match=f"upgrade the {older}"):
            wire.ask(control.Hello(protocol, "client", "test", "another"))
        assert wire.closes_within(30.0)


def test_a_handshake_of_a_later_version_may_look_different(master: MasterProcess) -> None:
    with raw(master) as wire:
        wire.send_bytes(body_frame(1, [7, {"role": "client"}, None]))
        with pytest.raises(ProtocolMismatch, match="upgrade the master"):
            wire.reply(1)


def test_the_recorded_handshake_of_version_1_works(master: MasterProcess) -> None:
    with raw(master) as wire:
        wire.send_bytes(HELLO_OF_VERSION_1)
        assert isinstance(wire.reply(1), control.Welcome)


def test_fields_that_a_newer_peer_appends_are_ignored(master: MasterProcess) -> None:
    with raw(master) as wire:
        wire.send_bytes(body_frame(1, [1, "client", "test", "newer", "more", [1, 2]]))
        assert isinstance(wire.reply(1), control.Welcome)
        wire.send_bytes(body_frame(11, ["a field", {"of": "later"}], request_id=2))
        assert isinstance(wire.reply(2), control.NamespaceList)


def test_an_unknown_request_gets_a_typed_error_and_the_connection_stays_usable(
    wire: WireClient,
) -> None:
    for kind in (9, 49, 77, 65_535):
        wire.send_bytes(body_frame(kind, [1, 2, 3], request_id=4_000_000_000))
        with pytest.raises(NotSupported, match=f"kind {kind}"):
            wire.reply(4_000_000_000)
    assert isinstance(wire.ask(control.ListNamespaces()), control.NamespaceList)


def test_a_client_cannot_play_a_node(wire: WireClient) -> None:
    with pytest.raises(NotSupported, match="a client cannot send Heartbeat"):
        wire.ask(control.Heartbeat(0, "", 1, 0, 0, 0))
    assert isinstance(wire.ask(control.ListNamespaces()), control.NamespaceList)


@pytest.mark.parametrize("role", ["", "admin", "master"])
def test_a_peer_without_a_known_role_is_refused(master: MasterProcess, role: str) -> None:
    with raw(master) as wire:
        with pytest.raises(StoreError, match="role"):
            wire.ask(control.Hello(1, role, "test", "x"))
        assert wire.closes_within(30.0)


def test_a_request_before_the_handshake_is_refused(master: MasterProcess) -> None:
    with raw(master) as wire:
        with pytest.raises(ProtocolError, match="Hello"):
            wire.ask(control.ListNamespaces())
        assert wire.closes_within(30.0)


def test_a_second_handshake_is_refused_and_the_connection_stays_usable(wire: WireClient) -> None:
    with pytest.raises(NotSupported):
        wire.ask(control.Hello(1, "node", "test", "x"))
    assert isinstance(wire.ask(control.ListNamespaces()), control.NamespaceList)


def test_a_malformed_request_gets_a_typed_error_and_the_connection_ends(
    master: MasterProcess,
) -> None:
    for body in (b"\xc1", b"", b"\x91", b"\x93\x00\x01\xa1x", b"\x93\xff\xff\xff\xff"):
        with WireClient("127.0.0.1", master.port) as wire:
            wire.send_bytes(frames.HEADER.pack(len(body), 14, 0, 5, 1000) + body)
            with pytest.raises(ProtocolError, match="no valid Exists"):
                wire.reply(5)
            assert wire.closes_within(30.0)


def test_two_requests_of_one_number_cannot_be_under_way(wire: WireClient) -> None:
    space = wire.ask(control.OpenNamespace("handshake"))
    # Without a node no put can be granted, so it waits; the second one meets it.
    put = control.PutStart(space.slot, space.epoch, [control.PutItem("k", 1)])
    frame = frames.encode_frame(control.KINDS[control.PutStart], put, request_id=9, deadline_ms=500)
    wire.send_bytes(frame + frame)
    with pytest.raises(StoreError):
        wire.reply(9)
    assert isinstance(wire.ask(control.ListNamespaces()), control.NamespaceList)


def test_a_stranger_who_says_nothing_is_dropped(master: MasterProcess) -> None:
    with raw(master) as wire:
        assert wire.closes_within(30.0)


def test_a_known_peer_may_be_idle(master: MasterProcess, wire: WireClient) -> None:
    with raw(master) as stranger:
        assert stranger.closes_within(30.0)  # which takes longer than the handshake may
    assert isinstance(wire.ask(control.ListNamespaces()), control.NamespaceList)


def test_a_closed_connection_leaves_the_others_alone(
    master: MasterProcess, wire: WireClient
) -> None:
    for _ in range(50):
        WireClient("127.0.0.1", master.port).close()
    with raw(master) as impatient, pytest.raises(Unreachable):
        impatient.frame(deadline_s=0.001)
    assert isinstance(wire.ask(control.ListNamespaces()), control.NamespaceList)
