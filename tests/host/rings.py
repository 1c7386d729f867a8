# amaranth: UnusedElaboratable=no
"""The simulated rings of whole nodes that tests share, one library for each configuration of a node."""

import contextlib
import dataclasses
import functools

import numpy as np

from hdl.board import BOARDS, node_of
from hdl.config import Configuration, Memories, NodeConfig, Optimizer, Peer, SingleRing, Weights
from hdl.features.compute.feature import Compute
from hdl.features.compute_stub.feature import ComputeStub
from hdl.features.grid.feature import Grid
from hdl.features.programs.feature import Programs
from hdl.features.replay.feature import Replay
from hdl.features.settable_version.feature import SettableVersion
from hdl.features.streaming.feature import Server, ServerConfig, ServerMemories, Worker
from hdl.features.tenants.feature import Tenants
from host.driver.device import Device
from host.driver.optimizer_settings import Settings
from host.driver.ring import Ring
from host.training import reference
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
        "mx9": NodeConfig(
            topology=Grid(), weights=Weights(codec="mx9"), gradients="mx9", masking=False, sparsify=False,
            programs=Programs(), stub=ComputeStub(), features=(SettableVersion(),)),
        # A codebook beside residuals, rows of eight elements, programs, and interleaved segments.
        "table": NodeConfig(
            lanes=8, segment=64, memories=Memories(gradient=5120, weight=5120, state=2560, planes=0),
            weights=Weights(codec="table32"), gradients="mxfp8_e4m3", masking=False, sparsify=False,
            role=Peer(interleaved=True), programs=Programs(depth=32), stub=ComputeStub()),
        # A codebook beside gradients that no codec makes shorter, an optimizer that waits, two ports, an engine with
        # products of indices, and programs of three queues, with a far memory.
        "centroid": NodeConfig(
            segment=64, topology=Grid(), memories=Memories(gradient=2048, weight=2048, state=2048),
            optimizer=Optimizer(interval=4), weights=Weights(codec="centroid16"), gradients="raw", masking=False,
            sparsify=False, programs=Programs(depth=20, versions=True, move_queue=True),
            compute=Compute(rows=1, activations=2048, operands="bf16", codebook=16, buffer_tags=True, far=4096),
            stub=ComputeStub()),
        # Rows of eight elements, two lanes of the optimizer, and programs beside zero-value gradients; links that
        # repeat words, rounds, tenants, and interleaved segments.
        "wide": NodeConfig(
            lanes=8, segment=64, topology=SingleRing(max_nodes=4),
            memories=Memories(gradient=4096, weight=4096, state=1024, planes=1),
            optimizer=Optimizer(lanes=2, interval=2, dsps=2), weights=Weights(codec="mxfp8_e4m3"), masking=False,
            sparsify=False, link=Replay(), role=Peer(interleaved=True), programs=Programs(depth=32, versions=True),
            stub=ComputeStub(quorum=True), features=(SettableVersion(), Tenants())),
        # One element per row, as little room for packets as there can be, gradients in a format that tests add, and
        # COMPUTE in the only queue; two ports whose links repeat words.
        "narrow": NodeConfig(
            lanes=1, segment=32, topology=Grid(),
            memories=Memories(gradient=2048, weight=1024, state=1024, planes=1), optimizer=Optimizer(dsps=1),
            weights=Weights(codec="bf16"), gradients=mx5.NAME, masking=False, sparsify=False, link=Replay(ingress=2),
            stub=ComputeStub()),
        # The server of a relay: weights and state in the far memory, an optimizer as wide as rows, and two banks of
        # programs; in a ring as large as there can be.
        "server": ServerConfig(
            topology=SingleRing(max_nodes=255), memories=ServerMemories(state=16384, far=49152),
            optimizer=Optimizer(lanes=4), role=Server(broadcast_formats=True),
            programs=Programs(depth=256, banks=2, move_queue=True), features=(SettableVersion(),)),
        # A node of 16-bit integers.
        "int16": BOARDS["icebreaker"].node,
    }


#: Nodes of jobs of the library and of PyTorch, where no codec is named: the default with raw gradients.
JOBS = NodeConfig(gradients="raw")


#: Rings of nodes that differ, as the configuration of each node.
MIXED = {
    # Two workers, whose weight and gradient memories have room for two layers of 64 x 64, and their server.
    "relay": (NodeConfig(
        memories=Memories(gradient=8320, weight=8320, state=1024, planes=0), masking=False, sparsify=False,
        role=Worker(broadcast_formats=True), programs=Programs(depth=256, banks=2, move_queue=True),
        compute=Compute(rows=4, far=1 << 16), features=(SettableVersion(),)),) * 2 + (CONFIGS["server"],),
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
    used = any(mx5.NAME in (config.weights.codec, config.gradients) for config in configs)
    return mx5.registered() if used else contextlib.nullcontext()


@functools.cache
def library(config):
    """The simulated ring; making sure that it is up to date takes longer than most tests."""
    return build_ring(node_of(config), identity=f"Node({config})")


@contextlib.contextmanager
def open_nodes(nodes, *, config, threads=1, latency=16, timeout=TIMEOUT, host_port=True, processes=None):
    """Ring and simulation, whose links can be cut; without the host port, memories are reached directly. Nodes are of
    one configuration, or of one each; others of the ``processes`` have some of them."""
    configs = [config] * nodes if isinstance(config, Configuration) else list(config)
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
        if configs[0].link.replay:  # the first command does not wait for the answer to the first word of each link
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
