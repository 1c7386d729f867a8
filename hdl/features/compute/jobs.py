"""Jobs for the compute units: resolved and checked instructions, with addresses in memory rows."""

from amaranth.lib import data

from hdl.features.compute.access import place_shape
from hdl.features.compute.gemm_job import matrix_layout
from hdl.features.compute.loop_nest import SIZE_BITS

__all__ = ["centroid_job_layout", "place_layout", "row_job_layout", "vector_job_layout"]

#: Width of a stride in a list, in bits; strides are in elements.
_STRIDE_BITS = 16


def place_layout(rows, owner_bits=0):
    """Start of a matrix: its memory (:func:`~hdl.features.compute.access.place_shape`) and first row.

    Parameters
    ----------
    rows : int
        Number of rows in the largest memory.
    owner_bits : int
        Width of a buffer number in bits; 0 without buffer tags.
    """
    return data.StructLayout({"place": place_shape(owner_bits), "row": range(rows)})


def vector_job_layout(rows, lanes, owner_bits=0):
    """Payload of a row function: :func:`~hdl.features.compute.layer_list.vector_layout` gives its fields.

    Rows and columns are 1 to 4,095. ``labels_lane`` and ``loss_lane`` are the lanes of the first label and of the
    loss in their rows. ``stride_source`` and ``stride_target`` are in rows of memory, ``stride_labels`` in elements.

    Parameters
    ----------
    rows : int
        Number of rows in the largest memory.
    lanes : int
    owner_bits : int
        Width of a buffer number in bits; 0 without buffer tags.
    """
    stride = _STRIDE_BITS - (lanes.bit_length() - 1)
    lane = range(lanes)
    return data.StructLayout({
        "function": 8, "rows": SIZE_BITS, "columns": SIZE_BITS,
        **{name: place_layout(rows, owner_bits) for name in ("source", "labels", "target", "loss")},
        "labels_lane": lane, "loss_lane": lane,
        "stride_source": stride, "stride_target": stride, "stride_labels": _STRIDE_BITS,
    })


def centroid_job_layout(rows, owner_bits=0):
    """Payload of a product with centroids, or of the gradients of centroids, with the fields of
    :func:`~hdl.features.compute.layer_list.centroid_layout`.

    Sizes are 1 to 4,095. Strides are in memory rows; the stride of ``indices`` is the distance between lines.

    Parameters
    ----------
    rows : int
        Number of rows in the largest memory.
    owner_bits : int
        Width of a buffer number in bits; 0 without buffer tags.
    """
    return data.StructLayout({
        **dict.fromkeys(("rows", "columns", "outputs"), SIZE_BITS),
        **dict.fromkeys(("gradient", "initial", "relu", "gated"), 1), "table": place_layout(rows, owner_bits),
        **{name: matrix_layout(rows, owner_bits) for name in ("target", "x", "indices", "start", "gate")}})


def row_job_layout(rows, lanes, owner_bits=0):
    """Payload of a function of the rows of a sequence, with the fields of
    :func:`~hdl.features.compute.layer_list.row_layout`.

    Sizes are 1 to 4,095. ``y_lane`` is the lane of the first number of a table row. Strides are in rows of memory,
    except ``stride_numbers``, the stride of ``y`` in elements.

    Parameters
    ----------
    rows : int
        Number of rows in the largest memory.
    lanes : int
    owner_bits : int
        Width of a buffer number in bits; 0 without buffer tags.
    """
    stride = _STRIDE_BITS - (lanes.bit_length() - 1)
    return data.StructLayout({
        "function": 8, "started": 1, "rows": SIZE_BITS, "columns": SIZE_BITS, "count": SIZE_BITS,
        **{name: place_layout(rows, owner_bits) for name in
           ("x", "y", "start", "scale", "shift", "deviation", "target", "second", "third")},
        "y_lane": range(lanes), "stride_numbers": _STRIDE_BITS,
        **{f"stride_{name}": stride for name in ("x", "y", "start", "target", "second", "third")},
        "factor": 32, "epsilon": 32,
    })
