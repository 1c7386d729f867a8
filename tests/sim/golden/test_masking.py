import ml_dtypes
import numpy as np
import pytest

from sim.golden import masking as model
from sim.golden.masking import Element, Job, Mask
from tests.refusals import refuses

TYPES = {Element.FP32: np.float32, Element.BF16: ml_dtypes.bfloat16, Element.FP16: np.float16}
#: Smallest row maximum for which masked positions are guaranteed to get zero weights.
MIN_MAXIMUM = -9000.0


# --- masks computed by hand


@pytest.mark.parametrize(("mask", "picture"), [
    (Mask(), ["####", "####", "####"]),
    (Mask(triangle=True), ["#...", "##..", "###."]),
    (Mask(triangle=True, diagonal=1), ["##..", "###.", "####"]),
    (Mask(triangle=True, diagonal=-1), ["....", "#...", "##.."]),
    (Mask(triangle_inverse=True), [".###", "..##", "...#"]),
    (Mask(padding=True, length_rows=2, length_columns=3), ["###.", "###.", "...."]),
    (Mask(padding=True), ["....", "....", "...."]),
    (Mask(rectangle=True, first_row=1, end_row=3, first_column=1, end_column=3), ["....", ".##.", ".##."]),
    (Mask(rectangle_inverse=True, first_row=1, end_row=2, first_column=0, end_column=3), ["####", "...#", "####"]),
    (Mask(band=True, width=1), ["##..", "###.", ".###"]),
    (Mask(band=True), ["#...", ".#..", "..#."]),
    (Mask(triangle=True, band=True, width=1), ["#...", "##..", ".##."]),
    (Mask(triangle=True, triangle_inverse=True), ["....", "....", "...."]),
    (Mask(triangle=True, padding=True, length_rows=3, length_columns=2), ["#...", "##..", "##.."]),
])
def test_kinds(mask, picture):
    assert ["".join(".#"[kept] for kept in row) for row in mask.generated(3, 4).astype(int).tolist()] == picture


def test_external_words():
    """The mask of the second of two 5 x 5 matrices starts in the middle of a word, at bit 25."""
    job = Job(rows=5, columns=5, count=2, mask=Mask(external=True))
    mask = np.zeros((2, 5, 5), bool)
    mask[0, 0, 0] = mask[0, 1, 2] = mask[1, 0, 0] = mask[1, 4, 4] = True
    assert model.words(mask).tolist() == [1 << 25 | 1 << 7 | 1, 1 << 49 - 32]
    np.testing.assert_array_equal(model.bits(job, model.words(mask)), mask)
    np.testing.assert_array_equal(model.kept(job, model.words(mask)), mask)
    assert model.words_fetched(job) == 2
    assert model.words_fetched(Job(rows=5, columns=5, count=2, mask=Mask(triangle=True))) == 0
    assert model.words_fetched(Job(rows=64, columns=64, mask=Mask(external=True))) == 64 * 64 // 32


def test_external_errors():
    job = Job(rows=5, columns=7, mask=Mask(external=True))
    refuses("External mask must be 2 words, not 3", model.kept, job, [1, 2, 3])
    refuses("Words must be given for an external mask, not None", model.kept, job)


def test_external_is_combined():
    job = Job(rows=3, columns=3, mask=Mask(external=True, triangle=True))
    want = np.tril(np.ones((3, 3), bool))
    want[2, 0] = False
    np.testing.assert_array_equal(model.kept(job, [0b111_111_111 & ~(1 << 6)])[0], want)


def test_apply():
    values = np.array([[1, 2], [3, 4]], np.uint16)
    got = model.apply(values, [[True, False], [False, True]], 0xF0E2)
    assert got.dtype == np.uint16
    assert got.tolist() == [[1, 0xF0E2], [0xF0E2, 4]]


