# amaranth: UnusedElaboratable=no
import functools

import cocotb
import numpy as np
import pytest
from amaranth.hdl import Assert, Assume, Module, ResetSignal, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.masking.multiplexer import MaskMultiplexer, masked_beat_layout
from hdl.streams.stream import beat_layout, connect_stream
from sim import formal, regression
from sim.golden import masking as model
from sim.golden.stream import queue
from sim.payload import pack
from sim.streams import STALLS, Monitor, Sink, Source, cycles, stall_array, stalls, start
from sim.verilated.vectors import Feed, Unit
from tests.hdl.masking import masks

WIDTHS = (8, 16, 32)


@functools.cache
def _unit(lanes, width):
    return Unit(MaskMultiplexer(lanes=lanes, width=width))


def _beats(seed, count, lanes, width):
    """Random input beats, and the expected output beats for an alternative."""
    generator = np.random.default_rng(seed)
    elements = masks.elements(generator, count, lanes, width)
    mask, keep = generator.random((2, count, lanes)) < 0.5
    last = generator.random(count) < 0.2
    alternative = int(generator.integers(0, 1 << width))
    rows = pack(masked_beat_layout(lanes, width), {
        "elements": elements, "mask": masks.number(mask), "keep": masks.number(keep), "last": last})
    return rows, masks.data_rows(model.apply(elements, mask, alternative), keep, last, width), alternative


# --- construction


@pytest.mark.parametrize("lanes", [0, 3, 32, 4.0, "4", None])
def test_lanes(lanes):
    message = rf"^Lane count must be 1, 2, 4, 8 or 16, not {lanes!r}$"
    with pytest.raises(ValueError, match=message):
        MaskMultiplexer(lanes=lanes)
    with pytest.raises(ValueError, match=message):
        masked_beat_layout(lanes)


@pytest.mark.parametrize("width", [0, -1, 8.0, "8", None])
def test_width(width):
    with pytest.raises(ValueError, match=rf"^Element width must be a positive integer, not {width!r}$"):
        MaskMultiplexer(lanes=4, width=width)


def test_ports():
    component = MaskMultiplexer(lanes=16, width=8)
    assert (component.lanes, component.width) == (16, 8)
    assert component.i.payload.shape() == masked_beat_layout(16, 8)
    assert component.o.payload.shape() == beat_layout(16, 8)


# --- values and cycles


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("lanes", masks.LANES)
def test_throughput(lanes, width):
    """A beat passes in every cycle, each one cycle later."""
    rows, want, alternative = _beats(1, 500, lanes, width)
    unit = _unit(lanes, width)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(rows)}, sinks={"o": True}, cycles=510,
                          inputs={"alternative": alternative})
    when = np.flatnonzero(trace["o__valid"])
    assert when.tolist() == list(range(MaskMultiplexer.latency, MaskMultiplexer.latency + 500))
    np.testing.assert_array_equal(trace["o__payload"][when], want)


