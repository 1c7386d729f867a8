"""Words for tests: bit patterns of binary32 numbers, and random words."""

import numpy as np


def bits_of(values):
    """Bit patterns of binary32 numbers, as uint32."""
    return np.asarray(values, np.float32).view(np.uint32)


def values_of(bits):
    """Binary32 numbers that have the given bit patterns."""
    return np.asarray(bits, np.uint32).view(np.float32)


def words(*values):
    return np.array(values, np.uint32)


def random_words(count, seed=1):
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32)
