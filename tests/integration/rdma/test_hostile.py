"""What strangers may say about RDMA on a data port: they are cut off, and nobody else notices."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from mooncake_store.wire import data
from mooncake_store.wire.data import Operation
from mooncake_store.wire.rdma import Endpoint, LinkLayer, encode_open
from tests.integration.node.support import get, greeted_socket, make_thing, put, receive

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from mooncake_storage_node.app import StorageNode
    from mooncake_store.testing.verbs import FakeFabric
    from mooncake_store.transport.rdma import RdmaDataPath
    from mooncake_store.wire.control import Register

GID = (1).to_bytes(16, "big")
HELLO = Endpoint(99, 5, GID, 0, LinkLayer.ETHERNET, 2, 1024, 16)


@pytest.fixture
def stranger(register: Register) -> Iterator[socket.socket]:
    with greeted_socket(register) as sock:
        yield sock


def is_cut_off(sock: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        return not sock.recv(1)
    return True


def open_pair(sock: socket.socket) -> None:
    sock.sendall(encode_open(HELLO, 1, 1000))
    head = receive(sock, data.HEADER_BYTES + data.STATUS_BYTES)
    header = data.decode_header(head, reply=True)
    assert head[data.HEADER_BYTES :] == bytes(4)
    receive(sock, header.payload_bytes)


def request(operation: Operation, entries: list[tuple[int, int, int, int, int]]) -> bytes:
    size = 64 * len(entries) if operation == Operation.RDMA_END else 0
    frame = data.encode_request(operation, 2, entries, deadline_ms=1000, payload_bytes=size)
    return bytes(frame) + bytes(size)


def test_extents_are_not_declared_before_there_is_a_queue_pair(
    stranger: socket.socket, register: Register
) -> None:
    entry = (register.segments[0].incarnation, 0, 1 << 40, 0, 4096)
    stranger.sendall(request(Operation.RDMA_BEGIN, [entry]))
    assert is_cut_off(stranger)


@pytest.mark.parametrize("size", [0, 1, 35, 37, 1 << 40])
def test_an_endpoint_of_another_size_is_none(stranger: socket.socket, size: int) -> None:
    frame = data.encode_request(Operation.RDMA_OPEN, 1, (), deadline_ms=1000, payload_bytes=size)
    stranger.sendall(bytes(frame) + bytes(min(size, 100)))
    assert is_cut_off(stranger)


def test_an_endpoint_of_nonsense_is_none(stranger: socket.socket) -> None:
    frame = data.encode_request(Operation.RDMA_OPEN, 1, (), deadline_ms=1000, payload_bytes=36)
    stranger.sendall(bytes(frame) + b"\xff" * 36)
    assert is_cut_off(stranger)


def test_a_queue_pair_amid_writes_is_refused_and_the_others_go_too(
    stranger: socket.socket, register: Register, fabric: FakeFabric
) -> None:
    open_pair(stranger)
    open_pair(stranger)
    assert len(fabric.queue_pairs) == 2
    entry = (register.segments[0].incarnation, 0, 1 << 40, 0, 4096)
    stranger.sendall(request(Operation.RDMA_BEGIN, [entry]))
    assert receive(stranger, 28)[24:] == bytes(4)
    stranger.sendall(encode_open(HELLO, 2, 1000))
    assert is_cut_off(stranger)
    assert not fabric.queue_pairs


def test_what_was_not_declared_is_not_published(
    stranger: socket.socket, register: Register, node: StorageNode
) -> None:
    open_pair(stranger)
    entry = (register.segments[0].incarnation, 0, 1 << 40, 0, 4096)
    stranger.sendall(request(Operation.RDMA_END, [entry]))
    assert is_cut_off(stranger)
    assert not any(node.pool.segment.table)


def test_an_extent_with_another_header_than_was_declared_is_not_published(
    stranger: socket.socket, register: Register, node: StorageNode
) -> None:
    open_pair(stranger)
    entry = (register.segments[0].incarnation, 0, 1 << 40, 0, 4096)
    stranger.sendall(request(Operation.RDMA_BEGIN, [entry]))
    assert receive(stranger, 28)[24:] == bytes(4)
    stranger.sendall(request(Operation.RDMA_END, [entry]))
    assert receive(stranger, 28)[24:] == data.Status.DAMAGED.to_bytes(4, "little")
    assert not any(node.pool.segment.table)


def test_the_same_extent_twice_in_a_batch_is_refused(
    stranger: socket.socket, register: Register, node: StorageNode
) -> None:
    open_pair(stranger)
    entry = (register.segments[0].incarnation, 0, 1 << 40, 0, 4096)
    stranger.sendall(request(Operation.RDMA_BEGIN, [entry, entry]))
    assert is_cut_off(stranger)
    assert len(node._incoming) == 0


def test_others_are_served_all_the_while(
    stranger: socket.socket, register: Register, path: RdmaDataPath
) -> None:
    open_pair(stranger)
    thing = make_thing(register.segments[0].incarnation, 0, 5000)
    put(path, thing)
    stranger.sendall(b"\xff" * 100)
    assert get(path, thing) == thing.content
