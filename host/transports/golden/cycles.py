"""Cycle model of the node commands that docs/predict.md lists. It returns None for all other commands."""

from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.compression.registry import ZERO_VALUE
from hdl.config import Configuration
from hdl.control.protocol import Operation
from host.cycles import estimate
from host.cycles.collective import cycles_of_costs
from host.cycles.costs import Costs, CountedCosts, Format
from host.cycles.estimate import Collective
from host.cycles.timing import Timing, timing_of
from host.driver.command import Command
from sim.golden.ring import floats

__all__ = ["CycleModel"]

#: Collectives supported by the cycle model of the ring.
_WALKED = {Operation.FUSED_UPDATE: Collective.FUSED_UPDATE, Operation.ALL_REDUCE: Collective.ALL_REDUCE,
           Operation.REDUCE_SCATTER: Collective.REDUCE_SCATTER, Operation.ALL_GATHER: Collective.ALL_GATHER}


class CycleModel:
    """Cycle model of node commands, including the effect of zero gradients, for links of ``latency`` cycles.

    Collectives are not modelled for int16 nodes, nor for nodes with sums of integers, a codebook, two ports or
    interleaved segments.
    """

    def __init__(self, config: Configuration, *, latency: int):
        modelled = config.has_ring and not (config.adds_integers or config.codebook_words
                                            or config.topology.ports > 1 or config.role.interleaved)
        self._timing: Timing | None = timing_of(config) if modelled else None
        self._config, self._latency = config, latency

    def local(self, command: Command) -> int | None:
        """Return the cycles of a command that a node executes on its own."""
        return estimate.Costs(examples=1).latch if command.operation is Operation.LATCH else None

    def collective(self, command: Command, gradients: npt.NDArray[np.uint32]) -> int | None:
        """Return the cycles of a collective from its start on the last node; ``gradients`` has one row per node."""
        kind, timing = _WALKED.get(command.operation), self._timing
        if kind is None or timing is None or command.root_reduce or not command.length:
            return None
        if command.size == 1:
            return timing.alone(length=command.length) if kind is Collective.FUSED_UPDATE else None
        form = Format(gradients=self._config.gradients, weights=self._config.weights.codec)
        shape: dict[str, Any] = {"segment": timing.segment, "sums": kind is Collective.ALL_REDUCE}
        if kind is not Collective.ALL_GATHER and form.gradients == ZERO_VALUE:
            costs: Costs = CountedCosts(form, floats(gradients), **shape)
        else:
            costs = Costs(form, length=command.length, nodes=command.size, **shape)
        return cycles_of_costs(kind, costs, timing, latency=self._latency).cycles
