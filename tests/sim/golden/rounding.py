"""Rounding of exact numbers, straight from its definition."""


def nearest(value, step):
    """Return an exact value as a number of steps, rounded to nearest; ties go to the even number."""
    low = value // step
    rest = value - low * step
    return low + (2 * rest > step or (2 * rest == step and low % 2 == 1))
