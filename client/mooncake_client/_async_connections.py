"""Connections to the masters for asyncio: one, shared by all calls of an event loop."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from mooncake_client._connections import addresses
from mooncake_client._line import (
    OWED_S_MAX,
    SOFTWARE,
    TELL_DEADLINE_MS,
    answer_ms,
    check_welcome,
    decode_reply,
    given_up,
    unheard,
)
from mooncake_client._masters import SILENT_S, Masters
from mooncake_store import limits
from mooncake_store.deadline import Deadline
from mooncake_store.errors import (
    Closed,
    DeadlineExceeded,
    PeerError,
    ProtocolError,
    StoreError,
    Unreachable,
)
from mooncake_store.wire import control, frames
from mooncake_store.wire.frames import REPLY, FrameDecoder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mooncake_client._core.counters import Counters
    from mooncake_store.transport.resolve import Address as Resolved
    from mooncake_store.wire.address import Address
    from mooncake_store.wire.control import Message


class AsyncLine(asyncio.BufferedProtocol):
    """One connection to a master; any number of requests are under way at one time.

    Attributes:
        reign: (cluster, term) of the master at the other end.
        is_open: Whether requests can be sent.
        verify: Raises ``Unreachable`` where the master is not there any more; None: do not doubt.
    """

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, tuple[Message, asyncio.Future[Any]]] = {}
        """{request id: (request, where its reply goes)}"""
        self._ids = 0
        self._answered_s = 0.0
        self._owed_since_s = 0.0
        """Since when the master owes an answer and has given none; 0: it does not."""
        self._writable = asyncio.Event()
        self._writable.set()
        self.reign = ("", 0)
        self.is_open = False
        self.verify: Callable[[AsyncLine], Awaitable[None]] | None = None
        self._watch: asyncio.Task[None] | None = None

    # --- requests -------------------------------------------------------------------------------

    async def ask(
        self, message: Message, deadline: Deadline, meanwhile: Callable[[], object] | None = None
    ) -> Any:  # noqa: ANN401 - the type that belongs to the request
        """Send a request and return its reply.

        Raises:
            StoreError: The master's answer, or trouble with the line.
        """
        replies = await self.ask_many([message], deadline, meanwhile)
        if isinstance(replies[0], StoreError):
            raise replies[0]
        return replies[0]

    async def ask_many(
        self,
        messages: Sequence[Message],
        deadline: Deadline,
        meanwhile: Callable[[], object] | None = None,
    ) -> list[Any]:
        """Send requests back to back; return a reply or an error for each.

        Raises:
            Unreachable, DeadlineExceeded: About the line.
        """
        sent: list[tuple[int, asyncio.Future[Any]]] = []
        replies: list[Any] | None = None
        left_s = deadline.check("waiting for the master")
        try:
            async with asyncio.timeout(left_s):
                for message in messages:
                    await self._writable.wait()
                    sent.append(self._send(message, deadline))
                if meanwhile is not None:
                    meanwhile()
                replies = [await future for _, future in sent]
                return replies
        except TimeoutError:
            deadline.check("waiting for the master")
            raise DeadlineExceeded("the master did not answer in time") from None
        finally:
            for request_id, future in sent:
                self._waiting.pop(request_id, None)
                if replies is None and future.done() and not future.cancelled():
                    self._give_up(given_up(future.exception() or future.result()))

    def tell(self, message: Message) -> None:
        """Send a request whose reply nobody waits for, if the connection takes it at once."""
        if self.is_open and self._writable.is_set() and self._transport is not None:
            self._transport.write(self._encode(message, TELL_DEADLINE_MS))

    def _give_up(self, abort: control.PutAbort | None) -> None:
        if abort is not None:
            self.tell(abort)

    def close(self) -> None:
        """Close the connection; requests under way fail."""
        if self._transport is not None:
            self._transport.abort()
        self._lose(Unreachable("the connection to the master was closed"))

    def outlives_deadline(self) -> bool:
        """After a call ran out of time: return whether the line is still good for the others."""
        since_s = self._owed_since_s
        return not since_s or time.monotonic() - since_s <= OWED_S_MAX

    def _send(self, message: Message, deadline: Deadline) -> tuple[int, asyncio.Future[Any]]:
        if not self.is_open or self._transport is None:
            raise Unreachable("the connection to the master broke")
        frame = self._encode(message, answer_ms(deadline.left_s()))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._ids] = message, future
        if not self._owed_since_s:
            self._owed_since_s = time.monotonic()
        if self.verify is not None and self._watch is None:
            self._watch = asyncio.create_task(self._doubt())
            self._watch.add_done_callback(self._watched)
        self._transport.write(frame)
        return self._ids, future

    async def _doubt(self) -> None:
        """See whether the master is there, for as long as it owes answers and gives none."""
        patience_s = SILENT_S
        while self.verify is not None and self._waiting:
            await asyncio.sleep(patience_s)
            if self._waiting and time.monotonic() - self._answered_s >= patience_s:
                try:
                    await self.verify(self)
                except StoreError as error:
                    self._lose(error)
                    if self._transport is not None:
                        self._transport.abort()
                    return
                patience_s *= 2

    def _watched(self, watch: asyncio.Task[None]) -> None:
        del watch
        self._watch = None

    def _encode(self, message: Message, deadline_ms: int) -> bytearray:
        self._ids = (self._ids + 1) & 0xFFFFFFFF
        kind = control.KINDS[type(message)]
        return frames.encode_frame(kind, message, request_id=self._ids, deadline_ms=deadline_ms)

    # --- the protocol ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True

    def introduced(self, welcome: control.Welcome) -> None:
        """The master has said who it is."""
        check_welcome(welcome)
        self.reign = (welcome.cluster_id, welcome.term)
        self._decoder.body_bytes_max = limits.FRAME_BYTES_MAX

    def get_buffer(self, sizehint: int) -> memoryview:
        """Lend the decoder's memory."""
        del sizehint
        return self._decoder.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Hand out the replies that are complete."""
        self._decoder.received(nbytes)
        self._answered_s = time.monotonic()
        self._owed_since_s = 0.0
        try:
            for frame in self._decoder:
                self._answer(frame)
        except ProtocolError as error:
            self._lose(error)
            if self._transport is not None:
                self._transport.abort()

    def _answer(self, frame: frames.Frame) -> None:
        if not frame.flags & REPLY:
            raise ProtocolError("the master sent a request to a client")
        message, future = self._waiting.pop(frame.request_id, (None, None))
        if message is not None and future is not None and not future.done():
            future.set_result(decode_reply(frame, message))
        else:
            self._give_up(unheard(frame))

    def pause_writing(self) -> None:
        """The master does not read: wait before more is sent."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It reads again."""
        self._writable.set()

    def eof_received(self) -> None:
        """The master will send nothing more."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what was under way."""
        reason = f": {exc}" if exc else ""
        self._lose(Unreachable(f"the master closed the connection{reason}"))

    def _lose(self, error: StoreError) -> None:
        self.is_open = False
        if self._watch is not None and self._watch is not asyncio.current_task():
            self._watch.cancel()
        self._writable.set()
        waiting, self._waiting = self._waiting, {}
        for _, future in waiting.values():
            if not future.done():
                future.set_exception(error)


