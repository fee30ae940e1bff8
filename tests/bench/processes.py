"""Server processes that a measurement starts, and what /proc says about processes."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""Resolution of CPU times in /proc, in seconds."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_END_S = 10.0
"""Time a server has to end after SIGTERM; then it is killed."""


class ServerFailed(RuntimeError):
    """A server ended, or never listened. The message carries the end of its log."""


class Servers:
    """Child processes of one measurement; they die with the process that started them."""

    def __init__(self, log_directory: Path) -> None:
        self.log_directory = log_directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        """{name: process}, in the order of their start"""

    def spawn(
        self, name: str, argv: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> None:
        """Start one server; its output goes to ``<log directory>/<name>.log``."""
        setpriv = shutil.which("setpriv")
        wrapper = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
        with self.log_path(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603 - argv is ours
                [*wrapper, *map(str, argv)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
            )

    def log_path(self, name: str) -> Path:
        """Where the output of one server is."""
        return self.log_directory / f"{name}.log"

    def wait_listening(self, name: str, port: int, timeout_s: float = 30.0) -> None:
        """Return once 127.0.0.1:port accepts connections.

        Raises:
            ServerFailed: The process ended, or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 0.5).close()
            except OSError as error:
                self.check_alive(name)
                if time.monotonic() > deadline:
                    raise ServerFailed(f"{name} did not open port {port}") from error
                time.sleep(0.005)
            else:
                return

    def wait_logged(self, name: str, text: str, timeout_s: float = 30.0) -> None:
        """Return once the server's log contains ``text``.

        Raises:
            ServerFailed: The process ended, or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        while text.encode() not in self.log_path(name).read_bytes():
            self.check_alive(name)
            if time.monotonic() > deadline:
                raise ServerFailed(f"{name} did not say {text!r}: {self._log_end(name)}")
            time.sleep(0.005)

    def check_alive(self, name: str) -> None:
        """Raise ServerFailed if the process has ended."""
        status = self._processes[name].poll()
        if status is not None:
            raise ServerFailed(f"{name} ended with status {status}: {self._log_end(name)}")

    def pids(self) -> dict[str, int]:
        """Process ids by server name."""
        return {name: process.pid for name, process in self._processes.items()}

    def stop(self) -> None:
        """End every server, the last one first."""
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_END_S)
        self._processes.clear()

    def _log_end(self, name: str) -> str:
        lines = self.log_path(name).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it logged nothing"


def free_port() -> int:
    """A loopback port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def process_tree(pid: int) -> list[int]:
    """``pid`` and all its living descendants; a server may work in several processes."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            found.extend(int(child) for child in children.read_text().split())
    return found


def cpu_seconds(pid: int) -> float:
    """User and system CPU of one process, from /proc/PID/stat, to 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def tree_cpu_seconds(pid: int) -> float:
    """CPU of a server: its process and the descendants of that."""
    return sum(cpu_seconds(member) for member in process_tree(pid))


def tree_resident_bytes(pid: int) -> int:
    """Resident memory of a server, from /proc/PID/statm."""
    return sum(
        int(Path(f"/proc/{member}/statm").read_text().split()[1]) * _PAGE_BYTES
        for member in process_tree(pid)
    )


def loopback_bytes() -> int:
    """Bytes that the loopback device has carried since boot."""
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())
