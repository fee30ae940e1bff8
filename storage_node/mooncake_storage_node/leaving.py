"""What a node does before it stops: have the master copy what only it holds to others."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, Protocol

from mooncake_store.errors import DeadlineExceeded, ProtocolError, StoreError
from mooncake_store.units import format_bytes
from mooncake_store.wire.control import DescribeDrain, Drain, DrainStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.wire.control import Message

logger = logging.getLogger(__name__)

POLL_S: Final = 0.1
ASK_S: Final = 2.0
"""Time for one answer. A master that is silent for longer, or gone, ends the wait: nothing is
copied without it, and whoever stops a whole cluster stops the master, too."""


class Asks(Protocol):
    """What asks the master."""

    def ask(self, message: Message, timeout_s: float) -> Message:
        """Return its answer, or raise its error."""
        ...


def leave(
    membership: Asks,
    node_id: str,
    timeout_s: float,
    interrupted: Callable[[float], bool],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until nothing is left that only this node holds, or nothing more can be done about it.

    It serves meanwhile. What is left at the end is logged: it goes with the node.

    Args:
        membership: Asks the master.
        node_id: Of this node.
        timeout_s: Longest wait.
        interrupted: Waits so many seconds at most, and returns whether to stop waiting.
        clock: Seconds of the monotonic clock.
    """
    until_s = clock() + timeout_s
    status: DrainStatus | None = None
    try:
        while (left_s := until_s - clock()) > 0:
            if status is None or status.state == "none":  # none: the master is another one now
                status = _ask(membership, Drain(node_id, left_s, leaving=True))
            else:
                status = _ask(membership, DescribeDrain(node_id))
            if status.state in {"drained", "incomplete"} or status.stuck or interrupted(POLL_S):
                break
    except DeadlineExceeded as error:
        logger.warning("stops without a drain, the master is silent: %s", error)
        return
    except StoreError as error:
        logger.warning("stops without a drain: %s", error)
        return
    if status is not None:
        _report(status)


def _report(status: DrainStatus) -> None:
    if status.state == "drained":
        logger.info("drained: %d objects were copied to other nodes", status.moved)
        return
    reasons = ", ".join(f"{count} {code}" for code, count in status.reasons.items())
    logger.warning(
        "stops before it is drained: %d objects were copied, %s%d of %s are left that only this"
        " node holds%s",
        status.moved,
        "" if status.counted else "at least ",
        status.left,
        format_bytes(status.left_bytes),
        f" ({reasons})" if reasons else "",
    )


def _ask(membership: Asks, message: Message) -> DrainStatus:
    answer = membership.ask(message, ASK_S)
    if not isinstance(answer, DrainStatus):
        raise ProtocolError("a master answers a drain with something else")
    return answer
