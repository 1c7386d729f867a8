
import numpy as np
import pytest

from host.features.quantization.schemes import Activation, Calibration, calibrate, requantization
from sim.golden.features.quantization import quantization as golden
from tests.refusals import refuses


class TestActivation:
    def test_unsigned(self):
        activation = Activation(scale=0.5)
        assert (activation.low, activation.high) == (0, 255)
        assert activation.quantize(np.array([-1, 0, 0.25, 0.3, 0.75, 127.5, 128])).tolist() == [
            0, 0, 0, 1, 2, 255, 255]

    def test_signed(self):
        activation = Activation(scale=0.5, signed=True)
        assert activation.quantize(np.array([-65, -64, -0.3, 63.5, 64])).tolist() == [-128, -128, -1, 127, 127]

    @pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan"), 0.1])
    def test_errors(self, scale):
        refuses(f"Scale must be a binary32 number above zero, not {scale!r}", Activation, scale=scale)


class TestCalibrate:
    def test_all(self):
        assert calibrate(np.array([0, 0.2, 5.1])) == Activation(scale=float(np.float32(0.02)))
        assert calibrate(np.array([-2.54, 1.0])) == Activation(scale=float(np.float32(0.02)), signed=True)

    def test_percentile(self):
        values = np.append(np.linspace(0, 1, 1000), 100.0)
        made = calibrate(values, method=Calibration.PERCENTILE, percentile=99)
        assert 255 * made.scale == pytest.approx(np.percentile(values, 99), rel=1e-6)
        assert made.quantize(np.array([100.0])) == 255
        assert calibrate(values, method=Calibration.PERCENTILE, percentile=100) == calibrate(values)

    def test_zeros(self):
        assert calibrate(np.zeros(3)).quantize(np.zeros(2)).tolist() == [0, 0]

    @pytest.mark.parametrize(("values", "options", "message"), [
        ([], {}, "Activations must be finite, and at least one"),
        ([1, np.nan], {}, "Activations must be finite, and at least one"),
        ([1], {"percentile": 0}, "Percentile must be above 0 and at most 100, not 0"),
        ([1], {"percentile": 101}, "Percentile must be above 0 and at most 100, not 101"),
    ])
    def test_errors(self, values, options, message):
        refuses(message, calibrate, np.array(values), **options)


class TestRequantization:
    @pytest.mark.parametrize("seed", range(3))
    def test_error_of_the_multiplier(self, seed):
        factors = 2.0**np.random.default_rng(seed).uniform(-31, 14, 20_000)
        made = requantization(factors)
        assert made.multipliers.min() >= 1 << 15, f"seed {seed}"
        assert made.multipliers.max() < 1 << 16
        assert 1 <= made.shifts.min() <= made.shifts.max() <= 47
        assert made.error <= 2.0**-16
        np.testing.assert_allclose(made.multipliers / 2.0**made.shifts, factors, rtol=2.0**-16)

    def test_outputs_are_what_floats_would_give(self):
        """Outputs differ from floating-point outputs by at most half a rounding step plus the error of the
        multiplier."""
        generator = np.random.default_rng(3)
        factors = 2.0**generator.uniform(-14, -4, 500)
        made = requantization(factors)
        sums = (generator.uniform(0, 255, (2000, 500)) / factors).astype(np.int64)
        outputs = golden.requantize(sums, made.multipliers, made.shifts, 0, 255)
        assert np.abs(outputs - sums * factors).max() <= 0.5 + 255 * 2.0**-16

    @pytest.mark.parametrize(("factor", "multiplier", "shift"), [
        (0.5, 1 << 15, 16), (1.0, 1 << 15, 15), (1 - 2.0**-20, 1 << 15, 15), (3 / 65536, 3 << 14, 30),
        (2.0**-39, 256, 47), (32767.0, 65534, 1)])
    def test_known_answers(self, factor, multiplier, shift):
        made = requantization(np.array([factor]))
        assert (made.multipliers.tolist(), made.shifts.tolist()) == ([multiplier], [shift])

    @pytest.mark.parametrize("factor", [32768.0, 2.0**-40, 0.0, -1.0, float("nan")])
    def test_errors(self, factor):
        message = f"Factor of an output must be between 1.81899e-12 and 32767, not {factor:g}"
        refuses(message, requantization, np.array([0.5, factor]))
