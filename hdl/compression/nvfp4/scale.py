"""Scales of NVFP4 in gateware: from the largest magnitude of a block to E4M3, and from E4M3 to a significand."""

from types import SimpleNamespace

from amaranth.hdl import C, Cat, Mux, Signal, signed
from amaranth.lib.data import StructLayout

from hdl.compression.nvfp4.format import LARGEST_SCALE, NAN_SCALE
from hdl.floating.stages import shift_right

__all__ = ["KEY", "ORIGIN", "find_scale", "open_scale"]

#: A magnitude as far as it matters: no place where a scale or an element changes has more than seven significant
#: bits, so that six of the fraction and whether there are ones below are enough. As an integer, keys are in the order
#: of magnitudes.
KEY = StructLayout({"rest": 1, "fraction": 6, "exponent": 8})

#: Biased exponent of numbers of 1 with the scale 1, less the field of E4M3 that has that scale: 127 - 7.
ORIGIN = 120

#: Exponent fields of E4M3, and shifts below the first.
_FIELDS, _DEEPEST = 16, 5


def find_scale(m, pipeline, largest, power):
    """Round the largest magnitude of a block, as a key, to its scale, two steps later.

    With a significand of X / 64, the scale has the significand X / 3 / 16 or X / 3 / 32. X / 3 comes from a table of
    64, one bit longer than it has to be, and is moved to the place where scales of this size end.

    Returns
    -------
    Value
        Seven bits of E4M3.
    """
    significand = range(64, 128)
    table = Signal(7, name="third")
    with m.Switch(largest.fraction):
        for x in significand:
            with m.Case(x - 64):
                m.d.comb += table.eq(Cat(C(x % 3 > 0, 1), C(x // 3, 6)))
    # Field of a scale whose significand is X / 3 / 16, and of the scale itself, as far as fields go down.
    height = Signal(signed(10), name="height")
    short = Signal(name="short")
    field = Signal(signed(10), name="field")
    m.d.comb += [
        height.eq(largest.exponent - (ORIGIN + 3 + power)), short.eq(~largest.fraction[-1]),
        field.eq(height - short),
    ]
    depth = Signal(range(_DEEPEST + 2), name="depth")
    with m.If(height > 0):
        m.d.comb += depth.eq(~short)
    with m.Elif(height > -_DEEPEST):
        m.d.comb += depth.eq(1 - height)
    with m.Else():
        m.d.comb += depth.eq(_DEEPEST + 1)
    found = pipeline.register(
        "third", places=table[1:], rest=table[0] | largest.rest, depth=depth,
        field=Mux(field < 0, 0, Mux(field < _FIELDS, field[:5], _FIELDS)), nan=largest.exponent.all())

    places, lost = shift_right(m, found.places, found.depth, width=6)
    code = Signal(9, name="code")
    up = places[0] & (places[1] | lost.any() | found.rest)
    m.d.comb += code.eq(Cat(C(0, 3), found.field) + places[1:] + up)
    return pipeline.register("scale", code=Mux(found.nan, NAN_SCALE, Mux(
        code > LARGEST_SCALE, LARGEST_SCALE, Cat(code[0] | ~code.any(), code[1:7])))).code


def open_scale(m, code):
    """Open a scale of E4M3 above zero.

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
        for place, pattern in enumerate(("1--", "01-", "001"), start=1):
            with m.If(code[:3].matches(pattern)):
                m.d.comb += [fraction.eq(code[:3] << place), field.eq(1 - place)]
    return SimpleNamespace(fraction=fraction, field=field)
