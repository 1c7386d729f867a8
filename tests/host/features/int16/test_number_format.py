import math

import numpy as np
import pytest

from host.driver.optimizer_settings import FixedSettings, Rule
from host.features.int16.number_format import FixedPoint, check_optimizer
from host.training.number_format import Elements, elements_of
from host.training.optimizers import SGD, Adam
from sim.golden.features.int16 import int16_node as golden
from tests.host.features.int16.integers import golden_ring
from tests.host.golden import GoldenRing
from tests.refusals import refuses

PLAIN = SGD(learning_rate=1.2)


class TestFixedPoint:
    @pytest.mark.parametrize(("rate", "count", "fraction"), [
        (1.0, 1, 15), (1.0, 128, 8), (1.2, 120, 8), (0.25, 128, 6), (2.0, 64, 10), (1e-9, 100, -22), (0.0, 100, 15),
    ])
    def test_fraction_of_gradients(self, rate, count, fraction):
        form = FixedPoint.of(rate, count)
        assert form == FixedPoint(gradient_fraction=fraction, weight_fraction=12)
        if rate:
            settings = form.settings(PLAIN, 1, count=count, learning_rate=rate, packed_state=False)
            assert 1 / 8 <= settings.learning_rate / 65536 <= 1 / 4

    def test_count(self):
        refuses("Example count must be at least 1, not 0", FixedPoint.of, 1.0, 0)

    def test_weights_there_and_back(self):
        form = FixedPoint(gradient_fraction=8)
        values = np.array([0, 1, -1, 8, -8, 9, -9, 7.9999, 1.5 / 4096, 2.5 / 4096, -2.5 / 4096], np.float32)
        weights = form.weights(values)
        assert weights.dtype == np.int16
        assert weights.tolist() == [0, 4096, -4096, 32767, -32768, 32767, -32768, 32767, 2, 2, -2]
        assert form.parameters(weights).dtype == np.float32
        np.testing.assert_array_equal(form.parameters(weights) * 4096, weights)
        every = np.arange(-32768, 32768).astype(np.int16)
        np.testing.assert_array_equal(form.weights(form.parameters(every)), every)

    @pytest.mark.parametrize(("fraction", "expected"), [(2, [4, -6, 32767, -32768]), (-1, [0, -1, 15000, -15000])])
    def test_gradients(self, fraction, expected):
        values = np.array([1, -1.5, 30000, -30000], np.float32)
        gradients, = FixedPoint(gradient_fraction=fraction).gradients([values])
        assert gradients.dtype == np.int16
        assert gradients.tolist() == expected

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_gradients_must_be_finite(self, value):
        with pytest.raises(ValueError, match=r"^Gradients of int16 nodes must be finite$"):
            FixedPoint(gradient_fraction=8).gradients([np.array([1, value], np.float32)])

    @pytest.mark.parametrize(("threshold", "told", "value"), [
        (1e-38, 1, 1 / 256), (2.0, 2, 2 / 256), (2.1, 3, 3 / 256), (1e9, 65535, 65535 / 256)])
    def test_threshold(self, threshold, told, value):
        assert FixedPoint(gradient_fraction=8).threshold(threshold) == (told, value)

    def test_a_step_is_that_of_real_numbers(self):
        """The error of a step is at most 3/4 of the last place of a weight: 1/2 from rounding, and 1/4 from the
        learning rate."""
        generator = np.random.default_rng(1)
        form = FixedPoint.of(1.2, 120)
        weights = form.weights(generator.normal(0, 1, 2000).astype(np.float32))
        gradients, = form.gradients([generator.normal(0, 20, 2000).astype(np.float32)])
        for rate in (1.2, 0.7, 0.01):
            settings = form.settings(PLAIN, 1, count=119, learning_rate=rate, packed_state=False)
            update = golden.update(gradients, weights, gradient_scale=settings.gradient_scale,
                                   learning_rate=settings.learning_rate)
            expected = weights / 4096 - rate / 119 * gradients / 2.0 ** form.gradient_fraction
            assert np.abs(update.weights - expected * 4096).max() <= 0.75

    def test_registers(self):
        assert FixedSettings(gradient_scale=65536, learning_rate=-5).registers() == {
            "OPTIMIZER": Rule.SGD, "GRADIENT_SCALE": 65536, "LEARNING_RATE": -5}

    @pytest.mark.parametrize(("name", "value"), [
        ("learning_rate", 1 << 17), ("learning_rate", -(1 << 17) - 1), ("gradient_scale", 0.5),
        ("gradient_scale", True)])
    def test_settings_must_fit(self, name, value):
        with pytest.raises(ValueError, match=rf"^{name} must be an integer of 18 bits, not {value!r}$"):
            FixedSettings(**{"gradient_scale": 1, "learning_rate": 1} | {name: value})


class TestOptimizer:
    @pytest.mark.parametrize(("optimizer", "message"), [
        (SGD(learning_rate=1, momentum=0.9), r"^Optimizer of int16 nodes must be sgd, not momentum$"),
        (Adam(), r"^Optimizer of int16 nodes must be sgd, not adam$"),
        (SGD(learning_rate=1, weight_decay=0.5),
         r"^Optimizer of int16 nodes must have no weight decay and no clipping, not 0\.5 and None$"),
        (SGD(learning_rate=1, clip=2),
         r"^Optimizer of int16 nodes must have no weight decay and no clipping, not 0\.0 and 2$"),
    ])
    def test_others_are_refused(self, optimizer, message):
        with pytest.raises(ValueError, match=message):
            check_optimizer(optimizer)
        with pytest.raises(ValueError, match=message):
            elements_of(golden_ring(), optimizer, 100)
        with pytest.raises(ValueError, match=message):
            FixedPoint(gradient_fraction=8).settings(optimizer, 1, count=1, learning_rate=1, packed_state=False)

    def test_of_a_ring(self):
        assert elements_of(golden_ring(), PLAIN, 120) == FixedPoint(gradient_fraction=8)
        assert type(elements_of(GoldenRing(1), Adam(), 120)) is Elements


def test_float32_is_what_it_is():
    form, values = Elements(), np.arange(3, dtype=np.float32)
    assert form.weights(values) is form.parameters(values) is values
    assert form.gradients((values, values)) == [values, values]
    assert form.threshold(0.3) == (0.3, 0.3)
    settings = form.settings(PLAIN, 3, count=4, learning_rate=0.5, packed_state=True)
    assert (settings.gradient_scale, settings.learning_rate, settings.packed_state) == (0.25, 0.5, True)
