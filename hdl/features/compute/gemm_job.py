"""Job of a matrix product with its operands in memory."""

from amaranth.lib import data

from hdl.features.compute.access import place_shape
from hdl.features.compute.loop_nest import job_layout
from hdl.features.compute.scale_mask import scale_mask_layout

__all__ = ["gemm_job_layout", "matrix_layout"]


def matrix_layout(rows, owner_bits=0):
    """Layout of a matrix in memory: place (:func:`~hdl.features.compute.access.place_shape`), first row and stride in
    rows."""
    return data.StructLayout({"place": place_shape(owner_bits), "row": range(rows), "stride": range(rows)})


def gemm_job_layout(rows, owner_bits=0):
    """Layout of a product C = A · B with resolved addresses: sizes in elements, addresses in memory rows.

    Sizes, factors and ``order`` are as in :func:`~hdl.features.compute.loop_nest.job_layout`. With ``transpose_a``,
    the memory holds k lines of m elements; with ``transpose_b``, n lines of k elements. With ``initial``, sums start
    from the elements of ``start``; a stride of 0 uses one line for all rows. ``relu`` turns elements that are not
    positive into +0.0; ``gated`` sets elements to +0.0 where the element of ``gate`` is not positive; ``scale_mask``
    is applied before both. Place ONES, for A or B, needs no memory.

    Parameters
    ----------
    rows : int
        Number of rows of the largest memory.
    owner_bits : int
        Width of a buffer number in bits; 0 without buffer tags.
    """
    loops = job_layout().members
    names = ("m", "n", "k", "tile", "row_tiles", "column_tiles", "rounds", "order")
    return data.StructLayout({
        **{name: loops[name] for name in names},
        "transpose_a": 1, "transpose_b": 1, "initial": 1, "relu": 1, "gated": 1,
        "scale_mask": scale_mask_layout(),
        **{name: matrix_layout(rows, owner_bits) for name in ("a", "b", "c", "start", "gate")}})
