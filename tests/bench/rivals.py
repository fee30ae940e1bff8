"""Installation of the rivals, in an environment of their own.

What cannot be installed is left out of the run, with a reason that its rows show. Versions are
pinned: a figure says little without the version it was measured against.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_INSTALL_S = 900.0
"""Bound of one installation: downloads of some 100 MB over a slow line."""


@dataclass(frozen=True, slots=True)
class Rival:
    """What one rival needs.

    Attributes:
        python: Requirements for pip.
        debian: Packages for apt-get, installed only by root and only where the probe fails.
        probe: Python code that fails, with a telling message, unless the rival can run.
    """

    python: tuple[str, ...]
    debian: tuple[str, ...]
    probe: str


def _needs_program(name: str) -> str:
    return f"import shutil, sys; shutil.which({name!r}) or sys.exit('{name} is not installed')"


RIVALS = {
    "mooncake-cpp": Rival(
        python=("mooncake-transfer-engine-non-cuda==0.3.13.post1", "numpy"),
        debian=("libibverbs1", "librdmacm1", "libnuma1", "libcurl4", "liburing2"),
        probe="import mooncake.store",
    ),
    "redis": Rival(
        python=("redis==8.1.0", "hiredis==3.5.0"),
        debian=("redis-server",),
        probe=f"import redis, hiredis; {_needs_program('redis-server')}",
    ),
    "memcached": Rival(
        python=("pymemcache==4.0.0",),
        debian=("memcached",),
        probe=f"import pymemcache; {_needs_program('memcached')}",
    ),
}


class RivalEnvironment:
    """The virtual environment that the rivals' client libraries live in."""

    def __init__(self, directory: Path, log_path: Path) -> None:
        self.python = directory / "bin" / "python"
        self._directory = directory
        self._log_path = log_path

    def prepare(self, name: str, *, install: bool) -> str:
        """Make sure that a rival can run.

        Returns:
            Why it cannot, or "".
        """
        rival = RIVALS[name]
        reason = self._probe(rival)
        if reason and install:
            failure = self._install(rival)
            reason = self._probe(rival)
            if reason and failure:
                reason = f"{reason} ({failure})"
        return reason

    def versions(self) -> list[str]:
        """Requirement lines of what is installed, for the record."""
        if not self.python.exists():
            return []
        result = subprocess.run(  # noqa: S603 - the command is ours
            [str(self.python), "-m", "pip", "freeze", "--disable-pip-version-check"],
            capture_output=True,
            text=True,
            check=False,
        )
        return result.stdout.splitlines()

    def _probe(self, rival: Rival) -> str:
        if not self.python.exists():
            return "its environment is not installed"
        result = subprocess.run(  # noqa: S603 - the code is ours
            [self.python, "-c", rival.probe], capture_output=True, text=True, check=False
        )
        lines = result.stderr.strip().splitlines()
        return (lines[-1] if lines else "its probe failed") if result.returncode else ""

    def _install(self, rival: Rival) -> str:
        """Try everything; the first thing that failed, or ""."""
        commands: list[Sequence[str | Path]] = []
        if not self.python.exists():
            commands.append([sys.executable, "-m", "venv", self._directory])
        pip: list[str | Path] = [self.python, "-m", "pip", "install", "--disable-pip-version-check"]
        commands.append([*pip, *rival.python])
        if os.geteuid() == 0 and shutil.which("apt-get"):
            # An old package index is tried first; most machines have a fresh one.
            install = "apt-get install -y --no-install-recommends --no-upgrade"
            packages = " ".join(rival.debian)
            once = f"{install} {packages}"
            commands.append(["sh", "-c", f"{once} || (apt-get update && {once})"])
        failures = [reason for command in commands if (reason := self._run(command))]
        return failures[0] if failures else ""

    def _run(self, command: Sequence[str | Path]) -> str:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        with self._log_path.open("ab") as log:
            try:
                subprocess.run(  # noqa: S603 - commands are ours
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    timeout=_INSTALL_S,
                    check=True,
                )
            except (subprocess.SubprocessError, OSError) as error:
                return f"{type(error).__name__} in {' '.join(map(str, command[:4]))}"
        return ""
