"""Simulated grids of nodes, shared by several tests."""

import contextlib

from hdl.config import Memories, NodeConfig, Optimizer
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.grid.feature import Grid
from hdl.features.programs.feature import Programs
from hdl.features.replay.feature import Replay
from host.driver.device import Device
from host.features.grid.grid import Topology
from host.features.grid.switching import GridNodes
from host.transports.verilated import VerilatedTransport
from sim.verilated.ring import VerilatedRing
from tests.host.rings import CONFIGS, TIMEOUT, library

CONFIG = CONFIGS["engines"]

#: Small nodes with two ports, replay links, programs and quorum updates.
ROUNDS = NodeConfig(
    lanes=1, segment=32, topology=Grid(), memories=Memories(gradient=4096, weight=1024, state=1024, planes=1),
    optimizer=Optimizer(dsps=1), masking=False, sparsify=False, link=Replay(ingress=2), programs=Programs(depth=32),
    stub=ComputeStub(quorum=True))


@contextlib.contextmanager
def open_grid(rows, columns, *, config=CONFIG, latency=3, faults=None):
    """Open a simulated grid of nodes, with links in the same order as in Topology.links."""
    links = Topology(rows, columns).links
    wiring = [((node, port), (end, port)) for (node, port), end in links.items()]
    simulation = VerilatedRing(library(config), nodes=rows * columns, wiring=wiring)
    try:
        for link in simulation.links:
            link.set_latency(data=latency, credit=latency)
        simulation.set_faults(faults)
        devices = [Device(VerilatedTransport(simulation, node), config, name=f"node {node}")
                   for node in range(rows * columns)]
        grid = GridNodes(devices, rows=rows, columns=columns, timeout=TIMEOUT)
        grid.connect()
        yield grid, simulation
    finally:
        simulation.close()
