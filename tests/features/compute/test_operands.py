# amaranth: UnusedElaboratable=no

import pytest

from hdl.features.compute.operands import OPERANDS, operands_of
from sim.golden import operands as golden
from tests.refusals import refuses


def test_names():
    """Gateware and golden model support the same formats, with the same distinct codes."""
    assert {name: form.code for name, form in OPERANDS.items()} == {
        name: form.code for name, form in golden.OPERANDS.items()}
    assert len({form.code for form in OPERANDS.values()}) == len(OPERANDS)
    assert all(0 <= form.code < 16 for form in OPERANDS.values())


@pytest.mark.parametrize("find", [operands_of, golden.operands_of])
def test_unknown(find):
    message = "Operands must be one of fp32, bf16, mx9, mx6, mx4, mxfp4_e2m1, mxfp4_e2m1_up, nvfp4, not 'q'"
    refuses(message, find, "q")


def test_latencies():
    scalars = {name: form for name, form in OPERANDS.items() if form.terms == 1}
    assert {(name, dsps): form.product_latency(dsps) for name, form in scalars.items() for dsps in (4, 1)} == {
        ("fp32", 4): 6, ("fp32", 1): 7, ("bf16", 4): 4, ("bf16", 1): 4}
