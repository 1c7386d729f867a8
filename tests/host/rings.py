# amaranth: UnusedElaboratable=no
"""Simulated rings of complete nodes that many tests share, with one library per node configuration."""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from hdl.board import BOARDS, node_of
from hdl.config import Configuration, Memories, NodeConfig, Optimizer, Peer, SingleRing, Weights
from hdl.registry import FEATURES, section
from host.driver.device import Device
from host.driver.optimizer_settings import Settings
from host.driver.ring import Ring
from host.training import reference
from host.transports.backdoor import BackdoorTransport, PortTime
from host.transports.verilated import OpenRing
from sim.verilated.build import build_ring
from tests.present import needs

TIMEOUT = 4000


class Rings(Mapping):
    """Node configurations by name, each created when it is first used. In a copy of the repository without some of
    the features, configurations that need them are omitted, and tests that request them are skipped."""

    def __init__(self, makers):
        self._makers = makers
        self._made = {}

    def __getitem__(self, name):
        needed, make = self._makers[name]
        needs(*needed, what=f"Ring {name}")
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def __iter__(self):
        return (name for name, (needed, _) in self._makers.items() if all(map(FEATURES.__contains__, needed)))

    def __len__(self):
        return len(list(iter(self)))


def engines():
    """Node with all engines, two ports, and segments so short that even small blocks have several."""
    from tests.pairs.memories import CONFIG

    return CONFIG


def mx9():
    """Node with a shared-exponent format in both directions and a settable update count. It also has two ports, and
    programs of the default length."""
    return NodeConfig(
        topology=section("Grid")(), weights=Weights(codec="mx9"), gradients="mx9", masking=False, sparsify=False,
        programs=section("Programs")(), stub=section("ComputeStub")(), features=(section("SettableVersion")(),))


def table():
    """Node with a codebook, residuals, rows of eight elements, programs and interleaved segments."""
    return NodeConfig(
        lanes=8, segment=64, memories=Memories(gradient=5120, weight=5120, state=2560, planes=0),
        weights=Weights(codec="table32"), gradients="mxfp8_e4m3", masking=False, sparsify=False,
        role=Peer(interleaved=True), programs=section("Programs")(depth=32), stub=section("ComputeStub")())


def centroid():
    """Node with a codebook, raw gradients, two ports, and programs of three queues with a far memory. Its optimizer
    interval is 4, and its engine computes index products."""
    return NodeConfig(
        segment=64, topology=section("Grid")(), memories=Memories(gradient=2048, weight=2048, state=2048),
        optimizer=Optimizer(interval=4), weights=Weights(codec="centroid16"), gradients="raw", masking=False,
        sparsify=False, programs=section("Programs")(depth=20, versions=True, move_queue=True),
        compute=section("Compute")(
            rows=1, activations=2048, operands="bf16", codebook=16, buffer_tags=True, far=4096),
        stub=section("ComputeStub")())


def wide():
    """Node with rows of eight elements, links with replay, quorum updates, tenants and interleaved segments. It also
    has two optimizer lanes, programs and zero-value gradients."""
    return NodeConfig(
        lanes=8, segment=64, topology=SingleRing(max_nodes=4),
        memories=Memories(gradient=4096, weight=4096, state=1024, planes=1),
        optimizer=Optimizer(lanes=2, interval=2, dsps=2), weights=Weights(codec="mxfp8_e4m3"), masking=False,
        sparsify=False, link=section("Replay")(), role=Peer(interleaved=True),
        programs=section("Programs")(depth=32, versions=True), stub=section("ComputeStub")(quorum=True),
        features=(section("SettableVersion")(), section("Tenants")()))


def narrow():
    """Node with one element per row, minimal room for packets, two ports, links with replay, and no programs. Its
    gradients use a format that is added by tests, and COMPUTE runs in the only queue."""
    from tests import mx5

    with mx5.registered():
        return NodeConfig(
            lanes=1, segment=32, topology=section("Grid")(),
            memories=Memories(gradient=2048, weight=1024, state=1024, planes=1), optimizer=Optimizer(dsps=1),
            weights=Weights(codec="bf16"), gradients=mx5.NAME, masking=False, sparsify=False,
            link=section("Replay")(ingress=2), stub=section("ComputeStub")())


def sums():
    """Node that sums integers in rows of four elements, with up to two words of exponents per packet, and two
    ports."""
    return NodeConfig(segment=256, topology=section("Grid")(),
                      memories=Memories(gradient=4096, weight=4096, state=4096, planes=1), gradients="sum32",
                      masking=False, sparsify=False)


