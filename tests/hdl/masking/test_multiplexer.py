# amaranth: UnusedElaboratable=no
import itertools

import numpy as np
import pytest
from amaranth.hdl import Assert, Assume, Module, ResetSignal, Signal
from amaranth.lib import wiring

from hdl.masking.multiplexer import MaskMultiplexer, masked_beat_layout
from sim import formal
from sim.golden.stream import queue
from sim.payload import pack
from tests.hdl.masking import masks
from tests.hdl.unit_bench import Drive, UnitBench, Want
from tests.refusals import refused_values

WIDTHS = (8, 16, 32)
#: Number of cycles in a run, and number of beats to send.
COUNT = 2_000


def _drive(generator, lanes, width, held=False):
    """Draw beats, and an alternative value for each cycle, which is constant if ``held``."""
    count = 40 if held else COUNT
    elements = masks.elements(generator, count, lanes, width)
    mask, keep = generator.random((2, count, lanes)) < 0.5
    last = generator.random(count) < 0.2
    alternatives = generator.integers(0, 1 << width, count).astype(elements.dtype)
    rows = pack(masked_beat_layout(lanes, width), {
        "elements": elements, "mask": masks.number(mask), "keep": masks.number(keep), "last": last})
    alternatives = int(alternatives[0]) if held else alternatives
    return Drive({"i": rows}, (elements, mask, keep, last, alternatives), {"alternative": alternatives})


def _model(unit, drawn, willing, ready):
    """Model a queue with room for one beat. It samples the alternative value when it accepts a beat."""
    elements, mask, keep, last, alternatives = drawn
    trace = queue(depth=1, latency=unit.latency, beats=len(last), willing=willing["i"], ready=ready["o"])
    if np.ndim(alternatives):
        alternatives = np.resize(alternatives[trace.accepted], len(last))[:, None]
    rows = masks.data_rows(np.where(mask, elements, alternatives), keep, last, unit.width)
    return Want.of(trace, rows)


BENCH = UnitBench(lambda lanes, width, held=False: MaskMultiplexer(lanes=lanes, width=width), _model, _drive)
CASES = list(itertools.product(masks.LANES, WIDTHS))
test_lockstep = BENCH.lockstep(CASES, count=COUNT)
test_reset = BENCH.resets([(4, 32, True)], (1, 2, 3), count=100)
test_cocotb = BENCH.cocotb([(4, 32, True), (16, 8, True)], cut=3)
test_lanes, test_layout_of_lanes = (
    refused_values(make, {}, "lanes", [0, 3, 32, 4.0, "4", None], "Lane count must be 1, 2, 4, 8 or 16")
    for make in (MaskMultiplexer, masked_beat_layout))
test_width = refused_values(MaskMultiplexer, {"lanes": 4}, "width", [0, -1, 8.0, "8", None],
                            "Element width must be a positive integer")


# --- proofs


class _Passes(wiring.Component):
    """Specification: the offered beat is the last accepted beat, masked, and is held until it is accepted."""

    def __init__(self, lanes, width):
        self._unit = MaskMultiplexer(lanes=lanes, width=width)
        super().__init__(self._unit.signature)

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self._unit
        wiring.connect(m, outer=wiring.flipped(self), unit=unit)
        taken = Signal.like(self.i.payload)
        instead = Signal.like(self.alternative)
        held = Signal()
        with m.If(self.i.ready):
            m.d.sync += [held.eq(self.i.valid), taken.eq(self.i.payload), instead.eq(self.alternative)]
        m.d.comb += [
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
