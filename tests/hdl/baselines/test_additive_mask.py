# amaranth: UnusedElaboratable=no
"""The baseline that masks by addition gives the same results as the mask multiplexer, so costs are comparable."""

import numpy as np
import pytest

from hdl.baselines.additive_mask import AdditiveMask
from sim.golden import masking as model
from sim.golden.floating import CANONICAL_NAN
from sim.verilated.vectors import Unit
from tests.refusals import refused_values

_ONE = np.uint32(0x3F800000)
_ALTERNATIVE = model.alternative(model.Element.FP32)


def _run(as_input, x, mask):
    component = AdditiveMask(lanes=1, given=as_input)
    term = np.where(mask, 0, _ALTERNATIVE) if as_input else _ALTERNATIVE
    outputs = Unit(component).run({"x__0": x, "m__0": np.where(mask, _ONE, 0), "alternative__0": term},
                                  drain=component.latency)
    return outputs["o__0"][component.latency:]


@pytest.mark.parametrize("as_input", [False, True])
def test_finite_elements(as_input):
    """Both units agree on all finite elements, including subnormal numbers, except that -0.0 becomes +0.0."""
    generator = np.random.default_rng(1)
    x = generator.integers(0, 1 << 32, 200_000, dtype=np.uint32)
    x = np.where(x >> 23 & 0xFF == 0xFF, x & 0x807F_FFFF, x)
    x = x[x != 0x8000_0000]
    mask = generator.random(len(x)) < 0.5
    np.testing.assert_array_equal(_run(as_input, x, mask), model.apply(x, mask, _ALTERNATIVE))


@pytest.mark.parametrize("as_input", [False, True])
def test_masked_infinity_is_nan(as_input):
    """A masked infinity becomes NaN in the baseline, while a multiplexer outputs the alternative value."""
    x = np.array([0x7F800000, 0xFF800000, 0x7FC00000], np.uint32)
    assert _run(as_input, x, np.zeros(3, bool)).tolist() == [CANONICAL_NAN] * 3
    assert _run(as_input, x, np.ones(3, bool)).tolist() == x.tolist()


test_lanes = refused_values(AdditiveMask, {}, "lanes", [0, 3, 32], "Lane count must be 1, 2, 4, 8 or 16")
