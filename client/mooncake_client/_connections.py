"""The blocking connections to the masters: found, introduced, pooled, dropped when in doubt."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from mooncake_client._line import Line
from mooncake_client._masters import SILENT_S, Masters
from mooncake_store.deadline import Deadline
from mooncake_store.errors import Closed, PeerError, Unreachable
from mooncake_store.transport.places import Opening, Places
from mooncake_store.transport.resolve import resolve
from mooncake_store.transport.spinning import Spinner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_client._core.counters import Counters
    from mooncake_store.transport.resolve import Address as Resolved
    from mooncake_store.wire.address import Address


def addresses(master: Address, deadline: Deadline) -> list[Resolved]:
    """Resolve a master's name.

    Raises:
        Unreachable, DeadlineExceeded: It has no address, or nobody said in time.
    """
    try:
        return resolve(master.host, master.port, deadline)
    except OSError as error:  # not even the resolver's own files can be opened
        raise Unreachable(f"{master.host} cannot be resolved: {error}") from error


class Lines:
    """A bounded pool of connections to whichever of the masters leads.

    Attributes:
        masters: Where to look for the leader.
    """

    def __init__(
        self, masters: Sequence[Address], name: str, lines_max: int, counters: Counters
    ) -> None:
        self.masters = Masters(masters)
        self._name = name
        self._lines_max = lines_max
        self._spinner = Spinner()
        self._idle: deque[Line] = deque()
        self._closed = False
        self._counters = counters
        self._places = Places()

    def take(self, deadline: Deadline, *, ends_a_put: bool = False) -> Line:
        """Return a connection that is the caller's until ``give_back`` or ``drop``.

        What ends a put gets one beyond the bound: all others may be waiting for just that put.

        Raises:
            Unreachable: No master answers.
            DeadlineExceeded: All connections were in use until then.
            Closed: The client is closed.
        """
        try:
            line = self._idle.pop()
        except IndexError:
            line = self._open(deadline, self._lines_max * (2 if ends_a_put else 1))
        if self._closed:
            line.close()
            raise Closed("the client was closed")
        return line

    def take_idle(self) -> Line | None:
        """Return a connection if there is one that nobody uses."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def give_back(self, line: Line) -> None:
        """Return a connection to the pool, or close it where it is not clean."""
        if not line.is_clean:
            self.drop(line)
            return
        self._idle.append(line)
        if self._places.waiting:
            with self._places.lock:
                self._places.call()
        if self._closed:
            for other in self._take_all():
                self.drop(other)

    def drop(self, line: Line) -> None:
        """Close a connection that cannot be used again."""
        line.close()
        with self._places.lock:
            self._places.leave(line)

    def distrust(self) -> None:
        """Look at all idle connections, since one has just failed, and close those that did too."""
        for line in self._take_all():
            if line.is_dead():
                self.drop(line)
            else:
                self.give_back(line)

    def redirect(self, hint: str | None) -> None:
        """Try the master that another one named before the others."""
        for line in self._take_all():
            self.drop(line)
        self.masters.redirect(hint)

    def close(self) -> None:
        """Close idle connections now and the others as they come back. Idempotent."""
        self._closed = True
        for line in self._take_all():
            self.drop(line)
        with self._places.lock:
            self._places.call_all()

    def after_fork(self) -> None:
        """In a forked child: leave the parent's connections alone and begin anew."""
        idle, self._idle = self._idle, deque()
        for line in idle:
            line.close()
        self._places = Places()

    def _take_all(self) -> list[Line]:
        taken = []
        with contextlib.suppress(IndexError):  # Until it is empty: others take from it, too.
            while True:
                taken.append(self._idle.pop())
        return taken

    def _open(self, deadline: Deadline, lines_max: int) -> Line:
        """Open one more connection, or wait for one to come back where there are enough."""
        places = self._places
        while True:
            with places.lock:
                if self._closed:
                    raise Closed("the client was closed")
                opening = Opening()
                if places.take(opening, lines_max):
                    break
                with contextlib.suppress(IndexError):
                    return self._idle.pop()
                left_s = deadline.check("waiting for a connection to the master")
                ticket = places.queue()
            places.wait(ticket, left_s)
        try:
            line = self._connect(deadline)
        except BaseException:
            with places.lock:
                places.leave(opening)
            raise
        with places.lock:
            places.pass_on(opening, line)
        self._counters.master_connections += 1
        return line

    def _connect(self, deadline: Deadline) -> Line:
        attempt = self.masters.attempt(deadline)
        for master, share in attempt:
            try:
                line = self._introduce(master, share)
            except (PeerError, Closed) as error:
                attempt.failed(master, error)
            else:
                self.masters.found(master)
                if self.masters.are_many:
                    line.verify = partial(self._verify, master)
                return line
        raise attempt.error()

    def _verify(self, master: Address, line: Line, deadline: Deadline) -> None:
        """Find out over another connection whether the master of a silent one is there at all.

        Raises:
            Unreachable: It is not, or it is not what it was.
        """
        left_s = deadline.left_s()
        if left_s < SILENT_S / 2:
            return
        try:
            other = self._introduce(master, Deadline(min(left_s / 2, SILENT_S)))
        except PeerError as error:
            self.masters.silent(master)
            raise Unreachable(f"the master {master} fell silent: {error}") from error
        other.close()
        if other.reign != line.reign:
            raise Unreachable(f"the master {master} forgot what it was asked: it was replaced")

    def _introduce(self, master: Address, deadline: Deadline) -> Line:
        problem: OSError | None = None
        for family, sockaddr in addresses(master, deadline):
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                problem = error
                continue
            try:
                sock.settimeout(deadline.check("connecting to the master"))
                sock.connect(sockaddr)
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line = Line(sock, self._spinner)
                line.greet(self._name, deadline)
            except OSError as error:
                sock.close()
                problem = error
            except BaseException:
                sock.close()
                raise
            else:
                return line
        deadline.check("connecting to the master")
        raise Unreachable(str(problem)) from problem
