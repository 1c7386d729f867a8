"""Number of gradient words that zero-value compression would send, which is counted for every codec."""

import numpy as np
import pytest

from sim.golden import optimizer, ring
from sim.golden.codecs import GRADIENT_CODECS
from tests.sim.golden.test_ring import random_gradients


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_words_of_another_codec(nodes, density):
    """Reports of raw gradients include the number of words that zero_value would have sent; reports of zero_value,
    the words that it sent."""
    generator = np.random.default_rng(nodes)
    gradients = random_gradients(generator, nodes, 700, density)
    weights, settings = ring.bits(generator.standard_normal(700)), ring.settings(
        optimizer.Rule.SGD, gradient_scale=1, learning_rate=0.1)
    for collective in (lambda codec: ring.all_reduce(gradients, gradient_codec=codec)[1],
                       lambda codec: ring.reduce_scatter(gradients, gradient_codec=codec)[1],
                       lambda codec: ring.fused_update(gradients, weights, [], settings,
                                                       gradient_codec=codec).traffic):
        raw, masked = (collective(GRADIENT_CODECS[name]) for name in ("raw", "zero_value"))
        assert raw.masked_words == masked.masked_words == masked.words.sum()
        assert raw.words.sum() == raw.dense_words == masked.dense_words
