"""memcached over TCP, through pymemcache.

The library takes and returns ``bytes`` only: a put is given bytes that exist already, and
``get_into`` is a get and a copy, both timed.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from tests.bench.adapter import Adapter, Region
from tests.bench.processes import free_port


class MemcachedClient(Protocol):
    """What is used of ``pymemcache.client.base.Client``."""

    def close(self) -> None: ...
    def set(self, key: str, value: bytes, /) -> bool: ...
    def get(self, key: str, /) -> bytes | None: ...
    def get_many(self, keys: Sequence[str], /) -> Mapping[str, bytes]: ...
    def delete_many(self, keys: Sequence[str], /, *, noreply: bool) -> bool: ...


class MemcachedAdapter(Adapter):
    """One memcached with two threads, the CPUs of the rig."""

    def start(self, segment_bytes: int) -> None:
        self.port = free_port()
        self.servers.spawn(
            "server",
            [
                *("memcached", "-u", "root", "-l", "127.0.0.1", "-p", str(self.port), "-U", "0"),
                # Twice the segment: its slabs must not make it evict.
                *("-m", str(2 * segment_bytes >> 20), "-I", "128m", "-t", "2"),
            ],
        )
        self.servers.wait_listening("server", self.port)

    def connect(self) -> None:
        module = importlib.import_module("pymemcache.client.base")
        self._memcached: MemcachedClient = module.Client(
            ("127.0.0.1", self.port), no_delay=True, default_noreply=False
        )

    def close(self) -> None:
        self._memcached.close()

    def put(self, key: str, source: Region) -> None:
        if not self._memcached.set(key, source.value):
            raise RuntimeError(f"memcached refused {key}")

    def get(self, key: str) -> bytes:
        value = self._memcached.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def get_into(self, key: str, target: Region) -> None:
        target.view[:] = self.get(key)

    def exists(self, key: str) -> bool:
        # The protocol has no such question; a get of a small value is the nearest.
        return self._memcached.get(key) is not None

    def remove(self, keys: Sequence[str]) -> None:
        self._memcached.delete_many(keys, noreply=False)

    def get_into_many(self, keys: Sequence[str], targets: Sequence[Region]) -> None:
        values = self._memcached.get_many(keys)
        for key, target in zip(keys, targets, strict=True):
            target.view[:] = values[key]

    def exists_many(self, keys: Sequence[str]) -> list[bool]:
        values = self._memcached.get_many(keys)
        return [key in values for key in keys]
