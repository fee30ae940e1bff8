"""Bounds that are not settings: what a peer may ask, and why no more.

Every queue, table and size that a peer or a user can drive has its bound here or in a setting.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

PROTOCOL_VERSION: Final = 1
"""Version of the control and data protocols; peers of another one are told so and refused."""

KEY_BYTES_MAX: Final = 4 * KIB
"""UTF-8 bytes of a key. Keys live in the master's memory and in every extent's tail; engines use
64 to 200 bytes. Above 4 KiB a batch of ``BATCH_KEYS_MAX`` keys would not fit a frame."""

NAMESPACE_BYTES_MAX: Final = 255
"""UTF-8 bytes of a namespace's name: it is repeated in every extent's tail."""

HINT_BYTES_MAX: Final = 1 * KIB
"""UTF-8 bytes of a ``group`` or ``parent`` hint."""

NAMESPACES_MAX: Final = 4096
"""Namespaces of one cluster: each has a slot in the epoch table of every segment (4 B each)."""

MANIFEST_BYTES_MAX: Final = 16 * KIB
"""Encoded manifest of a namespace: model, revision, layout, dtype; not a place for data."""

OBJECT_BYTES_MAX: Final = 16 * GIB
"""Payload of one object. KV blocks are 64 KiB to 64 MiB; the bound keeps sums far from 2**63."""

GRANULE_BYTES: Final = 512
"""Unit of allocation. Smaller: a longer version table (8 B a granule, 1.6 % at 512). Larger: more
waste behind each object (half a granule on average: 0.4 % at 64 KiB)."""

QUEUE_PAIRS_MAX: Final = 8
"""RDMA queue pairs of one data connection: each is memory of the card at both ends, and two or
four fill a link."""

CHUNK_BYTES: Final = 256 * KIB
"""Payload bytes under one checksum. Fits the L2 cache, so that hashing what was just copied costs
no memory traffic; a ranged read fetches at most this much more than asked, at each end. Halving
it doubles the interpreter's share of a copy; doubling it spills L2."""

FRAME_BYTES_MAX: Final = 8 * MIB
"""Body of one control frame: a batch of keys of usual size with room to spare."""

FRAME_BYTES_STRANGER_MAX: Final = 64 * KIB
"""Body of a frame before the handshake is over: a stranger cannot make us buffer more."""

BATCH_KEYS_MAX: Final = 4096
"""Keys in one control frame. A longer batch is cut by the client and its parts are pipelined, so
it still costs one round trip, while other callers get a turn in between (about 4 ms apart)."""

BATCH_BYTES_MAX: Final = 4 * MIB
"""Bytes of keys in one control frame; the client cuts batches at this or ``BATCH_KEYS_MAX``."""

DATA_ENTRIES_MAX: Final = 1024
"""Extents in one data request: IOV_MAX of Linux bounds the scatter list of one system call."""

SCAN_PAGE_MAX: Final = 1000
"""Objects in one page of ``scan``: about 1 ms of the master's time."""

REPLICAS_MAX: Final = 8
"""Replicas of one object. More copies of a cache entry than this protect nothing."""

NODES_MAX: Final = 4096
"""Storage nodes of one cluster."""

REPORTED_TRANSFERS_MAX: Final = 1 << 24
"""Transfers in one report of a client: more than it makes between two. Unbounded, one report would
carry the master's counters out of the 64 bits of a reply, and nobody could read them any more."""

NOTES_MAX: Final = 65_536
"""Notes about absent nodes that a cluster keeps: 8 MiB in each keeper. Where it would be more, the
absent node with the most comes back empty."""

FELLOWS_MAX: Final = 256
"""Connected nodes that each node is told by name, 8 KiB at each change; in larger clusters a new
master waits its whole grace before it adopts a directory."""

SEGMENTS_PER_NODE_MAX: Final = 16
"""Segments one node may register."""

REPLACED_MAX: Final = 8
"""Stores before it that one remembers to have taken the place of, newest last. With more of them
before a master hears of it, the oldest are given up when their time is over."""

SEGMENT_BYTES_MAX: Final = 1 << 46
"""Bytes of one segment: offsets stay far below 2**63 and the version table stays mappable."""

STORE_BYTES_MIN: Final = 32 * MIB
"""Disk of one store: below that its files are smaller than most objects."""

WRITERS_MAX: Final = 1024
"""Processes of one host that write a segment through shared memory at one time."""

COPY_BYTES_PER_S_MIN: Final = 8 * MIB
"""What a copy of an extent must reach, beyond the time that the smallest one has. Smaller: a node
or a disk that has nearly stopped is waited for longer; larger: big objects on slow disks are never
copied."""

DEADLINE_S_DEFAULT: Final = 5.0
"""Deadline of a call that names none."""

DEADLINE_S_MAX: Final = 86_400.0
"""Longest deadline that is accepted: the wire carries milliseconds in 32 bits."""
