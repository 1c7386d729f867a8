# amaranth: UnusedElaboratable=no
"""Transports to the nodes of a Verilated ring in this process.

Example
-------
::

    with open_ring(NodeConfig(), nodes=4, threads=2) as ring:
        devices = [Device(transport, NodeConfig(), name=f"node {index}")
                   for index, transport in enumerate(ring.transports)]
        ring.simulation.links[2].set_latency(data=100)

Two workers and a server with a different configuration::

    configs = [worker, worker, server]
    with open_ring(configs) as ring:
        devices = [Device(transport, config) for transport, config in zip(ring.transports, configs)]
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hdl.board import node_of
from hdl.config import Configuration
from sim.verilated.build import Library, build_ring
from sim.verilated.links import End
from sim.verilated.native import Arithmetic
from sim.verilated.part_server import Processes
from sim.verilated.parts import PartedRing
from sim.verilated.ring import VerilatedRing

__all__ = ["OpenRing", "VerilatedTransport", "open_ring"]


class VerilatedTransport:
    """Transport to one node of a simulated ring. Waiting in :meth:`receive` advances the whole ring."""

    def __init__(self, ring: VerilatedRing, node: int) -> None:
        self._ring = ring
        self._node = node

    def send(self, packet: NDArray[np.uint32]) -> None:
        """Queue one request packet, which the node accepts as simulated time advances."""
        self._ring.send(self._node, packet)

    def receive(self, timeout_cycles: int) -> NDArray[np.uint32]:
        """Run the ring until a response packet is complete. If none arrives in time, raise ``TimeoutError`` with the
        state of each queue and link."""
        cycles = self._ring.run(timeout_cycles, until_packet_at=self._node)
        packet = self._ring.receive(self._node)
        if packet is None:
            raise TimeoutError(f"no packet from node {self._node} of the simulated ring within {cycles} cycles\n"
                               f"{self._ring.describe()}")
        return packet

    def close(self) -> None:
        """Do nothing: all transports share the ring."""


class OpenRing:
    """A simulated ring and the transports to its nodes. For the parameters, see :func:`open_ring`.

    ``library`` is a single library for all nodes, or one per node: see :class:`~sim.verilated.ring.VerilatedRing`.
    The attribute ``simulation`` provides links, states, waveforms and the cycle count.
    """

    def __init__(self, library: Library | Sequence[Library], *, nodes: int | None = None, threads: int = 1,
                 wiring: Sequence[tuple[End, End]] | None = None, processes: Processes | None = None) -> None:
        libraries = {item.path: item for item in ([library] if isinstance(library, Library) else library)}
        self.seconds: dict[str, float] = {}  # duration of each stage of building the libraries
        for stage, seconds in itertools.chain(*(item.seconds.items() for item in libraries.values())):
            self.seconds[stage] = self.seconds.get(stage, 0) + seconds
        if processes is None:
            self.simulation = VerilatedRing(library, nodes=nodes, threads=threads, wiring=wiring)
        else:
            self.simulation = PartedRing(library, nodes=nodes, threads=threads, wiring=wiring, processes=processes)
        # one per node
        self.transports = tuple(VerilatedTransport(self.simulation, node) for node in range(self.simulation.nodes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish the waveform, and free the simulation."""
        self.simulation.close()


def open_ring(config: Configuration | Sequence[Configuration], *, nodes: int | None = None, threads: int = 1,
              wave: Path | None = None, arithmetic: Arithmetic = Arithmetic.GATEWARE,
              wiring: Sequence[tuple[End, End]] | None = None, processes: Processes | None = None,
              announce: Callable[[str], None] = lambda stage: None) -> OpenRing:
    """Start a ring, after building the libraries of its nodes unless they are cached.

    Threads, native arithmetic and processes affect only speed.

    Parameters
    ----------
    config : Configuration or sequence of Configuration
        Configuration of all nodes, or one for each node.
    nodes : int, optional
        Ring size, at most ``topology.max_nodes`` of any node; by default the number of configurations.
    wave : Path or None
        FST file to record all signals of all nodes in; requires a build that runs more slowly.
    wiring : sequence, optional
        Links, as for :class:`~sim.verilated.ring.VerilatedRing`; by default a ring.
    processes : Processes, optional
        Additional processes that simulate some of the nodes, each with the same number of threads.
    announce : callable
        Called with the name of each build stage when it begins.
    """
    configs = [config] if isinstance(config, Configuration) else list(config)
    size = len(configs) if nodes is None else nodes
    for each in configs:
        each.check_ring(size)
    libraries = {each: build_ring(node_of(each), traced=wave is not None, identity=f"Node({each})",
                                  arithmetic=arithmetic, announce=announce) for each in dict.fromkeys(configs)}
    ring = OpenRing(libraries[config] if isinstance(config, Configuration) else [libraries[each] for each in configs],
                    nodes=size, threads=threads, wiring=wiring, processes=processes)
    if wave is not None:
        ring.simulation.start_wave(wave)
    return ring
