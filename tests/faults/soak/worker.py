"""One client process of the soak: random calls at a gentle pace, every one of them in a journal.

``python -m tests.faults.soak.worker ADDRESS NAME SEED JOURNAL [KEYS]``
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mooncake_client import Client, PutResult, StaleEpoch, StoreError
from mooncake_store.testing import Kind, Outcome, describe, payload, seeded, stamped_version
from tests.faults.soak.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 3.0
PAUSE_S = (0.0, 0.04)
"""About 40 calls a second: the checker must be able to follow."""

DURABLE_SHARE = 0.2
"""Of the puts: their answers wait for a disk."""

SIZES = (64, 500, 4096, 20_000, 70_000, 300_000)
CLEARED = "cleared"
"""Namespace that is cleared now and then; the other one never is."""


def miss_note(client: Client, key: str) -> str:
    """Return the reason that the master gave with a miss, as the checker knows it."""
    reason = client.last_miss(key)
    return "no reason" if reason is None else reason.name.lower()


class Worker:
    """Calls without end."""

    def __init__(self, address: str, name: str, seed: int, path: Path, keys: int) -> None:
        self._random = seeded(seed, name)
        self._journal = Journal(path, name)
        self._version = seed << 24
        transport = self._random.choice(("auto", "auto", "tcp"))
        self._clients = {
            namespace: Client(
                address,
                namespace=namespace,
                transport=transport,
                deadline_s=DEADLINE_S,
                name=name,
            )
            for namespace in ("default", CLEARED)
        }
        self._keys = [f"key-{number}" for number in range(keys)]
        self._actions: list[tuple[int, Callable[[str, str], None]]] = [
            (20, lambda namespace, key: self._put(namespace, key, replace=False)),
            (20, lambda namespace, key: self._put(namespace, key, replace=True)),
            (40, self._get),
            (8, self._get_many),
            (10, self._remove),
            (6, self._exists),
        ]

    def run(self) -> None:
        """Call until somebody kills us."""
        weights = [weight for weight, _ in self._actions]
        while True:
            (action,) = self._random.choices([action for _, action in self._actions], weights)
            namespace = CLEARED if self._random.random() < 0.2 else "default"
            if namespace == CLEARED and self._random.random() < 0.02:
                action = self._clear
            action(namespace, self._random.choice(self._keys))
            time.sleep(self._random.uniform(*PAUSE_S))

    def _begin(self, kind: Kind, namespace: str, key: str, version: int | None = None) -> int:
        return self._journal.begin(
            kind, key, namespace=namespace, deadline_s=DEADLINE_S, version=version
        )

    def _unknown(self, number: int, error: StoreError, namespace: str) -> None:
        self._journal.end(number, Outcome.UNKNOWN, note=error.code)
        if isinstance(error, StaleEpoch):
            self._reopen(namespace)

    def _reopen(self, namespace: str) -> None:
        try:
            self._clients[namespace].reopen()
        except StoreError:
            time.sleep(0.1)

    def _put(self, namespace: str, key: str, *, replace: bool) -> None:
        self._version += 1
        size = self._random.choice(SIZES)
        number = self._begin(Kind.WRITE, namespace, key, self._version)
        client = self._clients[namespace]
        retries = client.statistics().retries
        try:
            result = client.put(
                key,
                payload(key, self._version, size),
                replace=replace,
                replicas=self._random.choice((1, 1, 2)),
                durable=self._random.random() < DURABLE_SHARE,
            )
        except StoreError as error:
            self._unknown(number, error, namespace)
            return
        at_once = client.statistics().retries == retries
        self._end_put(number, result, at_once=at_once)

    def _end_put(self, number: int, result: PutResult, *, at_once: bool) -> None:
        if result.created:
            self._journal.end(number, Outcome.DONE, store_version=result.version)
        elif at_once:
            self._journal.end(number, Outcome.REFUSED, found=True, note="already there")
        else:
            self._journal.end(number, Outcome.UNKNOWN, note="already there")

    def _get(self, namespace: str, key: str) -> None:
        number = self._begin(Kind.READ, namespace, key)
        try:
            value = self._clients[namespace].get(key)
        except StoreError as error:
            self._unknown(number, error, namespace)
            return
        self._end_read(number, namespace, key, value, time.monotonic())

    def _get_many(self, namespace: str, key: str) -> None:
        keys = sorted({key, *self._random.sample(self._keys, 4)})
        numbers = [self._begin(Kind.READ, namespace, each) for each in keys]
        try:
            values = self._clients[namespace].get_many(keys)
        except StoreError as error:
            for number in numbers:
                self._unknown(number, error, namespace)
            return
        at_s = time.monotonic()
        for number, each, value in zip(numbers, keys, values, strict=True):
            if isinstance(value, StoreError):
                self._unknown(number, value, namespace)
            else:
                self._end_read(number, namespace, each, value, at_s)

    def _end_read(
        self, number: int, namespace: str, key: str, value: bytes | None, at_s: float
    ) -> None:
        """Write how a read ended, when, and with a miss the reason that came with it."""
        if value is None:
            note = miss_note(self._clients[namespace], key)
            self._journal.end(number, Outcome.DONE, at=at_s, note=note)
            return
        version = stamped_version(value, key)
        wrong = "" if version is not None else describe(value)
        self._journal.end(number, Outcome.DONE, at=at_s, found=True, version=version, wrong=wrong)

    def _remove(self, namespace: str, key: str) -> None:
        number = self._begin(Kind.REMOVE, namespace, key)
        try:
            self._clients[namespace].remove(key)
        except StoreError as error:
            self._unknown(number, error, namespace)
        else:
            self._journal.end(number, Outcome.DONE)

    def _exists(self, namespace: str, key: str) -> None:
        number = self._begin(Kind.PRESENCE, namespace, key)
        try:
            found = self._clients[namespace].exists(key)
        except StoreError as error:
            self._unknown(number, error, namespace)
        else:
            self._journal.end(number, Outcome.DONE, found=found)

    def _clear(self, namespace: str, _key: str) -> None:
        number = self._begin(Kind.CLEAR, namespace, "")
        try:
            self._clients[namespace].clear()
        except StoreError as error:
            self._unknown(number, error, namespace)
        else:
            self._journal.end(number, Outcome.DONE)


if __name__ == "__main__":
    address, name, seed, path, keys = sys.argv[1:]
    Worker(address, name, int(seed), Path(path), int(keys)).run()
