"""Vectors that are split into several commands, in the golden model: sim/golden/ring.py."""

import itertools

import numpy as np
import pytest

from sim.golden import optimizer, ring
from sim.golden.codecs import GRADIENT_CODECS, WEIGHT_CODECS
from tests.sim.golden.test_ring import random_gradients


def cut(generator, length):
    """Cut a vector at random group boundaries; return the start and end of each command."""
    groups = -(-length // 32)
    count = min(int(generator.integers(0, 6)), groups - 1)
    inner = np.sort(generator.choice(np.arange(1, groups), count, replace=False)) * 32
    return list(itertools.pairwise([0, *inner.tolist(), length]))


class TestCuts:
    """If each command's block offset is the first group of its part, commands for parts of a vector give the same
    results as one command for the whole vector."""

    def test_sums_of_random_cuts(self):
        """A thousand vectors have the same sums however they are cut. (If blocks were contiguous, most would
        change.)"""
        generator = np.random.default_rng(19)
        for number in range(1000):
            nodes, length = number % 8 + 1, int(generator.integers(1, 600))
            gradients = random_gradients(generator, nodes, length, density=0.9)
            name = ("zero_value", "raw")[number // 8 % 2]
            options = {"gradient_codec": GRADIENT_CODECS[name], "segment": 64}
            whole = ring.all_reduce(gradients, **options)[0]
            scattered = ring.reduce_scatter(gradients, **options)[0]
            for start, stop in cut(generator, length):
                part, block_offset = gradients[:, start:stop], start // 32 % nodes
                assert np.array_equal(ring.all_reduce(part, block_offset=block_offset, **options)[0],
                                      whole[start:stop]), number
                assert np.array_equal(ring.reduce_scatter(part, block_offset=block_offset, **options)[0],
                                      scattered[:, start:stop]), (
                    number)

    @pytest.mark.parametrize(("weight_codec", "gradient_codec"), list(zip(
        WEIGHT_CODECS, itertools.cycle(GRADIENT_CODECS), strict=False)))
    def test_updates_of_random_cuts(self, gradient_codec, weight_codec):
        """However an update is cut, weights, master weights, state and residuals are the same, with every codec."""
        assert len(WEIGHT_CODECS) >= len(GRADIENT_CODECS)
        generator = np.random.default_rng(len(gradient_codec) + 7 * len(weight_codec))
        settings = ring.settings(optimizer.Rule.MOMENTUM, gradient_scale=0.5, learning_rate=0.1, first_decay=0.9)
        for nodes in (2, 3, 8):
            length = int(generator.integers(200, 700))
            gradients = random_gradients(generator, nodes, length, density=0.9)
            weights, momenta = (ring.bits(generator.standard_normal(length)) for _ in range(2))
            left = ring.bits(generator.standard_normal((nodes, length)) / 100)
            options = {"gradient_codec": GRADIENT_CODECS[gradient_codec], "weight_codec": WEIGHT_CODECS[weight_codec],
                       "segment": 64}
            residuals, parts = left.copy(), left.copy()
            whole = ring.fused_update(gradients, weights, [momenta], settings, residuals=residuals, **options)
            for start, stop in cut(generator, length):
                local = parts[:, start:stop].copy()
                part = ring.fused_update(
                    gradients[:, start:stop], weights[start:stop], [momenta[start:stop]], settings, residuals=local,
                    block_offset=start // 32 % nodes, **options)
                parts[:, start:stop] = local
                for actual, expected in ((part.weights, whole.weights), (part.master, whole.master),
                                         (part.state[0], whole.state[0]), (part.total, whole.total)):
                    assert np.array_equal(actual, expected[start:stop]), f"{nodes=}, {start=}"
            assert np.array_equal(parts, residuals)

    @pytest.mark.parametrize("nodes", range(1, 9))
    @pytest.mark.parametrize(("gradient_codec", "weight_codec"), [
        ("zero_value", "raw"), ("raw", "bf16"), ("mx9", "raw"), ("mxfp8_e4m3", "mx9"), ("bf16", "mxfp4_e2m1")])
    def test_update_in_three_commands(self, gradient_codec, weight_codec, nodes):
        """A reduce-scatter, updates of the nodes' own blocks, and an all-gather are equivalent to a fused update."""
        generator = np.random.default_rng(nodes)
        for length in (1, 33, 700, 1000):
            gradients = random_gradients(generator, nodes, length, density=0.9)
            weights, momenta = (ring.bits(generator.standard_normal(length)) for _ in range(2))
            settings = ring.settings(optimizer.Rule.MOMENTUM, gradient_scale=0.5, learning_rate=0.1, first_decay=0.9)
            codec = {"gradient_codec": GRADIENT_CODECS[gradient_codec]}
            weight = {"weight_codec": WEIGHT_CODECS[weight_codec]}
            left = ring.bits(generator.standard_normal((nodes, length)) / 100)
            residuals, parts = left.copy(), left.copy()
            whole = ring.fused_update(gradients, weights, [momenta], settings, residuals=residuals, **codec, **weight)
            # The last layers are summed first.
            sums = gradients.copy()
            for start, stop in reversed(cut(generator, length)):
                rest = parts[:, start:stop].copy()
                sums[:, start:stop] = ring.reduce_scatter(sums[:, start:stop], block_offset=start // 32 % nodes,
                                                          residuals=rest, **codec)[0]
                parts[:, start:stop] = rest
            assert np.array_equal(parts, residuals), f"{length=}"
            local, master, state = np.tile(weights, (nodes, 1)), weights.copy(), momenta.copy()
            for rank in range(nodes):
                block = (rank + 1) % nodes
                own = ring.block_indices(length, nodes)[block]
                # The node's own block starts at the group with the number `block`, and consists of every Nth group
                # from there on.
                assert np.array_equal(own, 32 * block + ring.places(len(own), stride=nodes))
                alone = ring.fused_update(sums[rank:rank + 1, own], weights[own], [momenta[own]], settings,
                                          residuals=parts[rank:rank + 1, own], **codec, **weight)
                local[rank, own], master[own], state[own] = alone.weights, alone.master, alone.state[0]
            gathered = ring.all_gather(local, **weight)[0]
            assert np.array_equal(gathered, whole.weights), f"{length=}"
            assert np.array_equal(master, whole.master), f"{length=}"
            assert np.array_equal(state, whole.state[0]), f"{length=}"
