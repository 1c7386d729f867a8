"""Streams by which the units of the compute engine read and write memory rows."""

from amaranth.hdl import unsigned
from amaranth.lib import data

from hdl.floating.format import FP32

__all__ = ["request_layout", "response_layout", "write_layout"]


def request_layout(rows):
    """Payload of a read: the number of a :class:`~hdl.compute.layer_list.Place`, and a row of that memory.

    Parameters
    ----------
    rows : int
        Rows of the largest memory.
    """
    return data.StructLayout({"place": 2, "row": range(rows)})


def response_layout(lanes):
    """Payload of the answer to a read: the elements of the row. Answers come in the order of the reads."""
    return data.StructLayout({"elements": data.ArrayLayout(unsigned(FP32.width), lanes)})


def write_layout(rows, lanes):
    """Payload of a write: a row, its elements, and a bit for each of them that is written."""
    return data.StructLayout({
        "place": 2, "row": range(rows), "elements": data.ArrayLayout(unsigned(FP32.width), lanes), "keep": lanes})
