"""Instruction list of LAYERS: memory layouts of its instructions, with sixteen words each."""

import enum

from amaranth.hdl import signed, unsigned
from amaranth.lib import data

from hdl.masking.mask import GENERATED, INDEX_BITS

__all__ = ["BASE_BITS", "CENTROID_BITS", "INSTRUCTION_WORDS", "MAX_INSTRUCTIONS", "MULTIPLIED_BIT", "OWNER_BITS",
           "PADDING", "ROW_BIT", "Initial", "Kind", "Place", "RowFunction", "VectorProgram", "centroid_layout",
           "gemm_layout", "instruction_layout", "operand_layout", "row_layout", "vector_layout"]

INSTRUCTION_WORDS = 16
"""Number of words of an instruction in the activation memory (:func:`instruction_layout`)."""

MAX_INSTRUCTIONS = 64
"""Maximum length of a list in instructions, including its END."""


CENTROID_BITS = 4
"""Number of bits of a centroid index in memory."""


MULTIPLIED_BIT = 8
"""Lowest bit of the cycle count in the detail of a LAYERS event, above the count of instructions: the number of
cycles in which all lanes of the centroid unit multiply."""


BASE_BITS = 20
"""Number of bits of an operand's base, which is the address of an element."""


OWNER_BITS = 8
"""Number of bits of an operand's buffer number; number 0 stands for any buffer."""


ROW_BIT = 8
"""Lowest bit of the row in the detail of READ_DEAD; the number of the instruction is below it."""


class Kind(enum.IntEnum):
    """Kind of an instruction."""

    END = 0
    GEMM = 1
    VECTOR = 2
    CENTROID = 3
    ROWS = 4


class Place(enum.IntEnum):
    """Memory of an operand, or the constant 1.0 for all of its elements."""

    GRADIENTS = 0
    WEIGHTS = 1
    ACTIVATIONS = 2
    ONES = 3


class Initial(enum.IntEnum):
    """Initial value of each sum in a matrix product."""

    ZERO = 0
    """+0.0."""
    MATRIX = 1
    """Element of a matrix; with a stride of 0, the same row for all rows."""


class VectorProgram(enum.IntEnum):
    """Function of rows of a matrix."""

    CROSS_ENTROPY = 0
    SOFTMAX = 1
    """Exponentials of each row, times the reciprocal of their sum."""


PADDING = 0xFFFF_FFFF
"""Label of a row of padding: its gradient is +0.0, and it adds nothing to the loss."""


class RowFunction(enum.IntEnum):
    """Function of the rows of a sequence, see :func:`row_layout`."""

    ADD = 0
    """target = x + start."""
    SCALE = 1
    """target = x · scale + shift."""
    NORM = 2
    """third = x, or start + x; deviation = 1 / deviation of third; second = normalized rows of third; target = second
    · scale + shift."""
    NORM_BACK = 3
    """second = x · y; target = gradient of the layer norm, or start plus this gradient."""
    SOFTMAX_BACK = 4
    """target = gradient of scores, times the factor."""
    GATHER = 5
    """target = the rows of x selected by the numbers in y, or start plus these rows."""
    SCATTER = 6
    """Rows of x are added to the target rows selected by the numbers in y."""
    CLEAR = 7
    """target = +0.0."""


def operand_layout():
    """Layout of an operand: memory, address of the first element, whether to add ``state_base``, and owner.

    ``owner`` is its buffer number; a node with buffer tags compares it with the tags of the rows that it reads, and
    other nodes ignore it.
    """
    return data.StructLayout({"base": BASE_BITS, "owner": OWNER_BITS, "place": 3, "relative": 1})


def instruction_layout():
    """Layout common to all instructions: the kind, and the fields that depend on it."""
    return data.StructLayout({"kind": 4, "rest": 508})