@pytest.mark.parametrize("sink", STALLS)
@pytest.mark.parametrize("source", STALLS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("lanes", masks.LANES)
def test_lockstep(lanes, width, source, sink):
    """The unit behaves as a queue of one beat, which is empty after a reset.

    The alternative changes in each cycle, and a beat gets the alternative of the cycle in which it is taken.
    """
    count = 2_000
    generator = np.random.default_rng(2)
    elements = masks.elements(generator, count, lanes, width)
    mask, keep = generator.random((2, count, lanes)) < 0.5
    last = generator.random(count) < 0.2
    alternatives = generator.integers(0, 1 << width, count).astype(elements.dtype)
    rows = pack(masked_beat_layout(lanes, width), {
        "elements": elements, "mask": masks.number(mask), "keep": masks.number(keep), "last": last})
    willing, ready = stall_array(source, count, seed=3), stall_array(sink, count, seed=4)
    unit = _unit(lanes, width)
    unit.reset()
    trace = unit.lockstep(sources={"i": Feed(rows, willing)}, sinks={"o": ready},
                          inputs={"alternative": alternatives})
    expected = queue(depth=1, latency=1, beats=count, willing=willing, ready=ready)
    for name in ("i_valid", "i_ready", "o_valid"):
        np.testing.assert_array_equal(trace[name.replace("_", "__")], getattr(expected, name), name)
    taken = np.flatnonzero(expected.i_valid & expected.i_ready)
    instead = alternatives[taken, None]
    want = masks.data_rows(np.where(mask[:len(taken)], elements[:len(taken)], instead), keep[:len(taken)],
                           last[:len(taken)], width)
    valid = expected.o_valid
    np.testing.assert_array_equal(trace["o__payload"][valid], want[expected.offered[valid]])


def test_alternative_is_taken_with_the_beat():
    """The alternative may change from beat to beat, without effect on a beat on offer."""
    unit = _unit(1, 8)
    unit.reset()
    rows = pack(masked_beat_layout(1, 8), {"elements": np.full((4, 1), 9), "mask": [0, 0, 1, 0], "keep": [1] * 4,
                                           "last": [0] * 4})
    ready = np.array([1, 0, 0, 1, 1, 1, 1, 1], bool)
    trace = unit.lockstep(sources={"i": Feed(rows)}, sinks={"o": ready}, inputs={"alternative": np.arange(1, 9)})
    when = np.flatnonzero(trace["o__valid"])
    assert when.tolist() == [1, 2, 3, 4, 5, 6]
    assert (trace["o__payload"][when] & 0xFF).tolist() == [1, 1, 1, 4, 9, 6]


# --- proven


class _Passes(wiring.Component):
    """Specification: an offer stands until it is taken, and is the masked beat that was taken most recently."""

    def __init__(self, lanes, width):
        self._unit = MaskMultiplexer(lanes=lanes, width=width)
        super().__init__({
            "alternative": In(width), "i": In(stream.Signature(self._unit.i.payload.shape())),
            "o": Out(stream.Signature(self._unit.o.payload.shape()))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self._unit
        connect_stream(m, self.i, unit.i)
        connect_stream(m, unit.o, self.o)
        taken = Signal.like(self.i.payload)
        instead = Signal.like(self.alternative)
        held = Signal()
        with m.If(self.i.ready):
            m.d.sync += [held.eq(self.i.valid), taken.eq(self.i.payload), instead.eq(self.alternative)]
        m.d.comb += [
            unit.alternative.eq(self.alternative),
            Assume(~ResetSignal()),
            Assume(formal.holds(m, "i", self.i)),
            Assert(formal.holds(m, "o", self.o)),
            Assert(self.o.valid == held),
        ]
        with m.If(held):
            m.d.comb += [
                Assert(self.o.payload.keep == taken.keep),
                Assert(self.o.payload.last == taken.last),
            ]
            for lane, element in enumerate(self.o.payload.elements):
                with m.If(taken.mask[lane]):
                    m.d.comb += Assert(element == taken.elements[lane])
                with m.Else():
                    m.d.comb += Assert(element == instead)
        return m


@pytest.mark.parametrize(("lanes", "width"), [(1, 32), (4, 16), (16, 8)])
def test_passes_for_all_time(lanes, width):
    formal.prove(_Passes(lanes, width), depth=2)


# --- the same under cocotb, after a reset while a beat is on offer


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def passes(dut):
    parameters = regression.parameters()
    lanes, width = parameters["lanes"], parameters["width"]
    await start(dut)
    dut.alternative.value = parameters["alternative"]
    dut.i__valid.value = 1
    await cycles(dut, 3)
    dut.rst.value = 1
    dut.i__valid.value = 0
    await cycles(dut, 1)
    dut.rst.value = 0
    source = Source(dut, "i", masked_beat_layout(lanes, width), stalls=stalls(parameters["stalls"], seed=1))
    sink = Sink(dut, "o", beat_layout(lanes, width), stalls=stalls(parameters["stalls"], seed=9))
    monitor = Monitor(dut, "o", beat_layout(lanes, width))
    cocotb.start_soon(source.send(parameters["i"]))
    assert await sink.receive(len(parameters["o"])) == parameters["o"]
    assert len(monitor.beats) == len(parameters["o"])


@pytest.mark.parametrize("kind", ["none", "geometric"])
@pytest.mark.parametrize(("lanes", "width"), [(4, 32), (16, 8)])
def test_cocotb(lanes, width, kind):
    generator = np.random.default_rng(5)
    elements = masks.elements(generator, 40, lanes, width)
    mask = generator.random((40, lanes)) < 0.5
    alternative = int(generator.integers(0, 1 << width))
    out = model.apply(elements, mask, alternative)
    beats, expected = [], []
    for row, bits, result in zip(elements.tolist(), masks.number(mask).tolist(), out.tolist(), strict=True):
        beats.append({"elements": row, "mask": bits, "keep": 1, "last": 0})
        expected.append({"elements": result, "keep": 1, "last": 0})
    regression.run(MaskMultiplexer(lanes=lanes, width=width), module=__name__, parameters={
        "lanes": lanes, "width": width, "stalls": kind, "alternative": alternative, "i": beats, "o": expected})
