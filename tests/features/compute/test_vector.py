# amaranth: UnusedElaboratable=no
import dataclasses
import functools

import numpy as np
import pytest

from hdl.features.compute.layer_list import PADDING
from hdl.features.compute.vector import VectorUnit
from sim.golden.features.compute.vector import cross_entropy
from sim.golden.features.compute.vector_cycles import VectorCycles
from sim.streams import stall_array
from sim.verilated.vectors import Unit
from tests.features.compute.vector_jobs import ANSWER, KINDS, MEMORY_ROWS, Case, draw, result_of, run
from tests.refusals import refused

#: Number of lanes and units, maximum columns, DSP blocks, interval and sequence support of the simulated units.
UNITS = ((4, 4, 64, 4, 2, True), (2, 2, 8, 1, 4, False), (2, 2, 8, 1, 4, True))


@functools.cache
def _unit(lanes, units, columns, dsps, interval, sequences):
    component = VectorUnit(lanes=lanes, memory_rows=MEMORY_ROWS, units=units, columns=columns, dsps=dsps,
                           interval=interval, sequences=sequences)
    golden = VectorCycles(units=units, interval=interval, quotient_latency=component.quotient_latency, answer=ANSWER,
                          product_latency=component.product_latency)
    return component, Unit(component), golden


def _quiet(unit_of, case, *, seed=1, before=None):
    """Run a job with memories that never stall, check the cycles against the model, and return them."""
    _, unit, golden = _unit(*unit_of)
    want = golden.job(case.job.rows, case.job.columns, loss_lane=case.job.loss_lane, softmax=case.job.softmax)
    willing = np.arange(want + 1) >= 3 + ANSWER
    _, done = run(unit, [case], lanes=unit_of[0], columns=unit_of[2], cycles=want + 1, seed=seed,
                  willing={"response": willing}, before=before, sequences=unit_of[-1])
    assert done.tolist() == [want], f"{case.job}, {seed=}"
    return want


test_parameters = refused(VectorUnit, {"lanes": 4, "memory_rows": 64}, [
    ({"lanes": 1}, "Lane count must be 2, 4 or 8, not 1"),
    ({"memory_rows": 1}, "Row count must be an integer of at least 2, not 1"),
    ({"units": 1}, "Unit count must be 2 or 4, not 1"),
    ({"units": 4.0}, "Unit count must be 2 or 4, not 4.0"),
    ({"columns": 1}, "Column count must be a power of two of at least 2, not 1"),
    ({"columns": 48}, "Column count must be a power of two of at least 2, not 48"),
    ({"dsps": 3}, "DSP block count must be 4, 2 or 1, not 3"),
    ({"interval": 1}, "Interval must be 2, 4 or 8, not 1"),
])


@pytest.mark.parametrize("unit", UNITS)
def test_cycles(unit):
    """The closed form gives the exact cycle count for all kinds of numbers and for one or more blocks of rows."""
    lanes, units, columns, *_, sequences = unit
    generator = np.random.default_rng(1)
    shapes = [(1, 1), (1, columns), (16 * units, columns), (16 * units + 1, 3), (48 * units, 2), (30, 8), (29, 7)]
    shapes += [(int(generator.integers(1, 35 * units)), int(generator.integers(1, columns + 1))) for _ in range(30)]
    for seed, (rows, count) in enumerate(shapes):
        for function in range(1 + sequences):
            case = draw(generator, KINDS[seed % len(KINDS)], rows, count, lanes=lanes, function=function)
            _quiet(unit, case, seed=seed)


def test_share_of_digits():
    """The loss of the digits network (thirty rows of ten scores) takes at most 3,000 cycles."""
    generator = np.random.default_rng(1)
    assert _quiet(UNITS[0], draw(generator, "ordinary", 30, 10, lanes=4)) <= 3000
    assert _unit(*UNITS[0])[2].job(30, 10) == 2392


@pytest.mark.parametrize("unit", UNITS)
def test_stalls(unit):
    """Consecutive valid and invalid jobs give the same bits under any pattern of memory stalls."""
    lanes, units, columns, *_, sequences = unit
    for seed, (kind, rate) in enumerate((
            ("none", 1.0), ("geometric", 0.5), ("geometric", 0.1), ("alternating", 0.5), ("freeze", 0.5))):
        print(f"seed {seed}")
        generator = np.random.default_rng(seed)
        cases = [draw(generator, KINDS[number % len(KINDS)], int(generator.integers(1, 20 * units)),
                      int(generator.integers(1, min(columns, 12) + 1)), lanes=lanes,
                      wrong=0.3 * (number % 3 == 0), function=int(sequences and generator.integers(2)))
                 for number in range(10)]
        cases[3] = draw(generator, "ordinary", 2, columns + 1, lanes=lanes)
        cases[5] = draw(generator, "ordinary", 2, 2, lanes=lanes, function=1 + sequences)
        length = 200_000
        patterns = [stall_array(kind, length, seed=seed + number, rate=rate) for number in range(5)]
        run(_unit(*unit)[1], cases, lanes=lanes, columns=columns, cycles=length, seed=seed,
            willing={"job": patterns[0], "response": patterns[1]},
            ready={"request": patterns[2], "write": patterns[3]}, settled=patterns[4].astype(np.uint8),
            sequences=sequences)


