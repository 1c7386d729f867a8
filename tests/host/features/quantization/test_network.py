import itertools

import numpy as np
import pytest

from hdl.features.quantization.arithmetic import Variant
from host.features.quantization.network import (
    FloatLayer,
    QuantizationConfig,
    activations,
    check_sums,
    float_layers,
    infer,
    node_layers,
    quantize,
)
from host.features.quantization.schemes import Activation, Calibration, Extrema, QuantizedWeights, Rounding, Scheme
from host.models.layers import perceptron
from sim.golden import conversion, floating
from sim.golden.features.quantization import quantization as golden
from tests.host.features.quantization.networks import trained
from tests.refusals import refuses

SCALE = 1 / 16


def accuracy(scores, labels):
    return float((scores.argmax(axis=1) == labels).mean())


def scores_of(network, x):
    return network.scores(infer(network, x)) if network.scheme.integer else network.float_scores(x)


def test_float_layers_are_those_of_the_model():
    model = perceptron(6, (5, 4), 3)
    model.initialize(1)
    layers = float_layers(model)
    assert [layer.weights.shape for layer in layers] == [(5, 6), (4, 5), (3, 4)]
    x = np.random.default_rng(0).standard_normal((7, 6)).astype(np.float32)
    outputs = activations(layers, x)
    np.testing.assert_allclose(outputs[-1], model.scores(x), rtol=1e-5)
    assert [part.shape for part in outputs] == [(7, 6), (7, 5), (7, 4), (7, 3)]
    assert all((part >= 0).all() for part in outputs[1:3])
    zeros = float_layers(model, np.zeros_like(model.parameters))
    assert not activations(zeros, x)[-1].any()


class TestDigits:
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("per_channel", [False, True])
    @pytest.mark.parametrize("calibration", Calibration)
    def test_eight_bits_are_within_0_3_points_of_floats(self, seed, per_channel, calibration):
        """The allowed loss of accuracy is about one of the 360 test images, or 0.28 percentage points."""
        data, layers = trained(seed)
        exact = accuracy(activations(layers, data.test_x)[-1], data.test_y)
        for scheme, extrema in [*itertools.product(Scheme, [Extrema.ZERO]), (Scheme.IAQ_MIN, Extrema.ALIGNED)]:
            network = quantize(layers, data.train_x, QuantizationConfig(
                scheme=scheme, per_channel=per_channel, calibration=calibration, extrema=extrema),
                input_scale=SCALE)
            limit = 0.003 if (scheme, per_channel) not in [(Scheme.IAQ_MIN, True), (Scheme.IAQ_MAX, True)] else 0.006
            assert abs(accuracy(scores_of(network, data.test_x), data.test_y) - exact) < limit, (seed, scheme)

    def test_four_bits_on_a_skewed_layer(self):
        """Symmetric codes waste half of their range on a layer without negative weights."""
        gains = []
        for seed in range(4):
            data, layers = trained(seed)
            layers = [layers[0], FloatLayer(layers[1].weights - layers[1].weights.min(), layers[1].biases)]
            exact = activations(layers, data.test_x)[-1]
            for per_channel in (False, True):
                results = {}
                for scheme in (Scheme.SYMMETRIC, Scheme.IAQ_MIN):
                    network = quantize(layers, data.train_x, QuantizationConfig(
                        scheme=scheme, bits=(8, 4), per_channel=per_channel), input_scale=SCALE)
                    scores = scores_of(network, data.test_x)
                    off = [part - part.mean(axis=1, keepdims=True) for part in (exact, scores)]
                    results[scheme] = (np.square(off[1] - off[0]).sum(), accuracy(scores, data.test_y),
                                       np.square(network.layers[1].weights.values - layers[1].weights).sum())
                symmetric, iaq = results.values()
                assert symmetric[0] / iaq[0] > 2, (seed, per_channel)
                assert symmetric[2] / iaq[2] > 3, (seed, per_channel)
                gains.append(iaq[1] - symmetric[1])
        assert min(gains) >= 0
        assert np.mean(gains) > 0.005

    def test_skewing_changes_no_prediction(self):
        data, layers = trained()
        shifted = [layers[0], FloatLayer(layers[1].weights - layers[1].weights.min(), layers[1].biases)]
        before, after = (activations(network, data.test_x)[-1] for network in (layers, shifted))
        np.testing.assert_array_equal(before.argmax(axis=1), after.argmax(axis=1))
        assert shifted[1].weights.min() == 0


