"""What a user does first with an installed wheel: import everything, put and get a value.

Run it from a directory that is not the checkout, with the interpreter of a fresh environment.
"""

from __future__ import annotations

import importlib.util
import pkgutil
import sys
from pathlib import Path

PACKAGES = ("mooncake_store", "mooncake_master", "mooncake_storage_node", "mooncake_client")

NEEDS = {"mooncake_store.testing.fixtures": "pytest"}
"""Modules for users who have more installed than what the store needs to run."""


def import_everything() -> int:
    """Import every module of the distribution and return how many there are."""
    count = 0
    for name in PACKAGES:
        package = importlib.import_module(name)
        where = Path(str(package.__file__))
        if "site-packages" not in where.parts:
            sys.exit(f"{name} was imported from {where}, not from the installed wheel")
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            needed = NEEDS.get(module.name)
            has_needed = needed is None or importlib.util.find_spec(needed) is not None
            if has_needed and not module.name.endswith("__main__"):
                importlib.import_module(module.name)
                count += 1
    return count


def put_and_get() -> None:
    """Store a value in an embedded cluster and read it back."""
    from mooncake_client import Client  # noqa: PLC0415 - only after the imports were checked

    value = bytes(range(256)) * 4096
    with Client("local://?dram=64MiB") as client:
        client.put("smoke", value)
        if client.get("smoke") != value:
            sys.exit("local:// returned other bytes than were put")
        if client.get("absent") is not None:
            sys.exit("local:// returned bytes for a key that was never put")


if __name__ == "__main__":
    modules = import_everything()
    put_and_get()
    print(f"smoke: {modules} modules imported, put and get on local:// agree")  # noqa: T201