def gemm_layout():
    """Layout of a matrix product C = A · B, in sixteen words.

    A has ``m`` rows and ``k`` columns, B ``k`` rows and ``n`` columns; a size of 0 is the length of the command. With
    ``transpose_a`` the memory holds k rows of m elements, with ``transpose_b`` n rows of k elements. Strides are in
    elements. ``initial`` is one of :class:`Initial`. ``relu`` replaces elements of zero or less with +0.0; ``gated``
    replaces an element with +0.0 where the gate, a matrix with the shape of C, is not greater than zero. The factors
    and ``order`` are described in :func:`hdl.features.compute.loop_nest.job_layout`.

    Before these two are applied, ``scaled`` multiplies each element by ``scale``, and ``masked`` replaces each
    element that a mask does not keep with the ``alternative``. The kinds of mask, from ``triangle`` to ``band``, and
    its bounds are described in :mod:`hdl.masking.mask`; indices refer to C.
    """
    return data.StructLayout({
        "kind": 4, "transpose_a": 1, "transpose_b": 1, "initial": 2, "relu": 1, "gated": 1, "scaled": 1, "masked": 1,
        "format": 4, "first_column": INDEX_BITS, "reserved_0": 4,
        "m": 16, "k": 16,
        "n": 16, "tile": 4, "row_tiles": 4, "column_tiles": 4, "rounds": 4,
        "order": 2, "first_row": INDEX_BITS, "end_row": INDEX_BITS, "reserved_3": 6,
        "a": operand_layout(),
        "b": operand_layout(),
        "c": operand_layout(),
        "start": operand_layout(),
        "gate": operand_layout(),
        "stride_a": 16, "stride_b": 16,
        "stride_c": 16, "stride_start": 16,
        "stride_gate": 16, "end_column": INDEX_BITS, "reserved_11": 4,
        "scale": 32,
        "alternative": 32,
        **dict.fromkeys(GENERATED, unsigned(1)), "diagonal": signed(INDEX_BITS + 1), "width": INDEX_BITS,
        "reserved_14": 1,
        "length_rows": INDEX_BITS, "length_columns": INDEX_BITS, "reserved_15": 8,
    })


def vector_layout():
    """Layout of a function of rows, in sixteen words.

    ``function`` is a :class:`VectorProgram`; a size of 0 is the length of the command. CROSS_ENTROPY reads scores at
    ``source``, and one label per row at ``labels``, ``stride_labels`` elements apart and at any address. It writes
    the gradient of the loss to ``target``, and the loss, summed over the rows, to the element ``loss``.
    """
    return data.StructLayout({
        "kind": 4, "function": 8, "reserved_0": 20,
        "rows": 16, "columns": 16,
        "reserved_2": 64,
        "source": operand_layout(),
        "labels": operand_layout(),
        "target": operand_layout(),
        "loss": operand_layout(),
        "reserved_8": 32,
        "stride_source": 16, "stride_labels": 16,
        "stride_target": 16, "reserved_10": 16,
        "reserved_11": 160,
    })


def centroid_layout():
    """Layout of a product with centroid indices as weights, or of centroid gradients, in sixteen words.

    X has ``rows`` rows and ``columns`` columns; a size of 0 is the length of the command. The weights are ``outputs``
    rows of ``columns`` columns, packed in lines by
    :func:`sim.golden.features.codebook_layers.centroid_product.pack_indices`. Each line covers one memory row of
    outputs. Strides are distances between rows or lines in elements.

    Without ``gradient`` the target is the product, of ``rows`` rows and ``outputs`` columns, with the centroids at
    ``table``. If ``initial`` is set, sums begin with the elements of ``start``; a stride of 0 uses the same row for
    all rows. ``relu`` and ``gated`` act as in a matrix product. With ``gradient`` the target receives the gradients
    of the centroids, one after the other, computed from the gradients of the product at ``start``.
    """
    return data.StructLayout({
        "kind": 4, "gradient": 1, "initial": 1, "relu": 1, "gated": 1, "reserved_0": 24,
        "rows": 16, "columns": 16,
        "outputs": 16, "reserved_2": 48,
        "target": operand_layout(),
        "x": operand_layout(),
        "indices": operand_layout(),
        "start": operand_layout(),
        "table": operand_layout(),
        "gate": operand_layout(),
        "stride_target": 16, "stride_x": 16,
        "stride_indices": 16, "stride_start": 16,
        "stride_gate": 16, "reserved_12": 16,
        "reserved_13": 96,
    })


def row_layout():
    """Layout of a function of the rows of a sequence, in sixteen words.

    ``function`` is one of :class:`RowFunction`, numbered as in :mod:`sim.golden.features.compute.row_functions`. A
    size of 0 is the length of the command. Matrices have ``rows`` rows and ``columns`` columns, with strides in
    elements from row to row. ``scale`` and ``shift`` are one row each, and ``deviation`` has one element per row,
    stored contiguously. ``start`` is used if ``started`` is set; a stride of 0 uses the same row for all rows.

    In GATHER, ``x`` is a table of ``count`` rows; in SCATTER, ``target`` is this table. ``y`` holds the number of a
    table row for each row, ``stride_y`` elements apart and at any address.
    """
    return data.StructLayout({
        "kind": 4, "function": 8, "started": 1, "reserved_0": 3, "count": 16,
        "rows": 16, "columns": 16,
        **{name: operand_layout() for name in
           ("x", "y", "start", "scale", "shift", "deviation", "target", "second", "third")},
        "stride_x": 16, "stride_y": 16,
        "stride_start": 16, "stride_target": 16,
        "stride_second": 16, "stride_third": 16,
        "factor": 32,
        "epsilon": 32,
    })