class TestNetwork:
    @pytest.mark.parametrize("scheme", [scheme for scheme in Scheme if scheme.integer])
    @pytest.mark.parametrize(("bits", "per_channel"), list(itertools.product((4, 8), (False, True))))
    def test_integers_are_the_network_of_the_values(self, scheme, bits, per_channel):
        """Quantized activations are within one step of floating-point activations computed with the decoded
        weights."""
        data, layers = trained()
        config = QuantizationConfig(scheme=scheme, bits=bits, per_channel=per_channel)
        network = quantize(layers, data.train_x, config, input_scale=SCALE)
        x = network.input_codes(data.test_x)
        np.testing.assert_array_equal(x * SCALE, data.test_x)
        first, last = network.layers
        hidden = np.maximum(x @ (first.weights.values * SCALE).T + first.bias * first.units, 0)
        hidden = np.clip(hidden / first.output.scale, 0, 255)
        actual = golden.Layer(**vars(node_layers(network)[0])).outputs_of(x)
        assert np.abs(actual - hidden).max() < 0.51
        expected = actual * last.input.scale @ last.weights.values.T + last.bias * last.units
        np.testing.assert_allclose(network.scores(infer(network, data.test_x)), expected, rtol=1e-9, atol=1e-9)

    def test_a_float_offset_is_its_values_in_floats(self):
        data, layers = trained()
        network = quantize(layers, data.train_x, QuantizationConfig(scheme=Scheme.FLOAT_OFFSET), input_scale=SCALE)
        values = [FloatLayer(made.weights.values, layer.biases)
                  for made, layer in zip(network.layers, layers, strict=True)]
        expected = activations(values, data.test_x)[-1]
        scores = network.float_scores(data.test_x)
        assert scores.dtype == np.float32
        # Hidden activations are rounded to 255 steps.
        assert np.abs(scores - expected).max() < 0.02 * np.abs(expected).max()

    @pytest.mark.parametrize("per_channel", [False, True])
    def test_a_float_offset_is_computed_as_its_unit_does(self, per_channel):
        """Float offsets in whole networks. For tests of the unit alone, see
        tests/features/quantization/test_float_offset.py."""
        data, layers = trained()
        network = quantize(layers, data.train_x, QuantizationConfig(
            scheme=Scheme.FLOAT_OFFSET, per_channel=per_channel), input_scale=SCALE)
        codes = network.input_codes(data.test_x)
        for layer in network.layers:
            sums = layer.bias + codes @ layer.weights.codes.T
            step = layer.input.scale / (1.0 if layer.last else layer.output.scale)
            scale, lowest = (np.broadcast_to((part * step).astype(np.float32).view(np.uint32), sums.shape)
                             for part in (layer.weights.scales, layer.weights.minima))
            inputs = np.broadcast_to(codes.sum(axis=1)[:, None], sums.shape)
            y = floating.add(floating.multiply(conversion.from_integer(sums), scale),
                             floating.multiply(conversion.from_integer(inputs), lowest))
            if not layer.last:
                codes = np.clip(conversion.to_integer(y)[0], 0, 255)
        np.testing.assert_array_equal(network.float_scores(data.test_x).view(np.uint32), y)

    def test_signed_inputs(self):
        generator = np.random.default_rng(4)
        layers = [FloatLayer(generator.standard_normal((6, 8)), generator.standard_normal(6)),
                  FloatLayer(generator.standard_normal((3, 6)), generator.standard_normal(3))]
        x = generator.standard_normal((200, 8))
        network = quantize(layers, x, QuantizationConfig(scheme=Scheme.IAQ_MAX, per_channel=True))
        assert [layer.input.signed for layer in network.layers] == [True, False]
        exact = activations(layers, x)[-1]
        assert np.abs(network.scores(infer(network, x)) - exact).max() < 0.06 * np.abs(exact).max()

    def test_multiplications(self):
        data, layers = trained()
        counts = [quantize(layers, data.train_x, QuantizationConfig(scheme=scheme)).multiplications
                  for scheme in (Scheme.IAQ_MIN, Scheme.FLOAT_OFFSET)]
        assert [count["products"] for count in counts] == [64 * 64 + 64 * 10] * 2
        assert [count["requantizations"] for count in counts] == [64, 0]
        # Each output is multiplied by S once and by Wmin once.
        assert [count["float_multiplications"] for count in counts] == [0, 2 * 74]

    def test_bits_of_each_layer(self):
        data, layers = trained()
        network = quantize(layers, data.train_x, QuantizationConfig(bits=(8, 4)))
        assert [layer.weights.bits for layer in network.layers] == [8, 4]
        assert network.layers[1].weights.codes.max() == 15

    def test_a_calibration_by_percentile_has_smaller_steps(self):
        data, layers = trained()
        steps = [quantize(layers, data.train_x, QuantizationConfig(calibration=method)).layers[0].output.scale
                 for method in Calibration]
        assert steps[1] < steps[0]


