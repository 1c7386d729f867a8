"""Kernels of the codec that sends weights as indices of their nearest centroids."""

from pathlib import Path

import numpy as np

from sim.arithmetic.format_source import FormatSource
from sim.golden.features.codebook.codec import CentroidCodec

__all__ = ["source"]


def source(codec: CentroidCodec) -> FormatSource:
    """Return the kernels of a codec, including its codebook."""
    count = codec.centroids
    bounds = np.array(codec.bounds or (0,) * (count - 1), np.uint32)
    ordered = np.where(bounds >> 31, bounds ^ np.uint32(0x7FFF_FFFF), bounds)
    centroids = np.array(codec.codebook or (0,) * count, np.uint32)
    return FormatSource(path=Path(__file__).parent / "centroids.cpp",
                        constants={"CENTROIDS": count, "INDEX_BITS": codec.table.index_bits},
                        codebook=np.concatenate([ordered, np.zeros(1, np.uint32), centroids]))
