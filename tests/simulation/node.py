"""A storage node: real directory, fencing and data connections over memory that outlives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_storage_node.core.directory import landed
from mooncake_storage_node.data_connection import DataConnection, Disconnect, Wait
from mooncake_storage_node.node_view import DataCounters, NodeView
from mooncake_storage_node.notebook import Notebook
from mooncake_storage_node.obedience import Obedience
from mooncake_storage_node.writes import IncomingWrites
from mooncake_store import limits
from mooncake_store.errors import StaleTerm, StoreError
from mooncake_store.segment import Segment, mapped_bytes
from mooncake_store.wire.control import (
    CopyExtents,
    Heartbeat,
    HeartbeatReply,
    Hello,
    Message,
    Register,
    Registered,
    SegmentRecord,
    Welcome,
)
from tests.simulation import master
from tests.simulation.copies import Copies
from tests.simulation.parts import Part
from tests.simulation.rpc import Line
from tests.simulation.sockets import VirtualSocket
from tests.simulation.stores import Reports, SimStores, orders_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_store.testing import End
    from tests.simulation.disk import Disk
    from tests.simulation.world import World

RECONNECT_S = 0.1
CONNECT_S = 0.5
"""Time for one try to register; the real node takes ten times as long, as everything here."""
OPEN_S = 0.3
"""Time that a start waits for the store; after that the node serves without it."""

_scratch = memoryview(bytearray(64 * limits.KIB))


class SimNode(Part):
    """One node.

    Attributes:
        node_id: Its identity, kept over lives.
        segment: Its memory, kept over lives until ``reboot``.
        notebook: What it keeps about absent nodes, for as long.
        copies: The copies that it was told to make.
        disk: Its disk, which outlives all of that; None where it has none.
    """

    def __init__(
        self, world: World, name: str, extents_bytes: int, disk: Disk | None, *, host: str
    ) -> None:
        super().__init__(world.network, name)
        self.world = world
        self.host = host
        self.node_id = name.encode().hex().zfill(32)
        self.segment: Segment
        self.notebook: Notebook
        self.disk = disk
        self._stores: SimStores | None = None
        self._known_store = 0
        self._extents_bytes = extents_bytes
        self._connections: set[DataConnection] = set()
        self.new_memory()

    def new_memory(self) -> None:
        """Lose the memory's contents, as a rebooted host does."""
        self.notebook = Notebook()
        self._known_store = 0
        incarnation = self.world.random.getrandbits(62) + 1
        memory = memoryview(bytearray(mapped_bytes(self._extents_bytes)))
        self.segment = Segment.format(memory, self._extents_bytes, incarnation)

    def begin_life(self) -> None:
        """Start."""
        super().begin_life()
        self._incoming = IncomingWrites()
        segments = {self.segment.incarnation: self.segment}
        stores = self._stores = (
            SimStores(self, self.disk, self._known_store) if self.disk is not None else None
        )
        orders = orders_of(self, stores) if stores is not None else None
        self._view = NodeView(self.node_id, segments, self._incoming, disks=orders)
        self._obedience = Obedience(
            segments, self._incoming, self._writer_is_over, self.notebook, self._copy, orders
        )
        self.copies = Copies(self, segments, self._incoming, orders)
        self._counters = DataCounters()
        self._connections = set()
        self._line: Line | None = None
        self._pulse: Line | None = None
        self._index = -1
        self._master_life = 0
        self._is_joining = False
        if stores is None:
            self._join()
            return
        stores.on_change = self._store_changed
        stores.on_dropped = Reports(self, self._report_line, lambda: self._index).add
        stores.open(self._epochs())
        self.later(OPEN_S, self._join)

    def held(self) -> set[int]:
        """Return the versions that memory and disk hold, readable."""
        found = {version for _, version in landed(self.segment)}
        if self._stores is not None:
            found |= {row.version for row in self._stores.store.readable()}
        return found

    def has_opened(self, incarnation: int) -> bool:
        """Return whether the store is open that has this incarnation."""
        return self._stores is not None and self._stores.find(incarnation) is not None

    def end_life(self) -> None:
        """Die; a commit that was on its way to the disk may arrive."""
        if self._stores is not None:
            self._stores.store.crash()
        super().end_life()

    def _join(self) -> None:
        """Look for a master, once."""
        if not self._is_joining:
            self._is_joining = True
            self._register()

    def _store_changed(self) -> None:
        """The directory is open: the master has to know, if it is not what it was told of."""
        assert self._stores is not None
        self._known_store = self._stores.incarnation
        line = self._line
        if not self._is_joining:
            self._join()
        elif line is not None and self._stores_now() != self._said:
            line.close()
            self._lost(line)

    def _writer_is_over(self, incarnation: int, slot: int) -> bool:
        return self.world.is_writer_over(incarnation, slot)

    # --- data -----------------------------------------------------------------------------------

    def accept_data(self, end: End) -> None:
        """Take a data connection, or refuse it while there is no process."""
        if not self.is_alive:
            end.close()
            return
        socket = VirtualSocket(end, self.world.random, lambda: None)
        end.on_message = self.mine(end.on_message)
        end.on_lost = self.mine(end.on_lost)
        connection = DataConnection(socket, self._view, self._counters, _scratch)  # type: ignore[arg-type]
        connection.wake = lambda: self._wake(connection)
        self._connections.add(connection)
        socket.on_ready = lambda: self._serve(connection)
        self._serve(connection)

    def _wake(self, connection: DataConnection) -> None:
        """Go on with a connection that waits for the disk; it may be asking it just now."""
        self.later(0.0, lambda: self._serve(connection))

    def _serve(self, connection: DataConnection) -> None:
        if connection not in self._connections:
            return
        try:
            wait = connection.run()
        except Disconnect:
            self._connections.discard(connection)
            connection.close()
            return
        if wait is Wait.TURN:
            self.later(0.0, lambda: self._serve(connection))

    # --- control --------------------------------------------------------------------------------

    def _open(self) -> Line:
        stream = self.network.connect(self.name, master.NAME)
        line = Line(stream.near)
        stream.near.on_message = self.mine(stream.near.on_message)
        stream.near.on_lost = self.mine(stream.near.on_lost)
        self.world.master.accept(stream.far)
        return line

    def _register(self) -> None:
        self._master_life = self.world.master.lives
        line = self._line = self._open()
        line.on_request = lambda number, message, left_s: self._obey(line, number, message, left_s)
        line.on_lost = lambda: self._lost(line)
        line.ask(self._hello(), CONNECT_S, lambda answer: self._welcomed(line, answer))

        def give_up() -> None:
            if line is self._line and not self.is_member:
                line.close()
                self._lost(line)

        self.later(CONNECT_S, give_up)

    @property
    def is_member(self) -> bool:
        """Whether the master has accepted this node and the connection stands.

        One whose end has not been heard of yet does not: it is a connection to an earlier life.
        """
        is_current = self._master_life == self.world.master.lives
        return self.is_alive and self._line is not None and self._index >= 0 and is_current

    def _hello(self) -> Hello:
        return Hello(limits.PROTOCOL_VERSION, "node", self.name, "simulated")

    def _welcomed(self, line: Line, answer: Message | StoreError) -> None:
        if not isinstance(answer, Welcome):
            line.close()
            self._lost(line)
            return
        segment, stores = self.segment, self._stores
        self._said = records, replaced = self._stores_now()
        message = Register(
            self.name,
            self.node_id,
            self.name,
            1,
            f"/run/{self.name}",
            {},
            (SegmentRecord(segment.incarnation, segment.bytes), *records),
            max(segment.term, stores.term() if stores is not None else 0),
            sum(1 for _ in landed(segment)) + (stores.entries() if stores is not None else 0),
            self._epochs(),
            self.notebook.fellows,
            len(self.notebook),
            replaced,
        )
        line.ask(message, 5.0, lambda reply: self._registered(line, reply))

    def _stores_now(self) -> tuple[tuple[SegmentRecord, ...], tuple[int, ...]]:
        """Return what is registered of the store: its record, and what is gone for good."""
        stores = self._stores
        return ((), ()) if stores is None else (stores.records(), stores.replaced())

    def _epochs(self) -> dict[int, int]:
        """Return {namespace slot: readable epoch}, the highest that memory or disk knows."""
        found = {slot: epoch for slot, epoch in enumerate(self.segment.epochs.tolist()) if epoch}
        if self._stores is not None:
            for slot, epoch in self._stores.epochs().items():
                found[slot] = max(epoch, found.get(slot, 0))
        return found

    def _registered(self, line: Line, reply: Message | StoreError) -> None:
        if not isinstance(reply, Registered) or reply.term < self.segment.term:
            line.close()
            self._lost(line)
            return
        self._obedience.adopt(reply.term)
        self._obedience.set_epochs(reply.epochs)
        self._index = reply.index
        if self._pulse is not None:
            self._pulse.close()
        self._pulse = None
        self._beat(line, reply.heartbeat_s)

    def _lost(self, line: Line) -> None:
        if line is self._line:
            self._line = None
            self._index = -1
            self.later(RECONNECT_S, self._register)

    def _beat(self, line: Line, interval_s: float) -> None:
        if line is not self._line or not line.is_open:
            return
        self.later(interval_s, lambda: self._beat(line, interval_s))
        pulse = self._pulse
        if pulse is None or not pulse.is_open:
            pulse = self._pulse = self._open()
            pulse.ask(self._hello(), 5.0, lambda _answer: None)

        def answered(reply: Message | StoreError) -> None:
            if isinstance(reply, HeartbeatReply) and not reply.known and line is self._line:
                line.close()
                self._lost(line)

        statuses = self._stores.statuses() if self._stores is not None else ()
        beat = Heartbeat(self._index, self.node_id, self.segment.term, 0, 0, 0, statuses)
        pulse.ask(beat, 5.0, answered)

    def _report_line(self) -> Line:
        line = self._open()
        line.ask(self._hello(), 5.0, lambda _answer: None)
        return line

    def _copy(
        self,
        message: CopyExtents,
        limit_s: float,
        answer: Callable[[Message | StoreError], None],
    ) -> None:
        self.copies.order(message, limit_s, answer)

    def _obey(self, line: Line, number: int, message: Message, left_s: float) -> None:
        def answer(reply: Message | StoreError) -> None:
            if not line.is_open:
                return
            if isinstance(reply, StoreError):
                line.fail(number, reply)
            else:
                line.answer(number, reply)
            if isinstance(reply, StaleTerm):
                line.close()
                self._lost(line)

        self._obedience.perform(message, left_s, answer)
