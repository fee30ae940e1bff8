"""redis-server over TCP, through redis-py with hiredis.

The library cannot read into a caller's buffer: ``get_into`` is a get and a copy, both timed.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from tests.bench.adapter import Adapter, Region
from tests.bench.processes import free_port


class RedisPipeline(Protocol):
    """What is used of redis-py's pipeline."""

    def exists(self, key: str, /) -> object: ...
    def execute(self) -> list[int]: ...


class RedisClient(Protocol):
    """What is used of ``redis.Redis``."""

    def ping(self) -> object: ...
    def close(self) -> None: ...
    def set(self, key: str, value: memoryview, /) -> object: ...
    def get(self, key: str, /) -> bytes | None: ...
    def exists(self, key: str, /) -> int: ...
    def delete(self, *keys: str) -> int: ...
    def mset(self, values: Mapping[str, memoryview], /) -> object: ...
    def mget(self, keys: Sequence[str], /) -> list[bytes]: ...
    def pipeline(self, *, transaction: bool) -> RedisPipeline: ...


class RedisAdapter(Adapter):
    """One redis-server without persistence."""

    def start(self, segment_bytes: int) -> None:
        self.port = free_port()
        self.servers.spawn(
            "server",
            [
                *("redis-server", "--bind", "127.0.0.1", "--port", str(self.port)),
                *("--save", "", "--appendonly", "no", "--dir", self.servers.log_directory),
                # Room beyond the segment for its bookkeeping: it must never evict.
                *("--maxmemory", str(2 * segment_bytes)),
            ],
        )
        self.servers.wait_listening("server", self.port)

    def connect(self) -> None:
        self._redis: RedisClient = importlib.import_module("redis").Redis("127.0.0.1", self.port)
        self._redis.ping()

    def close(self) -> None:
        self._redis.close()

    def put(self, key: str, source: Region) -> None:
        self._redis.set(key, source.view)

    def get(self, key: str) -> bytes:
        value = self._redis.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def get_into(self, key: str, target: Region) -> None:
        target.view[:] = self.get(key)

    def exists(self, key: str) -> bool:
        return self._redis.exists(key) == 1

    def remove(self, keys: Sequence[str]) -> None:
        self._redis.delete(*keys)

    def put_many(self, keys: Sequence[str], sources: Sequence[Region]) -> None:
        self._redis.mset({key: s.view for key, s in zip(keys, sources, strict=True)})

    def get_into_many(self, keys: Sequence[str], targets: Sequence[Region]) -> None:
        for value, target in zip(self._redis.mget(keys), targets, strict=True):
            target.view[:] = value

    def exists_many(self, keys: Sequence[str]) -> list[bool]:
        pipeline = self._redis.pipeline(transaction=False)
        for key in keys:
            pipeline.exists(key)
        return [answer == 1 for answer in pipeline.execute()]
