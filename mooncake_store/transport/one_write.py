"""The plainest write, which most are: one extent with one request. Sans-I/O.

The same as ``exchange.WriteExchange`` in fewer steps; see there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_store.errors import ProtocolError
from mooncake_store.extent import HEADER_BYTES
from mooncake_store.transport.effects import Receive, Send
from mooncake_store.wire import data
from mooncake_store.wire.data import Operation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_store.data_path import WriteTask
    from mooncake_store.deadline import Deadline
    from mooncake_store.transport.effects import Effects


class OneWrite:
    """Writes one task.

    Attributes:
        done: 1 once the task has its result.
        answered: Whether any byte of a reply has come.
    """

    __slots__ = ("_deadline", "_task", "answered", "done")

    def __init__(self, task: WriteTask, deadline: Deadline) -> None:
        self.done = 0
        self.answered = False
        self._task = task
        self._deadline = deadline

    def effects(self, ids: Iterator[int], scratch: memoryview, node: str) -> Effects:
        """As ``WriteExchange.effects``.

        Raises:
            ProtocolError: The peer's bytes are no reply to what was asked.
        """
        task = self._task
        request_id = next(ids)
        header, tail = task.sealed
        identity = task.identity
        size = HEADER_BYTES + identity.length + len(tail)
        request = data.ONE_REQUEST.pack(
            data.MAGIC, Operation.WRITE, 0, 1, request_id, self._deadline.left_ms(), size,
            task.incarnation, task.offset, identity.version, 0, size,
        )  # fmt: skip
        yield Send([memoryview(request + header), *task.parts, memoryview(tail)])
        head = scratch[: data.ONE_REPLY_BYTES]
        yield Receive([head], data.ONE_REPLY_BYTES)
        self.answered = True
        fields = data.ONE_REPLY.unpack(head)
        if fields[:5] != (data.MAGIC, Operation.WRITE, data.REPLY, 1, request_id) or fields[6]:
            raise ProtocolError("the peer answers something that was not asked")
        status = fields[7]
        task.error = data.error_of(status, node=node) if status else None
        self.done = 1
