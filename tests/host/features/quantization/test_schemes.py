import itertools

import numpy as np
import pytest

from host.features.quantization.schemes import BITS, Extrema, Rounding, Scheme, quantize_weights
from tests.refusals import refuses

W = np.array([[-0.30, -0.10, 0, 0.05, 0.20, 0.90]])
IAQ = [Scheme.IAQ_MIN, Scheme.IAQ_MAX]


class TestKnownAnswers:
    @pytest.mark.parametrize(("bits", "scheme", "rounding", "offset", "codes", "adjusted"), [
        (8, Scheme.IAQ_MIN, Rounding.NEAREST, -64, [0, 42, 64, 74, 106, 255], [-64, -22, 0, 10, 42, 191]),
        (8, Scheme.IAQ_MAX, Rounding.NEAREST, 191, [255, 213, 191, 181, 149, 0], [-64, -22, 0, 10, 42, 191]),
        (4, Scheme.IAQ_MIN, Rounding.NEAREST, -4, [0, 2, 4, 4, 6, 15], [-4, -2, 0, 0, 2, 11]),
        (4, Scheme.IAQ_MAX, Rounding.NEAREST, 11, [15, 12, 11, 11, 9, 0], [-4, -1, 0, 0, 2, 11]),
        # Wmin / S is -63.75 (8 bits) or -3.75 (4 bits), Wmax / S 191.25 or 11.25; code quotients are also fractional.
        (8, Scheme.IAQ_MIN, Rounding.TRUNCATE, -63, [0, 42, 63, 74, 106, 255], [-63, -21, 0, 11, 43, 192]),
        (8, Scheme.IAQ_MAX, Rounding.TRUNCATE, 191, [255, 212, 191, 180, 148, 0], [-64, -21, 0, 11, 43, 191]),
        (4, Scheme.IAQ_MIN, Rounding.TRUNCATE, -3, [0, 2, 3, 4, 6, 15], [-3, -1, 0, 1, 3, 12]),
        (4, Scheme.IAQ_MAX, Rounding.TRUNCATE, 11, [15, 12, 11, 10, 8, 0], [-4, -1, 0, 1, 3, 11]),
        (8, Scheme.SYMMETRIC, Rounding.NEAREST, -128, [86, 114, 128, 135, 156, 255], [-42, -14, 0, 7, 28, 127]),
        (4, Scheme.SYMMETRIC, Rounding.NEAREST, -8, [6, 7, 8, 8, 10, 15], [-2, -1, 0, 0, 2, 7]),
        (4, Scheme.SYMMETRIC, Rounding.TRUNCATE, -8, [6, 8, 8, 8, 9, 15], [-2, 0, 0, 0, 1, 7]),
        (8, Scheme.FLOAT_OFFSET, Rounding.NEAREST, 0, [0, 42, 64, 74, 106, 255], [0, 42, 64, 74, 106, 255]),
        (4, Scheme.FLOAT_OFFSET, Rounding.TRUNCATE, 0, [0, 2, 3, 4, 6, 15], [0, 2, 3, 4, 6, 15]),
    ])
    def test_weights(self, bits, scheme, rounding, offset, codes, adjusted):
        made = quantize_weights(W, bits=bits, scheme=scheme, rounding=rounding)
        assert made.offsets.tolist() == [offset]
        assert made.codes.tolist() == [codes]
        assert made.adjusted.tolist() == [adjusted]
        largest = {Scheme.SYMMETRIC: 0.9 / (2**(bits - 1) - 1)}.get(scheme, 1.2 / (2**bits - 1))
        assert made.scales == pytest.approx([largest], rel=1e-15)
        assert (made.minima is None) is scheme.integer
        if made.minima is not None:
            assert made.minima.tolist() == [-0.30]

    def test_aligned(self):
        # A step would be 0.1 with 3 levels below zero. With 4 levels, which are used here, it is 0.9 / 11.
        made = quantize_weights(W, bits=4, scheme=Scheme.IAQ_MIN, extrema=Extrema.ALIGNED)
        assert made.scales == pytest.approx([0.9 / 11])
        assert made.offsets.tolist() == [-4]
        assert made.adjusted.tolist() == [[-4, -1, 0, 1, 2, 11]]


