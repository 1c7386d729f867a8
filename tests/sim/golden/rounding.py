"""Rounding of exact numbers, straight from its definition."""


def nearest(value, step):
    """Number of steps nearest to an exact value; ties go to the even number."""
    low = value // step
    rest = value - low * step
    return low + (2 * rest > step or (2 * rest == step and low % 2 == 1))
