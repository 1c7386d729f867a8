"""Rounding of exact numbers, by definition."""


def nearest(value, step):
    """Number of steps nearest to a fraction, ties to even."""
    low = value // step
    rest = value - low * step
    return low + (2 * rest > step or (2 * rest == step and low % 2 == 1))
