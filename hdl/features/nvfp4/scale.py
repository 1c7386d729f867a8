"""NVFP4 scales in gateware: from a block's largest magnitude to E4M3, and from E4M3 to a significand."""

from types import SimpleNamespace

from amaranth.hdl import C, Cat, Mux, Signal, signed
from amaranth.lib.data import StructLayout

from hdl.features.nvfp4.format import LARGEST_SCALE, NAN_SCALE
from hdl.floating.stages import shift_right

__all__ = ["KEY", "ORIGIN", "find_scale", "open_scale"]

#: A magnitude reduced to its relevant bits: no threshold of a scale or an element has more than seven significant
#: bits, so six fraction bits and a flag for any ones below them are enough. As integers, keys have the order of the
#: magnitudes.
KEY = StructLayout({"rest": 1, "fraction": 6, "exponent": 8})

#: Biased exponent of the number 1 at a scale of 1, minus the E4M3 exponent field of the scale 1: 127 - 7.
ORIGIN = 120


def find_scale(m, pipeline, largest, power):
    """Round the largest magnitude of a block, given as a key, to its scale; the result takes two steps.

    If the significand is X / 64, a sixth of the magnitude has the significand X / 48, or X / 96 for X of 96 or more;
    its five highest bits come from a table of 64 entries. They are shifted right if the scale is below 2 ** -6.

    Returns
    -------
    Value
        Seven bits of E4M3; nonzero.
    """
    sixth = Signal(5, name="sixth")  # after an implied one: three bits of the scale, a guard bit, a sticky bit
    with m.Switch(largest.fraction):
        for fraction in range(64):
            x, divisor = fraction + 64, 3 if fraction < 32 else 6
            with m.Case(fraction):
                m.d.comb += sixth.eq(x // divisor % 16 << 1 | (x % divisor > 0))
    field = Signal(signed(10), name="field")
    m.d.comb += field.eq(largest.exponent - (ORIGIN + 2 + power) - ~largest.fraction[-1])
    normal = ~field[-1] & field[:-1].any()
    over = ~field[-1] & field[4:-1].any()
    # For exponent fields of 0, -1 and -2, the significand is shifted right by one, two and three bits. With any lower
    # field, the scale rounds to at most 2 ** -9.
    staged = pipeline.register(
        "sixth", bits=sixth[1:] | over.replicate(4), rest=sixth[0] | largest.rest,
        right=Mux(normal, 0, (1 - field[:2])[:2]), field=Mux(normal, field[:4] | over.replicate(4), 0),
        least=field[-1] & ~(field[2:-1].all() & field[1]), nan=largest.exponent.all())

    places, lost = shift_right(m, Cat(staged.bits, C(1, 1)), staged.right, width=5)
    up = places[0] & (places[1] | lost.any() | staged.rest)
    code = Signal(8, name="code")
    m.d.comb += code.eq(Cat(places[1:4], staged.field) + up)
    above = code[7] | code[:7].all()
    least = staged.least | ~code.any()
    return pipeline.register("scale", code=Mux(
        staged.nan, NAN_SCALE, Mux(above, LARGEST_SCALE, Mux(least, 1, code[:7])))).code


def open_scale(m, code):
    """Split a positive E4M3 scale into its fraction and its exponent field.

    Returns
    -------
    SimpleNamespace
        ``fraction``, three bits below a one, and ``field``, at least -2: the scale is (8 + ``fraction``) / 8 *
        2 ** (``field`` - 7).
    """
    fraction = Signal(3, name="scale_fraction")
    field = Signal(signed(6), name="scale_field")
    m.d.comb += [fraction.eq(code[:3]), field.eq(code[3:7])]
    with m.If(~code[3:7].any()):
        m.d.comb += field.eq(1)
        for shift, pattern in enumerate(("1--", "01-", "001"), start=1):
            with m.If(code[:3].matches(pattern)):
                m.d.comb += [fraction.eq(code[:3] << shift), field.eq(1 - shift)]
    return SimpleNamespace(fraction=fraction, field=field)
