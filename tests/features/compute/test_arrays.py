# amaranth: UnusedElaboratable=no

import pytest

from hdl.features.block_operands.block_array import BlockArray
from hdl.features.compute.array import MacArray, result_layout, term_layout
from hdl.features.compute.arrays import make_array
from hdl.features.compute.operands import OPERANDS
from tests.refusals import refuses


@pytest.mark.parametrize("operands", OPERANDS)
def test_every_format_has_an_array(operands):
    """Arrays of all formats have the same streams; formats with shared block scales use block arrays."""
    array = make_array(operands, rows=2, columns=4, dsps=1)
    assert isinstance(array, BlockArray if OPERANDS[operands].terms > 1 else MacArray)
    assert (array.rows, array.columns) == (2, 4)
    assert (array.i.payload.shape(), array.o.payload.shape()) == (term_layout(2, 4), result_layout(2, 4))


def test_unknown():
    message = f"Operands must be one of {', '.join(OPERANDS)}, not 'int4'"
    refuses(message, make_array, "int4", rows=2, columns=4, dsps=1)
