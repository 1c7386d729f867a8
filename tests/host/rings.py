# amaranth: UnusedElaboratable=no
"""The simulated rings of whole nodes that tests share, one library for each configuration of a node."""

import contextlib
import functools

import numpy as np

from hdl.board import node_of
from hdl.config import NodeConfig
from host import reference
from host.device import Device
from host.ring import Ring
from host.verilated import OpenRing
from sim.verilated.build import build_ring

TIMEOUT = 4000

DEFAULT = NodeConfig()

#: Of nodes that take less to build than those by default, and that several tests have in common.
SMALL = {"gradient_words": 2048, "weight_words": 2048, "state_words": 1024, "state_planes": 0, "masking": False,
         "error_feedback": False}
#: Of those that have every engine.
WHOLE = {**SMALL, "masking": True, "error_feedback": True, "quantization": True}


class Reference(reference.Reference):
    """What a ring must hold: weights, masters, state, and what its nodes have lost."""

    def __init__(self, ring, weights, *, planes=0, centroids=None):
        super().__init__(ring, weights, planes, centroids)
        self.ring = ring

    def compare(self, message=""):
        length = len(self.master)
        assert (self.ring.read_weights(length).view(np.uint32) == self.weights).all(), message
        if self.coded:
            assert (self.ring.read_master(length).view(np.uint32) == self.master).all(), message
        self.compare_residuals(message)

    def compare_residuals(self, message=""):
        if self.residuals is not None:
            found = self.ring.read_residual(len(self.master))
            assert (found.view(np.uint32) == self.residuals).all(), message
            assert np.isfinite(found).all(), message


@functools.cache
def library(config):
    """The simulated ring; making sure that it is up to date takes longer than most tests."""
    return build_ring(node_of(config), identity=f"Node({config})")


@contextlib.contextmanager
def open_nodes(nodes, *, config, threads=1, latency=16, timeout=TIMEOUT):
    """Ring and simulation, whose links can be cut."""
    with OpenRing(library(config), nodes=nodes, threads=threads) as opened:
        for link in opened.simulation.links:
            link.set_latency(data=latency, credit=latency)
        devices = [Device(transport, config, name=f"node {rank}") for rank, transport in enumerate(opened.transports)]
        ring = Ring(devices, timeout=timeout)
        ring.connect()
        yield ring, opened.simulation


def random(generator, shape, *, density=1.0):
    """Normal numbers, of which only a part are not zero."""
    values = generator.standard_normal(shape).astype(np.float32)
    values[generator.random(shape) >= density] = 0
    return values
