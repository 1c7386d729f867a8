"""Machines whose times are compared: nodes, links and host ports."""

import dataclasses
from fractions import Fraction

from hdl.config import Compute, ComputeStub, Memories, NodeConfig, Programs, SingleRing, Throttles

__all__ = ["NODE", "NODES", "Machine"]

#: Nodes of the ring of every machine.
NODES = 2

#: Node that runs programs: 8 multiply-adds per cycle.
NODE = NodeConfig(
    topology=SingleRing(max_nodes=4), memories=Memories(gradient=16384, weight=8192, state=4096, planes=1),
    masking=False, sparsify=False, programs=Programs(), compute=Compute(rows=2), stub=ComputeStub())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine.

    Parameters
    ----------
    link : Fraction
        Words per cycle of a link.
    latency : int
        Cycles of a link.
    host : int
        Cycles of a word of the host port.
    """

    name: str
    node: NodeConfig = NODE
    link: Fraction = Fraction(1)
    latency: int = 16
    host: int = 1

    @property
    def macs(self) -> int:
        """Multiply-adds per cycle."""
        return int(self.node.compute.rows * self.node.lanes)

    def rates(self, compute_cycles: int) -> dict[str, Fraction]:
        """Rates of all parts, for a program that takes so many cycles of compute on this machine."""
        return {"link": self.link, "memory": Fraction(self.node.lanes), "compute": Fraction(1, compute_cycles),
                "optimizer": Fraction(self.node.optimizer.lanes, self.node.optimizer.interval),
                "host": Fraction(1, self.host)}

    def throttles(self) -> "Machine":
        """The same machine with throttles."""
        return dataclasses.replace(self, node=self.node.replace(features=(Throttles(),)))
