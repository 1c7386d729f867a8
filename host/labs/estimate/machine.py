# amaranth: UnusedElaboratable=no
"""Execution and target machines of the estimates: nodes, links and host ports.

Target machines are built, too, so that estimates can be compared with measurements.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from fractions import Fraction

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring

from hdl.board import node_of
from hdl.config import Memories, NodeConfig, SingleRing
from hdl.features.compute.feature import Compute
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.programs.feature import Programs
from hdl.features.throttles.feature import Throttles
from hdl.node import Node
from host.driver.device import Device
from host.driver.devices import TIMEOUT
from host.driver.ring import Ring
from host.transports.verilated import OpenRing
from sim.verilated.build import Library, build_ring
from sim.verilated.native import Arithmetic
from sim.verilated.ring import VerilatedRing

__all__ = ["EXECUTION", "NODE", "NODES", "RATIOS", "TARGETS", "Machine", "Opened", "SlowPortNode", "built", "opened"]

NODES = 2  # number of nodes in each machine's ring

#: Configuration of a node with programs and 8 multiply-adds per cycle.
NODE = NodeConfig(
    topology=SingleRing(max_nodes=4), memories=Memories(gradient=16384, weight=8192, state=4096, planes=1),
    masking=False, sparsify=False, programs=Programs(), compute=Compute(rows=2), stub=ComputeStub())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine to run programs on: nodes, links and host ports."""

    name: str
    node: NodeConfig = NODE
    link: Fraction = Fraction(1)  # words per cycle on a link
    latency: int = 16  # cycles of latency of a link
    host: int = 1  # cycles per word at the host port

    def rates(self, compute_cycles: int) -> dict[str, Fraction]:
        """Return the rate of each part of the machine for a program with ``compute_cycles`` cycles of computation."""
        return {"link": self.link, "memory": Fraction(self.node.lanes), "compute": Fraction(1, compute_cycles),
                "optimizer": Fraction(self.node.optimizer.lanes, self.node.optimizer.interval),
                "host": Fraction(1, self.host)}


_HALF = Fraction(1, 2)
_THROTTLED = NODE.replace(features=(Throttles(),))

#: Execution machine: it runs the programs to be estimated, and its nodes have throttles.
EXECUTION = Machine(name="8 MACs", node=_THROTTLED)

#: Multiply-adds per cycle of (execution machine, target): different ratios of compute speed to link speed.
RATIOS = ((8, 12), (8, 16), (4, 16))


#: Target machines. If only their links differ, they have the nodes of the execution machine, with throttles off.
TARGETS = (
    Machine(name="16 MACs", node=NODE.replace(compute={"rows": 4})),
    Machine(name="4 MACs", node=NODE.replace(compute={"rows": 1})),
    Machine(name="link 1/2", node=_THROTTLED, link=_HALF),
    Machine(name="link 1/2, latency x 4", node=_THROTTLED, link=_HALF, latency=64),
    Machine(name="latency x 4", node=_THROTTLED, latency=64),
    Machine(name="optimizer every 4th cycle", node=NODE.replace(optimizer={"interval": 4})),
    Machine(name="memory x 2", node=NODE.replace(lanes=8, compute={"rows": 1})),
    Machine(name="host port 1/2", host=2),
    Machine(name="16 MACs, link 1/2", node=NODE.replace(compute={"rows": 4}), link=_HALF),
    Machine(name="all 1/2", node=NODE.replace(lanes=2, optimizer={"interval": 2}), link=_HALF, host=2),
)


class SlowPortNode(wiring.Component):
    """A node without throttles whose host port transfers one word each way every ``cycles`` cycles, at least 2.
    """

    def __init__(self, config: NodeConfig, *, cycles: int):
        if not isinstance(cycles, int) or cycles < 2:
            raise ValueError(f"Cycles of a word must be an integer of at least 2, not {cycles!r}")
        self._node = Node(config)
        self._cycles = cycles
        super().__init__(dict(self._node.signature.members.items()))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.node = node = self._node
        count = Signal(range(self._cycles))
        m.d.sync += count.eq(Mux(count == self._cycles - 1, 0, count + 1))
        for name in self.signature.members:
            wiring.connect(m, inner=getattr(node, name), outer=wiring.flipped(getattr(self, name)))
        with m.If(count != 0):
            m.d.comb += [node.host_i.valid.eq(0), self.host_i.ready.eq(0),
                         self.host_o.valid.eq(0), node.host_o.ready.eq(0)]
        return m


def built(machine: Machine, announce: Callable[[str], None] = lambda stage: None) -> Library:
    """Build the library of a machine's ring. Nodes without throttles use native arithmetic, which gives the same bits
    and cycles but builds faster."""
    if machine.host == 1:
        node, identity = node_of(machine.node), f"Node({machine.node})"
    else:
        node, identity = (SlowPortNode(machine.node, cycles=machine.host),
                          f"SlowPortNode({machine.node}, {machine.host})")
    return build_ring(node, identity=identity, announce=announce, arithmetic=(
        Arithmetic.GATEWARE if machine.node.has("throttles") else Arithmetic.NATIVE))


@dataclasses.dataclass
class Opened:
    """A machine whose simulation is running."""

    machine: Machine
    nodes: OpenRing  # simulated nodes of the machine
    ring: Ring = dataclasses.field(init=False)  # driver of the nodes; connected by :meth:`restart`

    @property
    def simulation(self) -> VerilatedRing:
        return self.nodes.simulation

    def restart(self) -> None:
        """Reset and reconnect all nodes, so that a measurement does not depend on earlier measurements.

        Without a reset, the accumulators of throttles and links and the phases of memories and the optimizer would
        carry over from the previous program.
        """
        self.simulation.reset()
        self.ring = Ring([Device(transport, self.machine.node, name=f"{self.machine.name}, node {rank}")
                          for rank, transport in enumerate(self.nodes.transports)], timeout=16 * TIMEOUT)
        self.ring.connect()


@contextlib.contextmanager
def opened(machine: Machine, *, announce: Callable[[str], None] = lambda stage: None) -> Iterator[Opened]:
    """Start a machine's ring and connect to its nodes; all data is transferred through the host ports."""
    with OpenRing(built(machine, announce), nodes=NODES, threads=1) as nodes:
        for link in nodes.simulation.links:
            link.set_latency(data=machine.latency, credit=machine.latency)
            link.set_rate(machine.link.numerator, machine.link.denominator)
        machine_opened = Opened(machine, nodes)
        machine_opened.restart()
        yield machine_opened
