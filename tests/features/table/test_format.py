"""Parameters of table-based compression: hdl/features/table/format.py."""

import pytest

from hdl.features.table.format import LookupTable
from hdl.floating.format import BF16, FP16, FP32
from sim.golden import float_format
from sim.golden.features.table import lookup_table as model
from tests.refusals import refused

test_parameters = refused(LookupTable, {}, [
    ({"format": 32}, "Format must be a FloatFormat, not 32"),
    ({"format": FP16}, f"Format must be FP32 or BF16, not {FP16!r}"),
    ({"mantissas": 12}, "Mantissa count must be 8, 16, 32, 64 or 128, not 12"),
    ({"centroids": 2}, "Centroids must be True or False, not 2"),
    ({"exponents": 300}, "Exponent count must be 16, 32, 64, 128 or 256, not 300"),
], error=(TypeError, ValueError))


@pytest.mark.parametrize(("format", "golden"), [(FP32, float_format.FP32), (BF16, float_format.BF16)])
@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("mantissas", [8, 32, 128])
def test_agrees_with_the_model(format, golden, loaded, mantissas):
    """Gateware and model, written independently, agree on bits and words for all counts."""
    for centroids in {True, loaded}:
        table = LookupTable(format=format, mantissas=mantissas, centroids=centroids, loaded=loaded)
        other = model.LookupTable(format=golden, mantissas=mantissas, centroids=centroids, loaded=loaded)
        assert (table.sent, table.mantissa_bits) == (other.sent, other.mantissa_bits)
        for exponents in (1, 2, 3, 16, 17, 255, 256):
            assert table.code_width(exponents) == other.code_width(exponents)
            for count in range(0, 301, 7):
                assert table.words(count, exponents) == other.words(count, exponents)
                assert table.bits(count, exponents) == other.bits(count, exponents)
