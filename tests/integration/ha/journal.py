"""Writers that note what was acknowledged to them, and a reader who holds the pool to it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Self

from mooncake_client import Client
from mooncake_store.errors import StoreError
from mooncake_store.testing import payload, wait_until

if TYPE_CHECKING:
    from types import TracebackType

BYTES: Final = 512
CALL_S: Final = 10.0
REMOVE_EVERY: Final = 7
REPLACE_EVERY: Final = 5


def value_of(key: str, seed: int) -> bytes:
    """Return the value that the ``seed``-th put of a key writes."""
    return payload(key, seed, BYTES)


class Journal:
    """What writers were told, while they write.

    Attributes:
        written: {key: values, one of which it must have}; more than one where the last put failed.
        removed: Keys whose removal was acknowledged.
        doubtful: Keys whose removal failed: it may have happened.
    """

    def __init__(self, address: str, writers: int = 3) -> None:
        self.written: dict[str, list[bytes]] = {}
        self.removed: set[str] = set()
        self.doubtful: set[str] = set()
        self._address = address
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(f"w{n}",), daemon=True)
            for n in range(writers)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(3 * CALL_S)
            assert not thread.is_alive()

    def wait_for(self, more: int) -> None:
        """Wait until so many more keys are acknowledged."""
        goal = len(self.written) + more
        wait_until(lambda: len(self.written) >= goal, 60.0, what=f"{more} more keys")

    def check(self) -> None:
        """Read everything back."""
        with Client(self._address, namespace="journal", location_cache=False) as client:
            for key, allowed in self.written.items():
                found = client.get(key)
                if found is None:
                    assert key in self.removed | self.doubtful, f"{key} is lost"
                else:
                    assert key not in self.removed, f"{key} was removed and is back"
                    assert found in allowed, f"{key} has bytes that nobody may see"

    def _write(self, name: str) -> None:
        with Client(self._address, namespace="journal", location_cache=False) as client:
            number = 0
            while not self._ending.is_set():
                number += 1
                self._write_one(client, f"{name}-{number}", number)

    def _write_one(self, client: Client, key: str, number: int) -> None:
        try:
            client.put(key, value_of(key, 1), deadline_s=CALL_S)
        except StoreError:
            return  # It may be there or not, and nobody was told.
        self.written[key] = [value_of(key, 1)]
        try:
            if number % REPLACE_EVERY == 0:
                self.written[key].append(value_of(key, 2))
                client.put(key, value_of(key, 2), replace=True, deadline_s=CALL_S)
                del self.written[key][0]
            if number % REMOVE_EVERY == 0:
                self.doubtful.add(key)
                client.remove(key, deadline_s=CALL_S)
                self.removed.add(key)
        except StoreError:
            return
