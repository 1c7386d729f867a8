"""Machines whose times are compared: nodes, links and host ports."""

import dataclasses
from fractions import Fraction

from hdl.config import NodeConfig

__all__ = ["NODE", "NODES", "Machine"]

#: Nodes of the ring of every machine.
NODES = 2

#: Node that runs programs: 8 multiply-adds per cycle.
NODE = NodeConfig(compute=2, stand_in=True, queues=2, state_planes=1, gradient_words=16384, weight_words=8192,
                  state_words=4096, activation_words=8192, masking=False, error_feedback=False, nodes_max=4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine.

    Parameters
    ----------
    name : str
    node : NodeConfig
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
        return int(self.node.compute * self.node.lanes)

    def rates(self, compute_cycles: int) -> dict[str, Fraction]:
        """Rates of all parts, for a program that takes so many cycles of compute on this machine."""
        return {"link": self.link, "memory": Fraction(self.node.lanes), "compute": Fraction(1, compute_cycles),
                "optimizer": Fraction(self.node.update_lanes, self.node.update_interval),
                "host": Fraction(1, self.host)}

    def throttles(self) -> "Machine":
        """The same machine with throttles."""
        return dataclasses.replace(self, node=dataclasses.replace(self.node, throttles=True))
