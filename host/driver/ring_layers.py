"""Activation memories of a ring's nodes, and the layers that nodes with a compute engine carry out."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from hdl.control.protocol import Operation
from host.driver.buffers import Buffer
from host.driver.command import Command
from host.driver.rounds import RingRounds
from host.driver.vectors import Vector

__all__ = ["RingLayers"]


class RingLayers(RingRounds):
    """Nodes in a ring that compute."""

    def write_activations(self, vectors: Sequence[npt.NDArray[Any]], base: int) -> None:
        """Write one vector per node, in order of rank, from element ``base`` of the activation memory on."""
        self._write("activations", vectors, base=base)

    def read_activations(self, base: int, length: int) -> Vector:
        """Read one row per node."""
        return self._read("activations", Buffer("activations", base, length))

    def run_layers(self, lists: Sequence[int], lengths: Sequence[int], *, patience: int = 0) -> list[int]:
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
        list of int
            Cycles of each list, on the node where it took longest.

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
        return [max(event.cycles for event in events.values()) for events in self.wait(*pending)] if pending else []
