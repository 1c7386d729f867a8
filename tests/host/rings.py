# amaranth: UnusedElaboratable=no
"""The simulated rings of whole nodes that tests share, one library for each configuration of a node."""

import contextlib
import dataclasses
import functools

import numpy as np

from hdl.board import BOARDS, node_of
from hdl.config import NodeConfig
from host.driver.device import Device
from host.driver.optimizer_settings import Settings
from host.driver.ring import Ring
from host.training import golden_run as reference
from host.transports.backdoor import BackdoorTransport, PortTime
from host.transports.verilated import OpenRing
from sim.verilated.build import build_ring
from tests import mx5
from tests.pairs.memories import CONFIG as PAIRS

TIMEOUT = 4000

#: Nodes of all rings that tests simulate, with one library for each. Options that do not depend on each other are in
#: one configuration together: every kind of codec, 1, 4 and 8 lanes, and 0, 1 and 2 state planes are in some.
with mx5.registered():
    CONFIGS = {
        # What a node is if nothing is said, and what most tests use.
        "default": NodeConfig(),
        # Every engine, two ports, and segments short enough for several in a block of little memories.
        "engines": PAIRS,
        # Both directions through blocks of shared exponents, two ports, programs as long as they are by default, and
        # a count of updates that can be set.
        "mx9": NodeConfig(weight_codec="mx9", gradient_codec="mx9", masking=False, error_feedback=False,
                          stand_in=True, queues=2, ring_ports=2, restorable=True),
        # A codebook beside residuals, rows of eight elements, programs, and interleaved segments.
        "table": NodeConfig(weight_codec="table32", gradient_codec="mxfp8_e4m3", lanes=8, segment=64,
                            gradient_words=5120, weight_words=5120, state_words=2560, state_planes=0, masking=False,
                            error_feedback=False, stand_in=True, queues=2, program_depth=32, interleaved=True),
        # A codebook beside gradients that no codec makes shorter, an optimizer that waits, two ports, an engine with
        # products of indices, and programs of three queues, with a far memory.
        "centroid": NodeConfig(weight_codec="centroid16", gradient_codec="raw", segment=64, gradient_words=2048,
                               weight_words=2048, state_words=2048, update_interval=4, masking=False,
                               error_feedback=False, stand_in=True, queues=3, versions=True, program_depth=20,
                               far_words=4096, compute=1, operands="bf16", activation_words=2048, centroids=16,
                               ring_ports=2, row_owners=True),
        # Rows of eight elements, two lanes of the optimizer, and programs beside zero-value gradients; links that
        # repeat words, rounds, tenants, and interleaved segments.
        "wide": NodeConfig(weight_codec="mxfp8_e4m3", lanes=8, segment=64, gradient_words=4096, weight_words=4096,
                           state_words=1024, state_planes=1, update_lanes=2, update_interval=2, multiplier_dsps=2,
                           nodes_max=4, masking=False, error_feedback=False, stand_in=True, queues=2,
                           program_depth=32, versions=True, replay=True, rounds=True, restorable=True,
                           tenants=2, interleaved=True),
        # One element per row, as little room for packets as there can be, gradients in a format that tests add, and
        # COMPUTE in the only queue; two ports whose links repeat words.
        "narrow": NodeConfig(weight_codec="bf16", gradient_codec=mx5.NAME, lanes=1, segment=32, gradient_words=2048,
                             weight_words=1024, state_words=1024, state_planes=1, ingress_segments=2,
                             multiplier_dsps=1, masking=False, error_feedback=False, stand_in=True, replay=True,
                             ring_ports=2),
        # The server of a relay: weights and state in the far memory, an optimizer as wide as rows, and two banks of
        # programs; in a ring as large as there can be.
        "server": NodeConfig(role="server", far_words=49152, state_words=16384, update_lanes=4, queues=3,
                             masking=False, error_feedback=False, program_depth=256, program_banks=2,
                             fetch_formats=True, nodes_max=255, restorable=True),
        # A node of 16-bit integers.
        "int16": BOARDS["icebreaker"].node,
    }


#: Nodes of jobs of the library and of PyTorch, where no codec is named: the default with raw gradients.
JOBS = NodeConfig(gradient_codec="raw")


