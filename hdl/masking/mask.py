"""Layouts of masks, mask jobs and beats of mask bits.

Elements have a row i and a column j, counted from zero. Each enabled kind of mask keeps some elements:

- ``triangle``: j <= i + diagonal, the lower triangle and the causal mask; ``triangle_inverse``: j > i + diagonal;
- ``padding``: i < length_rows and j < length_columns;
- ``rectangle``: first_row <= i < end_row and first_column <= j < end_column; ``rectangle_inverse``: all other
elements;
- ``band``: abs(i - j) <= width;
- ``external``: the elements with a bit set in a stream of words.

An element is kept if all enabled kinds keep it; if no kind is enabled, all elements are kept. Kinds that share
parameters can be enabled together.
"""

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from hdl.streams.stream import check_lanes

__all__ = ["COUNT_BITS", "GENERATED", "INDEX_BITS", "KINDS", "MAX_LANES", "check_index_bits", "job_layout",
           "mask_beat_layout", "mask_layout"]

#: Kinds of masks, in the order of their enable bits in a layout.
KINDS = ("triangle", "triangle_inverse", "padding", "rectangle", "rectangle_inverse", "band", "external")

#: Kinds of masks that depend only on indices.
GENERATED = KINDS[:-1]

#: Width in bits of an index in a node; matrices have at most 4,095 rows and columns.
INDEX_BITS = 12

#: Width in bits of a job's number of matrices.
COUNT_BITS = 16

#: Maximum number of lanes in a mask beat.
MAX_LANES = 16


def check_index_bits(index_bits):
    """Raise ValueError unless the width of row and column indices is 5 to 16 bits."""
    if not isinstance(index_bits, int) or not 5 <= index_bits <= 16:
        raise ValueError(f"Index width must be 5 to 16 bits, not {index_bits!r}")


def mask_layout(index_bits):
    """Layout of a mask: an enable bit per kind, and the parameters in this module's docstring.

    Parameters
    ----------
    index_bits : int
        Width of indices, lengths and bounds; ``diagonal`` is signed and one bit wider.
    """
    check_index_bits(index_bits)
    return data.StructLayout({
        **dict.fromkeys(KINDS, unsigned(1)),
        "diagonal": signed(index_bits + 1),
        "length_rows": index_bits,
        "length_columns": index_bits,
        "first_row": index_bits,
        "end_row": index_bits,
        "first_column": index_bits,
        "end_column": index_bits,
        "width": index_bits,
    })


def job_layout(index_bits):
    """Layout of a job: ``count`` matrices of shape ``rows`` x ``columns`` with the same mask.

    Parameters
    ----------
    index_bits : int
        Width of an index, 5 to 16; a matrix has at most 2 ** index_bits - 1 rows and columns.
    """
    mask = mask_layout(index_bits)
    return data.StructLayout({"rows": index_bits, "columns": index_bits, "count": COUNT_BITS, "mask": mask})


def mask_beat_layout(lanes):
    """Layout of a mask beat: the mask bits of consecutive elements in a row.

    ``keep`` marks the lanes with an element: all lanes, except in the last beat of a row (marked ``row_end``), where
    they are contiguous from lane 0. ``mask`` is clear for all other lanes. ``external`` means that the bits must
    still be combined with the external words. ``last`` marks the end of a job.

    Parameters
    ----------
    lanes : int
        Number of elements per beat: 1, 2, 4, 8 or 16.
    """
    check_lanes(lanes, most=MAX_LANES)
    return data.StructLayout({"mask": lanes, "keep": lanes, "row_end": 1, "external": 1, "last": 1})
