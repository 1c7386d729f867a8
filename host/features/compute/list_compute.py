"""Run layer lists on the nodes of a ring."""

import dataclasses
import itertools
from collections.abc import Sequence

from hdl.control.protocol import Operation
from hdl.features.compute.layer_list import MULTIPLIED_BIT
from host.driver.command import Command
from host.driver.command_queueing import CommandQueueing
from host.driver.devices import Devices
from host.driver.planned_lists import PlanError, PlannedLists
from host.driver.results import Cycles, slowest
from host.driver.ring_memory import RingMemory
from host.features.compute.instructions import node_engine
from host.features.compute.memory.plan import ListProgram, Plan

__all__ = ["ListCompute", "ListsOutcome"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListsOutcome:
    """Result of running an instruction list on one or more nodes."""

    cycles: Cycles  # cycles on the slowest node
    multiplied: int = 0  # number of cycles in which all lanes of a codebook unit multiplied, summed over all nodes


class ListCompute:
    """Writes and runs layer lists on nodes that compute.

    If lists are written together with an activation memory plan (:meth:`write_lists`), they must be the plan's
    program. From then on, nodes run only these lists. Raises ``ValueError`` if the nodes have no compute engine.
    """

    def __init__(self, devices: Devices, memory: RingMemory, commands: CommandQueueing, planned: PlannedLists):
        if not any(config.compute for config in devices.configs):
            raise ValueError("Nodes must have compute in their configuration, to run lists of layers")
        self._devices = devices
        self._memory = memory
        self._commands = commands
        self._planned = planned

    def write_lists(self, programs: Sequence[ListProgram], plan: Plan) -> None:
        """Write the instruction lists of a pass, or separate lists for even and odd passes, to all nodes. If the
        lists are not the plan's program or do not fit the nodes, raises ``PlanError`` and writes nothing.
        """
        room = self._memory.allocator.room("activations")
        for config, listed in itertools.product(self._devices.configs, programs):
            listed.check(plan, node_engine(config))
            if listed.end > room:
                raise PlanError(f"Memory plan and lists must end within the {room:,} words of a node's activation "
                                f"memory, not at {listed.end:,}")
        for listed in programs:
            self._memory.write_activations([listed.words] * len(self._devices), listed.base)
        self._planned.set(start for listed in programs for start in listed.starts)

    def run_layers(self, lists: Sequence[int], lengths: Sequence[int], *, offset: int = 0,
                   patience: int = 0) -> list[ListsOutcome]:
        """Run layer lists one after another, and wait until they are done; see docs/compute/layers.md.

        Raises ``RingError`` if a node rejects a list. Raises ``PlanError``, and runs nothing, if a list is not in the
        memory plan.

        Parameters
        ----------
        lists : sequence of int
            Address of each list in the activation memory, a multiple of 32.
        lengths : sequence of int
            Number of examples on each node; nodes without examples do nothing.
        offset : int
            Offset in elements for the addresses of relative operands, a multiple of 32.
        patience : int
            Maximum number of cycles per list.
        """
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
