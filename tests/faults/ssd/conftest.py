"""Fixtures of the tests of SSD stores."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SHM = Path("/dev/shm")  # noqa: S108 - a file system in memory


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """An empty directory in memory, where there is one: syncs take no time there."""
    if not SHM.is_dir():
        yield tmp_path
        return
    place = Path(tempfile.mkdtemp(dir=SHM))
    yield place
    shutil.rmtree(place)
