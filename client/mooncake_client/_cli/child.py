"""What runs in a child process of ``up``: the command, ended by the kernel if its parent ends.

A parent that is killed cannot stop its children, so each asks the kernel to be told
(PR_SET_PDEATHSIG, prctl(2)): nothing of a cluster is left behind, however it ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

from mooncake_store.command import main

_PR_SET_PDEATHSIG: Final = 1


def run(arguments: list[str]) -> None:
    """Run a command line for the parent whose process id comes first."""
    parent, *words = arguments
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(1)  # it ended before the kernel was asked
    main(words)


if __name__ == "__main__":
    run(sys.argv[1:])
