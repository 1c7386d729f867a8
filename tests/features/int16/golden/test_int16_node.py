import dataclasses

import numpy as np
import pytest

from hdl.masking.job_list import MASK_JOB_WORDS
from host.driver.masking import Mask, MaskJob, plan
from sim.golden import fixed_point, masking, zero_value
from sim.golden.features.int16 import int16_node as model
from sim.golden.optimizer import Rule
from tests.refusals import refused

ONE = 1 << 16
LEAST, MOST = -32768, 32767


def elements(generator, count, *, density=0.5):
    values = generator.integers(LEAST, MOST + 1, count)
    values[generator.random(count) >= density] = 0
    return values


def test_words_of_the_host():
    words = np.array([0, 1, 0xFFFF, 0x8000, 0x1234_7FFF, 0xABCD_8000], np.uint32)
    assert model.from_words(words).tolist() == [0, 1, -1, LEAST, MOST, LEAST]
    assert model.to_words([0, 1, -1, LEAST, MOST]).tolist() == [0, 1, 0xFFFF_FFFF, 0xFFFF_8000, 0x7FFF]


# --- compression


@pytest.mark.parametrize(("values", "words"), [
    ([], []),
    ([0] * 32, [0]),
    ([0] * 33, [0, 0]),
    ([5], [1, 5]),
    ([-1], [1, 0xFFFF]),
    ([0, 7, 0, -2], [0b1010, 0xFFFE_0007]),
    ([*[0] * 31, LEAST, MOST], [1 << 31, 0x8000, 1, 0x7FFF]),
    ([1, 2, 3, *[0] * 29, 4], [0b111, 0x0002_0001, 3, 1, 4]),
])
def test_compressed_words(values, words):
    assert model.encode(values).tolist() == words
    assert model.decode(words, len(values)).tolist() == values
    assert model.group_sizes(values).sum() == len(words)


@pytest.mark.parametrize("density", [0, 0.05, 0.5, 1])
def test_round_trip(density):
    generator = np.random.default_rng(3)
    for count in (1, 31, 32, 33, 64, 650, 1000):
        values = elements(generator, count, density=density)
        words = model.encode(values)
        np.testing.assert_array_equal(model.decode(words, count), values)
        assert model.group_sizes(values).sum() == len(words)
        # Group marks are the same as on a full node; elements are sent one per word.
        full = zero_value.encode(model.to_words(values))
        starts = np.cumsum([0, *zero_value.group_sizes(full)[:-1]])
        marks = np.cumsum([0, *model.group_sizes(values)[:-1]])
        np.testing.assert_array_equal(words[marks], full[starts])


test_bad_streams = refused(model.decode, {}, [
    ({"words": [1, 5], "count": 33}, "Stream must have 2 groups, not 1"),
    ({"words": [0b111, 5], "count": 3}, "Stream must end with a whole group, not inside of the one at word 0"),
    ({"words": [0, 0b1], "count": 40}, "Stream must end with a whole group, not inside of the one at word 1"),
    ({"words": [1, 5, 0], "count": 3}, "Stream must have 2 words for 3 elements, not 3"),
])


# --- updates


