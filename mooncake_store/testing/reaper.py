"""Ends what a dead test process has left: run as a script, it imports nothing of ours.

Its input is a pipe from the process whose child it is: lines ``+PID`` and ``-PID`` say which
process groups exist, ``/PATH`` which directory goes with them. At a line ``.``, or when the pipe
ends, because its writer is gone however it went, the groups that are left are killed and the
directories deleted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys


def main() -> None:
    """Wait for the end of the input, then clean up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    groups: set[int] = set()
    paths: set[str] = set()
    for line in sys.stdin:
        word = line.strip()
        if word.startswith("+"):
            groups.add(int(word[1:]))
        elif word.startswith("-"):
            groups.discard(int(word[1:]))
        elif word.startswith("/"):
            paths.add(word)
        elif word == ".":
            break
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
