"""Groups of zero-value compression, and selections of bits and values for its units.

Elements are compressed in groups of :data:`~hdl.group.GROUP`. A group is one mask word, with bit j set if element j
is not zero, and then the non-zero elements in order; ``last`` marks the last word of the last group. A group of zeros
is only its mask word, and no group takes more than 33 words.

An element is zero when all its bits except the sign are: -0.0 is compressed like +0.0, and decoded as +0.0.
"""

from amaranth.hdl import Cat, Mux
from amaranth.lib import data

from hdl.group import GROUP

__all__ = ["LUT_ROWS", "above_lowest", "first_of", "group_layout", "index_of", "lowest", "slices"]

#: Rows of one column of LUT memory: a memory with fewer rows takes no fewer LUTs.
LUT_ROWS = 16


def lowest(bits):
    """Only the lowest one of some bits."""
    return Cat(bit & ~bits[:position].any() for position, bit in enumerate(bits))


def above_lowest(bits):
    """All ones of some bits except the lowest."""
    return Cat(bit & bits[:position].any() for position, bit in enumerate(bits))


def slices(value, width):
    """A value in slices of one width, lowest first."""
    return [value[start:start + width] for start in range(0, len(value), width)]


def first_of(flags, values):
    """Value of the lowest flag that is set, or the last value if none is."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return Mux(flags[:half].any(), first_of(flags[:half], values[:half]), first_of(flags[half:], values[half:]))


def index_of(one_hot):
    """The number of the bit that is set."""
    powers = range((len(one_hot) - 1).bit_length())
    return Cat(Cat(bit for number, bit in enumerate(one_hot) if number >> power & 1).any() for power in powers)


def group_layout():
    """Header of a compressed group, known once the group is complete."""
    return data.StructLayout({"mask": GROUP, "count": range(GROUP + 1), "last": 1})
