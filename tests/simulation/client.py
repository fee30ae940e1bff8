"""A client: the real operations, driven on the virtual clock."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_client._core.effects import (
    Ask,
    AskMany,
    Attach,
    NewReign,
    Read,
    Retry,
    Tell,
    Wait,
    Write,
)
from mooncake_client._core.session import Session
from mooncake_store import limits
from mooncake_store.errors import DeadlineExceeded, StoreError, Unreachable
from mooncake_store.wire.control import Hello, Locate, Located, OpenNamespace, Welcome
from tests.simulation import master
from tests.simulation.data_path import SimDataPath
from tests.simulation.parts import Part
from tests.simulation.rpc import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_client._core.effects import Effect, Operation
    from mooncake_store.data_path import ReadTask, WriteTask
    from mooncake_store.wire.control import Message, NodeRecord
    from tests.simulation.world import World

CONNECT_S = 0.3
"""Time after which a master that says nothing to a greeting is given up."""


class Failed(NamedTuple):
    """How a call ended that did not succeed."""

    error: StoreError


class SimClient(Part):
    """One client process.

    Attributes:
        session: State of this life.
        calls: Calls under way.
        miss_reasons: {key: why the master said last that it is not there}.
    """

    def __init__(self, world: World, name: str, namespace: str, *, host: str) -> None:
        super().__init__(world.network, name)
        self.world = world
        self.host = host
        self.session: Session
        self.calls: set[Call] = set()
        self.miss_reasons: dict[str, int] = {}
        self._namespace = namespace
        self._lines: list[tuple[Line, tuple[str, int]]] = []
        self._paths: dict[str, SimDataPath] = {}

    def begin_life(self) -> None:
        """Start, knowing nothing."""
        super().begin_life()
        self.session = Session(self.clock, self._namespace)
        self.calls = set()
        self._lines = []
        self._paths = {}

    def end_life(self) -> None:
        """Die; operations end where they are, without another effect."""
        super().end_life()
        for call in self.calls:
            call.drop()
        writers = self.world.local_writers
        for slot in [slot for slot, name in writers.items() if name == self.name]:
            del writers[slot]  # the kernel lets go of a dead process's locks

    def run(
        self, operation: Operation[Any], deadline_s: float, ended: Callable[[Any], None]
    ) -> None:
        """Perform an operation; ``ended`` gets its result or a ``Failed``, unless we die."""
        call = Call(self, operation, deadline_s, ended)
        self.calls.add(call)
        call.begin()

    # --- lines to the master --------------------------------------------------------------------

    def take_line(self, ready: Callable[[Line | None, tuple[str, int]], None]) -> None:
        """Hand an introduced line to ``ready``, or None where there is no master."""
        while self._lines:
            line, reign = self._lines.pop()
            if line.is_open:
                ready(line, reign)
                return
        stream = self.network.connect(self.name, master.NAME)
        line = Line(stream.near)
        stream.near.on_message = self.mine(stream.near.on_message)
        stream.near.on_lost = self.mine(stream.near.on_lost)
        self.world.master.accept(stream.far)
        is_over = False

        def over(welcome: Message | StoreError) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            if isinstance(welcome, Welcome):
                ready(line, (welcome.cluster_id, welcome.term))
            else:
                line.close()
                ready(None, ("", 0))

        hello = Hello(limits.PROTOCOL_VERSION, "client", self.name, "simulated")
        line.ask(hello, CONNECT_S, over)
        self.later(CONNECT_S, lambda: over(Unreachable("no welcome")))

    def give_line(self, line: Line, reign: tuple[str, int]) -> None:
        """Take back a line on which nothing is unanswered."""
        if line.is_open:
            self._lines.append((line, reign))

    def tell(self, message: Message) -> None:
        """Send without waiting, where a line is at hand."""
        while self._lines:
            line, _ = self._lines[-1]
            if line.is_open:
                line.ask(message, 5.0, lambda _answer: None)
                return
            self._lines.pop()

    def note_misses(self, message: Message, reply: Message | StoreError) -> None:
        """Remember why keys were missed; operations only count the reasons."""
        if isinstance(message, Locate) and isinstance(reply, Located):
            for key, item in zip(message.keys, reply.items, strict=True):
                if isinstance(item, int):
                    self.miss_reasons[key] = item

    # --- data -----------------------------------------------------------------------------------

    def path(self, node: NodeRecord) -> SimDataPath:
        """Return the data path to a node."""
        known = self._paths.get(node.node_id)
        if known is None:
            known = self._paths[node.node_id] = SimDataPath(self, node)
        return known


class Call:
    """One operation under way."""

    def __init__(
        self,
        client: SimClient,
        operation: Operation[Any],
        deadline_s: float,
        ended: Callable[[Any], None],
    ) -> None:
        self._client = client
        self._operation = operation
        self._until_s = client.clock.now_s + deadline_s
        self._ended = ended
        self._turn = 0
        """Grows with each effect: what comes for an older one is ignored."""
        self._timer = client.later(deadline_s, self._expire)
        self._is_asking = False
        self._abandon: Callable[[], None] = _nothing

    def begin(self) -> None:
        """Run to the first effect."""
        self._step(lambda: next(self._operation))

    def drop(self) -> None:
        """End where we are; an operation that wants to say something more is not heard."""
        with contextlib.suppress(RuntimeError):
            self._operation.close()

    def left_s(self) -> float:
        """Return what is left of the deadline."""
        return self._until_s - self._client.clock.now_s

    def _resume(self, turn: int, value: object) -> None:
        """Give an effect's result, or throw it where it is an error, if it is still waited for."""
        if turn != self._turn:
            return
        self._is_asking = False
        self._abandon = _nothing
        if isinstance(value, (StoreError, NewReign)):
            self._step(lambda: self._operation.throw(value))
        else:
            self._step(lambda: self._operation.send(value))

    def _step(self, advance: Callable[[], Effect]) -> None:
        self._turn += 1
        try:
            effect = advance()
        except StopIteration as stop:
            self._end(stop.value)
        except StoreError as error:
            self._end(Failed(error))
        else:
            self._perform(effect)

    def _end(self, result: object) -> None:
        self._timer.cancel()
        self._client.calls.discard(self)
        self._ended(result)

    def _perform(self, effect: Effect) -> None:
        turn = self._turn
        match effect:
            case Tell(message=message):
                self._client.tell(message)
                self._soon(turn, None)
            case Wait(seconds=seconds):
                self._wait(turn, seconds, is_retry=isinstance(effect, Retry))
            case Attach(node=node):
                self._soon(turn, self._client.path(node).attach())
            case _ if self.left_s() <= 0:
                self._soon(turn, DeadlineExceeded("the deadline passed"))
            case Ask() | AskMany():
                self._is_asking = True
                self._ask(turn, effect)
            case Read() | Write():
                self._move(turn, effect)
            case _:
                raise NotImplementedError(type(effect).__name__)

    def _soon(self, turn: int, value: object) -> None:
        self._client.later(0.0, lambda: self._resume(turn, value))

    def _expire(self) -> None:
        """End a question that is under way when the deadline has passed."""
        if self._is_asking:
            self._abandon()
            self._resume(self._turn, DeadlineExceeded("the deadline passed"))

    def _wait(self, turn: int, seconds: float, *, is_retry: bool) -> None:
        del is_retry  # calls name their deadlines here
        if seconds >= self.left_s():
            self._soon(turn, value=False)
        else:
            self._client.later(seconds, lambda: self._resume(turn, value=True))

    # --- asking ---------------------------------------------------------------------------------

    def _ask(self, turn: int, effect: Ask | AskMany) -> None:
        def ready(line: Line | None, reign: tuple[str, int]) -> None:
            if turn != self._turn:
                if line is not None:
                    self._client.give_line(line, reign)
                return
            if line is None:
                self._resume(turn, Unreachable("no master answers"))
                return
            session = self._client.session
            session.reign_seen = reign
            if session.reign != reign and _names_a_slot(effect):
                self._client.give_line(line, reign)
                self._resume(turn, NewReign())
                return
            self._send(turn, effect, line, reign)

        self._client.take_line(ready)

    def _send(self, turn: int, effect: Ask | AskMany, line: Line, reign: tuple[str, int]) -> None:
        messages = [effect.message] if isinstance(effect, Ask) else list(effect.messages)
        replies: dict[int, Message | StoreError] = {}
        left_s = self.left_s()

        def answered(at: int, reply: Message | StoreError) -> None:
            replies[at] = reply
            self._client.note_misses(messages[at], reply)
            if len(replies) < len(messages) or turn != self._turn:
                return
            self._client.give_line(line, reign)
            if isinstance(effect, Ask):
                self._resume(turn, replies[0])
            elif not line.is_open:
                self._resume(turn, Unreachable("the connection broke"))
            else:
                self._resume(turn, [replies[index] for index in range(len(messages))])

        for at, message in enumerate(messages):
            line.ask(message, left_s * 0.95, lambda reply, at=at: answered(at, reply))  # type: ignore[misc]
        if isinstance(effect, Ask) and effect.meanwhile is not None:
            effect.meanwhile()
        self._abandon = line.close

    # --- moving ---------------------------------------------------------------------------------

    def _move(self, turn: int, effect: Read | Write) -> None:
        limit_s = self.left_s()
        if effect.limit_s is not None:
            limit_s = min(limit_s, effect.limit_s)
        groups: Sequence[tuple[NodeRecord, Sequence[ReadTask | WriteTask]]] = effect.groups
        paths = [self._client.path(node) for node, _ in groups]
        missing = len(paths)
        if not missing:
            self._soon(turn, [])
            return

        def over() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                self._resume(turn, paths)

        for path, (_, tasks) in zip(paths, groups, strict=True):
            path.perform(tasks, limit_s, over)


def _names_a_slot(effect: Ask | AskMany) -> bool:
    """Return whether a request means something to the master that it was made for only."""
    messages = [effect.message] if isinstance(effect, Ask) else effect.messages
    return any(
        hasattr(message, "slot") and not isinstance(message, OpenNamespace) for message in messages
    )


def _nothing() -> None:
    """Abandon nothing."""