class TestEdges:
    @pytest.mark.parametrize("bits", BITS)
    @pytest.mark.parametrize("scheme", Scheme)
    @pytest.mark.parametrize("extrema", Extrema)
    @pytest.mark.parametrize("value", [0.37, -0.37, 0.0])
    @pytest.mark.parametrize("per_channel", [False, True])
    def test_a_constant_layer_is_exact(self, bits, scheme, extrema, value, per_channel):
        weights = np.full((3, 5), value)
        made = quantize_weights(weights, bits=bits, scheme=scheme, extrema=extrema, per_channel=per_channel)
        np.testing.assert_allclose(made.values, weights, rtol=1e-15)
        assert (made.scales > 0).all()

    @pytest.mark.parametrize("sign", [1, -1])
    @pytest.mark.parametrize("scheme", IAQ)
    @pytest.mark.parametrize(("extrema", "bits"), [(Extrema.ZERO, 4), (Extrema.ALIGNED, 8), (Extrema.ZERO, 8)])
    @pytest.mark.parametrize("rounding", Rounding)
    def test_a_layer_of_one_sign(self, sign, scheme, extrema, bits, rounding):
        weights = sign * np.random.default_rng(1).uniform(0.1, 0.9, (4, 50))
        made = quantize_weights(weights, bits=bits, scheme=scheme, extrema=extrema, rounding=rounding)
        assert made.error(weights) < 1
        # If all weights have the same sign, they use the full range of codes.
        assert np.abs(made.adjusted).max() == 2**bits - 1
        assert (sign * made.adjusted >= 0).all()

    @pytest.mark.parametrize("scheme", IAQ)
    def test_a_layer_of_one_sign_with_zero_needs_no_other_extrema(self, scheme):
        weights = np.array([[0.0, 0.3, 0.9]])
        made = [quantize_weights(weights, bits=8, scheme=scheme, extrema=extrema) for extrema in Extrema]
        assert [quantized.adjusted.tolist() for quantized in made] == [[[0, 85, 255]]] * 3

    @pytest.mark.parametrize(("weights", "bits", "scheme", "message"), [
        ([100.0, 101.0], 8, Scheme.IAQ_MIN,
         "Offset must be between -256 and 255, which 9 bits hold, not 25500, for weights between 100 and 101 in "
         "steps of 0.00392157: take extrema with zero"),
        ([-101.0, -100.0], 4, Scheme.IAQ_MAX,
         "Offset must be between -16 and 15, which 5 bits hold, not -1500, for weights between -101 and -100 in "
         "steps of 0.0666667: take extrema with zero"),
        ([0.1, 0.9], 4, Scheme.IAQ_MIN,
         "Adjusted weight must be between -16 and 15, which 5 bits hold, not 17, for weights between 0.1 and 0.9 in "
         "steps of 0.0533333: take extrema with zero"),
        ([-0.9, -0.1], 8, Scheme.IAQ_MIN,
         "Offset must be between -256 and 255, which 9 bits hold, not -287, for weights between -0.9 and -0.1 in "
         "steps of 0.00313725: take extrema with zero"),
    ])
    def test_what_does_not_fit_is_refused(self, weights, bits, scheme, message):
        refuses(message, quantize_weights, np.array([weights]), bits=bits, scheme=scheme)
        for extrema in (Extrema.ZERO, Extrema.ALIGNED):
            assert quantize_weights(np.array([weights]), bits=bits, scheme=scheme, extrema=extrema).error(
                np.array([weights])) < 1

    def test_the_output_at_fault_is_found(self):
        weights = np.array([[-1.0, 1.0], [10.0, 11.0]])
        with pytest.raises(ValueError, match=r"not 2550, for weights between 10 and 11"):
            quantize_weights(weights, bits=8, scheme=Scheme.IAQ_MIN, per_channel=True)
        quantize_weights(weights, bits=8, scheme=Scheme.IAQ_MIN)

    @pytest.mark.parametrize(("weights", "options", "message"), [
        (np.zeros((2, 2)), {"bits": 5}, "Bits must be 4 or 8, not 5"),
        (np.zeros(2), {}, "Weights must be of shape (outputs, inputs), each at least 1, not (2,)"),
        (np.zeros((0, 2)), {}, "Weights must be of shape (outputs, inputs), each at least 1, not (0, 2)"),
        (np.array([[1, np.inf]]), {}, f"Weights must be finite, not {np.float64('inf')!r}"),
    ])
    def test_errors(self, weights, options, message):
        refuses(message, quantize_weights, weights, **{"bits": 8, "scheme": Scheme.SYMMETRIC, **options})


