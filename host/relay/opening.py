"""A simulated ring for a relay: workers and a server of sizes that fit, connected."""

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from hdl.config import NodeConfig, ServerConfig
from host.driver.device import Device
from host.driver.ring import Ring
from host.relay import node_run
from host.relay.plan import Worker
from host.transports.backdoor import BackdoorTransport, PortTime
from host.transports.verilated import open_ring
from sim.verilated.native import Arithmetic
from sim.verilated.ring import VerilatedRing

__all__ = ["LATENCY", "RelayNodes", "open_relay", "relay_nodes"]

#: Elements that server memories are made of, so that similar models share a library.
_STEP = 1 << 14
#: Commands of a program, and elements of a worker's memories.
_DEPTH, _ACTIVATIONS, _FAR = 1024, 8192, 1 << 17
#: Cycles from a request to a far memory to its answer.
LATENCY = 16


class RelayNodes(NamedTuple):
    """Configurations of a relay's nodes."""

    worker: NodeConfig
    server: ServerConfig
    #: The worker's memories, for plans.
    memories: Worker


def relay_nodes(*, words: int, planes: int, window: int = 4160, windows: int = 2) -> RelayNodes:
    """Nodes for a model of so many words.

    Parameters
    ----------
    words : int
        Weights and biases of all units, as the server has them.
    planes : int
        State planes of the optimizer.
    window, windows : int
        Elements of a worker's windows, and of its accumulators; how many there are of each.
    """
    worker = node_run.worker_node(window=window, activation_words=_ACTIVATIONS, far_words=_FAR, depth=_DEPTH,
                                  windows=windows)
    server = node_run.server_node(words=-(-words // _STEP) * _STEP, planes=planes, depth=_DEPTH)
    return RelayNodes(worker, server, node_run.worker_of(worker, windows=windows))


@contextlib.contextmanager
def open_relay(nodes: RelayNodes, *, workers: int, rate: Fraction = Fraction(4), worker_rate: Fraction = Fraction(1),
               threads: int = 1,
               arithmetic: Arithmetic = Arithmetic.GATEWARE) -> Iterator[tuple[Ring, VerilatedRing]]:
    """Open a ring of ``workers`` and their server, whose far memory gives ``rate`` words per cycle and theirs
    ``worker_rate``."""
    configs = [nodes.worker] * workers + [nodes.server]
    with open_ring(configs, threads=threads, arithmetic=arithmetic) as opened:
        simulation = opened.simulation
        for rank in range(workers + 1):
            simulation.set_far_speed(latency=LATENCY, rate=rate if rank == workers else worker_rate, node=rank)
        time = PortTime(lambda: simulation.cycle)
        ring = Ring([Device(BackdoorTransport(transport, simulation, rank, config, time), config,
                            name=f"worker {rank}" if rank < workers else "server")
                     for rank, (transport, config) in enumerate(zip(opened.transports, configs, strict=True))])
        ring.connect()
        yield ring, simulation
