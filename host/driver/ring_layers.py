"""Activation memories of a ring's nodes, and the layers that nodes with a compute engine carry out."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from hdl.compute.layer_list import MULTIPLIED_BIT
from hdl.control.protocol import Operation
from host.driver.buffers import Buffer
from host.driver.command import Command
from host.driver.rounds import RingRounds
from host.driver.vectors import Vector

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
    """Nodes in a ring that compute."""

    def write_activations(self, vectors: Sequence[npt.NDArray[Any]], base: int) -> None:
        """Write one vector per node, in order of rank, from element ``base`` of the activation memory on."""
        self._write("activations", vectors, base=base)

    def read_activations(self, base: int, length: int) -> Vector:
        """Read one row per node."""
        return self._read("activations", Buffer("activations", base, length))

    def run_layers(self, lists: Sequence[int], lengths: Sequence[int], *, patience: int = 0) -> list[ListsOutcome]:
        """Run lists of layers, one behind the other, and wait for them; see docs/compute/layers.md.

        Parameters
        ----------
        lists : sequence of int
            Address of each list in the activation memory, a multiple of 32.
        lengths : sequence of int
            Examples of each node; a node without any does nothing.
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
        """
        if len(lengths) != self.nodes:
            raise ValueError(f"Lengths must be one per node, {self.nodes}, not {len(lengths)}")
        pending = [self._submit_apart({rank: Command(operation=Operation.LAYERS, weight_base=base, length=length)
                                       for rank, length in enumerate(lengths) if length}, patience=patience)
                   for base in lists if any(lengths)]
        if not pending:
            return []
        return [ListsOutcome(cycles=max(event.cycles for event in events.values()),
                             multiplied=sum(event.detail >> MULTIPLIED_BIT for event in events.values()))
                for events in self.wait(*pending)]
