"""Sums of integers on simulated rings, as described in docs/reproducible.md."""

import itertools

import numpy as np
import pytest

from hdl.config import NodeConfig, Optimizer, Peer, RootReduce, Weights
from host.driver.diagnosis import RingError
from host.driver.memory import Buffer
from host.driver.optimizer_settings import Rule, Settings
from sim.golden import ring as golden
from sim.golden.codecs import GRADIENT_CODECS, WEIGHT_CODECS
from tests.features.reproducible.nodes import CONFIGS
from tests.host.rings import Reference, open_nodes, random
from tests.present import needs

needs("bf16", what="The ring of sum16")

SETTINGS = Settings(rule=Rule.SGD, gradient_scale=0.5, learning_rate=0.25)
SPECIALS = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40, -0.0, 2.0**-149], np.float32)


@pytest.mark.parametrize(("options", "message"), [
    ({"role": Peer(interleaved=True)}, "gradients sum32 and sum16 need role Peer without interleaved"),
    ({"role": RootReduce()}, "roles RootReduce and Worker need gradients zero_value"),
    ({"gradients": "sum16", "lanes": 1, "optimizer": Optimizer(lanes=1)},
     "gradients sum16 needs lanes of 2 or more"),
    ({"weights": "table32"}, "gradients sum32 and sum16 need weights.codec of a fixed number of words"),
])
def test_couplings(options, message):
    if "weights" in options:
        needs("table", what="A weight codec without a fixed number of words")
        options = {"weights": Weights(codec=options["weights"])}
    with pytest.raises(ValueError, match=message):
        NodeConfig(**{"gradients": "sum32"} | options)


def draw(generator, nodes, length):
    """Draw gradients over many binades, with some special values."""
    gradients = random(generator, (nodes, length), density=generator.choice([0.05, 0.5, 1]))
    gradients *= np.exp2(generator.integers(-60, 60, gradients.shape)).astype(np.float32)
    if length:
        for _ in range(int(generator.integers(0, 6))):
            gradients[generator.integers(nodes), generator.integers(length)] = generator.choice(SPECIALS)
    return gradients


def check_sums(ring, generator, nodes, length, *, shape, case):
    """Compare the sums of an all-reduce and a reduce-scatter, and the words sent, with the golden model."""
    config = CONFIGS[ring.formats.gradient_codec]
    codec, gradients = GRADIENT_CODECS[config.gradients], draw(generator, nodes, length)
    for kind in ("all_reduce", "reduce_scatter"):
        ring.memory.write_gradients(list(gradients), length)
        ring.counters.clear()
        getattr(ring.collectives, kind)(length)
        expected, traffic = getattr(golden, kind)(golden.bits(gradients), gradient_codec=codec, **shape)
        assert (ring.memory.read_gradients(length).view(np.uint32) == expected).all(), f"{kind}, {case}"
        assert [node["WORDS_SENT"] for node in ring.counters.read()] == traffic.words.tolist(), f"{kind}, {case}"


@pytest.mark.parametrize(("name", "nodes"), [*itertools.product(CONFIGS, (1, 2, 3)), ("sum32", 4), ("sum16", 8)])
def test_operations(name, nodes):
    """Sums, weights and words match the golden model for any segments, rates and latencies, even with commands that
    form no sums in between."""
    config, generator = CONFIGS[name], np.random.default_rng(nodes)
    longest = min(config.memories.weight, nodes * config.memories.state)
    shape = {"segment": config.segment, "lanes": config.lanes}
    with open_nodes(nodes, config=config, host_port=False, timeout=60_000) as (ring, simulation):
        for length in (0, 1, 33, nodes * config.segment, 2 * nodes * config.segment - 1, longest - 5, longest):
            for link in simulation.links:
                link.set_rate(int(generator.integers(1, 5)), 4)
                latency = int(generator.integers(1, 40))
                link.set_latency(data=latency, credit=latency)
            case = f"{length} elements on {nodes} nodes"
            print(case)
            weights = random(generator, length)
            ring.collectives.distribute(weights)
            reference = Reference(ring, weights)
            for _ in range(2):
                gradients = random(generator, (nodes, length))
                ring.settings.write(SETTINGS)
                ring.memory.write_gradients(list(gradients), length)
                ring.counters.clear()
                ring.collectives.fused_update(length)
                traffic = reference.step(gradients, SETTINGS)
                reference.compare(case)
                assert [node["WORDS_SENT"] for node in ring.counters.read()] == traffic.words.tolist(), case
            check_sums(ring, generator, nodes, length, shape=shape, case=case)
            different = random(generator, (nodes, length))
            ring.memory.write_weights_of(list(different))
            ring.collectives.all_gather(length)
            expected, _ = golden.all_gather(golden.bits(different), weight_codec=WEIGHT_CODECS[config.weights.codec],
                                            **shape)
            assert (ring.memory.read_weights(length).view(np.uint32) == expected).all(), case


