"""Random scales and masks for matrix products."""

import numpy as np

from sim.golden.features.compute.gemm import ScaleMask
from tests.hdl.masking import masks

#: Candidates for scales and for the number that replaces masked elements: ordinary numbers, zeros, subnormals,
#: infinities and NaNs.
NUMBERS = np.array([0x3e000000, 0x3f800000, 0xc0490fdb, 0, 0x80000000, 0x00000001, 0x7f800000, 0x7fc00000, 0xffc00001,
                    0x7f7fffff, 0xc61c4000], np.uint32)


def draw_scale_mask(generator, rows, columns):
    """Draw the scale and mask of a matrix; either may be absent."""
    kinds = masks.COMBINATIONS[int(generator.integers(len(masks.COMBINATIONS)))] | {"external": False}
    return ScaleMask(
        scaled=int(generator.integers(2)), masked=int(generator.integers(2)), scale=int(generator.choice(NUMBERS)),
        alternative=int(generator.choice(NUMBERS)), mask=masks.mask(generator, kinds, rows, columns))