def _given(scores, labels, **places):
    case = draw(np.random.default_rng(1), "ordinary", *scores.shape, lanes=4)
    return Case(case.job, np.ascontiguousarray(scores, np.float32).view(np.uint32), np.array(labels))


def test_known_answers():
    """Known exponentials: the first element of the gradient for a row (x, 0) is exp(x) / (exp(x) + 1)."""
    powers = {-1e-6: 0x3F7F_FFEF, -0.5: 0x3F1B_4598, -1: 0x3EBC_5AB2, -10: 0x383E_6BCE, -87.5: 0x006C_B2BC, -10000: 0}
    scores = np.array([[x, 0] for x in powers], np.float32)
    case = _given(scores, [1] * len(powers))
    result = cross_entropy(case.scores, case.labels)
    for row, bits in enumerate(powers.values()):
        power = np.uint32(bits).view(np.float32)
        assert result.gradient[row, 0] == (power / (power + np.float32(1))).view(np.uint32)
    _quiet(UNITS[0], case)


def test_masked_rows():
    """If all N scores of a row are -10,000, each column has a softmax of 1 / N."""
    for count in (1, 2, 3, 10, 64):
        case = _given(np.full((5, count), -10000), [0, count - 1, count // 2, 0, 0])
        gradient = cross_entropy(case.scores, case.labels).gradient.view(np.float32)
        share = np.float32(1) / np.float32(count)
        assert set(gradient.ravel().tolist()) <= {share, share - np.float32(1)}
        _quiet(UNITS[0], case)


def _special(number):
    """Rows of scores with a special number at each position, then a row of only that number and one of its negative.
    """
    return np.concatenate([np.where(np.eye(6, dtype=bool), np.float32(number), np.float32(0.5)),
                           np.full((1, 6), number), np.full((1, 6), -number)])


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0])
def test_special_scores(special):
    _quiet(UNITS[0], _given(_special(special), [0, 1, 2, 3, 0, 5, 1, 2]))


def test_wrong_labels():
    """A wrong label affects only its own row, and raises ``bad`` only at the end of its job."""
    generator = np.random.default_rng(1)
    scores = generator.standard_normal((6, 5))
    right = _given(scores, [0, 1, 2, 3, 4, 0])
    wrong = _given(scores, [0, 5, 2, (1 << 32) - 5, 4, 64])
    whole, part = (cross_entropy(case.scores, case.labels) for case in (right, wrong))
    assert part.wrong
    assert not whole.wrong
    same = [0, 2, 4]
    np.testing.assert_array_equal(part.gradient[same], whole.gradient[same])
    assert part.gradient.view(np.float32)[1].sum() == pytest.approx(1)
    run(_unit(*UNITS[0])[1], [wrong, right, wrong], lanes=4, columns=64, cycles=3000, sequences=True)
    for seed in range(3):
        _quiet(UNITS[0], draw(generator, "ordinary", 20, 3, lanes=4, wrong=1.0), seed=seed)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 3e38, 1e-45, -10_000])
def test_special_softmax(special):
    case = _given(_special(special), [9] * 8)
    _quiet(UNITS[0], dataclasses.replace(case, job=dataclasses.replace(case.job, function=1)))


def test_padding():
    """Padding rows have no loss and zero gradients for any scores; without ``sequences`` they are errors."""
    generator = np.random.default_rng(2)
    scores = generator.standard_normal((20, 5)).astype(np.float32)
    scores[3], scores[4, 2] = np.nan, np.inf
    labels = generator.integers(5, size=20)
    labels[[3, 4, 5, 19]] = PADDING
    case = _given(scores, labels)
    assert not result_of(case, sequences=True).wrong
    _quiet(UNITS[0], case)
    labels[7] = 5
    _quiet(UNITS[0], _given(scores, labels))
    case = dataclasses.replace(draw(generator, "ordinary", 4, 3, lanes=2), labels=np.array([0, PADDING, 1, 2]))
    assert result_of(case, sequences=False).wrong
    _quiet(UNITS[1], case)


def test_refused_jobs():
    """Jobs with a zero size, too many columns or an unknown function are rejected without memory accesses."""
    generator = np.random.default_rng(1)
    for of in UNITS[1:]:
        component, unit, _ = _unit(*of)
        for rows, columns, function in ((0, 3, 0), (3, 0, 0), (3, 9, 0), (3, 4095, 0), (3, 3, 2), (3, 3, 255),
                                        (0, 3, 1), (3, 9, 1), *(() if of[-1] else ((3, 3, 1),))):
            case = draw(generator, "ordinary", rows, columns, lanes=2, function=function)
            _, done = run(unit, [case], lanes=2, columns=8, cycles=200, sequences=of[-1])
            assert done.tolist() == [component.checked]


@pytest.mark.parametrize("unit", UNITS)
def test_reset(unit):
    """A reset at any point in a job does not affect the next job."""
    lanes, units, *_ = unit
    generator = np.random.default_rng(1)
    for function in range(1 + unit[-1]):
        first = draw(generator, "bits", 40 * units, 8, lanes=lanes, wrong=0.5, function=function)
        end = _unit(*unit)[2].job(40 * units, 8, softmax=bool(function))
        for cut in (2, 5, *np.linspace(30, end - 3, 20).astype(int).tolist()):
            case = draw(generator, "ordinary", 5, 4, lanes=lanes, function=function and cut % 2)
            _quiet(unit, case, before=(first, cut))
