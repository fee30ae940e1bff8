"""Small types that every part of the system shares."""

from __future__ import annotations

import enum
from typing import NewType

Version = NewType("Version", int)
"""Number of one attempt to write an object, and of the version it becomes: ``term << 40 | count``.

Grows with time within a cluster, over restarts and take-overs of the master included, so of two
extents that claim one key the higher version is the newer.
"""

Incarnation = NewType("Incarnation", int)
"""Random 63-bit id of one segment's memory contents; new memory, new incarnation."""

Term = NewType("Term", int)
"""Number of a master's reign; grows at each take-over. Fits 22 bits."""

NamespaceSlot = NewType("NamespaceSlot", int)
"""Index of a namespace in the epoch tables, 0 <= slot < ``limits.NAMESPACES_MAX``."""

Epoch = NewType("Epoch", int)
"""Generation of a namespace's contents, from 1; ``clear`` raises it. 0: slot not in use."""

NodeIndex = NewType("NodeIndex", int)
"""Number a master gives a node for the time of its reign."""

COUNT_BITS = 40
"""Bits of a version that count attempts within a term: a million puts/s for 12 days a term, and
a term that runs out of counts takes the next term number."""

TERM_MAX = (1 << 22) - 1
"""Last number of a reign."""


def make_version(term: int, count: int) -> Version:
    """Return the version of the ``count``-th attempt of a term."""
    return Version(term << COUNT_BITS | count)


def term_of(version: int) -> Term:
    """Return the term in which a version was granted."""
    return Term(version >> COUNT_BITS)


class Tier(enum.IntEnum):
    """Where a replica lies."""

    DRAM = 0
    SSD = 1


class Pin(enum.IntEnum):
    """Protection of an object from eviction."""

    NONE = 0
    SOFT = 1
    """Ends at a fixed time, whatever is read in between."""
    HARD = 2
    """Ends when it is taken away."""


class Word(enum.IntEnum):
    """A number on the wire, a word in small letters for people: what ``print`` shows."""

    def __str__(self) -> str:
        """Return the word."""
        return self.name.lower()

    def __format__(self, form: str) -> str:
        """Return the word, padded as asked."""
        return format(str(self), form)


class Presence(Word):
    """Answer of a probe, in one vocabulary."""

    ABSENT = 0
    DRAM = 1
    SSD = 2
    WRITING = 3
    """A put is under way; a get may wait for it."""


class MissReason(Word):
    """Why a key has no readable version; each miss is counted under one of these."""

    ABSENT = 0
    """Never put, as far as this master knows."""
    EVICTED = 1
    REMOVED = 2
    CLEARED = 3
    """Its namespace's epoch was raised."""
    EXPIRED = 4
    """Its last put was never finished."""
    WRITING = 5
    """A put is under way and the caller did not wait for it, or not long enough."""
    NODE_DOWN = 6
    """Every replica lies on nodes that are away; or none is known, and one may lie there, or where
    a directory cannot be listed."""
    LOST = 7
    """Every replica was lost with its node's memory or disk."""
    CORRUPT = 8
    """Every replica failed its checksum and was dropped."""
    RECOVERING = 9
    """The master still collects the nodes' directories."""


class NodeState(enum.IntEnum):
    """What the master believes of a node."""

    LIVE = 0
    SUSPECT = 1
    DRAINING = 2
    DRAINED = 3
    DEAD = 4
