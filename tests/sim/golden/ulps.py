"""Distance from exact results, in units in the last place."""

import numpy as np


def ulps(actual, exact):
    """Return the distance of numbers from exact results, in units in the last place of nearby binary32 numbers."""
    places = np.maximum(np.frexp(exact)[1] - 24, -149)
    return np.abs(actual.astype(np.float64) - exact) / np.ldexp(1.0, places)
