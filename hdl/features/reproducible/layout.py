"""Layout of the integers of reproducible sums, between units and on the ring.

A word holds 32 // width integers of ``width`` bits, the first one in the lowest bits. Between units, each word has
flags that mark infinite and NaN elements, with integers of 0. On the ring there are no flags: since at least two
addends are summed there, the limits of the addends leave three codes unused, which represent NaN and infinities.
"""

from amaranth.hdl import Cat, Const, Mux, Signal
from amaranth.lib import data

__all__ = ["SPARE", "WIDTHS", "check_width", "codes_of", "integers_layout", "integers_of", "parity_of"]

#: Supported widths in bits of integers on the ring.
WIDTHS = (16, 32)

#: Shape of the number of bits by which sums are wider than their addends: log2 of the number of addends.
SPARE = range(9)


def check_width(width):
    """Raise ValueError unless ``width`` is a supported width of integers."""
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
    """Compute the field ``parity`` of an :func:`integers_layout` view from its integers and flags."""
    return word.data.xor() ^ word.special.as_value().xor()


def _codes(width):
    """Return the codes of +infinity, -infinity and NaN."""
    largest = (1 << width - 1) - 1
    return Const(largest, width), Const(largest + 2, width), Const(largest + 1, width)


def codes_of(word, width):
    """Encode an :func:`integers_layout` view as a word on the ring."""
    positive, negative, nan = _codes(width)
    return Cat(Mux(word.special[lane].all(), nan, Mux(word.special[lane][0], positive, Mux(
        word.special[lane][1], negative, word.data.word_select(lane, width)))) for lane in range(32 // width))


def integers_of(m, word, width):
    """Decode a word from the ring to values for ``data`` and ``special`` of an :func:`integers_layout`."""
    positive, negative, nan = _codes(width)
    integers, flags = [], []
    for lane in range(32 // width):
        code = Signal(width, name=f"code_{lane}")
        m.d.comb += code.eq(word.word_select(lane, width))
        special = Cat((code == positive) | (code == nan), (code == negative) | (code == nan))
        integers.append(Mux(special.any(), 0, code))
        flags.append(special)
    return Cat(integers), Cat(flags)
