"""What the master remembers for a while, bounded by number: gone keys and answered probes."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from mooncake_store.types import MissReason, Version

if TYPE_CHECKING:
    from collections.abc import Hashable

    from mooncake_store.wire.control import Message

_REASON_BITS = 4
_REASON_MASK = (1 << _REASON_BITS) - 1


MAY_RETURN: Final = frozenset({MissReason.LOST, MissReason.EVICTED})
"""What went for these reasons, and nobody removed, may turn up again: on a disk that came back with
another node or late, or that could not be listed while memory gave the same version up."""


class GoneMemory:
    """Why keys are not there any more; the oldest are forgotten, half of them at a time.

    Keys are kept as hashes of this process, which never leave it: a collision gives a wrong reason
    for a miss, nothing else. Two dicts take turns, since finding the first entry of one dict whose
    first entries were deleted is a walk over those.
    """

    __slots__ = ("_half", "_new", "_old")

    def __init__(self, bound: int) -> None:
        self._half = max(1, bound // 2)
        self._new: dict[int, int] = {}
        """{hash of slot and key: version << 4 | reason}"""
        self._old: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def note(self, slot: int, key: str, reason: MissReason, version: int) -> None:
        """Remember why a key went."""
        new = self._new
        if len(new) >= self._half:
            self._old = new
            new = self._new = {}
        new[hash(key) ^ slot] = version << _REASON_BITS | reason

    def note_absent(self, slot: int, key: str, version: int) -> None:
        """Remember that a key was removed that was not there, or known to be gone already.

        A node that returns later with a version up to that one does not bring it back.
        """
        self.note(slot, key, self.reason(slot, key), version)

    def note_expired(self, slot: int, key: str) -> None:
        """Remember that an attempt at a key ran out: nothing was readable that is gone now.

        What an absent node holds of the key is as good as it was, and what was removed stays so.
        What was evicted or lost may turn up again, so that reason is not forgotten for this one.
        """
        if self.reason(slot, key) not in MAY_RETURN:
            self.note(slot, key, MissReason.EXPIRED, self.gone_up_to(slot, key))

    def reason(self, slot: int, key: str) -> MissReason:
        """Return why a key is not there, as far as is remembered."""
        return MissReason(self._find(slot, key) & _REASON_MASK)

    def gone_up_to(self, slot: int, key: str) -> Version:
        """Return the newest version known to be gone; 0 where none is remembered."""
        return Version(self._find(slot, key) >> _REASON_BITS)

    def _find(self, slot: int, key: str) -> int:
        mark = hash(key) ^ slot
        entry = self._new.get(mark)
        return self._old.get(mark, 0) if entry is None else entry


class ProbeMemory:
    """Answers that every request with the same probe id gets, for a while."""

    __slots__ = ("_answers", "_bound")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._answers: OrderedDict[Hashable, tuple[float, float, Message]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, probe: Hashable, now_s: float) -> tuple[float, Message] | None:
        """Return when a hold ends and the answer that came with it."""
        known = self._answers.get(probe)
        if known is None or known[0] <= now_s:
            return None
        return known[1], known[2]

    def keep(self, probe: Hashable, answer: Message, *, until_s: float, held_s: float) -> None:
        """Remember an answer until a time; the oldest is forgotten first."""
        answers = self._answers
        answers.pop(probe, None)
        if len(answers) >= self._bound:
            answers.popitem(last=False)
        answers[probe] = (until_s, held_s, answer)
