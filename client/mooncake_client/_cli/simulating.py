"""How much memory a trace needs: the pure core's answer, without a cluster and without bytes."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, Protocol

from mooncake_store.errors import NotSupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SIMULATOR_GROUP: Final = "mooncake_store.simulators"
"""Entry-point group of capacity simulations; the master contributes the one of its own core."""


class SimulatedHits(Protocol):
    """What a simulation counted."""

    @property
    def requests(self) -> int:
        """Chains played."""

    @property
    def blocks(self) -> int:
        """Blocks looked up."""

    @property
    def block_hits(self) -> int:
        """Of those, the ones that were there."""

    @property
    def prefix_hits(self) -> int:
        """Of those, the ones in an unbroken run from the head of their chain."""

    @property
    def evictions(self) -> int:
        """Blocks that had to go."""


class Simulator(Protocol):
    """Plays chains of block ids into one pool, head first, missing blocks inserted."""

    def __call__(
        self, requests: Iterable[Sequence[int]], capacity_blocks: int | None, policy: str
    ) -> SimulatedHits:
        """Play all chains; ``capacity_blocks`` None is a pool without end.

        Raises:
            ConfigError: There is no such policy.
        """
        ...


def find_simulator() -> Simulator:
    """Return the simulation that is installed.

    Raises:
        NotSupported: None is: the master is not part of this installation.
    """
    for entry in entry_points(group=SIMULATOR_GROUP):
        simulator: Simulator = entry.load()
        return simulator
    raise NotSupported("--dry-run needs the master package, which is not installed here")
