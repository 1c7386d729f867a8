# amaranth: UnusedElaboratable=no
# The latencies of an array are needed even if nothing is elaborated.
"""The array for operands of a format."""

from hdl.compute.array import MacArray
from hdl.compute.block_array import BlockArray
from hdl.compute.operands import BlockOperands, operands_of

__all__ = ["make_array"]


def make_array(operands, *, rows, columns, dsps):
    """Make the array of so many rows and columns of units for operands of a format.

    ``dsps`` is the number of DSP blocks of each unit, without effect on formats whose units have one.
    """
    form = operands_of(operands)
    if isinstance(form, BlockOperands):
        return BlockArray(rows=rows, columns=columns, codec=form.codec)
    return MacArray(rows=rows, columns=columns, dsps=dsps, operands=operands)
