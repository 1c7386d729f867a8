# amaranth: UnusedElaboratable=no
import functools

import numpy as np
import pytest
from amaranth.hdl import Assert, Assume, Module, ResetSignal, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import Queue, SkidBuffer, beat_layout, connect_stream, word_layout
from sim import formal
from sim.golden.stream import queue
from sim.payload import pack
from tests.hdl.unit_bench import Drive, UnitBench, Want
from tests.refusals import refused_values, refuses

# --- layouts and connections


def test_word_layout():
    assert word_layout() == data.StructLayout({"data": 32, "last": 1})
    assert word_layout().size == 33


def test_beat_layout():
    layout = beat_layout(4)
    assert layout.size == 4 * 32 + 4 + 1
    assert [layout["elements"].shape[lane].offset for lane in range(4)] == [0, 32, 64, 96]
    assert beat_layout(2, width=16).size == 2 * 16 + 2 + 1


@pytest.mark.parametrize("lanes", [0, -1, 2.0, "4"])
def test_beat_layout_lanes(lanes):
    refuses(f"Lane count must be a positive integer, not {lanes!r}", beat_layout, lanes)


def test_beat_layout_width():
    refuses("Element width must be a positive integer, not 0", beat_layout, 1, width=0)


test_queue_depth = refused_values(Queue, {"shape": 8}, "depth", [0, -1, 1.5, None],
                                  "Queue depth must be a positive integer")


def test_queue_memory():
    refuses("Queue memory must be True, False or None, not 'block'", Queue, shape=8, depth=8, block="block")
    refuses("Queue depth must be at least 4 in block memory, not 3", Queue, shape=8, depth=3, block=True)
    assert [Queue(shape=8, depth=depth).latency for depth in (1, 2, 65, 66)] == [1, 1, 1, 3]


def _interface(shape, **options):
    return stream.Signature(shape, **options).create()


@pytest.mark.parametrize(("source", "sink"), [
    (8, signed(8)),
    (8, 9),
    (33, word_layout()),
    (word_layout(), data.StructLayout({"last": 1, "data": 32})),
    (beat_layout(2), beat_layout(1, width=65)),
])
def test_connect_refuses_other_shapes(source, sink):
    with pytest.raises(TypeError, match=r"^Payload of the sink must be of the source's shape .*, not "):
        connect_stream(Module(), _interface(source), _interface(sink))


def test_connect_always():
    m = Module()
    with pytest.raises(TypeError, match=r"must be always ready, not a sink with a ready signal$"):
        connect_stream(m, _interface(8, always_ready=True), _interface(8))
    with pytest.raises(TypeError, match=r"must be always valid, not a source with a valid signal$"):
        connect_stream(m, _interface(8), _interface(8, always_valid=True))
    connect_stream(m, _interface(8, always_ready=True), _interface(8, always_ready=True))
    connect_stream(m, _interface(8, always_valid=True), _interface(8))


# --- every cycle against the model

CONFIGURATIONS = [(1, None), (2, None), (3, None), (4, None), (4, True), (5, True), (17, None), (18, None),
                  (66, None)]


def _make(depth=None, block=None):
    """Create a queue or, if no depth is given, a skid buffer."""
    return Queue(shape=word_layout(), depth=depth, block=block) if depth else SkidBuffer(shape=word_layout())


def _drive(generator, *_, count=5_000):
    rows = pack(word_layout(), {"data": generator.integers(0, 1 << 32, count, dtype=np.uint64),
                                "last": generator.integers(0, 2, count)})
    return Drive({"i": rows}, rows)


def _model(unit, rows, willing, ready):
    trace = queue(depth=unit.depth, latency=unit.latency, beats=len(rows), willing=willing["i"], ready=ready["o"])
    want = Want.of(trace, rows)
    if isinstance(unit, Queue):
        want.ports["level"] = trace.level
    return want


BENCH = UnitBench(_make, _model, _drive)
FEW = [(1, None), (2, None), (5, None), (66, None)]
test_lockstep = BENCH.lockstep([(), *CONFIGURATIONS], count=5_000, seeds=3)
test_reset = BENCH.resets(FEW, (3, 7), count=200)
test_cocotb = BENCH.cocotb(FEW, cut=7, drive=functools.partial(_drive, count=200))


# --- proofs


class _Order(wiring.Component):
    """Specification: a buffer never loses, repeats, reorders or invents beats.

    The beat with the number ``watched``, an arbitrary constant, leaves the buffer unchanged. The buffer contains the
    beats that have arrived but
    not left, at most ``depth``.
    """

    i: In(stream.Signature(2))
    o: Out(stream.Signature(2))
    watched: In(4)

    def __init__(self, unit, depth):
        super().__init__()
        self._unit = unit
        self._depth = depth

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self._unit
        connect_stream(m, self.i, unit.i)
        connect_stream(m, unit.o, self.o)
        started, watched = Signal(), Signal(4)
        came, gone = Signal(5), Signal(5)
        kept = Signal(2)
        accept, depart = self.i.valid & self.i.ready, self.o.valid & self.o.ready
        m.d.sync += [started.eq(1), watched.eq(self.watched), came.eq(came + accept), gone.eq(gone + depart)]
        with m.If(accept & (came == self.watched)):
            m.d.sync += kept.eq(self.i.payload)
        m.d.comb += [
            Assume(~ResetSignal()),
            Assume(~started | (self.watched == watched)),
            Assume(formal.holds(m, "i", self.i)),
            Assert(formal.holds(m, "o", self.o)),
            Assert(came - gone <= self._depth),
            Assert(~self.o.valid | (came != gone)),
            Assert(~(depart & (gone == self.watched)) | (self.o.payload == kept)),
        ]
        if isinstance(unit, Queue):
            m.d.comb += Assert(unit.level == came - gone)
        return m


PROVEN = {
    "skid buffer": lambda shape: SkidBuffer(shape=shape),
    "register": lambda shape: Queue(shape=shape, depth=1),
    "two": lambda shape: Queue(shape=shape, depth=2),
    "distributed": lambda shape: Queue(shape=shape, depth=3),
    "block": lambda shape: Queue(shape=shape, depth=4, block=True),
}


@pytest.mark.parametrize("name", PROVEN)
def test_offers_stand_for_all_time(name):
    formal.prove(formal.Offers(PROVEN[name](4)), depth=4)


@pytest.mark.parametrize("name", PROVEN)
def test_order_is_kept(name):
    unit = PROVEN[name](2)
    formal.prove(_Order(unit, unit.depth), depth=10, mode="bmc")