def test_beats():
    """With four lanes, rows of five elements are masked in the expected beats."""
    job = Job(rows=2, columns=5, mask=Mask(triangle=True, diagonal=3))
    beats = model.mask_beats([job], 4)
    assert job.beats(4) == len(beats) == 4
    assert beats.mask.astype(int).tolist() == [[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    assert beats.keep.astype(int).tolist() == [[1, 1, 1, 1], [1, 0, 0, 0]] * 2
    assert beats.row_end.tolist() == [False, True, False, True]
    assert beats.last.tolist() == [False, False, False, True]
    assert not beats.word.any()
    assert model.data_beats(np.arange(10).reshape(1, 2, 5), 4, 99).tolist() == [
        [0, 1, 2, 3], [4, 99, 99, 99], [5, 6, 7, 8], [9, 99, 99, 99]]


def test_beats_that_need_words():
    """If there are 70 elements in rows of seven, and four lanes, the beats at elements 0, 32 and 64 need new mask
    words."""
    job = Job(rows=10, columns=7, mask=Mask(external=True))
    beats = model.mask_beats([job], 4, [np.ones((1, 10, 7), bool)])
    assert np.flatnonzero(beats.word).tolist() == [0, 9, 18]
    assert beats.word.sum() == model.words_fetched(job) == 3


def test_sparsify():
    """Sparsify the sums 1 + 1, 1 - 1, -0.5 - 0.5, -0.0 - 0.0, a NaN and an infinity, with thresholds around 1."""
    gradients = [0x3F80_0000, 0x3F80_0000, 0xBF00_0000, 0x8000_0000, 0xFFC0_1234, 0xFF80_0000]
    errors = [0x3F80_0000, 0xBF80_0000, 0xBF00_0000, 0x8000_0000, 0, 0]
    sums = [0x4000_0000, 0, 0xBF80_0000, 0x8000_0000, 0x7FC0_0000, 0xFF80_0000]

    def parted(threshold):
        kept, dropped = model.sparsify(gradients, errors, threshold)
        assert kept.dtype == dropped.dtype == np.uint32
        return kept.tolist(), dropped.tolist()

    assert parted(0) == parted(0x8000_0000) == (sums, [0] * 6)
    for level in (0x3F80_0000, 0xBF80_0000):
        assert parted(level) == ([sums[0], 0, sums[2], 0, *sums[4:]], [0, 0, 0, 0x8000_0000, 0, 0])
    assert parted(0x3F80_0001) == ([sums[0], 0, 0, 0, *sums[4:]], [0, 0, sums[2], 0x8000_0000, 0, 0])
    assert parted(0x7F80_0000) == ([0, 0, 0, 0, *sums[4:]], [*sums[:4], 0, 0])
    assert parted(0x7F80_0001) == ([0, 0, 0, 0, sums[4], 0], [*sums[:4], 0, sums[5]])
    assert parted(0x7FC0_0001) == ([0] * 6, sums)


def test_sparsify_loses_nothing():
    """If no sum is rounded, the elements sent in several steps and the remaining errors add up to the gradients."""
    generator = np.random.default_rng(1)
    gradients = generator.integers(-1000, 1001, (20, 500)).astype(np.float32)
    errors, sent = np.zeros(500, np.uint32), np.zeros(500)
    for gradient in gradients:
        kept, errors = model.sparsify(gradient.view(np.uint32), errors, 0x4480_0000)  # threshold of 1024
        assert ((kept == 0) | (np.abs(kept.view(np.float32)) >= 1024)).all()
        assert (np.abs(errors.view(np.float32)) < 1024).all()
        sent += kept.view(np.float32)
    np.testing.assert_array_equal(sent + errors.view(np.float32), gradients.sum(axis=0))


# --- the alternative value of masked positions, and softmax


def _value(format):
    return float(format.decode(np.array([model.alternative(format)]))[0])


def test_alternatives():
    assert _value(Element.FP32) == _value(Element.FP16) == -10000.0
    assert _value(Element.BF16) == float(ml_dtypes.bfloat16(-10000.0)) == -9984.0
    assert model.alternative(Element.INT8) == 0x80
    for format, dtype in TYPES.items():
        bits = np.array(-10000.0, dtype).view(f"u{format.width // 8}")
        assert model.alternative(format) == int(bits)
    with pytest.raises(ValueError, match=r"^Element format must be of floating point, not <Element.INT8"):
        model.softmax([[1]], Element.INT8)


@pytest.mark.parametrize("format", [Element.BF16, Element.FP16])
def test_masked_weight_is_zero_for_every_maximum(format):
    """Weights at masked positions are zero for every finite row maximum in the range, with one mask or two."""
    encodings = np.arange(1 << 16).astype(np.uint16)
    maxima = format.decode(encodings)
    encodings = encodings[np.isfinite(maxima) & (maxima >= MIN_MAXIMUM)]
    assert len(encodings) > 40_000
    masked = np.full_like(encodings, model.alternative(format))
    weights = model.softmax(np.stack([encodings, masked, encodings], axis=1), format)
    assert (weights[:, 1] == 0).all()
    assert (weights[:, [0, 2]] == 0.5).all()
    # As an independent reference, the same computation is done in the native type of the format.
    dtype = TYPES[format]
    with np.errstate(over="ignore"):
        difference = masked.view(dtype) - encodings.view(dtype)
        assert (np.exp(difference) == 0).all()


def test_masked_weight_is_zero_in_fp32():
    """Weights at masked positions are zero, whether the maximum of a row is at the limit, near a power of two, or
    random."""
    generator = np.random.default_rng(1)
    border = np.float32(MIN_MAXIMUM)
    powers = np.ldexp(np.float32(1), np.arange(-149, 128)).astype(np.float32)
    some = generator.integers(0, 1 << 32, 500_000, dtype=np.uint32).view(np.float32)
    single = np.array([border, np.nextafter(border, np.float32(0)), 0.0, np.finfo(np.float32).max], np.float32)
    maxima = np.concatenate([single, powers, np.nextafter(powers, np.float32(0)), -powers, some])
    maxima = maxima[np.isfinite(maxima) & (maxima >= border)]
    assert len(maxima) > 200_000
    encodings = maxima.view(np.uint32)
    masked = np.full_like(encodings, model.alternative(Element.FP32))
    assert (model.softmax(np.stack([masked, encodings], axis=1), Element.FP32) == [0, 1]).all()
    with np.errstate(over="ignore"):
        assert (np.exp(masked.view(np.float32) - maxima) == 0).all()


@pytest.mark.parametrize("format", TYPES)
def test_range_is_needed(format):
    """If a row's maximum is as low as the alternative value, masked positions get nonzero weights."""
    low = format.decode(np.array([model.alternative(format)]))
    weights = model.softmax(np.repeat(np.array([[model.alternative(format)]]), 2, axis=1), format)
    assert low[0] < MIN_MAXIMUM
    assert weights.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("format", TYPES)
def test_causal_softmax(format):
    """With causal and padding masks, softmax weights are zero exactly at the masked positions."""
    generator = np.random.default_rng(2)
    dtype = TYPES[format]
    scores = generator.normal(0, 3, (4, 13, 13)).astype(dtype).view(f"u{format.width // 8}")
    job = Job(rows=13, columns=13, count=4,
              mask=Mask(triangle=True, padding=True, length_rows=13, length_columns=9))
    mask = model.kept(job)
    weights = model.softmax(model.apply(scores, mask, model.alternative(format)), format)
    assert (weights[~mask] == 0).all()
    assert (weights[mask] > 0).all()
    # A softmax over only the unmasked elements gives the same weights.
    for row in range(13):
        alone = model.softmax(scores[0, row:row + 1, :min(row + 1, 9)], format)
        np.testing.assert_array_equal(weights[0, row, :min(row + 1, 9)], alone[0])


@pytest.mark.parametrize("columns", [1, 2, 5, 8, 70])
@pytest.mark.parametrize("format", TYPES)
def test_fully_masked_row_is_uniform(format, columns):
    scores = np.full((1, columns), model.alternative(format))
    want = float(np.float32(1).astype(TYPES[format]) / np.asarray(columns, TYPES[format]))
    assert model.softmax(scores, format).tolist() == [[want] * columns]