def microbatches():
    """Node with several gradients, summed as 16-bit integers. Its rows have two elements, which fit in one word of a
    packet, and its segments are short. It also has a weight codec and two ports."""
    return NodeConfig(lanes=2, segment=32, topology=section("Grid")(),
                      memories=Memories(gradient=8192, weight=2048, state=2048, planes=1),
                      optimizer=Optimizer(lanes=2), weights=Weights(codec="bf16"), gradients="sum16", masking=False,
                      sparsify=False, features=(section("Microbatches")(),))


def server():
    """Server for layer streaming in a ring of up to 255 nodes, with weights and state in far memory. It has two
    program banks, and an optimizer with one lane for each element of a row."""
    return section("ServerConfig")(
        topology=SingleRing(max_nodes=255), memories=section("ServerMemories")(state=16384, far=49152),
        optimizer=Optimizer(lanes=4), role=section("Server")(broadcast_formats=True),
        programs=section("Programs")(depth=256, banks=2, move_queue=True), features=(section("SettableVersion")(),))


#: Nodes of all rings that tests simulate, with the features that the tests need. For each of these nodes, a library
#: is built. Independent options share a configuration, so that every kind of codec, 1, 4 and 8 lanes, and 0, 1 and 2
#: state planes occur. ``default`` is a node with default options, which most tests use.
CONFIGS = Rings({
    "default": ((), NodeConfig),
    "engines": (("grid", "programs", "compute", "compute_stub", "quantization", "throttles", "tenants"), engines),
    "mx9": (("grid", "mx", "programs", "compute_stub", "settable_version"), mx9),
    "table": (("table", "mx", "programs", "compute_stub"), table),
    "centroid": (("grid", "codebook", "codebook_layers", "bf16", "far", "compute_stub"), centroid),
    "wide": (("mx", "quorum", "settable_version", "tenants"), wide),
    "narrow": (("grid", "bf16", "mx", "replay", "compute_stub"), narrow),
    "sums": (("grid", "reproducible"), sums),
    "microbatches": (("grid", "bf16", "microbatches"), microbatches),
    "server": (("streaming",), server),
    "int16": (("int16",), lambda: BOARDS["icebreaker"].node),
})


#: Configuration for jobs of the library and of PyTorch that name no codec: the default node with raw gradients.
JOBS = NodeConfig(gradients="raw")


def relay():
    """A server and two workers, with weight and gradient memories for two 64 x 64 layers."""
    worker = NodeConfig(
        memories=Memories(gradient=8320, weight=8320, state=1024, planes=0), masking=False, sparsify=False,
        role=section("Worker")(broadcast_formats=True),
        programs=section("Programs")(depth=256, banks=2, move_queue=True),
        compute=section("Compute")(rows=4, far=1 << 16), features=(section("SettableVersion")(),))
    return worker, worker, CONFIGS["server"]


#: Rings of nodes that differ, with one configuration per node.
MIXED = Rings({"relay": (("streaming",), relay)})


class Reference(reference.Reference):
    """Expected state of a ring: weights, master weights, optimizer state and residuals."""

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
            residuals = self.ring.memory.read_residual(len(self.master))
            assert (residuals.view(np.uint32) == self.residuals).all(), message
            assert np.isfinite(residuals).all(), message


def known_formats(*configs):
    """Register the format that tests add, in both registries, if one of the configurations uses it."""
    if not any("mx5" in (config.weights.codec, config.gradients) for config in configs):
        return contextlib.nullcontext()
    from tests import mx5

    return mx5.registered()


@functools.cache
def library(config):
    """Library of a simulated ring. It is cached, since checking that it is up to date takes longer than most
    tests."""
    return build_ring(node_of(config), identity=f"Node({config})")


@contextlib.contextmanager
def open_nodes(nodes, *, config, threads=1, latency=16, timeout=TIMEOUT, host_port=True, processes=None):
    """Open a ring and its simulation, with links that can be cut. If the host port is not simulated, memories are
    accessed directly. ``config`` is one configuration, or one per node; ``processes`` simulate some of the nodes."""
    configs = [config] * nodes if isinstance(config, Configuration) else list(config)
    with known_formats(*configs), OpenRing([library(node_config) for node_config in configs], threads=threads,
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
        if configs[0].link.replay:  # this must be done before the first command
            opened.simulation.run(2 * latency + 100)
        yield ring, opened.simulation


def random(generator, shape, *, density=1.0):
    """Draw normally distributed numbers, of which a fraction ``density`` is nonzero."""
    values = generator.standard_normal(shape).astype(np.float32)
    values[generator.random(shape) >= density] = 0
    return values


def train_twice(reference, optimizer, generator, *, packed_state, message):
    """Clear the state and run two updates with random gradients; compare weights, words, bursts and state."""
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
        actual = ring.memory.read_state(length, plane, packed_state=packed_state).view(np.uint32)
        assert (actual == expected).all(), message
