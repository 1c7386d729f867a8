from fractions import Fraction

import pytest

from host.labs.estimate.scaling import Throttled, estimate, throttled
from tests.refusals import refuses

HALF = Fraction(1, 2)


def rates(*values):
    return dict(zip(("compute", "link", "memory"), map(Fraction, values), strict=True))


def test_known_answers():
    """With execution rates of (4, 1, 4) and target rates of (8, 1/2, 4), alpha is 1/2 and the throttled rates are (4,
    1/4, 2)."""
    execution, target = rates(4, 1, 4), rates(8, HALF, 4)
    result = throttled(execution, target)
    assert result.alpha == HALF
    assert [result.shares[name] * rate for name, rate in execution.items()] == [4, Fraction(1, 4), 2]
    assert result.registers() == {"compute": 0, "link": 1 << 14, "memory": 1 << 15}
    assert result.registers(slower=2) == {"compute": 1 << 15, "link": 1 << 13, "memory": 1 << 14}
    assert estimate(HALF, 2100, 4100) == 1100


@pytest.mark.parametrize("alpha", [Fraction(1, 4), Fraction(2, 3), 1, 2, 5])
def test_exact(alpha):
    """If the cycles of a step are a + b * s, then runs at s = 1 / alpha and s = 2 / alpha give the exact value at s =
    1."""
    alpha = Fraction(alpha)
    for a, b in ((0, 1000), (120, 3000), (500, 0)):
        first, second = float(a + b / alpha), float(a + 2 * b / alpha)
        assert estimate(alpha, first, second) == pytest.approx(a + b, abs=1e-9)


def test_alpha_above_one():
    """If the target is slower in all rates, alpha exceeds one: the run emulates a faster machine than the target."""
    result = throttled(rates(4, 1, 4), rates(2, Fraction(1, 4), 2))
    assert result.alpha == 2
    assert result.registers() == {"compute": 0, "link": 1 << 15, "memory": 0}


@pytest.mark.parametrize(("execution", "target", "message"), [
    (rates(4, 0, 4), rates(4, 1, 4), "Rate link of the execution machine must be positive, not 0"),
    (rates(4, 1, 4), rates(4, 1, 0), "Rate memory of the target must be positive, not 0"),
    (rates(4, 1, 4), {"link": Fraction(1)}, "Machines must have rates of the same parts, not compute, link, memory "
                                            "and link"),
    ({}, {}, "Machines must have rates of the same parts, not none and none"),
    (rates(4, 1, 4), rates(1 << 18, 1, 4), "Throttle of link must be at least 1 of 65,536 cycles, not 0.5: the "
                                           "target is too far from the execution machine"),
])
def test_refused(execution, target, message):
    refuses(message, lambda: throttled(execution, target).registers(slower=2))


def test_least_rate():
    """If a throttle rate would be too low for the second, slower run, this is reported before the first run
    begins."""
    throttle = Throttled(Fraction(1), {"link": Fraction(1, 1 << 16)})
    assert throttle.registers() == {"link": 1}
    with pytest.raises(ValueError, match=r"^Throttle of link must be at least 1 of 65,536 cycles, not 0.5: "):
        throttle.registers(slower=2)
