# amaranth: UnusedElaboratable=no
import re

import pytest

from hdl.compute.array import MacArray, result_layout, term_layout
from hdl.compute.arrays import make_array
from hdl.compute.block_array import BlockArray
from hdl.compute.operands import OPERANDS


@pytest.mark.parametrize("operands", OPERANDS)
def test_every_format_has_an_array(operands):
    """Arrays of all formats have the same streams, and are of blocks where terms are."""
    array = make_array(operands, rows=2, columns=4, dsps=1)
    assert isinstance(array, BlockArray if OPERANDS[operands].terms > 1 else MacArray)
    assert (array.rows, array.columns) == (2, 4)
    assert (array.i.payload.shape(), array.o.payload.shape()) == (term_layout(2, 4), result_layout(2, 4))


def test_unknown():
    message = f"Operands must be one of {', '.join(OPERANDS)}, not 'int4'"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make_array("int4", rows=2, columns=4, dsps=1)
