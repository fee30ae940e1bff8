"""Programs of their own, and what a process has open."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")


def run_python(program: str, *words: str, **environment: str) -> subprocess.Popen[str]:
    """Start a program of its own with the same installation."""
    return subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-c", textwrap.dedent(program), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def finished(process: subprocess.Popen[str], timeout_s: float = 60.0) -> str:
    """Return what a program wrote, once it ended well and without a word on stderr."""
    out, err = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, err
    assert err == ""
    return out


def open_files() -> int:
    """Return how many descriptors this process has open."""
    return len(list(_DESCRIPTORS.iterdir()))


def open_sockets() -> int:
    """Return how many of them are sockets."""
    count = 0
    for entry in _DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            count += str(entry.readlink()).startswith("socket:")
    return count


def resident_bytes() -> int:
    """Return the memory that this process has in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def has_ipv6() -> bool:
    """Return whether the loopback of this machine speaks IPv6."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True
