import numpy as np
import pytest

from sim.golden.features.compute import mac_array as model

ONE, HUGE, NAN = 0x3F80_0000, 0x4CBE_BC20, 0x7FC0_0000  # bit patterns of 1.0, 1e8 and NaN
SIGN = 0x8000_0000


@pytest.mark.parametrize(("terms", "want"), [
    ((HUGE, ONE, HUGE | SIGN), 0), ((HUGE, HUGE | SIGN, ONE), ONE), ((SIGN, SIGN), 0), ((), 0),
    ((0x7F80_0000, 0xFF80_0000), NAN), ((0x7FC0_1234,), NAN), ((1, 1), 2),
])
def test_sums(terms, want):
    total = model.accumulate(0, 0, 0, first=True, bubble=True)
    for term in terms:
        total = model.accumulate(model.accumulate(total, term, ONE), 0x7F80_0000, 0, bubble=True)
    assert int(total) == want


@pytest.mark.parametrize("value", [0, SIGN, 1, ONE, 0x7F7F_FFFF, 0xFF80_0000])
def test_initial_values_are_exact(value):
    assert int(model.accumulate(ONE, ONE, value, first=True, negative=True)) == value


def test_product_is_rounded_by_itself():
    """The product is rounded before the addition; a fused multiply-add would give a nonzero result."""
    a = np.float32(1 + 2.0 ** -23)
    square = np.float32(a * a)
    total = model.accumulate((-square).view(np.uint32), a.view(np.uint32), a.view(np.uint32))
    assert int(total) == 0


@pytest.mark.parametrize("tile", range(4))
def test_order(tile):
    """Result rows are in row-major order, and each row of multiply-accumulate units outputs all its slots once."""
    row, group, slot = model.MacArray(rows=4, columns=4).order(tile)
    groups = 8 >> tile
    assert (row * groups + group).tolist() == list(range(32))
    assert sorted(zip((row % 4).tolist(), slot.tolist(), strict=True)) == [(r, s) for r in range(4) for s in range(8)]
    assert (slot == row // 4 * groups + group).all()
