"""Conversions between floating-point formats, and from and to integers."""

from amaranth.hdl import C, Cat, Mux, Signal
from amaranth.lib import data

__all__ = ["shorten"]


def shorten(m, value, *, source, target):
    """Round to nearest even, to fewer bits of fraction in an equally wide exponent.

    This takes no register: it is one addition. A number that rounds above the largest of the target becomes infinity,
    and every NaN the canonical one.

    Parameters
    ----------
    value : Value
        Encoding in ``source``.
    source, target : FloatFormat
        Of equal exponent width; the target has fewer fraction bits.

    Returns
    -------
    Signal(target.width)
    """
    drop = source.fraction_bits - target.fraction_bits
    opened = data.View(source.layout, value)
    nan = opened.exponent.all() & opened.fraction.any()
    # What is below half of the last place matters only in whether it is zero. Ones in all of these positions, and one
    # more if the last place is odd, carry into the half what rounds up, and that may run on into the exponent.
    groups = Cat(value[start:min(start + 4, drop - 1)].any() for start in range(0, drop - 1, 4))
    total = Signal(1 + len(groups) + target.width, name="total")
    result = Signal(target.width, name="shortened")
    m.d.comb += [
        total.eq(Cat(C(1, 1), groups, value[drop - 1:-1]) + Cat(value[drop], (~C(0, len(groups))))),
        result.eq(Cat(Mux(nan, target.canonical_nan, total[2 + len(groups):]), opened.sign & ~nan)),
    ]
    return result
