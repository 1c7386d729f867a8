# amaranth: UnusedElaboratable=no
"""Transports to the nodes of a Verilated ring, in this process.

Example
-------
::

    with open_ring(NodeConfig(), nodes=4, threads=2) as ring:
        devices = [Device(transport, NodeConfig(), name=f"node {index}")
                   for index, transport in enumerate(ring.transports)]
        ring.simulation.links[2].set_latency(data=100)
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hdl.board import node_of
from hdl.config import NodeConfig
from sim.verilated.build import Library, build_ring
from sim.verilated.links import End
from sim.verilated.native import Arithmetic
from sim.verilated.ring import VerilatedRing

__all__ = ["OpenRing", "VerilatedTransport", "open_ring"]


class VerilatedTransport:
    """The way to one node of a simulated ring.

    Simulated time passes only while some transport of the ring waits in :meth:`receive`, and then for all nodes.

    Parameters
    ----------
    ring : VerilatedRing
        The ring, which all its transports share.
    node : int
        Number of the node.
    """

    def __init__(self, ring: VerilatedRing, node: int) -> None:
        self._ring = ring
        self._node = node

    def send(self, packet: NDArray[np.uint32]) -> None:
        """Queue one request packet, which the node takes as simulated time passes."""
        self._ring.send(self._node, packet)

    def receive(self, timeout_cycles: int) -> NDArray[np.uint32]:
        """The node's next response packet, running the ring until it is there.

        Raises
        ------
        TimeoutError
            No response came within ``timeout_cycles`` cycles. The message has the state of each queue and link.
        """
        cycles = self._ring.run(timeout_cycles, until_packet_at=self._node)
        packet = self._ring.receive(self._node)
        if packet is None:
            raise TimeoutError(f"no packet from node {self._node} of the simulated ring within {cycles} cycles\n"
                               f"{self._ring.describe()}")
        return packet

    def close(self) -> None:
        """Do nothing: the ring belongs to all its transports, and is closed on its own."""


class OpenRing:
    """A simulated ring and the ways to its nodes.

    Parameters
    ----------
    library : Library
        The built ring.
    nodes, threads : int
        Number of nodes, and threads that step them.
    wiring : sequence, optional
        Links: see :class:`~sim.verilated.ring.VerilatedRing`.

    Members
    -------
    library : Library
        The built ring, with the time that each stage of its build took.
    simulation : VerilatedRing
        Links, states, waveforms and cycle count.
    transports : tuple of VerilatedTransport
        One per node.
    """

    def __init__(self, library: Library, *, nodes: int, threads: int,
                 wiring: Sequence[tuple[End, End]] | None = None) -> None:
        self.library = library
        self.simulation = VerilatedRing(library, nodes=nodes, threads=threads, wiring=wiring)
        self.transports = tuple(VerilatedTransport(self.simulation, node) for node in range(nodes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Finish a waveform, and free the simulation."""
        self.simulation.close()


def open_ring(config: NodeConfig, *, nodes: int, threads: int = 1, wave: Path | None = None,
              arithmetic: Arithmetic = Arithmetic.GATEWARE, wiring: Sequence[tuple[End, End]] | None = None,
              announce: Callable[[str], None] = lambda stage: None) -> OpenRing:
    """Build the ring of a node, unless an earlier run has, and start it.

    Parameters
    ----------
    config : NodeConfig
        Parameters of every node.
    nodes : int
        Ring size; must not exceed the configuration's ``nodes_max``.
    threads : int
        Threads that step the ring; they change its speed alone.
    wave : Path or None
        Write all signals of all nodes to this FST file, by a build which is slower for it.
    arithmetic : Arithmetic
        Whether floating-point units are simulated as gateware; native ones change the speed alone.
    wiring : sequence, optional
        Links: see :class:`~sim.verilated.ring.VerilatedRing`; by default a ring.
    announce : callable
        Called with the name of each stage of the build as it begins.
    """
    config.check_ring(nodes)
    library = build_ring(node_of(config), traced=wave is not None, identity=f"Node({config})", arithmetic=arithmetic,
                         announce=announce)
    ring = OpenRing(library, nodes=nodes, threads=threads, wiring=wiring)
    if wave is not None:
        ring.simulation.start_wave(wave)
    return ring
