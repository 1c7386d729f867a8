# amaranth: UnusedElaboratable=no
"""Interleaved order of a collective's packets: hdl/ring/interleaved.py."""

import random

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.group import GROUP
from hdl.ring.interleaved import INTERLEAVED_LAG, InterleavedGenerator
from hdl.ring.order import Planner, first_layout, record_layout
from hdl.ring.topology import SMALL_RING, ranks, sizes
from hdl.streams.stream import connect_stream
from sim.golden import interleaved
from sim.golden.ring import block_indices, places
from sim.streams import stall_array
from sim.verilated.vectors import Unit
from tests.hdl.ring.test_order import meaning, taken_records

ELEMENTS, SEGMENT = 2048, 64
#: Group addresses wrap at the next power of two.
PLACES = 1 << (ELEMENTS // GROUP).bit_length()


class Bench(wiring.Component):
    """A planner, and a sequence with an arbitrary number of steps that it starts."""

    def __init__(self):
        self._shape = {"elements": ELEMENTS, "segment": SEGMENT, "nodes_max": SMALL_RING}
        rank = ranks(SMALL_RING)
        super().__init__({
            "length": In(range(ELEMENTS + 1)), "size": In(sizes(SMALL_RING)), "rank": In(rank),
            "block_offset": In(rank), "stride": In(8), "both": In(1),
            "scatter": In(sizes(SMALL_RING)), "gather": In(sizes(SMALL_RING)),  # number of steps in each phase
            "start": In(1), "done": Out(1), "busy": Out(1), "own": Out(first_layout(ELEMENTS, SMALL_RING)),
            "records": Out(stream.Signature(record_layout(ELEMENTS, SEGMENT, SMALL_RING))),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.planner = planner = Planner(**self._shape)
        m.submodules.generator = generator = InterleavedGenerator(**self._shape)
        connect_stream(m, generator.o, self.records)
        for name in ("length", "size", "rank", "block_offset", "stride", "start"):
            m.d.comb += getattr(planner, name).eq(getattr(self, name))
        m.d.comb += [
            self.done.eq(planner.done), self.own.eq(planner.own), self.busy.eq(generator.busy),
            generator.plan.eq(planner.plan), generator.start.eq(planner.done), generator.both.eq(self.both),
            generator.scatter.steps.eq(self.scatter), generator.gather.steps.eq(self.gather),
            generator.scatter.first.eq(planner.own), generator.gather.first.eq(planner.following),
        ]
        return m


def expected(length, size, rank, scatter, gather, both, *, block_offset, stride):
    """Expected records, computed from the golden order."""
    blocks, addresses = block_indices(length, size, block_offset=block_offset), places(length, stride=stride) // GROUP
    segments = max(-(-len(block) // SEGMENT) for block in blocks)
    records = []
    for phase, segment, step in interleaved.order(segments, scatter, gather, both=both):
        gathers = phase == interleaved.GATHER
        block = (rank + gathers - step) % size
        inside = blocks[block][segment * SEGMENT:(segment + 1) * SEGMENT]
        records.append((int(gathers), segment, block, int(addresses[inside[0]]) % PLACES if len(inside) else None,
                        len(inside), step == 0, step == (gather if gathers else scatter) - 1))
    return records


@pytest.mark.parametrize("pattern", ["none", "geometric"])
def test_collective(pattern):
    """Records follow the golden order, whether a participant has all, some, one or none of the steps of a phase."""
    assert INTERLEAVED_LAG == interleaved.LAG
    unit = Unit(Bench(), name="InterleavedBench")
    generator = random.Random(3)
    cases = [(length, size) for length in (0, 1, 33, 500, ELEMENTS) for size in (1, 2, 3, 5)]
    cases += [(generator.randrange(ELEMENTS + 1), generator.randint(1, 16)) for _ in range(60)]
    for seed, (length, size) in enumerate(cases):
        full = max(size - 1, 1)
        scatter, gather = generator.choice([
            (full, full), (full, 0), (0, full), (size, full), (1, 0), (0, 1), (size, 1), (1, 1), (0, 0)])
        both = generator.choice([1, int(bool(scatter and gather))])
        rank, block_offset, stride = generator.randrange(size), generator.randrange(size), generator.randint(1, 255)
        case = f"seed {seed}: {length} elements, {size} nodes, steps {scatter}, {gather}, both {both}"
        cycles = 200 + 12 * (-(-length // 32) + size * (length // SEGMENT + 2)) * (1 if pattern == "none" else 3)
        start = np.zeros(cycles, dtype=np.uint8)
        start[0] = 1
        trace = unit.lockstep(
            sources={}, sinks={"records": stall_array(pattern, cycles, seed=seed)},
            inputs={"length": length, "size": size, "rank": rank, "block_offset": block_offset, "stride": stride,
                    "both": both,
                    "scatter": scatter, "gather": gather, "start": start})
        when, records = taken_records(trace, record_layout(ELEMENTS, SEGMENT))
        assert meaning(records) == expected(
            length, size, rank, scatter, gather, bool(both), block_offset=block_offset, stride=stride), case
        assert not trace["busy"][-1], case
        pauses = np.flatnonzero(np.diff(trace["records__valid"].astype(np.int8), prepend=0) == 1)[1:] - when[:-1]
        allowed = {InterleavedGenerator.pause, InterleavedGenerator.pair_pause}
        if both and not (scatter and gather):
            allowed.add(InterleavedGenerator.longest_pause)
        assert set(pauses) <= allowed if pattern == "none" else all(pauses <= max(allowed)), case
