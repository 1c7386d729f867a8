"""Reproducible sums of tensors have the same bits as a ring with the gradient codecs sum32 and sum16."""

import numpy as np
import pytest

from sim.golden import ring
from sim.golden.codecs import CODECS
from tests.present import needs

needs("reproducible")

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # the reason is given in tests/host/training/test_torch.py

from gradring.torch import reproducible  # noqa: E402


@pytest.mark.parametrize("width", [32, 16])
@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
def test_same_as_ring(nodes, width):
    """Sums equal the ring's for numbers of any exponents, infinities and NaNs, in one tensor and in several."""
    generator = np.random.default_rng(nodes)
    lengths = (700, 33, 1)
    gradients = ring.bits(generator.standard_normal((nodes, sum(lengths))))
    patterns = generator.integers(0, 2 ** 32, gradients.shape, np.uint32)
    gradients = np.where(generator.random(gradients.shape) < 0.3, patterns, gradients)
    ends = np.cumsum(lengths)
    parts = [np.split(row, ends[:-1]) for row in gradients]
    sums = [torch.empty(length) for length in lengths]
    reducer = reproducible.Reducer(width=width)
    reducer.reduce([[torch.from_numpy(part.view(np.float32).copy()) for part in row] for row in parts],
                   addends=nodes, into=sums)
    for index, total in enumerate(sums):
        part = np.stack([row[index] for row in parts])
        expected = ring.all_reduce(part, gradient_codec=CODECS[f"sum{width}"], block_offset=index % nodes)[0]
        assert np.array_equal(total.numpy().view(np.uint32), expected)
    assert reducer.counts.special == 1
