# amaranth: UnusedElaboratable=no An array is created to read its latencies, even where it is not elaborated.
"""Construction of the array for an operand format."""

from hdl.features.compute.operands import operands_of

__all__ = ["make_array"]


def make_array(operands, *, rows, columns, dsps):
    """Create the array of ``rows`` by ``columns`` units for an operand format.

    ``dsps`` is the number of DSP blocks of each unit; it has no effect on formats with one DSP block per unit.
    """
    return operands_of(operands).make_array(operands, rows=rows, columns=columns, dsps=dsps)
