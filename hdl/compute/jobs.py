"""Jobs of the units of the compute engine: resolved and checked instructions, with places in rows of memory."""

from amaranth.lib import data

from hdl.compute.loop_nest import SIZE_BITS, job_layout

__all__ = ["gemm_job_layout", "place_layout", "vector_job_layout"]

#: Bits of a stride in a list, in elements.
_STRIDE_BITS = 16


def place_layout(rows):
    """Place of a matrix: the number of a :class:`~hdl.compute.layer_list.Place`, and its first row of that memory.

    Parameters
    ----------
    rows : int
        Rows of the largest memory.
    """
    return data.StructLayout({"place": 2, "row": range(rows)})


def gemm_job_layout(rows, lanes):
    """Payload of a matrix product: its fields in :func:`~hdl.compute.layer_list.gemm_layout`.

    Sizes are 1 to 4,095. ``initial`` is one if the sums begin with ``start``. Strides are in rows of memory.

    Parameters
    ----------
    rows : int
        Rows of the largest memory.
    lanes : int
    """
    factors = {name: shape for name, shape in job_layout().members.items() if name not in ("m", "n", "k", "resume")}
    stride = _STRIDE_BITS - (lanes.bit_length() - 1)
    return data.StructLayout({
        "m": SIZE_BITS, "n": SIZE_BITS, "k": SIZE_BITS, **factors,
        "transpose_a": 1, "transpose_b": 1, "initial": 1, "relu": 1, "gated": 1,
        **{name: place_layout(rows) for name in ("a", "b", "c", "start", "gate")},
        **{f"stride_{name}": stride for name in ("a", "b", "c", "start", "gate")},
    })


def vector_job_layout(rows, lanes):
    """Payload of a function of rows: its fields in :func:`~hdl.compute.layer_list.vector_layout`.

    Rows and columns are 1 to 4,095. ``labels_lane`` and ``loss_lane`` are the elements of their rows in which the first
    label and the loss lie. ``stride_source`` and ``stride_target`` are in rows of memory, ``stride_labels`` in
    elements.

    Parameters
    ----------
    rows : int
        Rows of the largest memory.
    lanes : int
    """
    stride = _STRIDE_BITS - (lanes.bit_length() - 1)
    lane = range(lanes)
    return data.StructLayout({
        "function": 8, "rows": SIZE_BITS, "columns": SIZE_BITS,
        **{name: place_layout(rows) for name in ("source", "labels", "target", "loss")},
        "labels_lane": lane, "loss_lane": lane,
        "stride_source": stride, "stride_target": stride, "stride_labels": _STRIDE_BITS,
    })