class AsyncLines:
    """The connection to whichever of the masters leads.

    Attributes:
        masters: Where to look for the leader.
    """

    def __init__(self, masters: Sequence[Address], name: str, counters: Counters) -> None:
        self.masters = Masters(masters)
        self._name = name
        self._line: AsyncLine | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._counters = counters

    async def take(self, deadline: Deadline) -> AsyncLine:
        """Return the connection, opening it if need be.

        Raises:
            Unreachable: No master answers, to this call or to one that was connecting already.
            DeadlineExceeded: The time was over before it began.
            Closed: The client is closed.
        """
        line = self.idle()
        if line is not None:
            return line
        try:
            async with asyncio.timeout(deadline.check("connecting to the master")):
                async with self._connecting:
                    return await self._open(deadline)
        except TimeoutError:
            raise Unreachable(f"no master answers in time ({self.masters})") from None

    def is_closed(self) -> bool:
        """Return whether ``close`` was called."""
        return self._closed

    def idle(self) -> AsyncLine | None:
        """Return the connection if there is one."""
        return self._line if self._line is not None and self._line.is_open else None

    def distrust(self, line: AsyncLine) -> None:
        """Close a connection that does not answer; the next call opens another one."""
        if self._line is line:
            self._line = None
        line.close()

    def redirect(self, line: AsyncLine, hint: str | None) -> None:
        """Try the master that another one named before the others."""
        self.distrust(line)
        self.masters.redirect(hint)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._closed = True
        if self._line is not None:
            self._line.close()

    async def _open(self, deadline: Deadline) -> AsyncLine:
        if self.is_closed():
            raise Closed("the client was closed")
        idle = self.idle()
        if idle is not None:
            return idle
        line = await self._connect(deadline)
        if self.is_closed():
            line.close()
            raise Closed("the client was closed")
        self._line = line
        self._counters.master_connections += 1
        return line

    async def _connect(self, deadline: Deadline) -> AsyncLine:
        attempt = self.masters.attempt(deadline)
        for master, share in attempt:
            try:
                line = await self._introduce(master, share)
            except (PeerError, Closed) as error:
                attempt.failed(master, error)
            else:
                self.masters.found(master)
                if self.masters.are_many:
                    line.verify = partial(self._verify, master)
                return line
        raise attempt.error()

    async def _verify(self, master: Address, line: AsyncLine) -> None:
        """Find out over another connection whether the master of a silent one is there at all.

        Raises:
            Unreachable: It is not, or it is not what it was.
        """
        try:
            other = await self._introduce(master, Deadline(SILENT_S))
        except PeerError as error:
            self.masters.silent(master)
            raise Unreachable(f"the master {master} fell silent: {error}") from error
        other.close()
        if other.reign != line.reign:
            raise Unreachable(f"the master {master} forgot what it was asked: it was replaced")

    async def _introduce(self, master: Address, deadline: Deadline) -> AsyncLine:
        loop = asyncio.get_running_loop()
        problem: OSError | None = None
        for _, sockaddr in await _addresses(master, deadline):
            line = AsyncLine()
            try:
                async with asyncio.timeout(deadline.check("connecting to the master")):
                    await loop.create_connection(lambda line=line: line, *sockaddr[:2])  # type: ignore[misc]  # the default binds the line
                hello = control.Hello(limits.PROTOCOL_VERSION, "client", self._name, SOFTWARE)
                line.introduced(await line.ask(hello, deadline))
            except TimeoutError:
                line.close()
                problem = TimeoutError("timed out")
            except OSError as error:
                line.close()
                problem = error
            except BaseException:
                line.close()
                raise
            else:
                return line
        raise Unreachable(str(problem)) from problem


async def _addresses(master: Address, deadline: Deadline) -> list[Resolved]:
    """Resolve a name; only one that has to be looked up costs a thread."""
    try:
        ipaddress.ip_address(master.host.partition("%")[0])
    except ValueError:
        return await asyncio.to_thread(addresses, master, deadline)
    return addresses(master, deadline)