@pytest.mark.parametrize("name", CONFIGS)
def test_order_and_cuts(name):
    """Sums are the same for any order of the ranks, and however the vector is split into commands."""
    config, nodes, length = CONFIGS[name], 4, 2000
    generator = np.random.default_rng(5)
    gradients = draw(generator, nodes, length)
    expected, _ = golden.all_reduce(golden.bits(gradients), gradient_codec=GRADIENT_CODECS[config.gradients],
                                    segment=config.segment)
    with open_nodes(nodes, config=config, host_port=False, timeout=60_000) as (ring, _):
        for seed, cut in enumerate((32, 160, 992, length)):
            order = np.random.default_rng(seed).permutation(nodes)
            ring.memory.write_gradients(list(gradients[order]), length)
            for begin in range(0, length, cut):
                ring.collectives.all_reduce(Buffer("gradients", begin, min(cut, length - begin)), begin=begin)
            got = ring.memory.read_gradients(length).view(np.uint32)
            assert (got == expected).all(), f"cut {cut}, order {order}"


@pytest.mark.parametrize(("name", "nodes"), [("sum32", 4)])
def test_cycles(name, nodes):
    """An all-reduce takes at most 1.13 cycles per word that a node sends."""
    config, length = CONFIGS[name], 4096
    with open_nodes(nodes, config=config, host_port=False) as (ring, _):
        ring.memory.write_gradients(list(random(np.random.default_rng(1), (nodes, length))), length)
        ring.counters.clear()
        ring.collectives.all_reduce(length)
        words, cycles = ([node[name] for node in ring.counters.read()] for name in ("WORDS_SENT", "COMMAND_CYCLES"))
    assert max(cycles) <= 1.13 * max(words), f"{max(cycles)} cycles, {max(words)} words"


@pytest.mark.parametrize("name", CONFIGS)
def test_random_damage_never_hangs(name):
    """After random damage, each weight is either old or new, no wrong sum is applied, and later commands work."""
    config, nodes, length = CONFIGS[name], 3, 1000
    generator = np.random.default_rng(11)
    shape = {"segment": config.segment, "lanes": config.lanes}
    with open_nodes(nodes, config=config) as (ring, simulation):
        for number in range(6):
            weights, gradients = random(generator, length), random(generator, (nodes, length))
            ring.collectives.distribute(weights)
            reference = Reference(ring, weights)
            before = reference.weights
            ring.settings.write(SETTINGS)
            ring.memory.write_gradients(list(gradients))
            traffic = reference.step(gradients, SETTINGS)
            rank = int(generator.integers(nodes))
            link = simulation.links[rank]
            word = link.status().words_carried + int(generator.integers(0, traffic.words[rank]))
            print(f"{number=}: link {rank}, word {word}")
            link.corrupt(word=word, bit=int(generator.integers(0, 33)))
            with pytest.raises(RingError):
                ring.collectives.fused_update(length)
            actual = ring.memory.read_weights(length).view(np.uint32)
            assert ((actual == before) | (actual == reference.weights)).all(), number
            ring.recover()
            check_sums(ring, generator, nodes, length, shape=shape, case=f"after damage {number}")
