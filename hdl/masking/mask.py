"""Layouts of masks, of the jobs of a mask circuit, and of beats of mask bits.

Elements have a row i and a column j, both counted from zero. Each kind of mask that a job enables keeps some of them:

- ``triangle``: j <= i + diagonal, the lower triangle and the causal mask; ``triangle_inverse``: j > i + diagonal;
- ``padding``: i < length_rows and j < length_columns;
- ``rectangle``: first_row <= i < end_row and first_column <= j < end_column; ``rectangle_inverse``: the rest;
- ``band``: abs(i - j) <= width;
- ``external``: the elements with a bit set in a stream of words.

An element is kept if all enabled kinds keep it; if no kind is enabled, all elements are kept. Kinds that share
parameters may both be enabled.
"""

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from hdl.streams.stream import check_lanes

__all__ = ["COUNT_BITS", "GENERATED", "INDEX_BITS", "KINDS", "MAX_LANES", "check_index_bits", "job_layout",
           "mask_beat_layout", "mask_layout"]

#: Names of a mask's enable bits, in the order of the layout.
KINDS = ("triangle", "triangle_inverse", "padding", "rectangle", "rectangle_inverse", "band", "external")

#: Kinds that depend only on indices.
GENERATED = KINDS[:-1]

#: Width of an index in a node: its matrices have at most 4,095 rows and columns.
INDEX_BITS = 12

#: Width of the number of matrices in a job.
COUNT_BITS = 16

#: Maximum number of lanes in a mask beat.
MAX_LANES = 16


def check_index_bits(index_bits):
    """Raise ValueError unless the width of row and column indices is 5 to 16 bits."""
    if not isinstance(index_bits, int) or not 5 <= index_bits <= 16:
        raise ValueError(f"Index width must be 5 to 16 bits, not {index_bits!r}")


def mask_layout(index_bits):
    """Layout of a mask: an enable bit for each kind, and the parameters; see this module's docstring.

    Parameters
    ----------
    index_bits : int
        Width of an index, a length or a bound; ``diagonal`` is signed and one bit wider.
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
    """Layout of a job: ``count`` matrices of ``rows`` rows and ``columns`` columns, with the same mask.

    Parameters
    ----------
    index_bits : int
        Width of an index, 5 to 16: a matrix has at most 2 ** index_bits - 1 rows and columns.
    """
    mask = mask_layout(index_bits)
    return data.StructLayout({"rows": index_bits, "columns": index_bits, "count": COUNT_BITS, "mask": mask})


def mask_beat_layout(lanes):
    """Layout of a mask beat: the mask bits of consecutive elements of one row.

    ``keep`` marks the lanes that hold an element: all lanes, except in the last beat of a row, which is marked
    ``row_end``, where they are contiguous from lane 0. ``mask`` is clear for all other lanes. ``external`` means that
    the bits must still be combined with the external words. ``last`` marks the end of a job.

    Parameters
    ----------
    lanes : int
        Elements in one beat: 1, 2, 4, 8 or 16.
    """
    check_lanes(lanes, most=MAX_LANES)
    return data.StructLayout({"mask": lanes, "keep": lanes, "row_end": 1, "external": 1, "last": 1})
