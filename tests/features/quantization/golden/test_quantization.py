import dataclasses

import numpy as np
import pytest

from hdl.features.quantization import arithmetic
from hdl.features.quantization.arithmetic import Variant
from sim.golden.features.quantization.quantization import Layer, adjusted, infer, matrix_vector, requantize
from tests.refusals import refused, refuses

# Weights -0.30, -0.10, 0, 0.05, 0.20, 0.90 with known codes and offsets.
KNOWN = {
    (8, "min"): (-64, [0, 42, 64, 74, 106, 255], [-64, -22, 0, 10, 42, 191]),
    (8, "max"): (191, [255, 213, 191, 181, 149, 0], [-64, -22, 0, 10, 42, 191]),
    (4, "min"): (-4, [0, 2, 4, 4, 6, 15], [-4, -2, 0, 0, 2, 11]),
    (4, "max"): (11, [15, 12, 11, 11, 9, 0], [-4, -1, 0, 0, 2, 11]),
}


def _layer(**changes):
    values = {"codes": [[0, 42], [255, 7]], "offsets": -64, "variant": "min", "bits": 8, "bias": 0, "multiplier": 3,
              "shift": 4, "relu": True, "signed": False, "last": False}
    return Layer(**values | changes)


@pytest.mark.parametrize("known", KNOWN)
def test_known_weights(known):
    offset, codes, weights = KNOWN[known]
    variant = Variant(known[1])
    assert adjusted(codes, offset, variant).tolist() == weights
    assert adjusted([codes, codes], [offset, offset + 1], variant).tolist() == [weights, [a + 1 for a in weights]]
    x = [1, 2, 3, 250, 255, 0]
    bias = -7
    want = bias + sum(a * b for a, b in zip(weights, x, strict=True))
    assert matrix_vector([codes], [offset], variant, x, [bias]).tolist() == [want]
    sign = 1 if variant is Variant.MIN else -1
    assert want == bias + offset * sum(x) + sign * sum(q * b for q, b in zip(codes, x, strict=True))


def test_symmetric_weights_are_codes_with_an_offset():
    weights = np.arange(-128, 128)
    assert adjusted(weights + 128, -128, Variant.MIN).tolist() == weights.tolist()


@pytest.mark.parametrize(("acc", "multiplier", "shift", "want"), [
    (5, 1, 1, 3), (-5, 1, 1, -2), (4, 1, 1, 2), (6, 1, 2, 2), (-6, 1, 2, -1), (5, 1, 2, 1), (7, 1, 0, 7),
    (100, 65535, 16, 100), ((1 << 31) - 1, 65535, 47, 1), (-1 << 31, 65535, 47, -1), (1 << 30, 1, 47, 0),
    (1000, 65535, 16, 127), (-1000, 65535, 16, -128),
])
def test_requantize(acc, multiplier, shift, want):
    assert requantize(acc, multiplier, shift, -128, 127) == want


def test_requantize_is_rounded_half_up():
    generator = np.random.default_rng(1)
    sums, multipliers = generator.integers(-1 << 31, 1 << 31, 500), generator.integers(0, 1 << 16, 500)
    shifts = generator.integers(1, 48, 500)
    for acc, multiplier, shift in zip(sums.tolist(), multipliers.tolist(), shifts.tolist(), strict=True):
        want = (2 * acc * multiplier + (1 << shift)) // (2 << shift)
        assert requantize(acc, multiplier, shift, -1 << 62, 1 << 62) == want


def test_layers_follow_each_other():
    generator = np.random.default_rng(2)
    layers = [_layer(codes=generator.integers(0, 256, (5, 9)), offsets=generator.integers(-200, 0, 5), shift=9),
              _layer(codes=generator.integers(0, 16, (7, 5)), offsets=10, variant="max", bits=4, relu=False),
              _layer(codes=generator.integers(0, 256, (3, 7)), offsets=-100, bias=[1, 2, 3], signed=True, last=True)]
    x = generator.integers(0, 256, (4, 9))
    got = infer(layers, x)
    assert got.shape == (4, 3)
    for row, sample in zip(got, x, strict=True):
        values = sample
        for layer in layers:
            sums = layer.weights @ values + layer.bias
            values = sums if layer.last else np.clip(
                sums * layer.multiplier + (1 << layer.shift - 1) >> layer.shift, *layer.output_limits)
        assert row.tolist() == values.tolist() == infer(layers, sample).tolist()


def test_longest_sum_does_not_overflow():
    """The longest sum of extreme numbers, with the largest bias, does not overflow; a longer sum does."""
    length, most = arithmetic.LENGTH_MAX, 1 << arithmetic.BIAS_BITS - 1
    codes = np.zeros((1, length), np.int64)
    ends = [Layer(codes, -256, "min", 8, -most, 1, 1, False, False, True),
            Layer(codes, 255, "min", 8, most - 1, 1, 1, False, False, True)]
    x = np.full(length, 255)
    assert infer(ends[:1], x).tolist() == [-1 << 31]
    assert infer(ends[1:], x).tolist() == [255 * 255 * length + most - 1]
    message = "Sums must be -2147483648 to 2147483647, not -2147548928 to -8388608"
    refuses(message, dataclasses.replace, ends[0], codes=np.zeros((1, length + 1), np.int64))
    assert matrix_vector(np.zeros((1, length + 1)), -256, "min", np.full(length + 1, 255), -most).tolist() == [
        (1 << 31) - 65280]


test_layer_errors = refused(_layer, {}, [
    ({"codes": [1, 2]}, "Codes must be a matrix with rows and columns, not (2,)"),
    ({"codes": [[1, 256]]}, "Codes must be 0 to 255, not 1 to 256"),
    ({"codes": [[1, 16]], "bits": 4}, "Codes must be 0 to 15, not 1 to 16"),
    ({"bits": 6}, "Bits must be 4 or 8, not 6"),
    ({"offsets": [1, 2, 3]}, "offsets must be one number or one for each of 2 outputs, not (3,)"),
    ({"offsets": [0, -2550]}, "Offsets must be -256 to 255, not -2550 to 0"),
    ({"offsets": 10}, "Adjusted weights must be -256 to 255, not 10 to 265"),
    ({"multiplier": 65536}, "Multipliers must be 0 to 65535, not 65536 to 65536"),
    ({"shift": [0, 3]}, "Shifts must be 1 to 47, not 0 to 3"),
    ({"shift": 48}, "Shifts must be 1 to 47, not 48 to 48"),
])


def test_variant_and_inputs_are_checked():
    with pytest.raises(ValueError, match="'mean' is not a valid Variant"):
        _layer(variant="mean")
    refuses("Inputs must be 0 to 255, not -1 to 3", _layer().outputs_of, [-1, 3])
    refuses("Inputs must be -128 to 127, not 3 to 128", _layer(signed=True).outputs_of, [128, 3])