class TestError:
    """If zero is between the extrema, the error |S · A - W| is less than S, because the code and the offset each
    contribute half a step. If both are truncated, each contributes a whole step, but with opposite signs."""

    @pytest.mark.parametrize("seed", range(3))
    def test_random_layers(self, seed):
        generator = np.random.default_rng(seed)
        worst = dict.fromkeys(itertools.product(Scheme, Rounding), 0.0)
        for number in range(200):
            shape = generator.integers(1, 12, 2)
            weights = generator.standard_normal(shape) * 10.0**generator.integers(-6, 6)
            weights += generator.choice([0.0, 1.0]) * weights.std() * generator.standard_normal()
            if number % 3 == 0:
                weights = weights.astype(np.float32)
            for scheme, rounding, bits, per_channel in itertools.product(Scheme, Rounding, BITS, (False, True)):
                made = quantize_weights(weights, bits=bits, scheme=scheme, rounding=rounding, per_channel=per_channel,
                                        extrema=Extrema.ZERO)
                error = made.error(weights)
                assert error < 1 + 1e-9, f"seed {seed}, layer {number}, {scheme}, {rounding}, {bits}, {per_channel}"
                worst[scheme, rounding] = max(worst[scheme, rounding], error)
                assert made.codes.min() >= 0
                assert made.codes.max() < 2**bits
                if scheme.integer:
                    assert -2**bits <= made.adjusted.min() <= made.adjusted.max() < 2**bits
        for scheme in (Scheme.SYMMETRIC, Scheme.FLOAT_OFFSET):
            assert worst[scheme, Rounding.NEAREST] <= 0.5 + 1e-9, f"seed {seed}"
        for scheme, rounding in itertools.product(IAQ, Rounding):
            assert 0.9 < worst[scheme, rounding] < 1, f"seed {seed}"

    @pytest.mark.parametrize("scheme", IAQ)
    @pytest.mark.parametrize("bits", BITS)
    def test_aligned_extrema_halve_it(self, scheme, bits):
        generator = np.random.default_rng(5)
        for number in range(300):
            weights = generator.standard_normal((3, 40)) + generator.standard_normal()
            made = quantize_weights(weights, bits=bits, scheme=scheme, extrema=Extrema.ALIGNED, per_channel=True)
            plain = quantize_weights(weights, bits=bits, scheme=scheme, extrema=Extrema.ZERO, per_channel=True)
            assert made.error(weights) <= 0.5 + 1e-9, number
            # The range of codes is extended by at most one level.
            assert (made.scales <= plain.scales * (2**bits - 1) / (2**bits - 2) * (1 + 1e-12)).all(), number
            zero = quantize_weights(np.append(weights, np.zeros((3, 1)), axis=1), bits=bits, scheme=scheme,
                                    extrema=Extrema.ALIGNED, per_channel=True)
            assert (zero.adjusted[:, -1] == 0).all(), number

    @pytest.mark.parametrize("rounding", Rounding)
    def test_variants_differ_by_one_step_at_most(self, rounding):
        """If quotients are rounded to nearest, both variants give the same weights, except for ties like the one in
        W."""
        generator = np.random.default_rng(6)
        differ = 0
        for bits in BITS * 100:
            weights = generator.standard_normal((2, 30))
            low, high = (quantize_weights(weights, bits=bits, scheme=scheme, rounding=rounding).adjusted
                         for scheme in IAQ)
            assert np.abs(low - high).max() <= 1
            differ += int((low != high).any())
        assert bool(differ) is (rounding is Rounding.TRUNCATE)

    @pytest.mark.parametrize("scheme", Scheme)
    def test_per_channel_is_each_output_alone(self, scheme):
        weights = np.random.default_rng(7).standard_normal((5, 20))
        made = quantize_weights(weights, bits=8, scheme=scheme, per_channel=True)
        for number, row in enumerate(weights):
            alone = quantize_weights(row[None], bits=8, scheme=scheme)
            np.testing.assert_array_equal(made.codes[number], alone.codes[0])
            assert (made.offsets[number], made.scales[number]) == (alone.offsets[0], alone.scales[0])

    def test_symmetric_loses_a_bit_where_weights_have_one_sign(self):
        weights = np.random.default_rng(8).uniform(0, 1, (10, 64))
        errors = {scheme: np.square(quantize_weights(weights, bits=4, scheme=scheme).values - weights).mean()
                  for scheme in (Scheme.SYMMETRIC, *IAQ)}
        for scheme in IAQ:
            # For symmetric codes, the step is 15 / 7 times as large as for both other variants. Squared, the ratio is
            # 4.6, or 6.6 dB.
            assert 4 < errors[Scheme.SYMMETRIC] / errors[scheme] < 5
