"""Keeps what the core wants remembered, and hands it back at the next start."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from typing import TYPE_CHECKING, Final

from mooncake_master.core import Remember, Remembered
from mooncake_master.standing.checking import check
from mooncake_master.standing.file import FILE, Change, FileDamaged, FileFailed, StandingFile
from mooncake_store.errors import ConfigError, Overloaded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mooncake_master.core import Forget

logger = logging.getLogger(__name__)

LOCK: Final = "lock"

OWED_MAX: Final = 100_000
"""Changes that wait for a disk that refuses them; more and the first ones are given up."""


class Keeping:
    """An open data directory, of this process alone.

    Attributes:
        remembered: What was in it when it was opened.
        problem: Why changes cannot be written; empty while they can.
    """

    def __init__(self, file: StandingFile, remembered: Remembered, lock: int) -> None:
        self.remembered = remembered
        self.problem = ""
        self._file = file
        self._lock = lock
        self._owed: dict[tuple[str, str], Change] = {}
        self._dirty = False

    def keep(self, instructions: Sequence[Remember | Forget]) -> None:
        """Carry instructions out; they survive the end of this process when this returns.

        Raises:
            Overloaded: The disk refuses; they are carried out as soon as it does not.
        """
        for each in instructions:
            entry = each.entry if isinstance(each, Remember) else None
            self._owed.pop((each.table, each.key), None)
            self._owed[each.table, each.key] = (each.table, each.key, entry)
        self._write()

    def flush(self) -> None:
        """Write what is owed, and make it survive a power failure; for a thread of its own."""
        if not self._dirty:
            return
        self._dirty = False
        try:
            self._file.flush()
        except FileFailed as error:
            self._dirty = True
            self._note(str(error))

    def retry(self) -> None:
        """Try once more to write what the disk refused."""
        if self._owed:
            with contextlib.suppress(Overloaded):  # Still owed; ``problem`` says why.
                self._write()

    def close(self) -> None:
        """Flush, close, and let others have the directory. Idempotent."""
        if self._lock < 0:
            return
        self.retry()
        self.flush()
        self._file.close()
        os.close(self._lock)
        self._lock = -1

    def _write(self) -> None:
        try:
            self._file.write(list(self._owed.values()))
        except FileFailed as error:
            self._note(str(error))
            for key in list(self._owed)[:-OWED_MAX]:
                del self._owed[key]
            raise Overloaded(f"the change stands, but it may not survive a restart: {error}") from (
                error
            )
        self._owed.clear()
        self._dirty = True
        self._note("")

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            if problem:
                logger.error("%s", problem)
            else:
                logger.info("the data directory can be written again")
        self.problem = problem


def open_keeping(directory: Path) -> Keeping:
    """Open a data directory; it is made where it is missing.

    Raises:
        ConfigError: It cannot be used, another master uses it, or what is in it is damaged.
    """
    option = f"--data-dir {directory}"
    lock = _lock(directory, option)
    try:
        check(directory)
        file = StandingFile(directory)
        remembered = Remembered(file.read())
    except FileDamaged as error:
        os.close(lock)
        raise ConfigError(
            f"{option}: {error}; nothing of it is used. Move {FILE} away to start without it:"
            " the nodes still know what they hold, notes about absent ones are lost"
        ) from error
    except FileFailed as error:
        os.close(lock)
        raise ConfigError(f"{option}: {error}") from error
    return Keeping(file, remembered, lock)


def _lock(directory: Path, option: str) -> int:
    """Make the directory ours for as long as the descriptor that is returned is open.

    Raises:
        ConfigError: It is somebody else's, or cannot be written.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{option} cannot be used: {error.strerror or error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise ConfigError(
            f"{option} belongs to another master that is running (process {owner}); each master"
            " needs a directory of its own"
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock
