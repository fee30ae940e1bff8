"""The real master core and switchboard, as a part of the simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_master.core import (
    Close,
    CoreConfig,
    Fail,
    Forget,
    Instruct,
    Instruction,
    Master,
    Remember,
    Remembered,
    Reply,
)
from mooncake_master.core.reigns import FIRST_S, first_numbers
from mooncake_master.core.remembered import Reign
from mooncake_store import limits
from mooncake_store.testing import seeded
from mooncake_store.wire.control import Hello, Message, Welcome
from tests.simulation.parts import Part
from tests.simulation.rpc import Line

if TYPE_CHECKING:
    from mooncake_store.errors import StoreError
    from mooncake_store.testing import End, SeededNetwork

TICK_S = 0.05
NAME = "master"
WALL_OFFSET_S = FIRST_S + 1_000_000.0


class SimMaster(Part):
    """One master; a new life is a new core that knows what the last one has kept, if anything.

    Attributes:
        core: The core of this life.
        past: Counters of the lives that are over.
        births_s: When each life began.
    """

    def __init__(
        self, network: SeededNetwork, seed: int, config: CoreConfig, *, keeps: bool
    ) -> None:
        super().__init__(network, NAME)
        self._keeps = keeps
        self.core: Master
        self.past: list[dict[str, int]] = []
        self.births_s: list[float] = []
        self._seed = seed
        self._config = config
        self._peers: dict[int, Line] = {}
        self._count = 0
        self._kept: dict[str, dict[str, Any]] = {}
        """{table: {key: entry}} of the folder that outlives the process."""

    def begin_life(self) -> None:
        """Start."""
        super().begin_life()
        self.births_s.append(self.clock.now_s)
        self._peers = {}
        remembered = Remembered({table: dict(rows) for table, rows in self._kept.items()})
        last_term = 0 if remembered.reign is None else remembered.reign.term
        term, count = first_numbers(WALL_OFFSET_S + self.clock.now_s, last_term)
        self.core = Master(
            self._config,
            term=term,
            count=count,
            cluster_id="simulated",
            wall_offset_s=WALL_OFFSET_S,
            seed=seeded(self._seed, "master", self.lives).getrandbits(62),
            remembered=remembered if self._keeps else None,
        )
        if self._keeps:
            self._kept["reign"] = {"": Reign("simulated", term)}
        self.later(TICK_S, self._tick)

    def end_life(self) -> None:
        """Die; what it counted is kept for the report."""
        self.past.append(self.core.statistics().counters)
        super().end_life()

    def accept(self, end: End) -> None:
        """Take a connection, or refuse it while there is no process."""
        if not self.is_alive:
            end.close()
            return
        line = Line(end)
        self._count += 1
        number = self._count
        end.on_message = self.mine(end.on_message)
        end.on_lost = self.mine(end.on_lost)
        line.on_request = lambda request, message, left_s: self._request(
            number, request, message, left_s
        )
        line.on_lost = lambda: self._lost(number)
        self._peers[number] = line

    def _request(self, number: int, request: int, message: Message, left_s: float) -> None:
        if isinstance(message, Hello):
            self._peers[number].answer(
                request,
                Welcome(
                    limits.PROTOCOL_VERSION,
                    "simulated",
                    self.core.term,
                    self.core.cluster_id,
                    self._config.lease_ttl_s,
                    self._config.put_ttl_s,
                ),
            )
            return
        now_s = self.clock.now_s
        self._perform(self.core.handle(number, request, message, now_s + left_s, now_s))

    def operate(self, message: Message) -> None:
        """Do what an operator asks for, and let nobody wait for the answer."""
        if self.is_alive and not self.is_paused:
            now_s = self.clock.now_s
            self._perform(self.core.handle(-1, 0, message, now_s + 1.0, now_s))

    def _lost(self, number: int) -> None:
        if self._peers.pop(number, None) is not None:
            self._perform(self.core.peer_lost(number, self.clock.now_s))

    def _tick(self) -> None:
        self.later(TICK_S, self._tick)
        self._perform(self.core.tick(self.clock.now_s))

    def _perform(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, (Remember, Forget)):
                self._keep(instruction)
            elif (line := self._peers.get(instruction.peer)) is not None:
                self._do(instruction, line)

    def _keep(self, instruction: Remember | Forget) -> None:
        table = self._kept.setdefault(instruction.table, {})
        if isinstance(instruction, Remember):
            table[instruction.key] = instruction.entry
        else:
            table.pop(instruction.key, None)

    def _do(self, instruction: Reply | Fail | Instruct | Close, line: Line) -> None:
        match instruction:
            case Reply():
                line.answer(instruction.request_id, instruction.message)
            case Fail():
                line.fail(instruction.request_id, instruction.error)
            case Instruct():
                self._instruct(instruction, line)
            case Close():
                line.close()
                self._lost(instruction.peer)

    def _instruct(self, instruction: Instruct, line: Line) -> None:
        peer, token = instruction.peer, instruction.token

        def answered(answer: Message | StoreError) -> None:
            if peer in self._peers:
                self._perform(self.core.node_replied(peer, token, answer, self.clock.now_s))

        line.ask(instruction.message, 5.0, answered)