#: Rings of nodes that differ, as the configuration of each node.
MIXED = {
    # Two workers, whose weight and gradient memories have room for two layers of 64 x 64, and their server.
    "relay": (NodeConfig(role="worker", compute=4, queues=3, gradient_words=8320, weight_words=8320, state_words=1024,
                         state_planes=0, masking=False, error_feedback=False, far_words=1 << 16,
                         program_depth=256, program_banks=2, fetch_formats=True,
                         restorable=True),) * 2 + (CONFIGS["server"],),
}


class Reference(reference.Reference):
    """The state that a ring must hold: weights, masters, the optimizer's state, and residuals."""

    def __init__(self, ring, weights, *, planes=0, centroids=None):
        super().__init__(ring, weights, planes, centroids)
        self.ring = ring

    def compare(self, message=""):
        length = len(self.master)
        assert (self.ring.memory.read_weights(length).view(np.uint32) == self.weights).all(), message
        if self.has_master:
            assert (self.ring.memory.read_master(length).view(np.uint32) == self.master).all(), message
        self.compare_residuals(message)

    def compare_residuals(self, message=""):
        if self.residuals is not None:
            found = self.ring.memory.read_residual(len(self.master))
            assert (found.view(np.uint32) == self.residuals).all(), message
            assert np.isfinite(found).all(), message


def known_formats(*configs):
    """Has both registries know the format that tests add, for nodes that use it."""
    used = any(mx5.NAME in (config.weight_codec, config.gradient_codec) for config in configs)
    return mx5.registered() if used else contextlib.nullcontext()


@functools.cache
def library(config):
    """The simulated ring; making sure that it is up to date takes longer than most tests."""
    return build_ring(node_of(config), identity=f"Node({config})")


@contextlib.contextmanager
def open_nodes(nodes, *, config, threads=1, latency=16, timeout=TIMEOUT, host_port=True, processes=None):
    """Ring and simulation, whose links can be cut; without the host port, memories are reached directly. Nodes are of
    one configuration, or of one each; others of the ``processes`` have some of them."""
    configs = [config] * nodes if isinstance(config, NodeConfig) else list(config)
    with known_formats(*configs), OpenRing([library(one) for one in configs], threads=threads,
                                                    processes=processes) as opened:
        for link in opened.simulation.links:
            link.set_latency(data=latency, credit=latency)
        transports = opened.transports
        if not host_port:
            time = PortTime(lambda: opened.simulation.cycle)
            transports = [BackdoorTransport(transport, opened.simulation, rank, configs[rank], time)
                          for rank, transport in enumerate(transports)]
        devices = [Device(transport, configs[rank], name=f"node {rank}") for rank, transport in enumerate(transports)]
        ring = Ring(devices, timeout=timeout)
        ring.connect()
        if configs[0].replay:  # the first command does not wait for the answer to the first word of each link
            opened.simulation.run(2 * latency + 100)
        yield ring, opened.simulation


def random(generator, shape, *, density=1.0):
    """Normal numbers, of which only a part are not zero."""
    values = generator.standard_normal(shape).astype(np.float32)
    values[generator.random(shape) >= density] = 0
    return values


def train_twice(reference, optimizer, generator, *, packed_state, message):
    """Update twice with random gradients from cleared state; compare weights, words, bursts, and state at the end."""
    ring, length = reference.ring, len(reference.master)
    ring.memory.clear_state(length, packed_state=packed_state)
    for step in (1, 2):
        settings = dataclasses.replace(
            Settings(**dataclasses.asdict(optimizer.settings(step, gradient_scale=0.25))), packed_state=packed_state)
        gradients = random(generator, (ring.nodes, length), density=0.6)
        ring.settings.write(settings)
        ring.memory.write_gradients(list(gradients))
        ring.counters.clear()
        ring.collectives.fused_update(length)
        traffic = reference.step(gradients, settings)
        reference.compare(f"{message}, step {step}")
        counters = ring.counters.read()
        assert [node["WORDS_SENT"] for node in counters] == traffic.words.tolist(), f"{message}, step {step}"
        if length >= 32 * ring.nodes:
            assert all(node["OPTIMIZER_BURSTS"] > 0 for node in counters), f"{message}, step {step}"
    for plane, expected in enumerate(reference.state):
        found = ring.memory.read_state(length, plane, packed_state=packed_state).view(np.uint32)
        assert (found == expected).all(), message
