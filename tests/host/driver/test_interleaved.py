"""Interleaved collectives on simulated rings: docs/ring/interleaved.md."""

import numpy as np
import pytest

from hdl.config import NodeConfig, Peer
from host.driver.optimizer_settings import Rule, Settings
from host.features.codebook.codebooks import codebook
from sim.golden import ring as golden
from sim.golden.codecs import GRADIENT_CODECS, WEIGHT_CODECS
from tests.host.rings import CONFIGS, Reference, open_nodes, random

SETTINGS = Settings(rule=Rule.SGD, gradient_scale=0.5, learning_rate=0.25)


def test_configuration():
    assert NodeConfig().hash == NodeConfig(role=Peer()).hash != NodeConfig(role=Peer(interleaved=True)).hash
    assert all(CONFIGS[name].role.interleaved for name in ("wide", "table"))


@pytest.mark.parametrize(("name", "nodes"), [("wide", 2), ("wide", 3), ("wide", 4), ("table", 2), ("table", 5)])
def test_operations(name, nodes):
    """Weights, sums and words match the golden model for any segment length, link rate and latency."""
    config, generator = CONFIGS[name], np.random.default_rng(nodes)
    segment, longest = config.segment, min(config.memories.weight, nodes * config.memories.state)
    codec, weight_codec = GRADIENT_CODECS[config.gradients], WEIGHT_CODECS[config.weights.codec]
    shape = {"segment": segment, "lanes": config.lanes}
    with open_nodes(nodes, config=config, host_port=False, timeout=60_000) as (ring, simulation):
        for length in (0, 1, 33, nodes * segment, 2 * nodes * segment - 1, 3 * nodes * segment, longest):
            for link in simulation.links if not config.link.replay else ():
                link.set_rate(int(generator.integers(1, 5)), 4)
                latency = int(generator.integers(1, 40))
                link.set_latency(data=latency, credit=latency)
            case = f"{length} elements on {nodes} nodes"
            weights = random(generator, length)
            gradients = random(generator, (nodes, length), density=generator.choice([0.05, 0.5, 1]))
            centroids = None
            if ring.formats.has_codebook:
                centroids = codebook(config.weights.codec, weights if length else np.ones(1, np.float32))
                ring.memory.write_codebook(centroids)
            ring.collectives.distribute(weights)
            reference = Reference(ring, weights, centroids=centroids)
            for _ in range(2):
                ring.settings.write(SETTINGS)
                ring.memory.write_gradients(list(gradients), length)
                ring.counters.clear()
                ring.collectives.fused_update(length)
                traffic = reference.step(gradients, SETTINGS)
                reference.compare(case)
                assert [node["WORDS_SENT"] for node in ring.counters.read()] == traffic.words.tolist(), case
            for kind in ("all_reduce", "reduce_scatter"):
                residuals = np.zeros((nodes, length), np.uint32) if config.has_residual else None
                if config.has_residual:
                    ring.memory.clear_residual(length)
                ring.memory.write_gradients(list(gradients), length)
                getattr(ring.collectives, kind)(length)
                expected, _ = getattr(golden, kind)(golden.bits(gradients), gradient_codec=codec, residuals=residuals,
                                                    **shape)
                assert (ring.memory.read_gradients(length).view(np.uint32) == expected).all(), f"{kind}, {case}"
            different = random(generator, (nodes, length))
            if not ring.formats.has_codebook:
                ring.memory.write_weights_of(list(different))
                ring.collectives.all_gather(length)
                expected, _ = golden.all_gather(golden.bits(different), weight_codec=weight_codec, **shape)
                assert (ring.memory.read_weights(length).view(np.uint32) == expected).all(), case
            ring.memory.write_weights_of(list(different))
            ring.collectives.broadcast(length, root=nodes - 1)
            assert (ring.memory.read_weights(length) == different[-1]).all(), case
