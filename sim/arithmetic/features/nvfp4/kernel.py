"""Kernels of the NVFP4 codec."""

from pathlib import Path
from typing import cast

import numpy as np

from sim.arithmetic.format_source import FormatSource
from sim.golden.codecs import FixedCodec
from sim.golden.features.nvfp4.nvfp4 import NVFP4

__all__ = ["source"]


def source(codec: FixedCodec) -> FormatSource:
    """Return the kernels of NVFP4 for the tensor scale of the given codec."""
    form = cast(NVFP4, codec.format)
    scales, elements, numbers = form.thresholds()
    # For each scale, the first representable magnitude is zero, and the second is half of the scale.
    halves = np.where(np.arange(len(numbers)) == form.nan, 0, numbers[:, 1])
    return FormatSource(path=Path(__file__).parent / "nvfp4.cpp", constants={
        "SCALES": scales, "ELEMENTS": elements, "HALF_SCALES": halves})
