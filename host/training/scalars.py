"""Powers, exponentials and logarithms of single binary64 numbers, identical on every processor and system.

The results of different mathematics libraries differ in the last bit, and some depend on the processor. Decimal
arithmetic with 40 digits gives the same results everywhere, which are then rounded to binary64 once.
"""

import decimal

__all__ = ["exponential", "logarithm", "power"]

_CONTEXT = decimal.Context(prec=40)


def power(base: float, exponent: float) -> float:
    """Raise a positive number to a power, or zero to a positive power."""
    return float(_CONTEXT.power(decimal.Decimal(base), decimal.Decimal(exponent)))


def exponential(x: float) -> float:
    """Compute the exponential function of a number."""
    return float(_CONTEXT.exp(decimal.Decimal(x)))


def logarithm(x: float) -> float:
    """Compute the natural logarithm of a positive number."""
    return float(_CONTEXT.ln(decimal.Decimal(x)))
