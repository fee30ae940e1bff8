"""What goes wrong in a schedule: everything dies, freezes, is cut off, and comes back."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from mooncake_store.testing import Conditions, seeded
from mooncake_store.wire.control import Drain, Undrain
from tests.simulation.client import SimClient
from tests.simulation.disk import Trouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.disk import Disk
    from tests.simulation.load import Load
    from tests.simulation.node import SimNode
    from tests.simulation.parts import Part
    from tests.simulation.world import World


INDEX_LOSS = 0.1
"""Share of power cuts after which a store's index does not add up, and the store begins empty."""


class Profile(enum.Enum):
    """Which faults a schedule has."""

    NODES = "nodes"
    """Everything but the death of the master; nodes may lose their memory."""
    MASTER = "master"
    """The master dies; nodes are slow but never away for other reasons."""
    LATE = "late"
    """The bytes of writers come late, and the master dies now and then."""
    FULL = "full"
    """Everything at once, but no memory is lost, only what is on disks, and the master has a data
    directory: without one, what absent nodes still have to erase is known to other nodes, which are
    away as well here (docs/adr/0034)."""


class Chaos:
    """Random faults until ``heal``.

    Attributes:
        kills: How often a process was killed.
        reboots: How often a node's memory was lost.
        damages: How often a bit of a disk was flipped.
        drains: How often a node was taken out.
        log: What was done when, for the report of a failure.
    """

    def __init__(
        self, world: World, seed: int, loads: dict[SimClient, Load], profile: Profile
    ) -> None:
        self._world = world
        self._loads = loads
        self._random = seeded(seed, "chaos")
        self._over = False
        self.kills = 0
        self.reboots = 0
        self.damages = 0
        self.drains = 0
        self.log: list[str] = []
        self._faults = self._choose(profile)

    def _choose(self, profile: Profile) -> list[tuple[int, Callable[[], None]]]:
        """Return the faults of a profile, each with its weight."""
        late: list[tuple[int, Callable[[], None]]] = [
            (8, lambda: self._lag(self._client(), self._node())),
            (3, lambda: self._pause(self._client(), at_least_s=0.8)),
            (4, lambda: self._pause_local_writer(100)),
            (4, lambda: self._cut(self._client(), self._node())),
        ]
        common: list[tuple[int, Callable[[], None]]] = [
            (4, self._kill_client),
            (2, lambda: self._pause(self._world.master)),
            (2, self._drain_node),
            (2, self._slow),
        ]
        nodes: list[tuple[int, Callable[[], None]]] = [
            (4, self._kill_node),
            (4, lambda: self._lag(self._world.master, self._node())),
            (4, lambda: self._pause(self._node())),
            (4, self._partition),
            (4, lambda: self._cut(*self._random.sample(self._world.parts(), 2))),
        ]
        deaths: list[tuple[int, Callable[[], None]]] = [(6, self._kill_master)]
        if self._world.disks():
            late.append((3, lambda: self._trouble(Trouble.SLOW)))
            common += [
                (3, lambda: self._trouble(Trouble.SLOW)),
                (3, lambda: self._trouble(Trouble.HANGS)),
                (3, lambda: self._trouble(Trouble.REFUSES)),
            ]
            nodes.append((3, self._detach))
            losses = [(4, self._reboot_node), (1, self._replace_disk), (2, self._damage)]
            spoils: list[tuple[int, Callable[[], None]]] = [(2, self._spoil)]
            return {
                Profile.NODES: [*late, *common, *nodes, *losses, *spoils],
                Profile.MASTER: late + common + deaths + spoils,
                Profile.LATE: late + deaths[:1],
                Profile.FULL: late + common + nodes + deaths + spoils,
            }[profile]
        return {
            Profile.NODES: [*late, *common, *nodes, (1, self._reboot_node)],
            Profile.MASTER: late + common + deaths,
            Profile.LATE: late + deaths[:1],
            Profile.FULL: late + common + nodes + deaths,
        }[profile]

    def plan(self, count: int, until_s: float) -> None:
        """Have ``count`` faults happen at random times."""
        for _ in range(count):
            weights = [weight for weight, _ in self._faults]
            ((_, fault),) = self._random.choices(self._faults, weights)
            self._world.clock.call_at(
                self._random.uniform(0.1, until_s),
                lambda fault=fault: self._strike(fault),  # type: ignore[misc]
            )

    def heal(self) -> None:
        """End everything that is wrong; whoever is dead lives again."""
        self._over = True
        self._note("heal")
        self._world.network.set_conditions(Conditions())
        self._world.network.heal()
        for delay_s in (0.1, 0.5, 1.0):  # a master that has just begun does not know all nodes
            self._world.clock.call_later(delay_s, self._undrain)
        for disk in self._world.disks():
            disk.fare(Trouble.NONE)
        for part in self._world.parts():
            part.resume()
            if not part.is_alive:
                self._begin(part)

    def _strike(self, fault: Callable[[], None]) -> None:
        if not self._over:
            fault()

    def _note(self, what: str) -> None:
        self.log.append(f"{self._world.clock.now_s:.6f} {what}")

    def _after(self, low_s: float, high_s: float, action: Callable[[], None]) -> None:
        self._world.clock.call_later(
            self._random.uniform(low_s, high_s), lambda: None if self._over else action()
        )

    def _client(self) -> SimClient:
        return self._random.choice(self._world.clients)

    def _node(self) -> Part:
        return self._random.choice(list(self._world.nodes.values()))

    def _begin(self, part: Part) -> None:
        if part.is_alive:
            return
        self._note(f"start {part.name}")
        part.begin_life()
        if isinstance(part, SimClient) and part in self._loads:
            self._loads[part].begin()

    def _kill(self, part: Part, low_s: float, high_s: float) -> None:
        if not part.is_alive:
            return
        self._note(f"kill {part.name}")
        self.kills += 1
        part.end_life()
        self._after(low_s, high_s, lambda: self._begin(part))

    def _kill_master(self) -> None:
        self._kill(self._world.master, 0.01, 0.8)

    def _kill_node(self) -> None:
        self._kill(self._node(), 0.01, 1.5)

    def _reboot_node(self) -> None:
        node = self._random.choice(list(self._world.nodes.values()))
        self._kill(node, 0.3, 1.5)
        self._note(f"reboot {node.name}")
        self.reboots += 1
        node.new_memory()
        if node.disk is not None and self._random.random() < INDEX_LOSS:
            self._note(f"the index of {node.name} does not add up")
            node.disk.spoil()

    # --- disks ----------------------------------------------------------------------------------

    def _node_with_disk(self) -> tuple[SimNode, Disk]:
        node = self._random.choice(list(self._world.nodes.values()))
        assert node.disk is not None
        return node, node.disk

    def _trouble(self, trouble: Trouble) -> None:
        node, disk = self._node_with_disk()
        self._note(f"the disk of {node.name} {trouble.value}")
        disk.fare(trouble)
        self._after(0.05, 1.2, lambda: self._mend(node, disk))

    def _mend(self, node: SimNode, disk: Disk) -> None:
        self._note(f"the disk of {node.name} is well")
        disk.fare(Trouble.NONE)

    def _detach(self) -> None:
        """Have a node come back without its disk, which comes later."""
        node, disk = self._node_with_disk()
        self._kill(node, 0.01, 0.5)
        self._note(f"detach the disk of {node.name}")
        disk.fare(Trouble.ABSENT)
        self._after(0.3, 1.5, lambda: self._mend(node, disk))

    def _replace_disk(self) -> None:
        """Put an empty disk in the place of a node's."""
        node, disk = self._node_with_disk()
        self._kill(node, 0.01, 0.5)
        self._note(f"replace the disk of {node.name}")
        disk.lay_out()

    def _spoil(self) -> None:
        """Damage the index of a store, under a live node or a dead one."""
        node, disk = self._node_with_disk()
        self._note(f"damage the index of {node.name}")
        disk.spoil()

    def _damage(self) -> None:
        node, disk = self._node_with_disk()
        self._note(f"damage the disk of {node.name}")
        self.damages += 1
        disk.damage()

    def _drain_node(self) -> None:
        """Have an operator take a node out, and change his mind later."""
        name = self._random.choice(list(self._world.nodes))
        if len(self._world.nodes) == 1:
            return  # nobody would take anything
        self._note(f"drain {name}")
        self.drains += 1
        self._world.master.operate(Drain(name, self._random.uniform(0.2, 2.0)))
        self._after(0.2, 2.0, lambda: self._world.master.operate(Undrain(name)))

    def _undrain(self) -> None:
        for name in self._world.nodes:
            self._world.master.operate(Undrain(name))

    def _kill_client(self) -> None:
        self._kill(self._client(), 0.0, 0.3)

    def _pause(self, part: Part, *, at_least_s: float = 0.02) -> None:
        if part.is_paused or not part.is_alive:
            return
        self._note(f"pause {part.name}")
        part.pause()

        def resume() -> None:
            self._note(f"resume {part.name}")
            part.resume()

        self._after(at_least_s, 2.0, resume)

    def _pause_local_writer(self, looks: int) -> None:
        """Stop a client that is writing into a node's memory, as soon as there is one."""
        writing = set(self._world.local_writers.values())
        for client in self._world.clients:
            if client.name in writing and client.is_alive and not client.is_paused:
                self._pause(client, at_least_s=1.0)
                return
        if looks:
            self._after(0.0005, 0.002, lambda: self._pause_local_writer(looks - 1))

    def _partition(self) -> None:
        names = [part.name for part in self._world.parts()]
        self._random.shuffle(names)
        cut = self._random.randint(1, len(names) - 1)
        self._note(f"part {names[:cut]} from {names[cut:]}")
        self._world.network.partition(names[:cut], names[cut:])

        def heal() -> None:
            self._note("join")
            self._world.network.heal()

        self._after(0.02, 1.5, heal)

    def _cut(self, one: Part, other: Part) -> None:
        self._note(f"cut {one.name} from {other.name}")
        self._world.network.cut(one.name, other.name)

    def _lag(self, source: Part, target: Part) -> None:
        """Let what one part sends to another one come late, later than attempts live."""
        self._note(f"lag from {source.name} to {target.name}")
        network = self._world.network
        network.set_conditions(Conditions(latency_s=(0.4, 1.4)), source.name, target.name)

        def end() -> None:
            network.set_conditions(Conditions(), source.name, target.name)

        self._world.clock.call_later(self._random.uniform(0.05, 0.6), end)

    def _slow(self) -> None:
        self._note("slow")
        self._world.network.set_conditions(Conditions(latency_s=(0.001, 0.08)))
        self._after(0.1, 0.5, lambda: self._world.network.set_conditions(Conditions()))
