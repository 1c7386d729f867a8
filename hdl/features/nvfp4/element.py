"""NVFP4 elements in gateware, relative to the scale of their block.

No quotient is computed. The magnitude and the scale have significands X / 64 and k / 8. Subtracting the exponents and
comparing the highest bits gives the power of two of the quotient, so that X or 2 X is at least 8 k and below 16 k.
The element changes at 8 k, 10 k, 12 k or 14 k, which eight-bit comparisons decide; two comparators are enough, since
no power of two has more than two of these thresholds.
"""

from amaranth.hdl import C, Cat, Mux, Signal

__all__ = ["find_element"]

#: Element for the smallest quotient in each power of two, from 2 ** -3: 0 for quotients below 0.25, 6 from 8 on.
_STARTS = (0, 0, 1, 2, 4, 6, 7)
_TOP = len(_STARTS) - 1
#: Indices into ``_STARTS`` of the powers of two that start at the quotients 0.25 and 0.5.
_QUARTER, _HALF = 1, 2


def find_element(m, pipeline, name, key, base, fraction):
    """Round a magnitude relative to a scale; the result takes two steps.

    Parameters
    ----------
    m, pipeline : Module, Pipeline
    name : str
        Suffix of the signal names.
    key : View of KEY
        The magnitude; exponent 0 encodes zero.
    base : Value
        Three-bit fraction of the scale, and above it the biased exponent of the scale divided by 8.
    fraction : Value
        The same fraction, one step later.

    Returns
    -------
    Value
        Three bits of E2M1.
    """
    above = Signal(13, name=f"above_{name}")
    quotient = Signal(3, name=f"quotient_{name}")
    equal = Signal(name=f"equal_{name}")
    m.d.comb += [
        above.eq(Cat(key.fraction[3:], key.exponent) - base),
        quotient.eq(Mux(above[-1], 0, Mux(above[6:-1].any() | above[3:6].all(), _TOP, above[3:6]))),
        equal.eq((key.fraction == Cat(C(0, 3), base[:3])) & ~key.rest),
    ]
    placed = pipeline.register(
        f"placed_{name}", quotient=quotient, equal=equal, twice=key.fraction[3:] < base[:3],
        number=Cat(key.rest, key.fraction, C(1, 1)))

    # Half of X or of 2 X, with a bit that marks a remainder, for comparison with 5 k, 6 k and 7 k.
    quotient, number = placed.quotient, placed.number
    half = Signal(8, name=f"half_{name}")
    m.d.comb += half.eq(Mux(placed.twice, number, Cat(number[:2].any(), number[2:])))
    thresholds = {n: Signal(7, name=f"place_{n}_{name}") for n in (5, 6, 7)}
    with m.Switch(fraction):
        for low in range(8):
            with m.Case(low):
                m.d.comb += [threshold.eq(n * (8 + low)) for n, threshold in thresholds.items()]
    small = quotient == _HALF
    first = half >= Cat(~small, Mux(small, thresholds[6], thresholds[5]))
    start = Signal(3, name=f"start_{name}")
    with m.Switch(quotient):
        for value, smallest in enumerate(_STARTS):
            with m.Case(value):
                m.d.comb += start.eq(smallest)
    counted = pipeline.register(
        f"compared_{name}", start=start,
        first=Mux(quotient == _QUARTER, ~placed.equal, first & (quotient > _QUARTER) & (quotient != _TOP)),
        second=(half[1:] >= thresholds[7]) & ((quotient == 3) | (quotient == 4)))
    magnitude = Signal(3, name=f"magnitude_{name}")
    m.d.comb += magnitude.eq(counted.start + counted.first + counted.second)
    return magnitude
