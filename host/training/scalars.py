"""Powers, exponentials and logarithms of single numbers in binary64, the same on every processor and system.

Mathematics libraries differ in the last bit, and choose functions by the processor. Decimal arithmetic of 40 digits
does not, and is rounded to binary64 once.
"""

import decimal

__all__ = ["exponential", "logarithm", "power"]

_CONTEXT = decimal.Context(prec=40)


def power(base: float, exponent: float) -> float:
    """A number above zero to a power; zero to one above zero."""
    return float(_CONTEXT.power(decimal.Decimal(base), decimal.Decimal(exponent)))


def exponential(x: float) -> float:
    """e to a power."""
    return float(_CONTEXT.exp(decimal.Decimal(x)))


def logarithm(x: float) -> float:
    """Natural logarithm of a number above zero."""
    return float(_CONTEXT.ln(decimal.Decimal(x)))
