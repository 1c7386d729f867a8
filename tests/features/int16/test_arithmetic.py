"""Tests of the int16 node's arithmetic: hdl/features/int16/arithmetic.py."""

import numpy as np
import pytest

from hdl.features.int16.arithmetic import Arithmetic, Term
from sim.golden.features.int16 import int16_node
from sim.verilated.vectors import Unit

ENDS = np.array([-32768, -32767, -1, 0, 1, 32766, 32767])
FACTORS = np.array([-(1 << 17), -(1 << 16), -(1 << 15), -1, 0, 1, (1 << 15) - 1, 1 << 15, 1 << 16, (1 << 17) - 1])


@pytest.fixture(scope="module")
def unit():
    return Unit(Arithmetic())


def check(unit, factor, value, base, addend, term):
    """Apply ``factor`` and ``value`` in one cycle and the other inputs in the next, then compare the results."""
    factor, value, base, addend, term = np.broadcast_arrays(factor, value, base, addend, term)
    before = {"factor": factor & 0x3FFFF, "value": value & 0xFFFF}
    after = {"base": base & 0xFFFF, "addend": addend & 0xFFFF, "term": term}
    inputs = {name: np.append(array, 0) for name, array in before.items()}
    inputs |= {name: np.insert(array, 0, 0) for name, array in after.items()}
    rounded = (factor * value + (1 << 15)) >> 16
    total = np.choose(term, [base + rounded, base - rounded, base + addend])
    np.testing.assert_array_equal(int16_node.from_words(unit.run(inputs)["o"][1:]), int16_node.saturate(total))


@pytest.mark.parametrize("term", [term.value for term in Term])
def test_every_value(unit, term):
    """Results are correct for all values, with factors and bases at and near their limits."""
    for factor in FACTORS:
        for base in ENDS:
            check(unit, factor, np.arange(-32768, 32768), base, 0, term)


@pytest.mark.parametrize("sign", [-1, 1])
def test_ties(unit, sign):
    """Products halfway between two integers are rounded up, whatever their sign, before they are added or subtracted.
    """
    odd = np.arange(-32767, 32768, 2)
    for base in ENDS:
        check(unit, sign << 15, odd, base, 0, 0)
        check(unit, sign << 15, odd, base, 0, 1)


def test_sums(unit):
    for base in ENDS:
        check(unit, 0x12345, 77, base, np.arange(-32768, 32768), Term.PLUS_ADDEND.value)


@pytest.mark.parametrize("seed", [1, 2])
def test_random(unit, seed):
    generator = np.random.default_rng(seed)
    count = 1_000_000
    check(unit, generator.integers(-1 << 17, 1 << 17, count), generator.integers(-32768, 32768, count),
          generator.integers(-32768, 32768, count), generator.integers(-32768, 32768, count),
          generator.integers(0, 3, count))
