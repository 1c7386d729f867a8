# amaranth: UnusedElaboratable=no
import itertools

import numpy as np
import pytest

from hdl.features.quantization import arithmetic
from hdl.features.quantization.arithmetic import Form, Variant
from hdl.features.quantization.matrix_vector import MatrixVector, operand_layout
from sim import formal
from sim.golden.features.quantization import quantization as model
from sim.payload import pack
from tests.hdl.pipelines import together
from tests.hdl.unit_bench import Drive, UnitBench, Want
from tests.refusals import refused, refused_values

LANES = (1, 2, 4, 8, 16)
FORMS = tuple(Form)


class _Outputs:
    """Draw outputs with random lengths, offsets and biases, and their beats and sums."""

    def __init__(self, lanes, bits, *, count, generator, longest=5):
        self.lengths = generator.integers(1, longest + 1, count)
        beats = int(self.lengths.sum())
        numbers = np.arange(count).repeat(self.lengths)
        top = (1 << bits) - 1
        self.codes = generator.integers(0, top + 1, (beats, lanes))
        self.inputs = generator.integers(0, 256, (beats, lanes))
        self.inputs[generator.random(beats) < 0.2] = 255
        self.codes[generator.random(beats) < 0.2] = top
        self.signed, self.subtract = generator.random(count) < 0.5, generator.random(count) < 0.5
        # Offsets are limited so that weights have at most one more bit than codes.
        offsets = generator.integers(0, top + 2, count)
        self.offsets = np.where(self.subtract, np.minimum(offsets, top), -offsets)
        self.bias = generator.integers(-1 << 23, 1 << 23, count)
        self.last = np.append(numbers[1:] != numbers[:-1], True)
        ends = np.cumsum(self.lengths)
        self.sums = []
        for n, end in enumerate(ends):
            rows = slice(end - self.lengths[n], end)
            x = self.inputs[rows].ravel()
            x = x - 256 * (x > 127) if self.signed[n] else x
            variant = Variant.MAX if self.subtract[n] else Variant.MIN
            self.sums.append(model.matrix_vector([self.codes[rows].ravel()], self.offsets[n], variant, x,
                                                 self.bias[n])[0])
        self.drive = _given(lanes, bits, self.codes, self.inputs, self.sums, signed=self.signed[numbers],
                            subtract=self.subtract[numbers], offset=self.offsets[numbers], bias=self.bias[numbers],
                            last=self.last)


def _given(lanes, bits, codes, inputs, sums, *, last, **fields):
    """Return the beats to drive and the expected sums; fields are given as one value per beat or one for all beats.
    """
    masks = {"signed": 1, "subtract": 1, "offset": (2 << bits) - 1, "bias": 0xFFFF_FFFF}
    rows = pack(operand_layout(lanes, bits, bits + 1), {
        "codes": codes, "inputs": inputs & 255, "last": last,
        **{name: np.broadcast_to(fields.get(name, 0), len(codes)) & mask for name, mask in masks.items()}})
    return Drive({"i": rows}, (np.asarray(last, bool), np.asarray(sums)))


def _model(unit, drawn, willing, ready):
    last, sums = drawn
    ports, offered = together(last, latency=unit.latency, willing=willing, ready=ready["o"])
    return Want(ports, {"o": sums.astype(np.uint32)}, {"o": offered})


def _drive(generator, lanes, bits, form, count=300):
    return _Outputs(lanes, bits, count=count, generator=generator).drive


def _make(lanes, bits, form):
    return MatrixVector(lanes=lanes, bits=bits, form=form)


BENCH = UnitBench(_make, _model, _drive)
test_lanes = refused_values(MatrixVector, {}, "lanes", [0, 3, 64, 4.0, "4", None],
                            "Lane count must be 1, 2, 4, 8, 16 or 32")
