"""The admin API's HTTP server: uvicorn inside the master's own event loop, bounded.

Strangers may connect here too: connections are limited in number, and one that has not sent a whole
request head in time is closed, so idle or dripping connections hold nothing for long.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from mooncake_store.errors import ConfigError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from fastapi import FastAPI

CONNECTIONS_MAX: Final = 256
"""Connections at one time: scrapers, probes and people are a handful. Each takes about 100 KiB at
worst."""

HEAD_S_MAX: Final = 10.0
"""Time from connecting to a whole request head; clients send it in one piece."""

IDLE_S_MAX: Final = 15
"""Time between two requests of one connection; scrapers come back every 15 s or connect anew."""

HEAD_BYTES_MAX: Final = 64 * 1024
"""Bytes of a request head: a key of 4 KiB, each byte percent-encoded, takes 12 KiB."""


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 connection with a limit on their number and on a head's time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # theirs is untyped
        """Take the connection, or end it where there are too many."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
            return
        self.loop.call_later(HEAD_S_MAX, self._expect_request, None)

    def _expect_request(self, before: object) -> None:
        """Close a connection that is in the middle of a request head since the last look.

        uvicorn's own timer runs only while nothing of a next request has come.
        """
        if self.transport.is_closing():
            return
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        between = cycle is None or cycle.response_complete
        if cycle is before and between and self.timeout_keep_alive_task is None:
            self.transport.abort()
        else:
            self.loop.call_later(HEAD_S_MAX, self._expect_request, cycle)


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the process has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


class AdminServer:
    """Serves an application from ``start`` to ``stop``."""

    def __init__(self, application: FastAPI) -> None:
        self._server = _Server(
            uvicorn.Config(
                application,
                http=BoundedProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=IDLE_S_MAX,
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self, sockets: list[socket.socket]) -> None:
        """Accept requests on listening sockets.

        Raises:
            ConfigError: The server ended at once.
        """
        self._task = asyncio.create_task(self._server.serve(sockets))
        while not self._server.started:
            await asyncio.sleep(0.005)
            if self._task.done():
                raise ConfigError("the admin API could not start") from self._task.exception()

    async def stop(self) -> None:
        """Answer what is under way, for a second at most, and close."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
