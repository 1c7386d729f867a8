"""The exponential function and the logarithm: known results, errors and monotonicity."""

import numpy as np
import pytest

from sim.golden.exponential import exp, log
from tests.refusals import refuses
from tests.sim.golden.ulps import ulps


def patterns(x):
    return [f"{bits:08x}" for bits in x.view(np.uint32)]


def test_known_exponentials():
    x = np.array([-1e-6, -0.5, -1, -10, -87.5], np.float32)
    assert patterns(exp(x)) == ["3f7fffef", "3f1b4598", "3ebc5ab2", "383e6bce", "006cb2bc"]


def test_special_exponentials():
    x = np.array([0.0, -0.0, -104, -10_000, -np.inf, np.nan, -1e-45, -np.finfo(np.float32).max], np.float32)
    x = np.append(x, np.array([0xFFC0_1234], np.uint32).view(np.float32))
    assert patterns(exp(x)) == ["3f800000"] * 2 + ["00000000"] * 3 + ["7fc00000", "3f800000", "00000000", "7fc00000"]


def test_special_logarithms():
    x = np.array([1, 2, 3.4e38, np.nan], np.float32)
    assert patterns(log(x))[:2] == ["00000000", "3f317218"]
    assert patterns(log(x))[3] == "7fc00000"
    assert log(x)[2] == pytest.approx(np.log(3.4e38), rel=1e-7)


def test_error_and_order_of_exponentials():
    """For every 211th number from -0.0 down to -104, exp is monotonic and has an error within 1.1 ulp."""
    x = np.arange(0x8000_0000, 0xC2D0_0000, 211).astype(np.uint32).view(np.float32)
    results = exp(x)
    assert len(x) > 5_000_000
    assert (np.diff(results) <= 0).all()
    assert ulps(results, np.exp(x.astype(np.float64))).max() < 1.1


@pytest.mark.parametrize("start", [0xBF31_7218, 0xC2AE_AC50, 0xBEB1_7218], ids=["1/2", "normal", "reduction"])
def test_order_of_neighbours(start):
    """Results of exp are monotonic where the exponent or the precision of the result changes."""
    x = np.arange(start - 100_000, start + 100_000).astype(np.uint32).view(np.float32)
    assert (np.diff(exp(x)) <= 0).all()


def test_error_and_order_of_logarithms():
    """Logarithms of all numbers from 1 to 1.1, and of every 211th number above, are accurate and monotonic."""
    for step, start, end in ((1, 0x3F80_0000, 0x3F8C_CCCD), (211, 0x3F80_0000, 0x7F80_0000)):
        x = np.arange(start, end, step).astype(np.uint32).view(np.float32)
        results = log(x)
        assert (np.diff(results) >= 0).all()
        assert ulps(results, np.log(x.astype(np.float64))).max() < 1.1


def test_arguments():
    refuses("Argument of exp must be at most zero, not 0.5", exp, np.array([-1, 0.5, np.nan], np.float32))
    for wrong in (0.5, np.inf, -1.0):
        with pytest.raises(ValueError, match=rf"^Argument of log must be finite and at least 1, not {wrong}$"):
            log(np.array([1, np.nan, wrong], np.float32))
    for function in (exp, log):
        refuses("Numbers must be binary32, not float64", function, np.zeros(1))
