"""Objects to plant, and tasks whose buffers are guarded on both sides."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from mooncake_store import extent
from mooncake_store.testing.seeds import seeded
from mooncake_store.transport import ReadTask, WriteTask

from .planting import Planted

if TYPE_CHECKING:
    from collections.abc import Iterable

MIB = 1 << 20
POOL_BYTES = 160 * MIB
INCARNATION = 0x1234_5678_9ABC_DEF1
SLOT = 7
EPOCH = 3
TERM = 5
PLENTY_S = 60.0
"""Deadline of calls that are not about time: what each of them takes on a machine that stands still
for seconds is far below."""
_bytes = seeded("contract").randbytes(64 * MIB + 1)
_counts = iter(range(1, 1 << 30))


def next_version() -> int:
    return TERM << 40 | next(_counts)


def make(size: int, *, key: str = "a key", epoch: int = EPOCH) -> Planted:
    start = seeded(str(size)).randrange(0, len(_bytes) - size + 1)
    return Planted(key, next_version(), SLOT, epoch, _bytes[start : start + size])


def identity_of(planted: Planted) -> extent.Identity:
    return extent.Identity(
        planted.fingerprint, planted.version, planted.slot, planted.epoch, len(planted.payload)
    )


class Reading:
    """A read task with targets of its own, guarded on both sides of each."""

    GUARD = b"\xa5" * 32

    def __init__(
        self,
        planted: Planted,
        offset: int,
        start: int = 0,
        length: int | None = None,
        *,
        parts: Iterable[int] = (),
        verify: bool = True,
    ) -> None:
        length = len(planted.payload) - start if length is None else length
        cuts = list(parts)
        cuts.append(length - sum(cuts))
        self.buffers = [bytearray(self.GUARD + b"\xa5" * cut + self.GUARD) for cut in cuts]
        targets = [memoryview(buffer)[32:-32] for buffer in self.buffers]
        self.task = ReadTask(
            INCARNATION, offset, identity_of(planted), start, length, targets, verify
        )
        self.wanted = planted.payload[start : start + length]

    @property
    def got(self) -> bytes:
        return b"".join(bytes(target) for target in self.task.targets)

    def check(self) -> None:
        """It succeeded with exactly the bytes wanted, and nothing beside its targets changed."""
        if self.task.error is not None:
            raise self.task.error
        assert self.got == self.wanted
        assert self.task.verified == self.task.verify
        for buffer in self.buffers:
            assert buffer.startswith(self.GUARD)
            assert buffer.endswith(self.GUARD)


def writing_of(planted: Planted, offset: int, cuts: Iterable[int] = ()) -> WriteTask:
    """Return a task that writes what ``planted`` says, in parts."""
    bounds = [0, *cuts, len(planted.payload)]
    whole = memoryview(planted.payload)
    parts = [whole[low:high] for low, high in itertools.pairwise(bounds)]
    sealed = extent.seal(
        identity_of(planted),
        extent.hash_payload(parts),
        extent.Names(planted.namespace, planted.key),
    )
    return WriteTask(INCARNATION, offset, identity_of(planted), sealed, parts)
