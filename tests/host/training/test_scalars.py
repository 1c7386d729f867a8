"""Scalar binary64 functions, compared with Python's math library."""

import math
import random

import pytest

from host.training.scalars import exponential, logarithm, power


def test_values():
    generator = random.Random(1)
    for _ in range(300):
        x, y = generator.uniform(0.001, 50), generator.uniform(-30, 30)
        assert power(x, y) == pytest.approx(x ** y, rel=1e-15)
        assert exponential(y) == pytest.approx(math.exp(y), rel=1e-15)
        assert logarithm(x) == pytest.approx(math.log(x), rel=1e-15)


def test_special_values():
    assert (power(0.0, 3), power(8.0, 0.0), power(1.0, 1000), power(0.5, 2)) == (0, 1, 1, 0.25)
    assert (exponential(0.0), logarithm(1.0), exponential(-1000.0)) == (1, 0, 0)
    assert power(0.9, 100_000) == 0
