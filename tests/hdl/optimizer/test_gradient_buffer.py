# amaranth: UnusedElaboratable=no

import numpy as np
import pytest
from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from hdl.optimizer.gradient_buffer import GradientBuffer
from hdl.streams.stream import beat_layout
from sim.formal import prove
from sim.payload import unpack
from sim.verilated.optimizer import beats
from sim.verilated.vectors import Feed, Unit
from tests.refusals import refused

test_parameters = refused(GradientBuffer, {"lanes": 4, "depth": 8}, [
    ({"lanes": 3}, "Lane count must be 1, 2, 4 or 8, not 3"),
    ({"read_lanes": 8}, "Read lane count must be 1, 2, 4 or 8 and at most 4, not 8"),
    ({"depth": 10}, "Depth must be a positive multiple of 4 lanes, not 10"),
    ({"depth": "8"}, "Depth must be a positive multiple of 4 lanes, not '8'"),
    ({"banks": 1}, "Bank count must be at least 2, not 1"),
])


def test_fill_and_drain():
    """Fills of 5 and 4 elements are drained at two elements per cycle, as four slices each."""
    buffer = GradientBuffer(lanes=4, read_lanes=2, depth=8)
    unit = Unit(buffer)
    numbers = np.arange(1, 12, dtype=np.uint32)
    offered = beats([numbers[:5], numbers[5:9], numbers[9:]], beat_layout(4))
    cycles = 24
    inputs = {
        "i__payload": np.concatenate([offered, np.repeat(offered[-1:], cycles - len(offered), axis=0)]),
        "i__valid": np.arange(cycles) < 13,
        "claim": np.isin(np.arange(cycles), [8, 12]),
        "take": (np.arange(cycles) >= 8) & (np.arange(cycles) < 16),
        "finish": np.isin(np.arange(cycles), [11, 15]),
    }
    outputs = unit.run(inputs)
    # The first fill has two beats and the second has one; the third waits until the first bank is drained.
    assert outputs["i__ready"].tolist() == [1] * 3 + [0] * 9 + [1] + [0] * 3 + [1] * 8
    assert outputs["filled"].tolist() == [0, 0] + [1] * 22
    drained = outputs["o"].view(np.uint32).reshape(cycles, 2) if outputs["o"].ndim == 2 else np.stack(
        [outputs["o"] & 0xFFFFFFFF, outputs["o"] >> 32], axis=1)
    slices = [[1, 2], [3, 4], [5, 0], [0, 0], [6, 7], [8, 9], [0, 0], [0, 0]]
    assert drained[8 + buffer.latency:16 + buffer.latency].tolist() == slices
    assert not drained[16 + buffer.latency:].any()


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(("lanes", "read_lanes", "depth", "banks"), [(4, 2, 8, 2), (4, 4, 12, 3), (2, 1, 2, 2)])
def test_fills_of_any_length(lanes, read_lanes, depth, banks, early):
    """Excess elements are ignored, even within a beat, and missing elements read as zero.

    No element of an earlier fill remains, even after a burst that ends early. Fills start as soon as there is room,
    or only when all banks are empty again.
    """
    slices = depth // read_lanes
    generator = np.random.default_rng(lanes)
    lengths = [97, 1, *range(depth + 3 * lanes, 0, -1), 97, *generator.integers(1, 3 * depth, 40).tolist()]
    lengths = [*lengths, depth] if early else [97] * 12
    fills = [generator.integers(1, 1 << 32, length, dtype=np.uint32) for length in lengths]
    takes = [slices if number % 3 else int(generator.integers(1, slices + 1)) for number in range(len(fills))]
    period = 97 // lanes + slices + 8
    first = np.arange(1, len(fills) + 1) * period
    cycles = int(first[-1]) + period
    claim, take, finish = (np.zeros(cycles, bool) for _ in range(3))
    for at, count in zip(first, takes, strict=True):
        claim[at], take[at:at + count], finish[at + count - 1] = True, True, True
    buffer = GradientBuffer(lanes=lanes, read_lanes=read_lanes, depth=depth, banks=banks)
    # A late fill starts after the slices of a burst. The rest of the period has just enough cycles for the beats of
    # the fill.
    willing = early | (np.arange(cycles) % period > slices) & (np.arange(cycles) % period <= slices + -(-97 // lanes))
    trace = Unit(buffer).lockstep(
        sources={"i": Feed(beats(fills, beat_layout(lanes)), willing)}, sinks={}, cycles=cycles,
        inputs={"claim": claim, "take": take, "finish": finish})
    assert trace["filled"][first].all()
    rows = unpack(wrapped(buffer.o.shape()), trace["o"])["slice"]
    due = np.zeros((cycles, read_lanes), np.uint32)
    for at, count, fill in zip(first, takes, fills, strict=True):
        bank = np.zeros(depth, np.uint32)
        bank[:len(fill)] = fill[:depth]
        due[at + buffer.latency:at + buffer.latency + count] = bank.reshape(slices, read_lanes)[:count]
    np.testing.assert_array_equal(rows, due)


def wrapped(shape):
    return data.StructLayout({"slice": shape})


class Forgetful(wiring.Component):
    """Specification: fills write their own number, and every slice read has its burst's number or is zero.

    The five inputs are arbitrary except for three rules: only filled banks are claimed, only claimed banks are taken,
    and each burst finishes within the depth.
    """

    valid: In(1)
    last: In(1)
    claim: In(1)
    take: In(1)
    finish: In(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.buffer = buffer = GradientBuffer(lanes=1, depth=2, width=2)
        filling = Signal(2, init=1)
        draining = Signal(2, init=1)
        claimed = Signal(2)
        second = Signal()
        done = Signal()

        def following(number):
            return Mux(number == 3, 1, number + 1)

        m.d.comb += [
            buffer.i.valid.eq(self.valid),
            buffer.i.payload.elements[0].eq(filling),
            buffer.i.payload.keep.eq(1),
            buffer.i.payload.last.eq(self.last),
            buffer.claim.eq(self.claim & buffer.filled),
            buffer.take.eq(self.take & (buffer.claim | (claimed != 0))),
            buffer.finish.eq(self.finish | second),
            done.eq(buffer.take & buffer.finish),
        ]
        m.d.sync += claimed.eq(claimed + buffer.claim - done)
        with m.If(buffer.i.valid & buffer.i.ready & buffer.i.payload.last):
            m.d.sync += filling.eq(following(filling))
        with m.If(buffer.take):
            m.d.sync += second.eq(~buffer.finish)
        with m.If(done):
            m.d.sync += draining.eq(following(draining))

        expected = draining
        for age in range(buffer.latency):
            later = Signal(2, name=f"expected_{age}")
            m.d.sync += later.eq(expected)
            expected = later
        m.d.comb += Assert((buffer.o[0] == 0) | (buffer.o[0] == expected))
        return m


def test_discarded_is_gone():
    """For 12 cycles, in which a bank can be filled twice, no sequence of inputs brings back a discarded element."""
    prove(Forgetful(), depth=12, mode="bmc")