class TestErrors:
    @pytest.mark.parametrize(("options", "message"), [
        ({"bits": 3}, "Bits must be 4 or 8, not 3"), ({"bits": (8, 2)}, "Bits must be 4 or 8, not (8, 2)"),
        ({"bits": ()}, "Bits must be 4 or 8, not ()"),
        ({"percentile": 0}, "Percentile must be above 0 and at most 100, not 0"),
    ])
    def test_configuration(self, options, message):
        refuses(message, QuantizationConfig, **options)

    def test_no_layers(self):
        refuses("Layers must be at least 1, not 0", quantize, [], np.ones((1, 1)), QuantizationConfig())

    def test_bits_of_too_few_layers(self):
        data, layers = trained()
        with pytest.raises(ValueError, match=r"^Bits must be of all layers or of each of the 2, not \(8,\)$"):
            quantize(layers, data.train_x, QuantizationConfig(bits=(8,)))

    def test_an_offset_names_its_layer(self):
        data, layers = trained()
        layers = [layers[0], FloatLayer(np.abs(layers[1].weights) + 100, layers[1].biases)]
        with pytest.raises(ValueError, match=r"^Layer 2 of 2: Offset must be between -256 and 255, which 9 bits "
                                             r"hold, not \d+, for weights between 100\.\d+ and "):
            quantize(layers, data.train_x, QuantizationConfig(extrema=Extrema.WEIGHTS))

    def test_a_float_offset_has_no_integer_layers(self):
        data, layers = trained()
        network = quantize(layers, data.train_x, QuantizationConfig(scheme=Scheme.FLOAT_OFFSET))
        refuses("Scheme must be one with an integer offset for integer layers, not float-offset", node_layers,
                network)
        network = quantize(layers, data.train_x, QuantizationConfig(rounding=Rounding.TRUNCATE))
        refuses("Scheme must be float-offset for scores in floats, not iaq-min", network.float_scores, data.test_x)

    @pytest.mark.parametrize(("bias", "refused"), [
        (2**31 - 1 - 10 * 255 * 255, None), (2**31 - 10 * 255 * 255, 2**31),
        (-(2**31) + 5 * 255 * 255, None), (-(2**31) + 5 * 255 * 255 - 1, -(2**31) - 1)])
    def test_sums_at_the_edge(self, bias, refused):
        # Ten weights are 255 and five are 0, or ten are 0 and five are -255.
        positive = bias > 0
        weights = QuantizedWeights(
            bits=8, variant=Variant.MIN, scales=np.ones(1), offsets=np.array([0 if positive else -255]),
            codes=np.array([[255] * 10 + [0] * 5]))
        if refused is None:
            check_sums(weights, np.array([bias]), Activation(scale=1.0))
            return
        message = (f"Sum of an output must be between -2147483648 and 2147483647, not {refused}, which output 0 can "
                   f"have, with 15 weights and a bias of {bias}")
        refuses(message, check_sums, weights, np.array([bias]), Activation(scale=1.0))
