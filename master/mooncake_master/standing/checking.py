"""Reads a standing file through in a process of its own, which a damaged one may end.

LMDB follows what its file says: a page number that was changed leads anywhere, a file that was cut
ends the process that reads it with a signal. The master reads a file only after this has.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from mooncake_master.standing.file import FILE, FileDamaged, FileFailed, StandingFile

CHECK_S_MAX: Final = 60.0
"""A million records take some seconds."""

_DAMAGED: Final = 3


def check(directory: Path) -> None:
    """Make sure that a standing file can be read, if there is one.

    Raises:
        FileDamaged: It cannot.
        FileFailed: It was not possible to find out.
    """
    path = directory / FILE
    if not path.exists():
        return
    command = [sys.executable, "-m", __name__, str(directory)]
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=CHECK_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FileFailed(f"{path} could not be checked: {error}") from error
    if done.returncode < 0:
        raise FileDamaged(f"{path} is damaged: reading it ended with signal {-done.returncode}")
    words = done.stdout.decode(errors="replace").strip()
    if done.returncode == _DAMAGED:
        raise FileDamaged(words)
    if done.returncode:
        raise FileFailed(words or f"{path} could not be checked")


def _main(directory: Path) -> int:
    try:
        file = StandingFile(directory)
        file.read()
        file.close()
    except (FileDamaged, FileFailed) as error:
        sys.stdout.write(f"{error}\n")
        return _DAMAGED if isinstance(error, FileDamaged) else 1
    return 0


if __name__ == "__main__":
    raise SystemExit(_main(Path(sys.argv[1])))
