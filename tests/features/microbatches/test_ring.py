"""Sums of several gradients of each node on a simulated ring: docs/reproducible.md, "Any number of nodes"."""

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.features.microbatches.feature import Microbatches
from hdl.features.tenants.feature import Tenants
from host.driver.memory import aligned
from host.driver.optimizer_settings import Rule, Settings
from sim.golden import ring as golden
from sim.golden.codecs import GRADIENT_CODECS, WEIGHT_CODECS
from tests.host.rings import CONFIGS, open_nodes, random

CONFIG = CONFIGS["microbatches"]
NODES = 3
SHAPE = {"segment": CONFIG.segment, "lanes": CONFIG.lanes}
SETTINGS = Settings(rule=Rule.SGD, gradient_scale=0.125, learning_rate=0.25)
SPECIALS = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40, -0.0, 2.0**-149], np.float32)


@pytest.mark.parametrize(("options", "message"), [
    ({"gradients": "raw"}, "Microbatches needs gradients sum32 or sum16"),
    ({"features": (Microbatches(), Tenants())}, "Microbatches goes without Tenants"),
])
def test_couplings(options, message):
    with pytest.raises(ValueError, match=message):
        NodeConfig(**{"gradients": "sum32", "features": (Microbatches(),)} | options)


def draw(generator, count, length):
    """Gradients over many binades, with specials."""
    gradients = random(generator, (count, length))
    gradients *= np.exp2(generator.integers(-60, 60, gradients.shape)).astype(np.float32)
    for _ in range(int(generator.integers(0, 6))):
        gradients[generator.integers(count), generator.integers(length)] = generator.choice(SPECIALS)
    return gradients


def write(ring, gradients, counts):
    """Write gradients behind each other on each node, with other numbers between them."""
    stride, length = aligned(gradients.shape[1]) + 32, gradients.shape[1]
    rows = []
    for own in np.split(gradients, np.cumsum(counts)[:-1]):
        row = np.full(((len(own) - 1) * stride + length), 1e30, np.float32)
        for number, gradient in enumerate(own):
            row[number * stride:number * stride + length] = gradient
        rows.append(row)
    ring.memory.write_space("gradients", rows)
    ring.settings.write_each("MICROBATCHES", [count | sum(counts) << 16 for count in counts])
    ring.settings.write_each("MICROBATCH_STRIDE", [stride] * len(counts))
    ring.counters.clear()


def test_sums():
    """Sums and words of random distributions of gradients match the golden model, between commands of nodes with one
    gradient each; the cycles depend on the node with the most gradients."""
    generator, codec = np.random.default_rng(1), GRADIENT_CODECS[CONFIG.gradients]
    with open_nodes(NODES, config=CONFIG, host_port=False, timeout=60_000) as (ring, simulation):
        for case, length in enumerate((1, 5, 32, 33, 500, 192, 1000, 1500, 2)):
            for link in simulation.links:
                link.set_latency(data=int(generator.integers(1, 40)), credit=int(generator.integers(1, 40)))
            counts = generator.integers(1, 5, NODES).tolist()
            print(f"{case=}: {length} elements, {counts}")
            gradients = draw(generator, sum(counts), length)
            for kind in ("all_reduce", "reduce_scatter"):
                write(ring, gradients, counts)
                cycles = getattr(ring.collectives, kind)(length).cycles
                expected, traffic = getattr(golden, kind)(golden.bits(gradients), gradient_codec=codec, counts=counts,
                                                          **SHAPE)
                assert (ring.memory.read_gradients(length).view(np.uint32) == expected).all(), kind
                assert [node["WORDS_SENT"] for node in ring.counters.read()] == traffic.words.tolist()
                # Each gradient is read twice, two elements in a cycle.
                assert cycles <= 1.1 * max(length * max(counts), traffic.words.max()) + 500
            # Registers that are zero: one gradient for each node, and as many bits as there are nodes.
            ring.settings.write_each("MICROBATCHES", [0] * NODES)
            one = draw(generator, NODES, length)
            ring.memory.write_gradients(list(one))
            ring.collectives.all_reduce(length)
            expected, _ = golden.all_reduce(golden.bits(one), gradient_codec=codec, **SHAPE)
            assert (ring.memory.read_gradients(length).view(np.uint32) == expected).all()


def test_distributions():
    """Eight gradients have the same sum, and the same update, however they are distributed."""
    generator, length = np.random.default_rng(2), 600
    gradients, weights = draw(generator, 8, length), random(generator, length)
    codec = GRADIENT_CODECS[CONFIG.gradients]
    expected, _ = golden.all_reduce(golden.bits(gradients), gradient_codec=codec, counts=[8])
    update = golden.fused_update(golden.bits(gradients), golden.bits(weights), [], golden.settings(
        Rule.SGD, gradient_scale=0.125, learning_rate=0.25), gradient_codec=codec, counts=[8],
        weight_codec=WEIGHT_CODECS[CONFIG.weights.codec], segment=CONFIG.segment)
    with open_nodes(NODES, config=CONFIG, host_port=False, timeout=60_000) as (ring, _):
        for counts in ([3, 3, 2], [1, 1, 6], [2, 5, 1]):
            order = generator.permutation(8)
            ring.collectives.distribute(weights)
            ring.settings.write(SETTINGS)
            write(ring, gradients[order], counts)
            ring.collectives.fused_update(length)
            assert (ring.memory.read_weights(length).view(np.uint32) == update.weights).all(), counts
            write(ring, gradients[order], counts)
            ring.collectives.all_reduce(length)
            assert (ring.memory.read_gradients(length).view(np.uint32) == expected).all(), counts
