"""The RPC server: its sockets, its connections, the tick, and the sweep of what is overdue."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mooncake_master.connection import Connection
from mooncake_master.turns import Turns
from mooncake_master.vigil import Vigil
from mooncake_store import limits
from mooncake_store.errors import Overloaded
from mooncake_store.transport.spinning import SPIN_S

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from mooncake_master.meters import Meters
    from mooncake_master.switchboard import Switchboard
    from mooncake_store.wire.control import Welcome

logger = logging.getLogger(__name__)

TICK_S: Final = 0.02
"""Time between two ticks of the core. Smaller: idle masters use more processor. Larger: waiting
puts and expiries end later."""

SWEEP_S: Final = 0.25
"""Time between two looks for connections that are overdue in one way or another."""

RECEIVE_BUFFER_BYTES: Final = 256 * limits.KIB
"""The one buffer that all connections receive into; a batch of 1,000 usual keys fits whole."""

FRAME_S_MAX: Final = 30.0
"""Time that one frame may take to arrive once it has begun: 8 MiB at 0.3 MB/s."""

STALLED_S_MAX: Final = 30.0
"""Time that a peer may leave its replies unread while more than a mebibyte of them waits."""

REFUSALS_MAX: Final = 32
"""Connections above the limit that are kept until their handshake, which is refused with the
reason. Closing them at once would reset them before they read it."""

CLOSING_S_MAX: Final = 5.0
"""Time that the last bytes for a peer may take after we ended its connection."""

HELD_BYTES_MAX: Final = 256 * limits.MIB
"""Incomplete frames and unread replies of all connections together; beyond it those that hold
most are cut off first, since an honest peer holds a few megabytes for some milliseconds."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What the settings say about connections.

    Attributes:
        connections_max: Connections at one time.
        handshake_timeout_s: Time from connecting to a complete handshake.
        write_buffer_bytes_max: Unread replies at which a peer is cut off.
        instruct_timeout_s: Time a node has to answer a request of the master.
        awake_s: Time to stay awake after the answer to a small request of a client.
    """

    connections_max: int = 10_000
    handshake_timeout_s: float = 5.0
    write_buffer_bytes_max: int = 32 * limits.MIB
    instruct_timeout_s: float = 5.0
    awake_s: float = SPIN_S


class Shared:
    """What the connections of one server have in common.

    Attributes:
        nodes: Connections of nodes.
        connections: All of them.
    """

    def __init__(
        self,
        switchboard: Switchboard,
        meters: Meters,
        welcome: Callable[[], Welcome],
        bounds: ServerLimits,
        software: str,
    ) -> None:
        self.switchboard = switchboard
        self.meters = meters
        self.welcome = welcome
        self.software = software
        self.clock = switchboard.clock
        self.connections_max = bounds.connections_max
        self.handshake_timeout_s = bounds.handshake_timeout_s
        self.write_buffer_bytes_max = bounds.write_buffer_bytes_max
        self.instruct_timeout_s = bounds.instruct_timeout_s
        self.buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self.turns = Turns(asyncio.get_running_loop().call_soon)
        self.vigil = Vigil(asyncio.get_running_loop().call_soon, bounds.awake_s)
        self.connections: dict[Connection, None] = {}
        self.nodes: dict[Connection, None] = {}

    def admit(self, connection: Connection) -> bool:
        """Take a new connection; some more than allowed, so that they can be told why not."""
        self.meters.connections_opened += 1
        if len(self.connections) >= self.connections_max + REFUSALS_MAX:
            self.meters.connections_refused += 1
            return False
        self.connections[connection] = None
        return True

    def check_room(self) -> None:
        """Make sure that one more connection may be used, the stranger who asks included.

        Raises:
            Overloaded: There are too many.
        """
        if len(self.connections) > self.connections_max:
            self.meters.connections_refused += 1
            raise Overloaded(
                f"this master has its {self.connections_max} connections; close some, or raise"
                " --connections-max"
            )

    def known(self, connection: Connection) -> int:
        """Return the number of a connection that has introduced itself."""
        if connection.role == "node":
            self.nodes[connection] = None
        return self.switchboard.attach(connection)

    def forget(self, connection: Connection) -> None:
        """Drop a connection that is gone."""
        self.connections.pop(connection, None)
        self.nodes.pop(connection, None)
        self.switchboard.detach(connection.number)


class Server:
    """Serves the RPC port from ``start`` to ``stop``."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tick_due_s = 0.0
        self._sweep_due_s = 0.0

    async def start(self, sockets: list[socket.socket]) -> None:
        """Accept connections on listening sockets, which are closed with the server."""
        loop = asyncio.get_running_loop()
        self._tick_due_s = self._shared.clock() + TICK_S
        self._timer = loop.call_later(TICK_S, self._tick)
        for sock in sockets:
            server = await loop.create_server(lambda: Connection(self._shared), sock=sock)
            self._servers.append(server)

    async def stop(self, drain_s: float) -> None:
        """Accept nobody, answer what is under way for at most ``drain_s``, close everything."""
        for server in self._servers:
            server.close()
        await self._wait_until(lambda: not self._owes(), drain_s / 2)
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._shared.connections):
            connection.close("master stops")
        await self._wait_until(lambda: not self._shared.connections, drain_s / 2)
        for connection in list(self._shared.connections):
            connection.abort("master stops")

    async def _wait_until(self, is_so: Callable[[], bool], most_s: float) -> None:
        until_s = self._shared.clock() + most_s
        while not is_so() and self._shared.clock() < until_s:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(TICK_S)

    def _owes(self) -> bool:
        return any(connection.owes for connection in self._shared.connections)

    def _tick(self) -> None:
        shared = self._shared
        now_s = shared.clock()
        shared.meters.tick_delays.observe(max(0.0, now_s - self._tick_due_s))
        self._tick_due_s = now_s + TICK_S
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        shared.switchboard.tick()
        for node in [node for node in shared.nodes if node.asks]:
            node.expire(now_s)
        if now_s >= self._sweep_due_s:
            self._sweep_due_s = now_s + SWEEP_S
            self._sweep(now_s)

    def _sweep(self, now_s: float) -> None:
        """End connections that are overdue, and those that hold most where all hold too much."""
        handshake_timeout_s = self._shared.handshake_timeout_s
        held = 0
        for connection in list(self._shared.connections):
            if connection.closed_s and now_s - connection.closed_s > CLOSING_S_MAX:
                connection.abort("unsent at close")
            elif not connection.role and now_s - connection.opened_s > handshake_timeout_s:
                connection.abort("no handshake")
            elif connection.partial_since_s and now_s - connection.partial_since_s > FRAME_S_MAX:
                connection.abort("slow frame")
            elif connection.stalled_since_s and now_s - connection.stalled_since_s > STALLED_S_MAX:
                connection.abort("slow reader")
            elif connection.partial_since_s or connection.stalled_since_s:
                held += connection.held_bytes
        if held > HELD_BYTES_MAX:
            self._cut_largest(held - HELD_BYTES_MAX)

    def _cut_largest(self, excess: int) -> None:
        for connection in sorted(
            self._shared.connections, key=lambda each: each.held_bytes, reverse=True
        ):
            if excess <= 0:
                return
            excess -= connection.held_bytes
            connection.abort("memory limit")


def monotonic_s() -> float:
    """Return the clock of the whole process, in seconds."""
    return time.monotonic()
