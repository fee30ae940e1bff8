"""A client of an embedded cluster behaves like a dictionary of bytes with versions."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mooncake_client import (
    BufferTooSmall,
    Client,
    InvalidArgument,
    PutItem,
    PutResult,
    VersionConflict,
)

KEYS = st.sampled_from(["a", "b", "c/1", "c/2", "ключ", "x" * 300])
VALUES = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda seed, size: bytes([seed]) * size, st.integers(0, 255), st.integers(0, 600_000)
    ),
)


class Dictionary(RuleBasedStateMachine):
    """The model is {key: (version, value)}."""

    def __init__(self) -> None:
        super().__init__()
        self.client = Client("local://?dram=64MiB")
        self.model: dict[str, tuple[int, bytes]] = {}
        self.newest = 0

    def teardown(self) -> None:
        self.client.close()

    def _note(self, key: str, value: bytes, result: PutResult) -> None:
        if result.created:
            assert result.version > self.newest
            self.newest = result.version
            self.model[key] = result.version, value
        else:
            assert result.version == self.model[key][0]

    @rule(key=KEYS, value=VALUES, replace=st.booleans())
    def put(self, key: str, value: bytes, replace: bool) -> None:  # noqa: FBT001 - by hypothesis
        result = self.client.put(key, value, replace=replace)
        assert result.created is (replace or key not in self.model)
        self._note(key, value, result)

    @rule(key=KEYS, value=VALUES, is_right=st.booleans())
    def put_expecting(self, key: str, value: bytes, is_right: bool) -> None:  # noqa: FBT001
        there = self.model.get(key, (0, b""))[0]
        if is_right:
            self._note(key, value, self.client.put(key, value, expected_version=there))
        else:
            with pytest.raises(VersionConflict):
                self.client.put(key, value, expected_version=there + 1)

    @rule(pairs=st.lists(st.tuples(KEYS, VALUES), max_size=5), replace=st.booleans())
    def put_many(self, pairs: list[tuple[str, bytes]], replace: bool) -> None:  # noqa: FBT001
        items = [PutItem(key, value) for key, value in pairs]
        for (key, value), result in zip(
            pairs, self.client.put_many(items, replace=replace), strict=True
        ):
            assert isinstance(result, PutResult)
            self._note(key, value, result)

    @rule(values=st.dictionaries(KEYS, VALUES, max_size=4))
    def put_together(self, values: dict[str, bytes]) -> None:
        results = self.client.put_together(values, replace=True)
        for (key, value), result in zip(values.items(), results, strict=True):
            self._note(key, value, result)

    @rule(key=KEYS, value=VALUES, is_kept=st.booleans())
    def reserve(self, key: str, value: bytes, is_kept: bool) -> None:  # noqa: FBT001
        with (
            contextlib.suppress(ZeroDivisionError),
            self.client.reserve(key, len(value)) as room,
        ):
            if room.buffer is not None:
                room.buffer[:] = value
            assert 1 // is_kept
        if not is_kept:
            return
        assert room.result is not None
        self._note(key, value, room.result)

    @rule(key=KEYS)
    def remove(self, key: str) -> None:
        assert self.client.remove(key) is (self.model.pop(key, None) is not None)

    @rule(keys=st.lists(KEYS, max_size=4))
    def remove_many(self, keys: list[str]) -> None:
        expected = [self.model.pop(key, None) is not None for key in keys]
        assert self.client.remove_many(keys) == expected

    @rule()
    def clear(self) -> None:
        self.client.clear()
        self.model.clear()

    @rule()
    def forget(self) -> None:
        self.client.forget_locations()

    @rule(key=KEYS, start=st.integers(0, 700_000), length=st.none() | st.integers(0, 700_000))
    def get_range(self, key: str, start: int, length: int | None) -> None:
        _, value = self.model.get(key, (0, b""))
        if key in self.model and start > len(value):
            with pytest.raises(InvalidArgument):
                self.client.get(key, start=start, length=length)
            return
        end = len(value) if length is None else start + length
        expected = value[start:end] if key in self.model else None
        assert self.client.get(key, start=start, length=length) == expected

    @rule(key=KEYS, size=st.integers(0, 700_000))
    def get_into(self, key: str, size: int) -> None:
        buffer = bytearray(b"\xa5" * size)
        if key not in self.model:
            assert self.client.get_into(key, buffer) is None
            return
        _, value = self.model[key]
        if size < len(value):
            with pytest.raises(BufferTooSmall):
                self.client.get_into(key, buffer)
            assert buffer == b"\xa5" * size
        else:
            assert self.client.get_into(key, buffer) == len(value)
            assert buffer == value + b"\xa5" * (size - len(value))

    @rule(key=KEYS)
    def view(self, key: str) -> None:
        with self.client.view(key) as data:
            seen = None if data is None else bytes(data)
        assert seen == (self.model[key][1] if key in self.model else None)

    @rule(keys=st.lists(KEYS, max_size=6))
    def get_many(self, keys: list[str]) -> None:
        expected = [self.model[key][1] if key in self.model else None for key in keys]
        assert self.client.get_many(keys) == expected

    @rule(keys=st.lists(KEYS, max_size=6))
    def match_prefix(self, keys: list[str]) -> None:
        count = next((at for at, key in enumerate(keys) if key not in self.model), len(keys))
        assert self.client.match_prefix(keys).count == count

    @invariant()
    def the_listing_agrees(self) -> None:
        listed = {info.key: (info.version, info.bytes) for info in self.client.scan()}
        assert listed == {
            key: (version, len(value)) for key, (version, value) in self.model.items()
        }


Dictionary.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestDictionary = Dictionary.TestCase
