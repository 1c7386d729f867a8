"""Distances from exact results, in units of the last place."""

import numpy as np


def ulps(actual, exact):
    """Differences from exact results, in units of the last place of nearby binary32 numbers."""
    places = np.maximum(np.frexp(exact)[1] - 24, -149)
    return np.abs(actual.astype(np.float64) - exact) / np.ldexp(1.0, places)
