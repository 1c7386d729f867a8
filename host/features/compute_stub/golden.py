"""Golden nodes with a compute stub."""

from hdl.control.protocol import Operation
from host.driver.command import Command
from host.transports.golden.nodes import GoldenNodes, GoldenPart
from sim.golden.features.compute_stub.compute_model import compute_cycles

__all__ = ["GoldenStub"]


class GoldenStub(GoldenPart):
    """Cycle model of the COMPUTE command on golden nodes."""

    def __init__(self, nodes: GoldenNodes):
        self._lanes = int(nodes.config.lanes)

    def cycles(self, command: Command) -> int | None:
        if command.operation is not Operation.COMPUTE:
            return None
        return compute_cycles(command.length, command.duration, lanes=self._lanes)
