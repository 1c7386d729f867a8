"""Rounding of exact numbers, by definition."""


def nearest(value, step):
    """A fraction rounded to nearest even, in steps."""
    low = value // step
    rest = value - low * step
    return low + (2 * rest > step or (2 * rest == step and low % 2 == 1))