test_bits = refused_values(MatrixVector, {"lanes": 4}, "bits", [0, 5, 16, "8"], "Bits must be 4 or 8")
test_offset_bits = refused_values(MatrixVector, {"lanes": 4}, "offset_bits", [1, 17, 9.0],
                                  "Offset bits must be an integer between 2 and 16")
test_form = refused(MatrixVector, {"lanes": 4}, [({"form": "sum"}, "'sum' is not a valid Form")])
test_lockstep = BENCH.lockstep([(4, 8, form) for form in FORMS], count=2_700, least=100)
test_lockstep_of_sizes = BENCH.random(list(itertools.product(LANES, (4, 8), FORMS)))
test_cocotb = BENCH.cocotb([(4, 8, form) for form in FORMS], cut=7)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lanes", LANES)
def test_throughput(lanes, form):
    """One beat is accepted per cycle, and every sum appears ``latency`` cycles after its last beat."""
    run = BENCH.check((lanes, 8, form), seed=3)
    last, _ = run.drive.drawn
    assert run.moves("i").tolist() == list(range(len(last)))
    assert run.moves().tolist() == (np.flatnonzero(last) + BENCH.make(lanes, 8, form).latency).tolist()


@pytest.mark.parametrize("form", FORMS)
def test_matrix_of_64_by_64(form):
    """With 16 lanes, a 64 by 64 matrix takes 256 cycles plus the latency."""
    generator = np.random.default_rng(4)
    codes, x = generator.integers(0, 256, (64, 64)), generator.integers(0, 256, 64)
    offsets, bias = generator.integers(-256, 1, 64), generator.integers(-1 << 23, 1 << 23, 64)
    sums = model.matrix_vector(codes, offsets, Variant.MIN, x, bias)
    BENCH.check((16, 8, form), count=256 + BENCH.make(16, 8, form).latency, drive=_given(
        16, 8, codes.reshape(256, 16), np.tile(x.reshape(4, 16), (64, 1)), sums, offset=offsets.repeat(4),
        bias=bias.repeat(4), last=np.tile([0, 0, 0, 1], 64)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("offset", "subtract", "code", "value", "bias"), [
    (-256, 0, 0, 255, -1 << 23), (255, 0, 0, 255, (1 << 23) - 1), (0, 0, 255, 255, (1 << 23) - 1),
    (0, 1, 255, 255, -1 << 23), (-256, 0, 0, -128, (1 << 23) - 1), (255, 1, 0, -128, -1 << 23),
])
def test_longest_sum(form, offset, subtract, code, value, bias):
    """32-bit sums do not overflow for the largest numbers at the maximum length."""
    length = arithmetic.LENGTH_MAX
    beats = length // 16
    weight = offset - code if subtract else offset + code
    run = BENCH.check((16, 8, form), drive=_given(
        16, 8, np.full((beats, 16), code), np.full((beats, 16), value), [bias + length * weight * value],
        signed=value < 0, subtract=subtract, offset=offset, bias=bias, last=np.arange(beats) == beats - 1))
    assert len(run.moves()) == 1


@pytest.mark.parametrize("form", FORMS)
def test_all_products(form):
    """Products of every code with every input, signed and unsigned, are correct."""
    codes, values = (grid.ravel() for grid in np.meshgrid(np.arange(256), np.arange(256)))
    for signed, subtract, offset in ((0, 0, -256), (1, 0, -100), (0, 1, 255), (1, 1, 0)):
        weights = offset - codes if subtract else offset + codes
        sums = weights * (values - 256 * (values > 127) if signed else values)
        run = BENCH.check((1, 8, form), drive=_given(1, 8, codes[:, None], values[:, None], sums, signed=signed,
                                                     subtract=subtract, offset=offset, last=np.ones(len(codes))))
        assert len(run.moves()) == len(codes)


@pytest.mark.parametrize("form", FORMS)
def test_offers_stand_for_all_time(form):
    formal.prove(formal.Offers(MatrixVector(lanes=1, bits=4, form=form)), depth=2)
