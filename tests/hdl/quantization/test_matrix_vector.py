# amaranth: UnusedElaboratable=no
import functools

import cocotb
import numpy as np
import pytest

from hdl.quantization import arithmetic
from hdl.quantization.arithmetic import Form, Variant
from hdl.quantization.matrix_vector import MatrixVector, operand_layout, sum_layout
from sim import formal, regression
from sim.golden import quantization as model
from sim.payload import pack, unpack
from sim.streams import STALLS, Monitor, Sink, Source, cycles, stall_array, stalls, start
from sim.verilated.vectors import Feed, Unit

LANES = (1, 2, 4, 8, 16)
FORMS = tuple(Form)


@functools.cache
def _unit(lanes, bits, form):
    return Unit(MatrixVector(lanes=lanes, bits=bits, form=form))


def _latency(lanes, bits, form):
    return MatrixVector(lanes=lanes, bits=bits, form=form).latency


class _Outputs:
    """Outputs of random lengths, offsets and biases, and their beats."""

    def __init__(self, lanes, bits, *, count, seed, longest=5):
        generator = np.random.default_rng(seed)
        self.layout = operand_layout(lanes, bits, bits + 1)
        self.lengths = generator.integers(1, longest + 1, count)
        beats = int(self.lengths.sum())
        numbers = np.arange(count).repeat(self.lengths)
        top = (1 << bits) - 1
        self.codes = generator.integers(0, top + 1, (beats, lanes))
        self.inputs = generator.integers(0, 256, (beats, lanes))
        self.inputs[generator.random(beats) < 0.2] = 255
        self.codes[generator.random(beats) < 0.2] = top
        self.signed, self.subtract = generator.random(count) < 0.5, generator.random(count) < 0.5
        # With these offsets all weights have at most one bit more than codes.
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
        self.fields = {
            "codes": self.codes, "inputs": self.inputs, "signed": self.signed[numbers],
            "subtract": self.subtract[numbers], "offset": self.offsets[numbers] & (2 << bits) - 1,
            "bias": self.bias[numbers] & 0xFFFF_FFFF, "last": self.last}

    @property
    def rows(self):
        return pack(self.layout, self.fields)


def _sums(rows):
    return unpack(sum_layout(), rows)["sum"].astype(np.uint32).astype(np.int32).tolist()


def _check(lanes, bits, form, source, sink, *, seed, count=300):
    outputs = _Outputs(lanes, bits, count=count, seed=seed)
    beats = len(outputs.last)
    willing, ready = (stall_array(kind, 3 * beats, seed=seed + n) for n, kind in enumerate((source, sink)))
    unit = _unit(lanes, bits, form)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(outputs.rows, willing)}, sinks={"o": ready}, seed=seed)
    cycle = model.trace(outputs.last, latency=_latency(lanes, bits, form), willing=willing, ready=ready)
    for port in ("i_valid", "i_ready", "o_valid"):
        np.testing.assert_array_equal(trace[port.replace("_", "__")], getattr(cycle, port), f"{port}, {seed=}")
    valid = np.flatnonzero(cycle.o_valid)
    assert _sums(trace["o__payload"][valid]) == [outputs.sums[n] for n in cycle.offered[valid]], f"{seed=}"
    assert len(set(cycle.offered[valid])) > count // 3, f"{seed=}"
    return trace


@pytest.mark.parametrize("lanes", [0, 3, 64, 4.0, "4", None])
def test_lanes(lanes):
    with pytest.raises(ValueError, match=rf"^Lane count must be 1, 2, 4, 8, 16 or 32, not {lanes!r}$"):
        MatrixVector(lanes=lanes)


@pytest.mark.parametrize("bits", [0, 5, 16, "8"])
def test_bits(bits):
    with pytest.raises(ValueError, match=rf"^Bits must be 4 or 8, not {bits!r}$"):
        MatrixVector(lanes=4, bits=bits)


@pytest.mark.parametrize("offset_bits", [1, 17, 9.0])
def test_offset_bits(offset_bits):
    with pytest.raises(ValueError, match=rf"^Offset bits must be an integer between 2 and 16, not {offset_bits!r}$"):
        MatrixVector(lanes=4, offset_bits=offset_bits)


def test_form():
    with pytest.raises(ValueError, match=r"^'sum' is not a valid Form$"):
        MatrixVector(lanes=4, form="sum")


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("source", STALLS)
@pytest.mark.parametrize("form", FORMS)
def test_lockstep(form, source, sink):
    _check(4, 8, form, source, sink, seed=1 + STALLS.index(source) + 4 * STALLS.index(sink))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("lanes", LANES)
def test_lockstep_of_sizes(lanes, bits, form):
    for seed in (1, 2):
        _check(lanes, bits, form, "geometric", "geometric", seed=seed)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lanes", LANES)
def test_throughput(lanes, form):
    """A beat is taken in every cycle, and every sum comes one latency after its last beat."""
    trace = _check(lanes, 8, form, "none", "none", seed=3)
    taken = np.flatnonzero(trace["i__valid"] & trace["i__ready"])
    assert taken.tolist() == list(range(len(taken)))
    outputs = _Outputs(lanes, 8, count=300, seed=3)
    offered = np.flatnonzero(trace["o__valid"])
    assert (offered == np.flatnonzero(outputs.last) + _latency(lanes, 8, form)).all()


