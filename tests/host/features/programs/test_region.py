
import numpy as np
import pytest

from host.features.programs.order import Region
from tests.host.features.programs.random_programs import random_region, touched
from tests.refusals import refuses


@pytest.mark.parametrize("seed", range(20))
def test_meets(seed):
    """The overlap check gives the same result as an intersection of the regions as sets of elements."""
    generator = np.random.default_rng(seed)
    for _ in range(100):
        region, other = (random_region(generator, alternating=True) for _ in range(2))
        for odd in (0, 1):
            for other_odd in (0, 1):
                expected = bool(touched(region, odd) & touched(other, other_odd))
                assert region.meets(other, odd, other_odd) == expected, f"seed {seed}: {region} {other}"
                assert other.meets(region, other_odd, odd) == expected, f"seed {seed}: {region} {other}"


def test_spaces_and_empty_regions():
    assert not Region("a", 0, 64).meets(Region("b", 0, 64))
    assert not Region("a", 0, 0).meets(Region("a", 0, 64))
    assert not Region("a", 0, 64).meets(Region("a", 32, 0))
    assert Region("a", 64, 32, alternate=-64).meets(Region("a", 0, 1), 1, 0)


def test_text():
    assert str(Region("weights", 64, 100)) == "weights[64:164]"
    assert str(Region("gradients", 32, 96, stride=4)) == "gradients[32:320, every 4 groups]"
    assert str(Region("gradients", 32, 20, stride=4)) == "gradients[32:52, every 4 groups]"


@pytest.mark.parametrize(("arguments", "message"), [
    (("a", 31, 32), "Region's base must be a multiple of 32, not 31"),
    (("a", 32, 32, 1, 5), "Region's alternate must be a multiple of 32, not 5"),
    (("a", -32, 32), "Region must not begin before element 0, not at -32 and, in odd passes, -32"),
    (("a", 32, 32, 1, -64), "Region must not begin before element 0, not at 32 and, in odd passes, -32"),
    (("a", 0, -1), "Region's length must be zero or more, not -1"),
    (("a", 0, 32, 0), "Region's stride must be at least 1, not 0"),
])
def test_errors(arguments, message):
    refuses(message, Region, *arguments)
