# amaranth: UnusedElaboratable=no
# The latencies of an array are needed even if nothing is elaborated.
"""The array for operands of a format."""

from hdl.features.compute.operands import operands_of

__all__ = ["make_array"]


def make_array(operands, *, rows, columns, dsps):
    """Make the array of so many rows and columns of units for operands of a format.

    ``dsps`` is the number of DSP blocks of each unit, without effect on formats whose units have one.
    """
    return operands_of(operands).make_array(operands, rows=rows, columns=columns, dsps=dsps)
