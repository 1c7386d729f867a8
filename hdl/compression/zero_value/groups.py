"""Group format of zero-value compression, and functions that select bits and values for its units.

Elements are compressed in groups of :data:`~hdl.group.GROUP`. A group consists of a mask word, with bit j set if
element j is not zero, followed by the non-zero elements in order; ``last`` marks the last word of the last group. An
all-zero group is just its mask word, and no group takes more than 33 words.

An element is zero if all of its bits except the sign are zero: -0.0 is compressed like +0.0 and decoded as +0.0.
"""

from amaranth.hdl import Cat, Mux
from amaranth.lib import data

from hdl.group import GROUP

__all__ = ["LUT_ROWS", "above_lowest", "first_of", "group_layout", "index_of", "lowest", "slices"]

#: Number of rows of a LUT memory cell. A memory with fewer rows takes as many LUTs.
LUT_ROWS = 16


def lowest(bits):
    """Isolate the lowest set bit of a value."""
    return Cat(bit & ~bits[:position].any() for position, bit in enumerate(bits))


def above_lowest(bits):
    """Clear the lowest set bit of a value."""
    return Cat(bit & bits[:position].any() for position, bit in enumerate(bits))


def slices(value, width):
    """Split a value into slices of equal width, lowest first."""
    return [value[start:start + width] for start in range(0, len(value), width)]


def first_of(flags, values):
    """Return the value that belongs to the lowest set flag, or the last value if no flag is set."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return Mux(flags[:half].any(), first_of(flags[:half], values[:half]), first_of(flags[half:], values[half:]))


def index_of(one_hot):
    """Index of the set bit of a one-hot value."""
    powers = range((len(one_hot) - 1).bit_length())
    return Cat(Cat(bit for number, bit in enumerate(one_hot) if number >> power & 1).any() for power in powers)


def group_layout():
    """Header of a compressed group, known once the group is complete."""
    return data.StructLayout({"mask": GROUP, "count": range(GROUP + 1), "last": 1})
