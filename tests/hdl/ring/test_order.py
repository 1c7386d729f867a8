# amaranth: UnusedElaboratable=no
"""Tests of the static order of a collective: hdl/ring/order.py."""

import random

import numpy as np
import pytest
from amaranth.hdl import Module, Mux
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.group import GROUP
from hdl.ring.order import LAG, Phase, Planner, SequenceGenerator, first_layout, record_layout
from hdl.ring.topology import MAX_NODES, SMALL_RING, ranks, sizes
from hdl.streams.stream import connect_stream
from sim.golden import root_reduce
from sim.golden.ring import block_indices, places
from sim.streams import stall_array
from sim.verilated.vectors import Unit, unpack
from tests.refusals import refused
from tests.traces import taken

ELEMENTS, SEGMENT = 4096, 64
FIELDS = ("phase", "segment", "block", "place", "length", "first", "last")
LAYOUT = record_layout(ELEMENTS, SEGMENT)
#: Group addresses wrap at the next power of two.
PLACES = 1 << (ELEMENTS // GROUP).bit_length()


class Bench(wiring.Component):
    """A planner and a sender's sequence. In a ring of one node, the sequence has a special step.

    ``make`` creates the sequence's generator from its shape and further parameters; its inputs of one bit that are
    listed in ``flags`` are also inputs of the bench.
    """

    def __init__(self, segment, *, elements=ELEMENTS, nodes_max=SMALL_RING, make=SequenceGenerator, flags=(),
                 **parameters):
        shape = {"elements": elements, "segment": segment, "nodes_max": nodes_max}
        self._planner, self._generator = Planner(**shape), make(**shape, **parameters)
        self._flags = flags
        first, rank = first_layout(elements, nodes_max), ranks(nodes_max)
        super().__init__({
            "length": In(range(elements + 1)), "size": In(sizes(nodes_max)), "rank": In(rank),
            "block_offset": In(rank), "stride": In(8),
            "steps": In(2),  # for the scatter phase and the gather phase: whether there is one
            "single": In(2),  # for the scatter phase and the gather phase: whether it has a single step
            **dict.fromkeys(flags, In(1)),
            "start": In(1), "done": Out(1), "busy": Out(1), "previous": Out(first), "own": Out(first),
            "following": Out(first), "records": Out(stream.Signature(self._generator.o.payload.shape())),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.planner = planner = self._planner
        m.submodules.generator = generator = self._generator
        m.d.comb += [getattr(generator, name).eq(getattr(self, name)) for name in self._flags]
        connect_stream(m, generator.o, self.records)
        for name in ("length", "size", "rank", "block_offset", "stride", "start"):
            m.d.comb += getattr(planner, name).eq(getattr(self, name))
        for name in ("done", "previous", "own", "following"):
            m.d.comb += getattr(self, name).eq(getattr(planner, name))
        m.d.comb += [self.busy.eq(generator.busy), generator.plan.eq(planner.plan), generator.start.eq(planner.done)]
        with m.If(self.steps[0]):
            m.d.comb += generator.scatter.steps.eq(Mux((self.size == 1) | self.single[0], 1, self.size - 1))
        with m.If(self.steps[1]):
            m.d.comb += generator.gather.steps.eq(Mux(self.single[1], 1, self.size - 1))
        m.d.comb += [generator.scatter.first.eq(planner.own), generator.gather.first.eq(planner.following)]
        return m


def order(length, size, rank, scatters, gathers, length_of_segment=SEGMENT, *, block_offset=0, stride=1,
          space=PLACES):
    """Return the expected records in the specified order. Addresses are taken modulo ``space``."""
    blocks, addresses = block_indices(length, size, block_offset=block_offset), places(length, stride=stride) // GROUP
    segments = max(-(-len(block) // length_of_segment) for block in blocks)
    gathers = gathers and size > 1
    records = []

    def phase(which, segment):
        steps = max(size - 1, 1)
        for step in range(steps):
            block = (rank + which.value - step) % size
            inside = blocks[block][segment * length_of_segment:(segment + 1) * length_of_segment]
            records.append((which.value, segment, block, int(addresses[inside[0]]) % space if len(inside) else None,
                            len(inside), step == 0, step == steps - 1))

    if segments and scatters and gathers:
        phase(Phase.SCATTER, 0)
        for segment in range(1, segments):
            phase(Phase.SCATTER, segment)
            phase(Phase.GATHER, segment - 1)
        phase(Phase.GATHER, segments - 1)
    elif segments and (scatters or gathers):
        for segment in range(segments):
            phase(Phase.SCATTER if scatters else Phase.GATHER, segment)
    return records


def meaning(records):
    """Clear the addresses of empty segments in records, since they are unused."""
    return [(*record[:3], record[3] if record[4] else None, *record[4:]) for record in records]


test_constructor_errors = refused(Planner, {"elements": 4096, "segment": 64}, [
    ({"segment": 96}, "Segment must be 32 times a power of two, up to 512, not 96"),
    ({"elements": 100}, "Longest vector must be a multiple of 32, at least 32, not 100"),
    ({"nodes_max": 256}, "Most blocks must be between 1 and 255 nodes, not 256"),
])


def check(unit, generator, length, size, *, seed, pattern, segment, elements=ELEMENTS, nodes_max=SMALL_RING):
    """Run one command with a random rank, block offset and stride; return the planner's cycles."""
    rank, block_offset = generator.randrange(size), generator.randrange(size)
    stride = generator.choice([1, 1, 2, size, 3, generator.randint(1, 255)])
    steps = generator.choice([0b11, 0b01, 0b10] if size > 1 else [0b11, 0b01])
    space = 1 << (elements // GROUP).bit_length()
    cycles = 80 + 20000 * (pattern != "none") + 30 * -(-length // 32) * SEGMENT // segment + 5 * max(0, size - 16)
    start = np.zeros(cycles, dtype=np.uint8)
    start[0] = 1
    trace = unit.lockstep(
        sources={},
        sinks={"records": stall_array(pattern, cycles, seed=seed)},
        inputs={"length": length, "size": size, "rank": rank, "block_offset": block_offset, "stride": stride,
                "steps": steps, "start": start},
    )
    case = (f"seed {seed}: {length} elements, rank {rank} of {size}, offset {block_offset}, stride {stride}, "
            f"steps {steps:02b}")
    done = np.flatnonzero(trace["done"])
    assert len(done) == 1, case
    for name, block in (("previous", rank - 1), ("own", rank), ("following", rank + 1)):
        first = unpack(first_layout(elements, nodes_max), trace[name][-1:])
        group = (block - block_offset) % size
        assert (first["group"][0], first["place"][0]) == (group, group * stride % space), case
    when, records = taken_records(trace, record_layout(elements, segment, nodes_max))
    expected = order(length, size, rank, steps & 1, steps >> 1, segment, block_offset=block_offset, stride=stride,
                     space=space)
    assert meaning(records) == meaning(expected), case
    assert not trace["busy"][-1], case
    offered = np.flatnonzero(np.diff(trace["records__valid"].astype(np.int8), prepend=0) == 1)
    np.testing.assert_array_equal(offered[1:], when[:-1] + 2, err_msg=case)
    return done[0], case


@pytest.mark.parametrize(("pattern", "segment"), [
    ("none", SEGMENT), ("geometric", SEGMENT), ("freeze", SEGMENT), ("none", GROUP)])
def test_order(pattern, segment):
    unit = Unit(Bench(segment), name="ScheduleBench")
    latency = Planner(elements=ELEMENTS, segment=segment).latency
    generator = random.Random(5)
    cases = [(length, size) for length in (0, 1, 31, 32, 33, 500, ELEMENTS) for size in (1, 2, 3, 16)]
    cases += [(generator.randrange(ELEMENTS + 1), generator.randint(1, 16)) for _ in range(60)]
    for seed, (length, size) in enumerate(cases):
        done, case = check(unit, generator, length, size, seed=seed, pattern=pattern, segment=segment)
        assert done <= latency, case


@pytest.mark.parametrize(("nodes_max", "elements", "segment"), [(MAX_NODES, 8192, SEGMENT), (33, ELEMENTS, GROUP)])
def test_large_rings(nodes_max, elements, segment):
    """The order is correct for blocks with many, two, one or no groups, in rings up to the largest."""
    unit = Unit(Bench(segment, elements=elements, nodes_max=nodes_max), name="LargeBench")
    latency = Planner(elements=elements, segment=segment, nodes_max=nodes_max).latency
    generator = random.Random(7)
    cases = [(length, size) for length in (0, 1, 33, nodes_max * GROUP - 1, nodes_max * GROUP, elements)
             for size in (1, 16, 17, nodes_max - 1, nodes_max)]
    cases += [(generator.randrange(elements + 1), generator.randint(17, nodes_max)) for _ in range(20)]
    for seed, (length, size) in enumerate(cases):
        done, case = check(unit, generator, length, size, seed=seed, pattern=("none", "geometric")[seed % 2],
                           segment=segment, elements=elements, nodes_max=nodes_max)
        assert done <= latency, case


def test_chain():
    """In a chain, each segment takes one step, which is marked at both ends of the chain. A gather is marked as in a
    ring."""
    unit = Unit(Bench(SEGMENT, chained=True, flags=("opens", "closes")), name="ChainBench")
    generator = random.Random(6)
    for ends in range(4):
        for length, steps in ((0, 0b01), (33, 0b01), (500, 0b01), (ELEMENTS, 0b01), (500, 0b10)):
            size = 1 if steps == 0b01 else 5  # a chain moves only one block, whatever the ring size is
            stride, cycles = generator.randint(1, 255), 3000
            start = np.zeros(cycles, dtype=np.uint8)
            start[0] = 1
            trace = unit.lockstep(
                sources={}, sinks={"records": stall_array("geometric", cycles, seed=ends)},
                inputs={"length": length, "size": size, "rank": 0, "block_offset": 0, "stride": stride,
                        "steps": steps, "opens": ends & 1, "closes": ends >> 1, "start": start})
            expected = order(length, size, 0, steps & 1, steps >> 1, stride=stride)
            if steps == 0b01:
                expected = [(*record[:5], bool(ends & 1), bool(ends >> 1)) for record in expected]
            assert meaning(taken_records(trace)[1]) == meaning(expected), (ends, length, steps)
            assert not trace["busy"][-1]


def test_late():
    """With ``late``, a collective with a single owner follows the golden order, in which gathers lag by
    several segments; without it, gathers lag by one segment."""
    assert LAG == root_reduce.LAG
    unit = Unit(Bench(SEGMENT, chained=True, lags=True, flags=("opens", "closes", "late")), name="LateBench")
    generator = random.Random(7)
    lengths = [0, 1, 33, *(SEGMENT * segments + more for segments in range(1, 7) for more in (0, 1)), ELEMENTS]
    for seed, length in enumerate(lengths):
        for pattern in ("none", "geometric"):
            ends, stride, cycles = generator.randrange(4), generator.randint(1, 255), 3000
            start = np.zeros(cycles, dtype=np.uint8)
            start[0] = 1
            inputs = {"length": length, "rank": 0, "block_offset": 0, "stride": stride, "start": start}
            sinks = {"records": stall_array(pattern, cycles, seed=seed)}
            case = f"seed {seed}: {length} elements, stride {stride}, ends {ends:02b}, {pattern}"
            trace = unit.lockstep(sources={}, sinks=sinks, inputs={
                **inputs, "size": 1, "steps": 0b11, "opens": ends & 1, "closes": ends >> 1, "late": 1,
                "single": 0b11})
            segments = -(-length // SEGMENT)
            addresses = places(length, stride=stride) // GROUP
            expected = []
            for phase, segment in root_reduce.order(segments):
                gathers = phase == root_reduce.GATHER
                elements = min(SEGMENT, length - segment * SEGMENT)
                expected.append((int(gathers), segment, 0, int(addresses[segment * SEGMENT]) % PLACES, elements,
                                 gathers or bool(ends & 1), gathers or bool(ends >> 1)))
            assert taken_records(trace)[1] == expected, case
            size = generator.randint(2, 16)
            trace = unit.lockstep(sources={}, sinks={"records": stall_array(pattern, 9000, seed=seed)}, inputs={
                **inputs, "start": np.pad(start, (0, 6000)), "size": size, "steps": 0b11, "opens": 1, "closes": 1,
                "late": 0, "single": 0})
            expected = order(length, size, 0, True, True, stride=stride)
            assert meaning(taken_records(trace)[1]) == meaning(expected), f"{case}, size {size}"


def taken_records(trace, layout=LAYOUT, name="records"):
    """Return the cycles in which records were accepted, and the records."""
    when, records = taken(trace, name, layout)
    return when, list(zip(*(records[field].tolist() for field in FIELDS), strict=True))
