# amaranth: UnusedElaboratable=no
"""The baseline unit for comparing the cost of asymmetric quantisation computes correct results."""

import numpy as np
import pytest

from hdl.features.quantization.arithmetic import Variant
from hdl.features.quantization.float_offset import FloatOffset, IntegerOffset
from sim.golden import conversion, floating
from sim.golden.features.quantization import quantization as model
from sim.verilated.vectors import Unit
from tests.refusals import refused_values


def _outputs(lanes, bits, seed, count=400):
    """Draw random outputs of several beats each; the parameters of an output are repeated in all its beats."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 6, count)
    numbers = np.arange(count).repeat(lengths)
    beats = len(numbers)
    fields = {
        "codes": generator.integers(0, 1 << bits, (beats, lanes)),
        "inputs": generator.integers(0, 256, (beats, lanes)),
        "int8": generator.random(count) < 0.5, "relu": generator.random(count) < 0.5,
        "bias": generator.integers(-4_000, 4_000, count)}
    last = np.append(numbers[1:] != numbers[:-1], True)
    x = np.where(fields["int8"][numbers, None] & (fields["inputs"] > 127), fields["inputs"] - 256, fields["inputs"])
    return generator, fields, numbers, last, x


def _run(component, fields, numbers, last, **parameters):
    inputs = {"valid": np.ones(len(last)), "last": last}
    for lane in range(fields["codes"].shape[1]):
        inputs |= {f"codes__{lane}": fields["codes"][:, lane], f"inputs__{lane}": fields["inputs"][:, lane]}
    for name, values in {**fields, **parameters}.items():
        if name not in ("codes", "inputs"):
            inputs[name] = np.asarray(values)[numbers]
    inputs["bias"] = inputs["bias"] & 0xFFFF_FFFF
    trace = Unit(component).run(inputs, drain=component.latency)
    when = np.flatnonzero(trace["o_valid"])
    assert when.tolist() == (np.flatnonzero(last) + component.latency).tolist()
    values = trace["o"][when].astype(np.int64)
    return np.where(values > 255, values - 512, values)


@pytest.mark.parametrize("offset", [True, False])
@pytest.mark.parametrize(("lanes", "bits"), [(1, 8), (4, 4), (16, 8)])
def test_float_offset(lanes, bits, offset):
    generator, fields, numbers, last, x = _outputs(lanes, bits, 1)
    count = len(fields["bias"])
    codes = fields["bias"] + np.bincount(numbers, (fields["codes"] * x).sum(axis=1)).astype(np.int64)
    sums = np.bincount(numbers, x.sum(axis=1)).astype(np.int64)
    scale = np.abs(generator.normal(0, 100 / np.abs(codes).mean(), count)).astype(np.float32).view(np.uint32)
    lowest = generator.normal(0, 100 / max(np.abs(sums).mean(), 1), count).astype(np.float32).view(np.uint32)
    y = floating.multiply(conversion.from_integer(codes), scale)
    if offset:
        y = floating.add(y, floating.multiply(conversion.from_integer(sums), lowest))
    rounded = conversion.to_integer(y)[0]
    want = np.where(fields["relu"], np.clip(rounded, 0, 255), np.clip(rounded, -128, 127))
    got = _run(FloatOffset(lanes=lanes, bits=bits, offset=offset), fields, numbers, last, scale=scale, offset=lowest)
    np.testing.assert_array_equal(got, want)
    assert len(np.unique(want)) > 100


@pytest.mark.parametrize(("lanes", "bits"), [(1, 8), (4, 4), (16, 8)])
def test_integer_offset(lanes, bits):
    generator, fields, numbers, last, x = _outputs(lanes, bits, 2)
    count = len(fields["bias"])
    offset = -generator.integers(0, 1 << bits, count)
    weights = model.adjusted(fields["codes"], offset[numbers], Variant.MIN)
    sums = fields["bias"] + np.bincount(numbers, (weights * x).sum(axis=1)).astype(np.int64)
    multiplier, shift = generator.integers(20_000, 1 << 16, count), np.full(count, 11 + bits + lanes.bit_length())
    limits = np.where(fields["relu"], 0, -128), np.where(fields["relu"], 255, 127)
    got = _run(IntegerOffset(lanes=lanes, bits=bits), fields, numbers, last, offset=offset & (2 << bits) - 1,
               multiplier=multiplier, shift=shift)
    np.testing.assert_array_equal(got, model.requantize(sums, multiplier, shift, *limits))


test_lanes = refused_values(FloatOffset, {}, "lanes", [0, 3, 64], "Lane count must be 1, 2, 4, 8, 16 or 32")
