# amaranth: UnusedElaboratable=no
"""Machines that are built, opened and measured."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from hdl.board import node_of
from hdl.config import Throttles
from host.driver.device import Device
from host.driver.devices import TIMEOUT
from host.driver.ring import Ring
from host.estimate.machine import NODES, Machine
from host.estimate.slow_port import SlowPortNode
from host.transports.verilated import OpenRing
from sim.verilated.build import Library, build_ring
from sim.verilated.native import Arithmetic
from sim.verilated.ring import VerilatedRing

__all__ = ["Opened", "built", "opened"]


def _silent(stage: str) -> None:
    pass


def built(machine: Machine, announce: Callable[[str], None] = _silent) -> Library:
    """Library of a machine's ring. Arithmetic of nodes without throttles is the processor's own: the same bits and
    cycles, built sooner."""
    arithmetic = Arithmetic.GATEWARE if machine.node.has(Throttles) else Arithmetic.NATIVE
    if machine.host == 1:
        return build_ring(node_of(machine.node), identity=f"Node({machine.node})", arithmetic=arithmetic,
                          announce=announce)
    return build_ring(SlowPortNode(machine.node, cycles=machine.host), arithmetic=arithmetic, announce=announce,
                      identity=f"SlowPortNode({machine.node}, {machine.host})")


@dataclasses.dataclass
class Opened:
    """A machine that runs.

    Parameters
    ----------
    nodes : OpenRing
        Its simulated nodes.

    Members
    -------
    ring : Ring
        Driver of the nodes, connected by :meth:`restart`.
    """

    machine: Machine
    nodes: OpenRing
    ring: Ring = dataclasses.field(init=False)

    @property
    def simulation(self) -> VerilatedRing:
        return self.nodes.simulation

    def restart(self) -> None:
        """Reset and connect all nodes, so that a measurement depends on nothing before it.

        Without a reset the accumulators of throttles and links, and the phases of memories and of the optimizer,
        would be left over from the last program.
        """
        self.simulation.reset()
        self.ring = Ring([Device(transport, self.machine.node, name=f"{self.machine.name}, node {rank}")
                          for rank, transport in enumerate(self.nodes.transports)], timeout=16 * TIMEOUT)
        self.ring.connect()


@contextlib.contextmanager
def opened(machine: Machine, *, library: Library | None = None,
           announce: Callable[[str], None] = _silent) -> Iterator[Opened]:
    """A machine's ring, connected; everything goes through the host ports."""
    with OpenRing(library or built(machine, announce), nodes=NODES, threads=1) as nodes:
        for link in nodes.simulation.links:
            link.set_latency(data=machine.latency, credit=machine.latency)
            link.set_rate(machine.link.numerator, machine.link.denominator)
        machine_opened = Opened(machine, nodes)
        machine_opened.restart()
        yield machine_opened
