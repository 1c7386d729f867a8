"""Vectors of the golden ring for vectors of one shard per rank, and codecs of rings in software."""

import numpy as np

from host.pytorch.software import ring as software

__all__ = ["possible", "ring_order", "shards_of"]


def possible(names):
    """Codecs that rings in software have."""
    result = []
    for name in names:
        try:
            software.kernels_of(name)
        except ValueError:
            continue
        result.append(name)
    return result


def ring_order(shards):
    """Vectors of the golden ring for vectors of one shard per rank, of shape (ranks, ranks, count).

    Shard r becomes block r + 1, padded to whole groups of 32.
    """
    ranks, _, count = shards.shape
    padded = np.zeros((ranks, ranks, -(-count // 32) * 32), np.uint32)
    padded[..., :count] = shards
    blocks = np.roll(padded, 1, axis=1).reshape(ranks, ranks, -1, 32)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3)).reshape(ranks, -1)


def shards_of(vectors, count):
    """Shards of vectors of the golden ring; the inverse of :func:`ring_order`."""
    ranks = len(vectors)
    blocks = vectors.reshape(ranks, -1, ranks, 32).transpose(0, 2, 1, 3).reshape(ranks, ranks, -1)
    return np.roll(blocks, -1, axis=1)[..., :count]
