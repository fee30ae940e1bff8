"""Chains of work requests are in memory as libibverbs reads them."""

from __future__ import annotations

import ctypes
import gc
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_store.errors import NotSupported
from mooncake_store.testing.seeds import seeded
from mooncake_store.transport.rdma import pyverbs_device
from mooncake_store.transport.rdma.verbs import WorkRequest
from mooncake_store.transport.rdma.work_requests import (
    REQUEST_BYTES,
    Chain,
    Poster,
    find,
    memory_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

READ, WRITE, SIGNALLED = 4, 0, 2


class Piece(ctypes.Structure):
    """``struct ibv_sge``."""

    _fields_ = [  # type: ignore[mutable-override]  # typeshed names a Sequence
        ("addr", ctypes.c_uint64),
        ("length", ctypes.c_uint32),
        ("lkey", ctypes.c_uint32),
    ]


class Rdma(ctypes.Structure):
    _fields_ = [  # type: ignore[mutable-override]  # typeshed names a Sequence
        ("remote_addr", ctypes.c_uint64),
        ("rkey", ctypes.c_uint32),
    ]


class Request(ctypes.Structure):
    """``struct ibv_send_wr``, up to what RDMA uses of it."""


Request._fields_ = [
    ("wr_id", ctypes.c_uint64),
    ("next", ctypes.POINTER(Request)),
    ("sg_list", ctypes.POINTER(Piece)),
    ("num_sge", ctypes.c_int),
    ("opcode", ctypes.c_int),
    ("send_flags", ctypes.c_uint),
    ("imm_data", ctypes.c_uint32),
    ("rdma", Rdma),
    ("_rest", ctypes.c_ubyte * (REQUEST_BYTES - 56)),
]


def follow(head: memoryview) -> list[WorkRequest]:
    """Read a chain as C would."""
    assert ctypes.sizeof(Request) == REQUEST_BYTES
    found = []
    at = Request.from_buffer(head)
    while True:
        pieces = [(p.addr, p.length, p.lkey) for p in at.sg_list[: at.num_sge]]
        found.append(
            WorkRequest(
                at.opcode == WRITE, at.rdma.remote_addr, at.rdma.rkey, pieces, at.wr_id,
                at.send_flags == SIGNALLED,
            )
        )  # fmt: skip
        assert at.opcode in {READ, WRITE}
        if not at.next:
            return found
        at = at.next.contents


def some(seed: str, count: int) -> list[WorkRequest]:
    random = seeded(seed)
    return [
        WorkRequest(
            random.choice((True, False)),
            random.getrandbits(64),
            random.getrandbits(32),
            [
                (random.getrandbits(64), random.getrandbits(32), random.getrandbits(32))
                for _ in range(random.randint(1, 16))
            ],
            number,
            random.choice((True, False)),
        )
        for number in range(count)
    ]


def test_a_chain_is_what_was_written_however_long_the_one_before_was() -> None:
    head = memoryview(bytearray(REQUEST_BYTES))
    chain = Chain(head, (READ, WRITE), SIGNALLED)
    for turn, count in enumerate((1, 3, 257, 2, 1, 600, 1)):
        requests = some(f"chain {turn}", count)
        chain.write(requests)
        assert follow(head) == requests


@pytest.fixture
def wr() -> Any:  # noqa: ANN401 - pyverbs is untyped
    try:
        return pyverbs_device._module("wr")
    except NotSupported as error:
        pytest.skip(f"needs pyverbs, not a device: {error}")


def test_pyverbs_s_own_object_is_the_head_while_it_posts_and_only_then(wr: Any) -> None:  # noqa: ANN401
    at = find(wr.SendWR, wr.SGE)
    assert at > 0
    head = wr.SendWR(wr_id=7, opcode=READ, num_sge=1, sg=[wr.SGE(1, 2, 3)], send_flags=0)
    as_made = bytes(memory_of(head, at))
    poster = Poster(head, at, (READ, WRITE), SIGNALLED)
    requests = some("posted", 20)
    seen: list[Sequence[WorkRequest]] = []

    def post_send(request: Any) -> None:  # noqa: ANN401
        seen.append(follow(memory_of(request, at)))
        assert request.wr_id == requests[0].number
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011 - the test's own
        poster.post(post_send, requests)
    assert seen == [requests]
    assert bytes(memory_of(head, at)) == as_made
    assert head.wr_id == 7


def test_another_pyverbs_gets_objects_that_are_freed(
    wr: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[object] = []

    class Piece:
        def __init__(self, *place: int) -> None:
            self.place = place

        def close(self) -> None:
            closed.append(self)

    class Send:
        next_wr: Send | None = None

        def __init__(self, **fields: Any) -> None:  # noqa: ANN401
            self.fields = fields

        def set_wr_rdma(self, key: int, remote: int) -> None:
            self.fields |= {"key": key, "remote": remote}

        def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(pyverbs_device, "_request_at", lambda: -1)
    monkeypatch.setattr(
        pyverbs_device, "_module", lambda _: type("Wr", (), {"SendWR": Send, "SGE": Piece})
    )
    enums = type(
        "Enums",
        (),
        {"IBV_WR_RDMA_READ": READ, "IBV_WR_RDMA_WRITE": WRITE, "IBV_SEND_SIGNALED": SIGNALLED},
    )
    requests = some("objects", 5)
    heads: list[Any] = []
    pyverbs_device._new_post(enums)(heads.append, requests)
    at, seen = heads[0], []
    while at is not None:
        fields = at.fields
        seen.append(
            WorkRequest(
                fields["opcode"] == WRITE, fields["remote"], fields["key"],
                [piece.place for piece in fields["sg"]], fields["wr_id"],
                fields["send_flags"] == SIGNALLED,
            )
        )  # fmt: skip
        at = at.next_wr
    assert seen == requests
    assert len(closed) == len(requests) + sum(len(request.pieces) for request in requests)
    assert find(Send, Piece) == -1
    gc.collect()
    del wr
