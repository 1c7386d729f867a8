"""Activation memories of a ring's nodes, and the layers that nodes with a compute engine carry out."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from hdl.compute.layer_list import MULTIPLIED_BIT
from hdl.control.protocol import Operation
from host.driver.buffers import Buffer
from host.driver.command import Command
from host.driver.device import Device
from host.driver.nodes import TIMEOUT
from host.driver.programs import NodeProgram
from host.driver.rounds import RingRounds
from host.driver.vectors import Vector
from host.memory.lists import ListProgram
from host.memory.plan import Plan, PlanError
from sim.golden.compute import Engine

__all__ = ["ListsOutcome", "RingLayers"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListsOutcome:
    """End of a list on all nodes that have run it.

    Members
    -------
    cycles : int
        On the node where it took longest.
    multiplied : int
        Cycles in which all lanes of a node's unit for centroids have multiplied, added up over the nodes.
    """

    cycles: int
    multiplied: int = 0


class RingLayers(RingRounds):
    """Nodes in a ring that compute.

    Lists that are written with a plan of the activation memory (:meth:`write_lists`) must be its program. From then
    on nodes run these lists and no others.

    Parameters
    ----------
    devices, timeout
        Parameters of :class:`~host.driver.nodes.RingNodes`.
    """

    def __init__(self, devices: Sequence[Device], *, timeout: int = TIMEOUT):
        super().__init__(devices, timeout=timeout)
        self._planned: frozenset[int] | None = None

    def write_lists(self, programs: Sequence[ListProgram], plan: Plan) -> None:
        """Write the lists of a pass, or of even and odd passes, to all nodes.

        Raises
        ------
        PlanError
            The lists are not the program of the plan, or nodes have no room for it; nothing is written then.
        """
        room = self._allocator.room("activations")
        for config, program in itertools.product(self._configs, programs):
            program.check(plan, Engine(rows=config.compute, lanes=config.lanes, scale_mask=config.scale_mask,
                                       operands=config.operands, centroids=config.centroids,
                                       sequences=config.sequences))
            if program.end > room:
                raise PlanError(f"Memory plan and lists must end within the {room:,} words of a node's activation "
                                f"memory, not at {program.end:,}")
        for program in programs:
            self.write_activations([program.words] * self.nodes, program.base)
        self._planned = frozenset(start for program in programs for start in program.starts)

    def load_programs(self, programs: Sequence[NodeProgram], *, model: int = 0, changes: bool = False) -> None:
        """Give each node its program; see :meth:`host.driver.programs.RingPrograms.load_programs`.

        Raises
        ------
        PlanError
            A program runs a list that is not of the memory plan; nothing is loaded then.
        """
        self._check_planned([command.weight_base for program in programs for queue in program for command in queue
                             if command.operation is Operation.LAYERS])
        super().load_programs(programs, model=model, changes=changes)

    def _check_planned(self, lists: Sequence[int]) -> None:
        """Raise a PlanError if a list is not of the plan."""
        for base in lists:
            if self._planned is not None and base not in self._planned:
                raise PlanError(f"List must be one of the program of the memory plan, not the one at {base:,}: write "
                                f"it with a plan of its own")

    def write_activations(self, vectors: Sequence[npt.NDArray[Any]], base: int) -> None:
        """Write one vector per node, in order of rank, from element ``base`` of the activation memory on."""
        self._write("activations", vectors, base=base)

    def read_activations(self, base: int, length: int) -> Vector:
        """Read one row per node."""
        return self._read("activations", Buffer("activations", base, length))

    def run_layers(self, lists: Sequence[int], lengths: Sequence[int], *, offset: int = 0,
                   patience: int = 0) -> list[ListsOutcome]:
        """Run lists of layers, one behind the other, and wait for them; see docs/compute/layers.md.

        Parameters
        ----------
        lists : sequence of int
            Address of each list in the activation memory, a multiple of 32.
        lengths : sequence of int
            Examples of each node; a node without any does nothing.
        offset : int
            Elements that are added to the addresses of relative operands, a multiple of 32.
        patience : int
            Cycles that a list may take.

        Returns
        -------
        list of ListsOutcome
            Of each list.

        Raises
        ------
        RingError
            A node has refused a list.
        PlanError
            A list is not of the memory plan; nothing runs then.
        """
        self._check_planned(lists)
        if len(lengths) != self.nodes:
            raise ValueError(f"Lengths must be one per node, {self.nodes}, not {len(lengths)}")
        pending = [self._submit_apart({rank: Command(operation=Operation.LAYERS, weight_base=base, state_base=offset,
                                                     length=length)
                                       for rank, length in enumerate(lengths) if length}, patience=patience)
                   for base in lists if any(lengths)]
        if not pending:
            return []
        return [ListsOutcome(cycles=max(event.cycles for event in events.values()),
                             multiplied=sum(event.detail >> MULTIPLIED_BIT for event in events.values()))
                for events in self.wait(*pending)]
