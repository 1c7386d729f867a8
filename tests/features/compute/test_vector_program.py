import numpy as np
import pytest

from hdl.features.compute import vector_program
from hdl.features.compute.vector_program import EXPONENTIAL, LOGARITHM, STEPS, SUM, THREADS, Loop, Take
from sim.golden import exponential, summation
from tests.features.compute.program import Threads

_NEGATIVE_ZERO = 0x8000_0000


def _exponentials(x):
    threads = Threads(len(x))
    for step in EXPONENTIAL:
        threads.run(step, element=x.view(np.uint32), largest=_NEGATIVE_ZERO)
    return threads.result


def _logarithms(x):
    threads = Threads(len(x))
    threads.result = x.view(np.uint32)
    for step in LOGARITHM[:-1]:
        threads.run(step, chosen=_NEGATIVE_ZERO)
    return threads.result


def test_exponential():
    """The steps for the exponential match the golden model bit for bit, for all magnitudes and special values."""
    generator = np.random.default_rng(1)
    special = np.array([0, -0.0, -1e-45, -87.5, -104, -103.99, -110, -10000, -np.inf, np.nan], np.float32)
    wide = -np.abs(generator.standard_normal(50_000)) * 2.0 ** generator.integers(-40, 8, 50_000)
    x = np.concatenate([special, wide, -110 * generator.random(50_000)]).astype(np.float32)
    np.testing.assert_array_equal(_exponentials(x), exponential.exp(x).view(np.uint32))


@pytest.mark.parametrize(("x", "want"), [
    (-1e-6, 0x3F7F_FFEF), (-0.5, 0x3F1B_4598), (-1, 0x3EBC_5AB2), (-10, 0x383E_6BCE), (-87.5, 0x006C_B2BC),
    (-10000, 0), (0, 0x3F80_0000),
])
def test_known_exponentials(x, want):
    assert _exponentials(np.array([x], np.float32)).tolist() == [want]


def test_logarithm():
    generator = np.random.default_rng(2)
    wide = (1 + generator.random(50_000)) * 2.0 ** generator.integers(0, 12, 50_000)
    near = 1 + generator.random(50_000) / 1000
    x = np.concatenate([[1, 2, 4095, np.nan], wide, near]).astype(np.float32)
    np.testing.assert_array_equal(_logarithms(x), exponential.log(x).view(np.uint32))


def test_cross_entropy():
    """Running all steps in order yields, for one row per thread, the total and the loss of the row."""
    generator = np.random.default_rng(3)
    scores = (4 * generator.standard_normal((THREADS, 10))).astype(np.float32)
    labels = generator.integers(10, size=THREADS)
    largest = summation.maxima(scores)
    powers = np.zeros(scores.shape, np.uint32)
    chosen = np.zeros(THREADS, np.uint32)
    for column in range(10):
        threads = Threads(THREADS)
        for number, step in enumerate(EXPONENTIAL):
            threads.run(step, element=scores[:, column].view(np.uint32), largest=(-largest[:, 0]).view(np.uint32))
            if EXPONENTIAL[number + 1:] and EXPONENTIAL[number + 1].take == Take.CHOSEN:
                chosen = np.where(labels == column, threads.result, chosen)
        powers[:, column] = threads.result
    threads.result = np.full(THREADS, SUM[1].constant, np.uint32)
    for column in range(10):
        threads.run(SUM[1], element=powers[:, column])
    totals = threads.result
    np.testing.assert_array_equal(totals, summation.row_sums(powers.view(np.float32))[:, 0].view(np.uint32))
    for step in LOGARITHM[:-1]:
        threads.run(step, chosen=chosen ^ _NEGATIVE_ZERO)
    want = [summation.cross_entropy(row[None], np.array([label]))[0]
            for row, label in zip(scores, labels, strict=True)]
    np.testing.assert_array_equal(threads.result, np.array(want, np.float32).view(np.uint32))


def test_table():
    """Loops start and end at the steps that the sequencer expects, and constants match the golden model."""
    assert [(number, step.loop) for number, step in enumerate(STEPS) if step.loop != Loop.NEXT] == [
        (len(EXPONENTIAL) - 1, Loop.ELEMENTS), (len(EXPONENTIAL) + 1, Loop.COLUMNS), (len(STEPS) - 2, Loop.END)]
    assert vector_program.LEAST == exponential.LEAST
    assert vector_program.ROOT_HALF_FRACTION == exponential.ROOT_HALF & 0x7F_FFFF
    constants = {number for step in STEPS for number in (step.b, step.constant)}
    assert constants >= {*exponential.EXP, *exponential.LOG, exponential.LOG2_E, exponential.MAGIC,
                         exponential.LN2_HIGH, exponential.LN2_LOW}
