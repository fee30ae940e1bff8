"""What ``view`` and ``reserve`` of the asyncio client return: context managers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from mooncake_client import _calls as calls
from mooncake_client._core import in_place
from mooncake_store.errors import Closed

if TYPE_CHECKING:
    from types import TracebackType

    from mooncake_client._async import AsyncClient
    from mooncake_client._core.effects import Operation
    from mooncake_client._core.in_place import Reserved
    from mooncake_client._results import PutResult
    from mooncake_store.transport import View


class AsyncViewContext:
    """An object where it lies: entering returns its memory, read-only, or None for a miss.

    Leaving makes sure that the memory held the object all the time.
    """

    __slots__ = ("_client", "_deadline_s", "_key", "_verify", "_view")

    def __init__(
        self, client: AsyncClient, key: str, *, verify: bool, deadline_s: float | None
    ) -> None:
        self._client = client
        self._key = key
        self._verify = verify
        self._deadline_s = deadline_s
        self._view: View | None = None

    async def __aenter__(self) -> memoryview | None:
        client = self._client
        operation = calls.view(client._session, self._key, verify=self._verify)
        self._view, data = await client._run(operation, self._deadline_s)
        return data

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        view, self._view = self._view, None
        if view is not None:
            in_place.leave(self._client._session, self._key, view, failed=kind is not None)


class AsyncReservation:
    """Room for an object: fill ``buffer``, then leave the ``with`` block.

    Leaving it by an exception gives the room back, and nothing of the object is ever readable.

    Attributes:
        buffer: Writable memory of exactly the object's length; None where a version was there
            already and ``replace`` was not asked for: then there is nothing to do.
        result: The put's result, once the block was left; at once where ``buffer`` is None.
    """

    __slots__ = ("_client", "_deadline_s", "_operation", "_reserved", "buffer", "result")

    def __init__(
        self, client: AsyncClient, operation: Operation[Reserved], deadline_s: float | None
    ) -> None:
        self._client = client
        self._operation = operation
        self._deadline_s = deadline_s
        self._reserved: Reserved | None = None
        self.buffer: memoryview | None = None
        self.result: PutResult | None = None

    async def __aenter__(self) -> Self:
        if self._reserved is not None:
            raise Closed("a reservation is used once")
        client = self._client
        self._reserved = await client._run(self._operation, self._deadline_s)
        self.buffer = self._reserved.buffer
        if self.buffer is None:
            self.result = in_place.result_of(self._reserved.offer)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        reserved, client = self._reserved, self._client
        if reserved is None or self.buffer is None:
            return
        self.buffer = None
        session = client._session
        if kind is not None:
            await client._run(in_place.give_up(reserved), None)
        else:
            operation = in_place.commit(session, reserved)
            self.result = await client._run(operation, self._deadline_s)
