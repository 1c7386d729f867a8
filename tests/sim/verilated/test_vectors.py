# amaranth: UnusedElaboratable=no
import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import Queue, SkidBuffer
from sim.streams import stall_array
from sim.verilated.vectors import Feed, Unit
from tests.refusals import refuses


class Accumulate(wiring.Component):
    """Accumulator, as an example of a unit with state, with narrow and wide ports."""

    a: In(16)
    wide: In(100)
    total: Out(40)
    inverse: Out(100)

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.total.eq(self.total + self.a)
        m.d.comb += self.inverse.eq(~self.wide)
        return m


class Double(wiring.Component):
    a: In(8)
    o: Out(9)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.eq(self.a << 1)
        return m


class Sloppy(wiring.Component):
    """Unit that outputs the payload of its input stream even if no beat is offered."""

    i: In(stream.Signature(70))
    seen: Out(70)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [self.i.ready.eq(1), self.seen.eq(self.i.payload)]
        return m


@pytest.fixture(scope="module")
def accumulate():
    return Unit(Accumulate())


def test_outputs_are_those_before_the_edge(accumulate):
    accumulate.reset()
    a = np.arange(1, 6)
    outputs = accumulate.run({"a": a}, drain=2)
    assert outputs["total"].tolist() == [0, 1, 3, 6, 10, 15, 15]
    assert outputs["total"].dtype == np.uint64


def test_state_stays_and_is_reset(accumulate):
    accumulate.reset()
    accumulate.run({"a": [5, 6]})
    assert accumulate.run({"a": 1}, cycles=3)["total"].tolist() == [11, 12, 13]
    accumulate.reset()
    assert accumulate.run({}, cycles=1)["total"].tolist() == [0]


def test_units_of_one_library_are_apart(accumulate):
    other = Unit(Accumulate())
    accumulate.reset()
    accumulate.run({"a": [5]})
    assert other.run({}, cycles=1)["total"].tolist() == [0]


def test_wide_ports(accumulate):
    rows = np.array([[1, 2, 3, 15], [0, 0, 0, 0]], np.uint32)
    inverse = accumulate.run({"wide": rows})["inverse"]
    assert (inverse[0] == [~np.uint32(1), ~np.uint32(2), ~np.uint32(3), 0]).all()
    assert (inverse[1] == [0xffffffff, 0xffffffff, 0xffffffff, 15]).all()
    assert (accumulate.run({"wide": 1 << 99}, cycles=1)["inverse"][0] == [0xffffffff] * 3 + [7]).all()


def test_without_clock():
    a = np.arange(256)
    assert (Unit(Double()).run({"a": a})["o"] == 2 * a).all()


def test_refuses_wrong_inputs(accumulate):
    refuses("Port must be one of a, wide, not 'b'", accumulate.run, {"b": [1]})
    refuses("Values of a must be of 16 bits, not 65536", accumulate.run, {"a": [0, 65536]})
    refuses("Values of a must be of 16 bits, not -1", accumulate.run, {"a": [0, -1]})
    refuses("Value of a must be of 16 bits, not 65536", accumulate.run, {"a": 65536}, cycles=1)
    refuses("Input wide must have 2 rows, not 1", accumulate.run, {"a": [1, 2], "wide": np.zeros((1, 4), np.uint32)})
    with pytest.raises(ValueError, match=r"^Rows of wide must be 4 words of 32 bits each, not .* shape \(2,\)$"):
        accumulate.run({"wide": [1, 2]})
    refuses("Cycle count must be given where no input is an array, not None", accumulate.run, {"a": 1})
    with pytest.raises(ValueError, match=r"^Cycle count must be given where no stall pattern is an array, not 0$"):
        Unit(SkidBuffer(shape=8)).lockstep(sources={"i": Feed(np.arange(3))}, sinks={"o": True})


def test_offers_stand_and_noise_is_between_them():
    count = 2_000
    willing, ready = stall_array("geometric", count, seed=3), stall_array("geometric", count, seed=4)
    beats = np.arange(count, dtype=np.uint32)
    trace = Unit(SkidBuffer(shape=32)).lockstep(sources={"i": Feed(beats, willing)}, sinks={"o": ready})
    valid, payload = trace["i__valid"].astype(bool), trace["i__payload"]
    moved = valid & trace["i__ready"].astype(bool)
    index = np.cumsum(moved) - moved
    assert (payload[valid] == beats[index[valid]]).all()
    standing = valid[:-1] & ~moved[:-1]
    assert valid[1:][standing].all()
    assert (trace["o__ready"].astype(bool) == ready).all()
    noise = payload[~valid]
    assert len(np.unique(noise)) > 0.99 * len(noise)


def test_noise_stays_within_the_port():
    trace = Unit(Sloppy()).lockstep(sources={"i": Feed(np.zeros((0, 3), np.uint32))}, sinks={}, cycles=500)
    assert not trace["i__valid"].any()
    assert (trace["seen"][:, 2] < 64).all()
    assert (np.bitwise_or.reduce(trace["seen"], axis=0) == [0xffffffff, 0xffffffff, 63]).all()


def test_seed_of_noise():
    unit = Unit(Sloppy())
    feed = Feed(np.zeros((0, 3), np.uint32))
    runs = [unit.lockstep(sources={"i": feed}, sinks={}, cycles=20, seed=seed)["seen"] for seed in (1, 1, 2)]
    assert (runs[0] == runs[1]).all()
    assert (runs[0] != runs[2]).any()


def test_beats_end():
    trace = Unit(Queue(shape=8, depth=4)).lockstep(sources={"i": Feed(np.arange(10))}, sinks={"o": True}, cycles=50)
    assert trace["o__payload"][trace["o__valid"] == 1].tolist() == list(range(10))
