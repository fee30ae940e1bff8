"""What docs/guides/testing.md shows works with the real client."""

from __future__ import annotations

from mooncake_client import Client, StoreError
from mooncake_store.testing import Checker, History, payload
from mooncake_store.types import MissReason


def test_a_history_of_real_calls_is_judged() -> None:
    history = History()
    with Client("local://?dram=16MiB") as client:
        for version in range(1, 6):
            call = history.write("writer-1", "key", version=version, size=4096)
            try:
                client.put("key", payload("key", version, 4096), replace=True)
            except StoreError as error:
                call.unknown(error)
            else:
                call.done()
            call = history.read("reader-1", "key", deadline_s=5.0)
            value = client.get("key")
            if value is None:
                reason = client.last_miss("key")
                call.missed("" if reason is None else reason.name.lower())
            else:
                call.returned(value)
        removal = history.remove("writer-1", "key")
        client.remove("key")
        removal.done()
        call = history.read("reader-1", "key")
        assert client.get("key") is None
        reason = client.last_miss("key")
        assert reason is MissReason.REMOVED
        call.missed(reason.name.lower())
    assert Checker(history, lateness_s=0.5).check() == []
    assert sum(each.found for each in history.calls) == 5
