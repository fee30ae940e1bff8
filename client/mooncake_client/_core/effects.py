"""What an operation asks its driver to do. A driver sends the result back, or throws its error.

Every effect ends by the deadline of the call, which only the driver knows. An effect that fails
throws its ``StoreError`` into the operation; an interruption (``KeyboardInterrupt``, cancellation)
is thrown in as well, and the operation may still ``Tell`` before it lets it pass.

``verb`` is the name of the driver's method that performs the effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from mooncake_store.extent import Identity
    from mooncake_store.transport import ReadTask, WriteTask
    from mooncake_store.wire.control import Message, NodeRecord, Replica


class Ask:
    """Send a request to the master and wait. Result: the reply.

    Attributes:
        message: The request.
        meanwhile: Work to do between sending and waiting; it never fails.
    """

    __slots__ = ("meanwhile", "message")
    verb = "ask"

    def __init__(self, message: Message, meanwhile: Callable[[], object] | None = None) -> None:
        self.message = message
        self.meanwhile = meanwhile


class AskMany:
    """Send requests back to back and wait for all. Result: a reply or a ``StoreError`` for each.

    Trouble with the master itself is thrown instead.
    """

    __slots__ = ("messages",)
    verb = "ask_many"

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages


class Tell:
    """Send a request without waiting for its reply, if that is possible at once. Result: None."""

    __slots__ = ("message",)
    verb = "tell"

    def __init__(self, message: Message) -> None:
        self.message = message


class Read:
    """Perform read tasks; their outcome is in ``task.error``. Result: None.

    Attributes:
        groups: (node, its tasks); they are independent of each other.
        limit_s: Time for this try, within the deadline; None: all that is left.
    """

    __slots__ = ("groups", "limit_s")
    verb = "read"

    def __init__(
        self, groups: Sequence[tuple[NodeRecord, list[ReadTask]]], limit_s: float | None = None
    ) -> None:
        self.groups = groups
        self.limit_s = limit_s


class Write:
    """Perform write tasks; as ``Read``."""

    __slots__ = ("groups", "limit_s")
    verb = "write"

    def __init__(
        self, groups: Sequence[tuple[NodeRecord, list[WriteTask]]], limit_s: float | None = None
    ) -> None:
        self.groups = groups
        self.limit_s = limit_s


class Attach:
    """Try to reach a node through shared memory. Result: whether it is on this host."""

    __slots__ = ("node",)
    verb = "attach"

    def __init__(self, node: NodeRecord) -> None:
        self.node = node


class View:
    """Look at an extent in place. Result: (path, its ``transport.View``)."""

    __slots__ = ("identity", "node", "replica")
    verb = "view"

    def __init__(self, node: NodeRecord, replica: Replica, identity: Identity) -> None:
        self.node = node
        self.replica = replica
        self.identity = identity


class Reserve(View):
    """Begin a write in place. Result: (path, its ``transport.Reservation``)."""

    __slots__ = ()
    verb = "reserve"


class Wait:
    """Let time pass. Result: False, at once, where the deadline does not leave that much."""

    __slots__ = ("seconds",)
    verb = "wait"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Retry(Wait):
    """As ``Wait``, before the master is asked again.

    Result: False also where the master has been away for so long that calls which name no deadline
    of their own do not wait for it any more.
    """

    __slots__ = ()
    verb = "retry"


class NewReign(Exception):
    """Thrown by a driver for ``Ask``: the master on the line is not the one that was spoken to.

    Nothing was sent. The operation opens its namespace again before it goes on.
    """


Effect: TypeAlias = Ask | AskMany | Tell | Read | Write | Attach | View | Reserve | Wait

R = TypeVar("R")
Operation: TypeAlias = "Generator[Effect, Any, R]"
"""An operation that ends with an ``R``. The type of each effect's result is in its docstring."""
