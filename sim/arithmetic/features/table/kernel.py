"""Kernels of the weight codec with a table of exponents per packet and centroids of fractions."""

from pathlib import Path

import numpy as np

from sim.arithmetic.format_source import FormatSource
from sim.golden.features.table.codec import TableCodec
from sim.golden.features.table.lookup_table import COMPARED

__all__ = ["source"]


def source(codec: TableCodec) -> FormatSource:
    """Return the kernels of a codec, including its codebook."""
    count = codec.centroids
    fractions = np.array(codec.codebook or (0,) * count, np.uint32)
    nearest = np.searchsorted(codec.table.bounds(fractions), np.arange(1 << COMPARED), side="right")
    return FormatSource(path=Path(__file__).parent / "table.cpp",
                        constants={"CENTROIDS": count, "INDEX_BITS": codec.table.mantissa_bits}, fixed=False,
                        codebook=np.concatenate([fractions, nearest.astype(np.uint8).view("<u4")]))
