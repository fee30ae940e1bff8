"""Real etcd on free ports of this machine."""

from __future__ import annotations

import base64
import json
import shutil
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final

from mooncake_store.testing import Process, free_port, wait_until

if TYPE_CHECKING:
    from pathlib import Path

HOST: Final = "127.0.0.1"
PROGRAM: Final = shutil.which("etcd")
MISSING: Final = "etcd is not installed here (Debian: etcd-server)"


class Member(Process):
    """One member of an etcd cluster; it keeps its data over its lives."""

    def __init__(self, directory: Path, name: str, port: int, peers: dict[str, int]) -> None:
        self.port = port
        assert PROGRAM is not None, MISSING
        client, peer = f"http://{HOST}:{port}", f"http://{HOST}:{peers[name]}"
        cluster = ",".join(f"{other}=http://{HOST}:{at}" for other, at in peers.items())
        options = {
            "name": name,
            "data-dir": directory / name,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": cluster,
            "log-level": "error",
            # A member that is lost is noticed well within the shortest lease.
            "heartbeat-interval": 50,
            "election-timeout": 300,
        }
        words = [f"--{option}={value}" for option, value in options.items()]
        super().__init__(name, [PROGRAM, *words], directory / f"{name}.log")

    def is_healthy(self) -> bool:
        """Whether it takes part in a majority."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.port}/health", timeout=2) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False

    def find(self, key: str) -> dict[str, Any] | None:
        """Return what it has under a key, and about it; None: nothing."""
        found = self._ask("kv/range", {"key": base64.b64encode(key.encode()).decode()})
        return next(iter(found.get("kvs", [])), None)

    def lease_left_s(self, key: str) -> int:
        """Return in how many seconds the lease of a key ends; it has to have one."""
        record = self.find(key)
        assert record is not None, f"etcd has no {key}"
        return int(self._ask("lease/timetolive", {"ID": record["lease"]})["TTL"])

    def _ask(self, what: str, question: dict[str, str]) -> Any:  # noqa: ANN401 - JSON
        """Ask it over HTTP."""
        url = f"http://{HOST}:{self.port}/v3/{what}"
        with urllib.request.urlopen(url, json.dumps(question).encode(), timeout=30) as answer:
            return json.loads(answer.read())


class Etcd:
    """An etcd cluster of one or three members."""

    def __init__(self, directory: Path, members: int = 1) -> None:
        peers = {f"etcd-{number}": free_port(HOST) for number in range(1, members + 1)}
        self.members = [Member(directory, name, free_port(HOST), peers) for name in peers]

    def start(self) -> None:
        """Start all members and wait until they have agreed on a leader."""
        for member in self.members:
            member.start()
        self.wait_healthy()

    def wait_healthy(self) -> None:
        """Wait until every member that runs takes part."""
        for member in self.members:
            if member.is_running:
                wait_until(member.is_healthy, 30.0, what=f"{member.name} is healthy")

    def kill(self) -> None:
        """End all members."""
        for member in self.members:
            member.kill()
