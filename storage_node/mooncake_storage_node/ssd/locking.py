"""The lock of a directory: one store at a time, and nobody's before the one before has ended.

A store's index process shares the lock: where the store's own process was killed, that one ends by
itself after the last commit, which takes as long as the disk and the processors let it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mooncake_storage_node.ssd.format import read_text, write_text
from mooncake_store.errors import ConfigError

if TYPE_CHECKING:
    from mooncake_storage_node.ssd.files import File

LOCK_WAIT_S: Final = 3.0
"""Time that a predecessor may take to end which still lives, or of which nothing is known."""

PREDECESSOR_WAIT_S: Final = 30.0
"""Time that the index process of a killed predecessor may take for its last commit."""

_LOOK_S: Final = 0.05


def take_lock(lock: File, directory: Path) -> None:
    """Lock the file for this process, and write into it whose it is.

    Raises:
        ConfigError: Another store has it, and goes on having it.
    """
    began_s = time.monotonic()
    while not lock.lock():
        owner = read_text(lock).strip()
        wait_s = PREDECESSOR_WAIT_S if _is_gone(owner) else LOCK_WAIT_S
        if time.monotonic() - began_s > wait_s:
            raise ConfigError(
                f"the store in {directory} is in use by {owner or 'another process'}: each store"
                " needs a directory of its own"
            )
        time.sleep(_LOOK_S)
    write_text(lock, f"process {os.getpid()}\n")


def _is_gone(owner: str) -> bool:
    """Return whether the process that wrote this is known to have ended.

    One of another host or container may look so, too; it is then waited for in vain, and longer.
    """
    word, _, number = owner.partition(" ")
    return word == "process" and number.isdigit() and not Path("/proc", number).exists()