@pytest.mark.parametrize(("gradient", "weight", "scale", "rate", "expected"), [
    (3, 100, ONE, ONE, 97),
    (3, 100, ONE, ONE // 2, 98),          # 1.5 is rounded to 2
    (-3, 100, ONE, ONE // 2, 101),        # -1.5 is rounded to -1
    (1, 0, ONE // 2, ONE, -1),            # 0.5 is rounded to 1
    (-1, 0, ONE // 2, ONE, 0),            # -0.5 is rounded to 0
    (1, 0, ONE // 2 - 1, ONE, 0),
    (MOST, MOST, ONE, -ONE, MOST),        # the weight saturates at its largest value
    (MOST, LEAST, ONE, ONE, LEAST),
    (MOST, 0, 2 * ONE - 1, ONE, -MOST),   # the step saturates
    (LEAST, 0, 2 * ONE - 1, ONE, MOST),
    (LEAST, 0, -2 * ONE, ONE, -MOST),
    (LEAST, -5, ONE, 2 * ONE - 1, MOST),
    (0, 12, ONE, ONE, 12),
    (5, 12, ONE, 0, 12),
])
def test_update_by_hand(gradient, weight, scale, rate, expected):
    update = model.update([gradient], [weight], gradient_scale=scale, learning_rate=rate)
    assert update.weights.tolist() == [expected]
    assert update.words == 1 + (gradient != 0)


def test_scalars_are_low_bits_of_registers():
    generator = np.random.default_rng(5)
    gradients, weights = elements(generator, 64), elements(generator, 64)
    for scale, rate in generator.integers(-2 * ONE, 2 * ONE, (20, 2)).tolist():
        expected = model.update(gradients, weights, gradient_scale=scale, learning_rate=rate).weights
        for above in (0, 0xFFFC_0000, 0x1234_0000):
            registers = {"gradient_scale": scale & 0x3FFFF | above, "learning_rate": rate & 0x3FFFF | above}
            np.testing.assert_array_equal(model.update(gradients, weights, **registers).weights, expected)


def test_update_is_that_of_the_fixed_point_lane():
    generator = np.random.default_rng(6)
    arithmetic = fixed_point.Fixed(width=16, rules=(Rule.SGD,))
    for _ in range(50):
        gradients, weights = elements(generator, 200), elements(generator, 200, density=1)
        scale, rate = generator.integers(-2 * ONE, 2 * ONE, 2).tolist()
        bits, _ = arithmetic.update(
            fixed_point.to_bits(gradients, 16), fixed_point.to_bits(weights, 16), [],
            fixed_point.FixedSettings(Rule.SGD, scale, rate))
        update = model.update(gradients, weights, gradient_scale=scale, learning_rate=rate)
        np.testing.assert_array_equal(fixed_point.to_bits(update.weights, 16), bits)


def test_every_gradient():
    """The update for every possible gradient agrees with exact arithmetic."""
    gradients = np.arange(LEAST, MOST + 1)
    for scale, rate in ((ONE, 1234), (ONE // 2, ONE), (-ONE, 777), (2 * ONE - 1, 2 * ONE - 1), (3, -2 * ONE)):
        step = np.clip(np.floor(gradients * (scale / ONE) + 0.5), LEAST, MOST)  # exact: 34 bits fit in binary64
        expected = np.clip(100 - np.floor(step * (rate / ONE) + 0.5), LEAST, MOST)
        update = model.update(gradients, np.full(len(gradients), 100), gradient_scale=scale, learning_rate=rate)
        np.testing.assert_array_equal(update.weights, expected)


# --- sparse gradients


@pytest.mark.parametrize(("gradient", "error", "threshold", "kept", "left", "dropped"), [
    (3, 0, 3, 3, 0, 0),
    (2, 0, 3, 0, 2, 1),
    (-3, 0, 3, -3, 0, 0),
    (-2, 0, 3, 0, -2, 1),
    (2, 1, 3, 3, 0, 0),
    (2, -5, 3, -3, 0, 0),
    (0, 0, 0, 0, 0, 0),
    (5, -5, 1, 0, 0, 1),
    (MOST, 1, 32767, MOST, 0, 0),
    (MOST, MOST, 32768, 0, MOST, 1),
    (LEAST, -1, 32768, LEAST, 0, 0),
    (LEAST, 0, 32769, 0, LEAST, 1),
    (LEAST, 0, 65535, 0, LEAST, 1),
    (1, 0, 0x7_0002, 0, 1, 1),
])
def test_sparsify_by_hand(gradient, error, threshold, kept, left, dropped):
    result = model.sparsify([gradient], [error], threshold)
    assert (result.gradients.tolist(), result.errors.tolist(), result.dropped) == ([kept], [left], dropped)


@pytest.mark.parametrize("threshold", [0, 1, 1000, 20000, 32768, 40000])
def test_sparsify_loses_nothing(threshold):
    generator = np.random.default_rng(7)
    gradients, errors = elements(generator, 3000), elements(generator, 3000)
    result = model.sparsify(gradients, errors, threshold)
    np.testing.assert_array_equal(result.gradients + result.errors, np.clip(gradients + errors, LEAST, MOST))
    assert not (result.gradients * result.errors).any()
    assert (np.abs(result.gradients[result.gradients != 0]) >= threshold).all()
    assert (np.abs(result.errors) < max(threshold, 1)).all()
    assert result.dropped == 3000 - np.count_nonzero(np.abs(result.gradients + result.errors) >= threshold)


# --- masks


TRIANGLE = masking.Job(rows=2, columns=3, mask=masking.Mask(triangle=True))


def listed(*jobs):
    return np.concatenate([model.job_elements(job) for job in jobs])


def test_mask_by_hand():
    result = model.mask([1, 2, 3, 4, 5, 6], listed(TRIANGLE), 0xFFFF_8000)
    assert result.elements.tolist() == [1, LEAST, LEAST, 4, 5, LEAST]
    assert (result.replaced, result.bad) == (3, None)


def test_jobs_are_those_of_a_full_node():
    """A list of mask jobs has the same words as on a full node, split into 16-bit halves."""
    generator = np.random.default_rng(8)
    for _ in range(20):
        numbers = {name: int(generator.integers(4096)) for name in (
            "length_rows", "length_columns", "first_row", "end_row", "first_column", "end_column", "width")}
        kinds = {name: bool(generator.integers(2)) for name in ("triangle", "padding", "rectangle_inverse", "band")}
        mask = Mask(diagonal=int(generator.integers(-4096, 4096)), **numbers, **kinds)
        count, rows, columns = generator.integers(1, 9, 3).tolist()
        job = MaskJob(matrices=np.zeros((count, rows, columns), np.float32), mask=mask)
        [region] = plan([job], lanes=1, elements=1000, words=64)
        halves = region.words[:MASK_JOB_WORDS].astype("<u4").view("<u2")
        small = masking.Job(rows=rows, columns=columns, count=count, mask=masking.Mask(**vars(mask)))
        np.testing.assert_array_equal(model.job_elements(small) & 0xFFFF, halves)


def test_masks_are_those_of_the_definition():
    generator = np.random.default_rng(9)
    for _ in range(100):
        jobs = []
        for _ in range(generator.integers(1, 4)):
            kinds = {name: bool(generator.random() < 0.4) for name in (
                "triangle", "triangle_inverse", "padding", "rectangle", "rectangle_inverse", "band")}
            numbers = {name: int(generator.integers(8)) for name in (
                "length_rows", "length_columns", "first_row", "end_row", "first_column", "end_column", "width")}
            count, rows, columns = generator.integers(1, 8, 3).tolist()
            jobs.append(masking.Job(rows=rows, columns=columns, count=count, mask=masking.Mask(
                **kinds, **numbers, diagonal=int(generator.integers(-8, 8)))))
        values = generator.integers(LEAST, MOST + 1, sum(job.elements for job in jobs))
        instead = int(generator.integers(LEAST, MOST + 1))
        kept = np.concatenate([masking.kept(job).reshape(-1) for job in jobs])
        result = model.mask(values, listed(*jobs), instead)
        np.testing.assert_array_equal(result.elements, np.where(kept, values, instead))
        assert (result.replaced, result.bad) == ((~kept).sum(), None)


def changed(index, value):
    """Return a list of two jobs, the second with one changed element that makes it invalid."""
    memory = listed(TRIANGLE, TRIANGLE)
    memory[model.JOB_ELEMENTS + index] = value
    return memory


@pytest.mark.parametrize("memory", [
    changed(0, 1 << 6),                       # an external mask, which an int16 node does not support
    changed(1, 0), changed(2, 0), changed(3, 0),
    changed(4, 5), changed(4, 7), changed(5, 1),
    changed(2, 4096), changed(3, -1),         # rows and columns with too many bits
    changed(6, 4096), changed(6, -1), changed(7, 1), changed(7, -1),
    *(changed(index, 4096) for index in range(8, 15)),
    listed(dataclasses.replace(TRIANGLE), dataclasses.replace(TRIANGLE, count=2)),  # too many mask elements
    listed(TRIANGLE),                         # the list of jobs ends too early
    listed(TRIANGLE, TRIANGLE)[:-1],
])
def test_bad_jobs(memory):
    values = np.arange(1, 13)
    result = model.mask(values, memory, -9)
    assert result.elements.tolist() == [1, -9, -9, 4, 5, -9, *range(7, 13)]
    assert (result.replaced, result.bad) == (3, 1)


@pytest.mark.parametrize("memory", [changed(0, 1 << 7 | 1), changed(15, 99)])
def test_what_is_not_looked_at(memory):
    result = model.mask(np.arange(1, 13), memory, -9)
    assert (result.replaced, result.bad) == (6, None)


def test_extreme_diagonals():
    for diagonal, replaced in ((-4096, 6), (4095, 0)):
        job = masking.Job(rows=2, columns=3, mask=masking.Mask(triangle=True, diagonal=diagonal))
        assert model.mask(np.ones(6), listed(job), 0).replaced == replaced


def test_no_elements():
    result = model.mask([], [], 7)
    assert (result.elements.size, result.replaced, result.bad) == (0, 0, None)
