"""Lists of layers, which nodes with a compute engine carry out."""

import itertools
from collections.abc import Iterable, Sequence

from hdl.compute.layer_list import MULTIPLIED_BIT
from hdl.control.protocol import Operation
from host.driver.command import Command
from host.driver.command_queueing import CommandQueueing
from host.driver.devices import Devices
from host.driver.protocols import Compute
from host.driver.results import ListsOutcome, slowest
from host.driver.ring_memory import RingMemory
from host.memory.plan import ListProgram, Plan, PlanError
from sim.golden.compute import Engine

__all__ = ["ListCompute", "PlannedLists"]


class PlannedLists:
    """Lists of a memory plan: once there is one, nodes run only these."""

    def __init__(self) -> None:
        self._starts: frozenset[int] | None = None

    def set(self, starts: Iterable[int]) -> None:
        """Allow only the lists that start at these elements."""
        self._starts = frozenset(starts)

    def check(self, lists: Iterable[int]) -> None:
        """Raise a PlanError if a list is not of the plan."""
        for base in lists:
            if self._starts is not None and base not in self._starts:
                raise PlanError(f"List must be one of the program of the memory plan, not the one at {base:,}: write "
                                f"it with a plan of its own")


class ListCompute(Compute):
    """Lists of layers on nodes that compute.

    Lists that are written with a plan of the activation memory (:meth:`write_lists`) must be its program. From then
    on nodes run only these lists.

    Raises
    ------
    ValueError
        The nodes have no compute engine.
    """

    def __init__(self, devices: Devices, memory: RingMemory, commands: CommandQueueing, planned: PlannedLists):
        if not any(config.compute for config in devices.configs):
            raise ValueError("Nodes must have compute in their configuration, to run lists of layers")
        self._devices = devices
        self._memory = memory
        self._commands = commands
        self._planned = planned

    def write_lists(self, programs: Sequence[ListProgram], plan: Plan) -> None:
        room = self._memory.allocator.room("activations")
        for config, program in itertools.product(self._devices.configs, programs):
            compute = config.compute
            program.check(plan, Engine(rows=compute.rows, lanes=config.lanes, scale_mask=compute.scale_mask,
                                       operands=compute.operands, centroids=compute.codebook,
                                       sequences=compute.sequences))
            if program.end > room:
                raise PlanError(f"Memory plan and lists must end within the {room:,} words of a node's activation "
                                f"memory, not at {program.end:,}")
        for program in programs:
            self._memory.write_activations([program.words] * len(self._devices), program.base)
        self._planned.set(start for program in programs for start in program.starts)

    def run_layers(self, lists: Sequence[int], lengths: Sequence[int], *, offset: int = 0,
                   patience: int = 0) -> list[ListsOutcome]:
        self._planned.check(lists)
        if len(lengths) != len(self._devices):
            raise ValueError(f"Lengths must be one per node, {len(self._devices)}, not {len(lengths)}")
        pending = [self._commands.submit_apart(
            {rank: Command(operation=Operation.LAYERS, weight_base=base, state_base=offset, length=length)
             for rank, length in enumerate(lengths) if length}, patience=patience) for base in lists if any(lengths)]
        if not pending:
            return []
        return [ListsOutcome(cycles=slowest(event.cycles for event in events.values()),
                             multiplied=sum(event.detail >> MULTIPLIED_BIT for event in events.values()))
                for events in self._commands.wait(*pending)]
