"""The folder of shared memory that one local cluster has to itself, and what crashed ones left.

A node's memory outlives its process on purpose. That of a local cluster must not outlive the
cluster, so it lies in a folder that is deleted at the end. Where the end was a kill, the next
cluster deletes it: the folder's lock, and the locks of the nodes in it, say that nobody is there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mooncake_store.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY_ROOT: Final = Path("/dev/shm")  # noqa: S108 - where shared memory is; our folders are 0700

_PREFIX: Final = "mooncake-store-up-"
_LOCK: Final = "lock"
"""Name of the lock file, here and in a node's own folder."""
_UNNAMED: Final = "lock.new"


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Give a new folder for the block; everything in it is deleted at its end.

    Raises:
        ConfigError: There is no shared memory to make one in.
    """
    _delete_abandoned()
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=MEMORY_ROOT))
    except OSError as error:
        raise ConfigError(f"no shared memory in {MEMORY_ROOT}: {error.strerror}") from error
    try:
        # Locked before it has its name: one of that name that nobody holds is what a kill leaves.
        with (folder / _UNNAMED).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / _UNNAMED).rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _delete_abandoned() -> None:
    for folder in MEMORY_ROOT.glob(f"{_PREFIX}*"):
        locks = [folder / _LOCK, *folder.glob(f"*/*/{_LOCK}")]
        if all(map(_is_free, locks)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_free(path: Path) -> bool:
    """Return whether a lock file is there, is ours, and nobody holds it."""
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.fstat(lock.fileno()).st_uid == os.geteuid()
    except OSError:
        return False
