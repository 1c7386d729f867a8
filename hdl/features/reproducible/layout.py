"""Layout of the integers of reproducible sums, between units and on the ring.

A word holds 32 // width integers of ``width`` bits, the first one in the lowest bits. Between units, flags beside the
word state which elements are infinite or NaN; their integers are 0. On the ring there are no flags: as at least two
addends are summed there, the limits of the addends leave three codes unused, which stand for NaN and infinities.
"""

from amaranth.hdl import Cat, Const, Mux, Signal
from amaranth.lib import data

__all__ = ["SPARE", "WIDTHS", "check_width", "codes_of", "integers_layout", "integers_of", "parity_of"]

#: Widths in bits of integers on the ring.
WIDTHS = (16, 32)

#: Shape of the number of bits that sums have and their addends lack, the base-2 logarithm of the number of addends.
SPARE = range(9)


def check_width(width):
    """Raise ValueError unless ``width`` is a width of integers."""
    if width not in WIDTHS:
        raise ValueError(f"Integer width must be {' or '.join(map(str, WIDTHS))}, not {width!r}")


def integers_layout(width, *, parity=False):
    """Layout of a word of integers between units.

    ``special`` has two bits for each integer: bit 0 is set if the element is +infinity or NaN, and bit 1 if it is
    -infinity or NaN. With ``parity``, there is a field ``parity``: whether the number of ones in ``data`` and
    ``special`` is odd.
    """
    return data.StructLayout({"data": 32, "special": data.ArrayLayout(2, 32 // width), "last": 1,
                              **({"parity": 1} if parity else {})})


def parity_of(word):
    """Field ``parity`` of the integers and flags of an :func:`integers_layout` view."""
    return word.data.xor() ^ word.special.as_value().xor()


def _codes(width):
    """Codes of an element that is +infinity, -infinity and NaN."""
    largest = (1 << width - 1) - 1
    return Const(largest, width), Const(largest + 2, width), Const(largest + 1, width)


def codes_of(word, width):
    """Word on the ring of an :func:`integers_layout` view."""
    positive, negative, nan = _codes(width)
    return Cat(Mux(word.special[lane].all(), nan, Mux(word.special[lane][0], positive, Mux(
        word.special[lane][1], negative, word.data.word_select(lane, width)))) for lane in range(32 // width))


def integers_of(m, word, width):
    """Integers and flags of a word from the ring: values for ``data`` and ``special`` of an integers_layout."""
    positive, negative, nan = _codes(width)
    integers, flags = [], []
    for lane in range(32 // width):
        code = Signal(width, name=f"code_{lane}")
        m.d.comb += code.eq(word.word_select(lane, width))
        special = Cat((code == positive) | (code == nan), (code == negative) | (code == nan))
        integers.append(Mux(special.any(), 0, code))
        flags.append(special)
    return Cat(integers), Cat(flags)
