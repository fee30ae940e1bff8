"""How long a new master needs to know a million objects again; a program, not a test.

    python -m tests.faults.takeover --objects 1000000

Fills two nodes over shared memory, kills the master outright, starts it again at its address, and
prints one JSON object: seconds from the start of the new process until an old object was read and
until everything is known, and how many objects were readable before and after.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from mooncake_client import Client, StoreError
from mooncake_store.limits import GIB
from mooncake_store.testing import ProcessCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH = 1000
VALUE_BYTES = 64
GIVEN_UP_S = 120.0


def batches(objects: int) -> Iterator[list[str]]:
    """Yield the keys, each of 64 characters as a block hash in hexadecimal digits has."""
    for first in range(0, objects, BATCH):
        yield [f"{number:064x}" for number in range(first, min(first + BATCH, objects))]


def fill(client: Client, objects: int) -> None:
    """Put every object once."""
    value = b"v" * VALUE_BYTES
    for keys in batches(objects):
        for outcome in client.put_many([(key, value) for key in keys], deadline_s=60):
            if isinstance(outcome, StoreError):
                raise outcome


def readable(client: Client, objects: int) -> int:
    """Count the objects that can be read."""
    return sum(sum(client.exists_many(keys, deadline_s=60)) for keys in batches(objects))


def until_read(client: Client, key: str, began_s: float) -> float:
    """Return the seconds until an old object is read; the call waits for the new master."""
    if client.get(key, deadline_s=GIVEN_UP_S) is None:
        raise LookupError("the first object is gone")
    return time.monotonic() - began_s


def until_known(client: Client, began_s: float) -> float:
    """Return the seconds until the master says that it knows everything."""
    while client.describe_cluster().counters["mooncake_master_recovering"]:
        time.sleep(0.01)
        if time.monotonic() - began_s > GIVEN_UP_S:
            raise TimeoutError("the new master does not end its recovery")
    return time.monotonic() - began_s


def measure(objects: int) -> dict[str, float]:
    """Fill, kill, restart, and look at the clock."""
    dram = max(1, objects * 1024 * 3 // 4 // GIB + 1)
    options = {"dram": f"{dram}GiB", "populate": "start"}
    with ProcessCluster(nodes=2, node_options=options, audited=False) as cluster:
        with Client(cluster.address, namespace="takeover") as client:
            fill(client, objects)
            before = readable(client, objects)
        cluster.master.kill()
        began_s = time.monotonic()
        cluster.master.start()
        with Client(cluster.address, namespace="takeover", deadline_s=60) as client:
            first_s = until_read(client, f"{0:064x}", began_s)
            known_s = until_known(client, began_s)
            after = readable(client, objects)
    return {
        "objects": objects,
        "first_read_s": round(first_s, 3),
        "all_known_s": round(known_s, 3),
        "readable_before": before,
        "readable_after": after,
    }


def main() -> int:
    """Run; exit with 1 if an object was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=1_000_000)
    found = measure(parser.parse_args().objects)
    json.dump(found, sys.stdout)
    sys.stdout.write("\n")
    return int(found["readable_after"] != found["readable_before"])


if __name__ == "__main__":
    sys.exit(main())
