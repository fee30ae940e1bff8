"""fio: what the disk gives."""

import json
import subprocess
from collections.abc import Sequence

from tests.bench.adapter import Region
from tests.bench.disk import IN_FLIGHT, DiskAdapter


class FioAdapter(DiskAdapter):
    """fio with O_DIRECT, one system call at a time for each job."""

    has_bytes = False

    def start(self, segment_bytes: int) -> None:
        del segment_bytes
        self.prepare()

    def connect(self) -> None:
        """There is nobody to connect to."""

    def close(self) -> None:
        """Nor to leave."""

    def put(self, key: str, source: Region) -> None:
        raise NotImplementedError

    def get(self, key: str) -> bytes:
        raise NotImplementedError

    def get_into(self, key: str, target: Region) -> None:
        raise NotImplementedError

    def exists(self, key: str) -> bool:
        raise NotImplementedError

    def remove(self, keys: Sequence[str]) -> None:
        raise NotImplementedError

    def fill(self, source: Region, total: int) -> float:
        (self.folder / "fio.bin").unlink(missing_ok=True)
        return self._run(
            "--rw=write", f"--bs={source.size}", f"--size={total}", "--end_fsync=1", "--numjobs=1"
        )

    def read_back(self, target: Region, total: int) -> float:
        size = target.size // IN_FLIGHT
        return self._run(
            "--rw=randread", f"--bs={size}", f"--size={total}", f"--io_size={total // IN_FLIGHT}",
            "--norandommap", f"--numjobs={IN_FLIGHT}",
        )  # fmt: skip

    def _run(self, *words: str) -> float:
        command = [
            "fio", "--name=x", f"--filename={self.folder / 'fio.bin'}", "--direct=1",
            "--ioengine=psync", "--group_reporting", "--output-format=json", *words,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, check=True, text=True)  # noqa: S603
        job = json.loads(done.stdout)["jobs"][0]
        part = job["write" if "--rw=write" in words else "read"]
        return float(part["io_bytes"]) / (float(part["runtime"]) / 1000)
