"""Finds the pyverbs of the distribution, and imports that package and nothing else of the system.

It is compiled for one minor version of Python and against the rdma-core of its host, so it comes
with the system (ADR 51).
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mooncake_store.errors import NotSupported

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"

PLACES: Final = (
    Path("/usr/lib/python3/dist-packages"),
    Path("/usr/lib64") / _VERSION / "site-packages",
    Path("/usr/lib") / _VERSION / "site-packages",
)
"""Where Debian and Ubuntu, and where RHEL and Fedora install it."""

_lock = threading.Lock()


def load_pyverbs(places: Sequence[Path] = PLACES) -> None:
    """Make ``import pyverbs`` work in this process.

    Raises:
        NotSupported: It is not installed, or for another version of Python; the message says what
            to install.
    """
    with _lock:
        if "pyverbs" in sys.modules or importlib.util.find_spec("pyverbs") is not None:
            return
        for place in places:
            folder = place / "pyverbs"
            if not (folder / "__init__.py").exists():
                continue
            if not _is_for_this_python(folder):
                raise NotSupported(
                    f"{folder} is built for another Python than this {_VERSION}: run the store with"
                    " the system's python3, or rebuild pyverbs for this one"
                )
            _import(folder)
            return
    raise NotSupported(
        "pyverbs is not installed: apt install python3-pyverbs ibverbs-providers rdma-core"
        " (RHEL: dnf install python3-pyverbs libibverbs rdma-core)"
    )


def _is_for_this_python(folder: Path) -> bool:
    return any((folder / f"device{suffix}").exists() for suffix in EXTENSION_SUFFIXES)


def _import(folder: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        "pyverbs", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pyverbs"] = module
    try:
        spec.loader.exec_module(module)
        importlib.import_module("pyverbs.device")
    except (ImportError, OSError) as error:
        del sys.modules["pyverbs"]
        raise NotSupported(f"{folder} cannot be loaded: {error}") from error
