"""Golden nodes with a compute engine, and the buffer tags of activation memory rows."""

from collections.abc import Mapping

import numpy as np

from hdl.control.protocol import Operation
from host.driver.command import Command
from host.features.compute.instructions import node_engine
from host.transports.golden.nodes import Ended, GoldenNodes, GoldenPart, LocalOperation
from sim.golden.features.compute.compute import spaces
from sim.golden.features.compute.row_owners import RowOwners

__all__ = ["GoldenCompute"]


class GoldenCompute(GoldenPart):
    """Golden compute engines of a ring's nodes, which execute layer lists independently of each other."""

    def __init__(self, nodes: GoldenNodes):
        config, compute = nodes.config, nodes.config.compute
        self._nodes, self._lanes = nodes, config.lanes
        self._engine = nodes.engine = node_engine(config)
        self._owners = [RowOwners(compute.activations // config.lanes) if compute.buffer_tags else None
                        for _ in range(nodes.nodes)]

    def operations(self) -> Mapping[Operation, LocalOperation]:
        return {Operation.LAYERS: self._layers}

    def _layers(self, rank: int, command: Command) -> Ended:
        outcome = self._engine.run(spaces(self._nodes, rank), base=command.weight_base, length=command.length,
                                   offset=command.state_base, owners=self._owners[rank])
        return Ended(outcome.status, outcome.detail)

    def written(self, rank: int, space: str, base: int, count: int) -> None:
        owners = self._owners[rank]
        if owners is not None and space == "activations":
            owners.write(np.arange(base, base + count) // self._lanes)