@pytest.mark.parametrize("form", FORMS)
def test_matrix_of_64_by_64(form):
    """A 64 by 64 matrix takes 16 lanes 256 cycles and the latency."""
    generator = np.random.default_rng(4)
    codes, x = generator.integers(0, 256, (64, 64)), generator.integers(0, 256, 64)
    offsets, bias = generator.integers(-256, 1, 64), generator.integers(-1 << 23, 1 << 23, 64)
    rows = pack(operand_layout(16, 8, 9), {
        "codes": codes.reshape(256, 16), "inputs": np.tile(x.reshape(4, 16), (64, 1)), "signed": np.zeros(256),
        "subtract": np.zeros(256), "offset": offsets.repeat(4) & 511, "bias": bias.repeat(4) & 0xFFFF_FFFF,
        "last": np.tile([0, 0, 0, 1], 64)})
    unit = _unit(16, 8, form)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(rows)}, sinks={"o": True}, cycles=256 + _latency(16, 8, form))
    got = _sums(trace["o__payload"][trace["o__valid"] == 1])
    assert got == model.matrix_vector(codes, offsets, Variant.MIN, x, bias).tolist()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("offset", "subtract", "code", "value", "bias"), [
    (-256, 0, 0, 255, -1 << 23), (255, 0, 0, 255, (1 << 23) - 1), (0, 0, 255, 255, (1 << 23) - 1),
    (0, 1, 255, 255, -1 << 23), (-256, 0, 0, -128, (1 << 23) - 1), (255, 1, 0, -128, -1 << 23),
])
def test_longest_sum(form, offset, subtract, code, value, bias):
    """Sums of 32 bits hold the largest numbers over the stated length."""
    length = arithmetic.LENGTH_MAX
    beats = length // 16
    rows = pack(operand_layout(16, 8, 9), {
        "codes": np.full((beats, 16), code), "inputs": np.full((beats, 16), value & 255),
        "signed": np.full(beats, value < 0), "subtract": np.full(beats, subtract),
        "offset": np.full(beats, offset & 511), "bias": np.full(beats, bias & 0xFFFF_FFFF),
        "last": np.arange(beats) == beats - 1})
    unit = _unit(16, 8, form)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(rows)}, sinks={"o": True}, cycles=beats + 20)
    weight = offset - code if subtract else offset + code
    assert _sums(trace["o__payload"][trace["o__valid"] == 1]) == [bias + length * weight * value]


@pytest.mark.parametrize("form", FORMS)
def test_all_products(form):
    """One lane multiplies every code with every input, signed and unsigned."""
    codes, values = (grid.ravel() for grid in np.meshgrid(np.arange(256), np.arange(256)))
    for signed, subtract, offset in ((0, 0, -256), (1, 0, -100), (0, 1, 255), (1, 1, 0)):
        count = len(codes)
        rows = pack(operand_layout(1, 8, 9), {
            "codes": codes[:, None], "inputs": values[:, None], "signed": np.full(count, signed),
            "subtract": np.full(count, subtract), "offset": np.full(count, offset & 511), "bias": np.zeros(count),
            "last": np.ones(count)})
        unit = _unit(1, 8, form)
        unit.reset()
        trace = unit.lockstep(sources={"i": Feed(rows)}, sinks={"o": True}, cycles=count + 20)
        weights = offset - codes if subtract else offset + codes
        want = weights * (values - 256 * (values > 127) if signed else values)
        assert _sums(trace["o__payload"][trace["o__valid"] == 1]) == want.tolist()


@pytest.mark.parametrize("form", FORMS)
def test_offers_stand_for_all_time(form):
    formal.prove(formal.Offers(MatrixVector(lanes=1, bits=4, form=form)), depth=2)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def multiplies(dut):
    parameters = regression.parameters()
    layout = operand_layout(4, 8, 9)
    await start(dut)
    dut.i__valid.value = dut.o__ready.value = 1
    await cycles(dut, 7)
    dut.rst.value = 1
    dut.i__valid.value = 0
    await cycles(dut, 1)
    dut.rst.value = 0
    source = Source(dut, "i", layout, stalls=stalls(parameters["stalls"], seed=1))
    sink = Sink(dut, "o", sum_layout(), stalls=stalls(parameters["stalls"], seed=2))
    monitor = Monitor(dut, "o", sum_layout())
    cocotb.start_soon(source.send(parameters["i"]))
    assert await sink.receive(len(parameters["o"])) == parameters["o"]
    assert len(monitor.beats) == len(parameters["o"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["none", "geometric"])
def test_cocotb(kind, form):
    """Results are right after a reset in the middle of an output."""
    outputs = _Outputs(4, 8, count=40, seed=5)
    beats = [{name: values[n].tolist() if values[n].ndim else int(values[n])
              for name, values in outputs.fields.items()} for n in range(len(outputs.last))]
    regression.run(MatrixVector(lanes=4, form=form), module=__name__, parameters={
        "stalls": kind, "i": beats, "o": [{"sum": int(value) & 0xFFFF_FFFF} for value in outputs.sums]})
