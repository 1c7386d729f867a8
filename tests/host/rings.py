# amaranth: UnusedElaboratable=no
"""The simulated rings of whole nodes that tests share, one library for each configuration of a node."""

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
    """Configurations by the names of rings, each made when it is read; those whose features are not in this copy are
    left out, and a test that asks for one is skipped."""

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
    """Every engine, two ports, and segments short enough for several in a block of little memories."""
    from tests.pairs.memories import CONFIG

    return CONFIG


def mx9():
    """Both directions through blocks of shared exponents, two ports, programs as long as they are by default, and a
    count of updates that can be set."""
    return NodeConfig(
        topology=section("Grid")(), weights=Weights(codec="mx9"), gradients="mx9", masking=False, sparsify=False,
        programs=section("Programs")(), stub=section("ComputeStub")(), features=(section("SettableVersion")(),))


def table():
    """A codebook beside residuals, rows of eight elements, programs, and interleaved segments."""
    return NodeConfig(
        lanes=8, segment=64, memories=Memories(gradient=5120, weight=5120, state=2560, planes=0),
        weights=Weights(codec="table32"), gradients="mxfp8_e4m3", masking=False, sparsify=False,
        role=Peer(interleaved=True), programs=section("Programs")(depth=32), stub=section("ComputeStub")())


def centroid():
    """A codebook beside gradients that no codec makes shorter, an optimizer that waits, two ports, an engine with
    products of indices, and programs of three queues, with a far memory."""
    return NodeConfig(
        segment=64, topology=section("Grid")(), memories=Memories(gradient=2048, weight=2048, state=2048),
        optimizer=Optimizer(interval=4), weights=Weights(codec="centroid16"), gradients="raw", masking=False,
        sparsify=False, programs=section("Programs")(depth=20, versions=True, move_queue=True),
        compute=section("Compute")(
            rows=1, activations=2048, operands="bf16", codebook=16, buffer_tags=True, far=4096),
        stub=section("ComputeStub")())


def wide():
    """Rows of eight elements, two lanes of the optimizer, and programs beside zero-value gradients; links that repeat
    words, rounds, tenants, and interleaved segments."""
    return NodeConfig(
        lanes=8, segment=64, topology=SingleRing(max_nodes=4),
        memories=Memories(gradient=4096, weight=4096, state=1024, planes=1),
        optimizer=Optimizer(lanes=2, interval=2, dsps=2), weights=Weights(codec="mxfp8_e4m3"), masking=False,
        sparsify=False, link=section("Replay")(), role=Peer(interleaved=True),
        programs=section("Programs")(depth=32, versions=True), stub=section("ComputeStub")(quorum=True),
        features=(section("SettableVersion")(), section("Tenants")()))


def narrow():
    """One element per row, as little room for packets as there can be, gradients in a format that tests add, and
    COMPUTE in the only queue; two ports whose links repeat words."""
    from tests import mx5

    with mx5.registered():
        return NodeConfig(
            lanes=1, segment=32, topology=section("Grid")(),
            memories=Memories(gradient=2048, weight=1024, state=1024, planes=1), optimizer=Optimizer(dsps=1),
            weights=Weights(codec="bf16"), gradients=mx5.NAME, masking=False, sparsify=False,
            link=section("Replay")(ingress=2), stub=section("ComputeStub")())


def server():
    """The server of a relay: weights and state in the far memory, an optimizer as wide as rows, and two banks of
    programs; in a ring as large as there can be."""
    return section("ServerConfig")(
        topology=SingleRing(max_nodes=255), memories=section("ServerMemories")(state=16384, far=49152),
        optimizer=Optimizer(lanes=4), role=section("Server")(broadcast_formats=True),
        programs=section("Programs")(depth=256, banks=2, move_queue=True), features=(section("SettableVersion")(),))


#: Nodes of all rings that tests simulate, with one library for each, and the features that they need. Options that do
#: not depend on each other are in one configuration together: every kind of codec, 1, 4 and 8 lanes, and 0, 1 and 2
#: state planes are in some. The default is what a node is if nothing is said, and what most tests use.
CONFIGS = Rings({
    "default": ((), NodeConfig),
    "engines": (("grid", "programs", "compute", "compute_stub", "quantization", "throttles", "tenants"), engines),
    "mx9": (("grid", "mx", "programs", "compute_stub", "settable_version"), mx9),
    "table": (("table", "mx", "programs", "compute_stub"), table),
    "centroid": (("grid", "codebook", "codebook_layers", "bf16", "far", "compute_stub"), centroid),
    "wide": (("mx", "quorum", "settable_version", "tenants"), wide),
    "narrow": (("grid", "bf16", "mx", "replay", "compute_stub"), narrow),
    "server": (("streaming",), server),
    "int16": (("int16",), lambda: BOARDS["icebreaker"].node),
})


#: Nodes of jobs of the library and of PyTorch, where no codec is named: the default with raw gradients.
JOBS = NodeConfig(gradients="raw")


def relay():
    """Two workers, whose weight and gradient memories have room for two layers of 64 x 64, and their server."""
    worker = NodeConfig(
        memories=Memories(gradient=8320, weight=8320, state=1024, planes=0), masking=False, sparsify=False,
        role=section("Worker")(broadcast_formats=True),
        programs=section("Programs")(depth=256, banks=2, move_queue=True),
        compute=section("Compute")(rows=4, far=1 << 16), features=(section("SettableVersion")(),))
    return worker, worker, CONFIGS["server"]


#: Rings of nodes that differ, as the configuration of each node.
MIXED = Rings({"relay": (("streaming",), relay)})


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
    if not any("mx5" in (config.weights.codec, config.gradients) for config in configs):
        return contextlib.nullcontext()
    from tests import mx5

    return mx5.registered()


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
