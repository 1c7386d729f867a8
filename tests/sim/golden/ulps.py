"""Distances from exact results, in units of the last place."""

import numpy as np


def ulps(found, exact):
    """Differences in units of the last place that a binary32 number near the exact one has."""
    places = np.maximum(np.frexp(exact)[1] - 24, -149)
    return np.abs(found.astype(np.float64) - exact) / np.ldexp(1.0, places)
