# amaranth: UnusedElaboratable=no
# An array is created even where it is not elaborated, because its latencies are needed.
"""Factory for the processing array of an operand format."""

from hdl.features.compute.operands import operands_of

__all__ = ["make_array"]


def make_array(operands, *, rows, columns, dsps):
    """Create an array of ``rows`` by ``columns`` units for an operand format.

    ``dsps`` is the number of DSP blocks per unit; it has no effect on formats that always use one.
    """
    return operands_of(operands).make_array(operands, rows=rows, columns=columns, dsps=dsps)
