"""Sums of several gradients per node on a simulated ring: docs/reproducible.md, "Any number of nodes"."""

import numpy as np
import pytest

from hdl.config import NodeConfig
from hdl.features.microbatches.feature import Microbatches
from hdl.features.tenants.feature import Tenants
from host.driver.memory import Buffer
from host.driver.optimizer_settings import Rule, Settings
from host.transports.session import TransportName, open_session
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
    """Draw gradients over many binades, with some special values."""
    gradients = random(generator, (count, length))
    gradients *= np.exp2(generator.integers(-60, 60, gradients.shape)).astype(np.float32)
    for _ in range(int(generator.integers(0, 6))):
        gradients[generator.integers(count), generator.integers(length)] = generator.choice(SPECIALS)
    return gradients


def write(ring, gradients, counts):
    """Write gradients to the nodes, and a different number to the rest of each gradient memory."""
    ring.memory.write_space("gradients", [np.full(CONFIG.memories.gradient, 1e30, np.float32)] * len(counts))
    ring.microbatches.write(list(gradients), counts)
    ring.counters.clear()


def test_sums():
    """Sums and words match the golden model for random distributions of gradients, with commands for one gradient per
    node in between. The number of cycles depends on the node with the most gradients."""
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
                # Each gradient is read twice, at two elements per cycle.
                assert cycles <= 1.1 * max(length * max(counts), traffic.words.max()) + 500
            # With one gradient per node, the number of nodes determines the number of bits.
            ring.microbatches.clear()
            one = draw(generator, NODES, length)
            ring.memory.write_gradients(list(one))
            ring.collectives.all_reduce(length)
            expected, _ = golden.all_reduce(golden.bits(one), gradient_codec=codec, **SHAPE)
            assert (ring.memory.read_gradients(length).view(np.uint32) == expected).all()


def test_distributions():
    """Eight gradients give the same sum and the same update, however they are distributed among nodes."""
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


@pytest.mark.parametrize("counts", [[254, 1, 1], [85, 85, 85], [5, 5, 7], [1, 30, 1]])
def test_many(counts):
    """Sums of 256, 255, 17 and 32 addends are correct; their number determines how many bits each addend has."""
    generator = np.random.default_rng(sum(counts))
    gradients = draw(generator, sum(counts), 30)
    expected, _ = golden.all_reduce(golden.bits(gradients), gradient_codec=GRADIENT_CODECS[CONFIG.gradients],
                                    counts=counts)
    with open_nodes(NODES, config=CONFIG, host_port=False, timeout=60_000) as (ring, _):
        write(ring, gradients, counts)
        ring.collectives.all_reduce(30)
        assert (ring.memory.read_gradients(30).view(np.uint32) == expected).all()


def test_buffers():
    """An all-reduce of a part of each gradient uses the block offset of this part in the whole vector."""
    generator, length, begin, size = np.random.default_rng(4), 700, 160, 320
    counts = [2, 1, 4]
    gradients = draw(generator, 7, length)
    expected, _ = golden.all_reduce(golden.bits(gradients), gradient_codec=GRADIENT_CODECS[CONFIG.gradients],
                                    counts=counts)
    with open_nodes(NODES, config=CONFIG, host_port=False, timeout=60_000) as (ring, _):
        write(ring, gradients, counts)
        ring.collectives.all_reduce(Buffer("gradients", begin, size), begin=begin)
        got = ring.memory.read_gradients(length).view(np.uint32)
    assert (got[:, begin:begin + size] == expected[begin:begin + size]).all()
    assert (got[0, :begin] == golden.bits(gradients)[0, :begin]).all()


def test_flags():
    """A NaN in any gradient sets the same flags as on golden nodes."""
    length, counts = 64, [2, 1, 2]
    for number in range(5):
        gradients = random(np.random.default_rng(5), (5, length))
        gradients[number, 7] = np.nan
        with open_nodes(NODES, config=CONFIG, host_port=False, timeout=60_000) as (ring, _):
            write(ring, gradients, counts)
            got = ring.collectives.all_reduce(length)
        with open_session(CONFIG, nodes=NODES, transport=TransportName.GOLDEN) as session:
            write(session.ring, gradients, counts)
            expected = session.ring.collectives.all_reduce(length)
        assert (got.local_nan, got.not_finite) == (expected.local_nan, expected.not_finite), number
        assert got.local_nan == ([0, 0, 1, 2, 2][number],)
