"""The SSD tier of a storage node: stores in directories, each capped, checked and restart-proof.

``Store.open(directory, capacity_bytes)`` is the way in; ``docs/internals/ssd.md`` describes it.
"""

from mooncake_storage_node.ssd.buffers import PIECE_BYTES
from mooncake_storage_node.ssd.files import File, FileSystem, OsFiles, Space
from mooncake_storage_node.ssd.options import Admission, Options
from mooncake_storage_node.ssd.requests import (
    NOT_ADMITTED,
    OVER_BUDGET,
    PRESENT,
    STORED,
    Dropped,
    Span,
    Staged,
    Transfer,
    Written,
)
from mooncake_storage_node.ssd.statistics import State, Statistics
from mooncake_storage_node.ssd.store import Store

__all__ = [
    "NOT_ADMITTED",
    "OVER_BUDGET",
    "PIECE_BYTES",
    "PRESENT",
    "STORED",
    "Admission",
    "Dropped",
    "File",
    "FileSystem",
    "Options",
    "OsFiles",
    "Space",
    "Span",
    "Staged",
    "State",
    "Statistics",
    "Store",
    "Transfer",
    "Written",
]
