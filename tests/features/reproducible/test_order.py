# amaranth: UnusedElaboratable=no
"""Order of steps in collectives that sum integers: hdl/features/reproducible/order.py."""

import dataclasses
import functools
import random

import numpy as np
import pytest
from amaranth.hdl import Shape

from hdl.features.reproducible.order import AHEAD, AheadGenerator
from hdl.group import GROUP
from hdl.ring.order import Phase, record_layout
from hdl.ring.topology import MAX_NODES
from sim.golden import root_reduce
from sim.golden.features.reproducible import packet
from sim.golden.ring import places, segment_indices
from sim.streams import STALLS, stall_array
from sim.verilated.vectors import Unit
from tests.hdl.ring.test_order import ELEMENTS, FIELDS, SEGMENT, Bench
from tests.traces import taken

PHASES = {root_reduce.SCATTER: Phase.SCATTER, root_reduce.GATHER: Phase.GATHER}
SCATTER, GATHER, BOTH = 0b01, 0b10, 0b11


@dataclasses.dataclass(frozen=True)
class Size:
    """Parameters of the generator that is tested."""

    elements: int = ELEMENTS
    segment: int = SEGMENT
    nodes_max: int = 16

    @functools.cached_property
    def bench(self):
        return Bench(self.segment, elements=self.elements, nodes_max=self.nodes_max, make=AheadGenerator,
                     flags=("sums", "silent"))

    @functools.cached_property
    def unit(self):
        return Unit(self.bench, name="AheadBench")

    @property
    def layout(self):
        """Layout of the generator's records."""
        return self.bench.records.payload.shape()

    def wrapped(self, field, value):
        """A number as stored in a field of a record: modulo 2 to the power of the field's width."""
        return value % (1 << Shape.cast(self.layout[field].shape).width)


SMALL = Size()
#: Segments of one group, so that a vector has as many segments as groups. It has at most 63; six bits for the
#: segment number would leave too few values for the segments that precede the first one.
GROUPS = Size(elements=63 * GROUP, segment=GROUP)
LARGE = Size(elements=8192, nodes_max=MAX_NODES)


@dataclasses.dataclass(frozen=True)
class Command:
    """A command, whose sequence has the phases ``steps``; phases in ``single`` have only one step per segment."""

    length: int
    size: int
    rank: int
    block_offset: int = 0
    stride: int = 1
    steps: int = BOTH
    single: int = 0
    silent: bool = False
    sums: bool = True

    @classmethod
    def random(cls, generator, length, size, **fixed):
        drawn = {"rank": generator.randrange(size), "block_offset": generator.randrange(size),
                 "stride": generator.choice([1, 1, 2, size, 3, generator.randint(1, 255)]),
                 "steps": generator.choice([BOTH, BOTH, SCATTER, GATHER]),
                 "single": generator.choice([0, 0, SCATTER, GATHER, BOTH]), "silent": generator.random() < 0.3}
        return cls(length, size, **{**drawn, **fixed})

    def count(self, phase):
        """Number of steps per segment in a phase."""
        if not self.steps >> phase.value & 1:
            return 0
        return 1 if self.single >> phase.value & 1 else max(self.size - 1, 1 - phase.value)

    def records(self, size):
        """Records expected by the golden order; numbers that are not specified are None."""
        addresses = places(self.length, stride=self.stride) // GROUP
        blocks = segment_indices(self.length, self.size, size.segment, block_offset=self.block_offset)
        segments = len(blocks[0])
        records = []

        def part(block, segment):
            """Address and number of the elements of a block's segment."""
            inside = blocks[block][segment] if 0 <= segment < segments else []
            return (size.wrapped("place", int(addresses[inside[0]])) if len(inside) else None), len(inside)

        for name, number, _ in packet.order(segments, 1):
            phase = PHASES[name]
            if not self.sums and number >= segments:
                continue
            ahead = packet.AHEAD[name] if self.sums else 0
            for step in range(self.count(phase)):
                block = (self.rank + phase.value - step) % self.size
                place, length = part(block, number - ahead)
                if self.silent and phase is Phase.GATHER:
                    place, length = None, 0
                exponents = part(block, number) if self.sums else (None, 0)
                records.append({
                    "phase": phase.value, "segment": size.wrapped("segment", number - ahead), "block": block,
                    "place": place, "length": length, "ahead_place": exponents[0], "ahead": exponents[1],
                    "first": step == 0, "last": step == self.count(phase) - 1})
        return records

    def inputs(self, cycles):
        """Inputs of the test bench for a run of ``cycles`` cycles."""
        return {**dataclasses.asdict(self), "start": np.arange(cycles) == 0}


def specified(record):
    """Return a record, with None in place of its addresses at which there are no elements."""
    return {**record, "place": record["place"] if record["length"] else None,
            "ahead_place": record["ahead_place"] if record["ahead"] else None}


def check(size, command, *, pattern="none", seed=1):
    """Run a command; compare all records and the cycles in which they are offered, and return the trace."""
    expected = command.records(size)
    cycles = 150 + size.nodes_max + (2 if pattern == "none" else 16) * len(expected) + 600 * (pattern == "freeze")
    inputs = command.inputs(cycles)
    trace = size.unit.lockstep(sources={}, sinks={"records": stall_array(pattern, cycles, seed=seed)}, inputs=inputs)
    case = f"{command}, {pattern}, seed {seed}"
    when, fields = taken(trace, "records", size.layout)
    records = [dict(zip(fields, values, strict=True)) for values in zip(
        *(rows.tolist() for rows in fields.values()), strict=True)]
    assert list(map(specified, records)) == expected, case
    assert not trace["busy"][-1], case
    offered = np.flatnonzero(np.diff(trace["records__valid"].astype(np.int8), prepend=0) == 1)
    np.testing.assert_array_equal(offered[1:], when[:-1] + 2, err_msg=case)
    return trace


def test_order_is_golden():
    """Exponents precede data by the golden number of segments, in the order of the module's description."""
    assert {name: AHEAD[phase] for name, phase in PHASES.items()} == packet.AHEAD
    records = Command(2 * 3 * SEGMENT, 2, 0).records(SMALL)
    kinds = ["SR" if record["phase"] == Phase.SCATTER.value else "AG" for record in records]
    assert kinds == ["SR", "AG"] * 4 + ["AG"]
    lengths = [0, 0, SEGMENT, 0, SEGMENT, SEGMENT, SEGMENT, SEGMENT, SEGMENT]
    assert [record["length"] for record in records] == lengths
    assert [record["ahead"] for record in records] == 6 * [SEGMENT] + 3 * [0]
    segments = [record["segment"] for record in records]
    limit = SMALL.wrapped("segment", -1) + 1
    assert segments == [limit - 1, limit - 2, 0, limit - 1, 1, 0, 2, 1, 2]


@pytest.mark.parametrize("pattern", STALLS)
def test_commands(pattern):
    """Records of random commands with sums match: a scatter, a gather or both; gathers may be silent."""
    generator = random.Random(STALLS.index(pattern))
    cases = [(length, size) for length in (0, 1, 31, 32, 33, 500, ELEMENTS) for size in (1, 2, 3, 16)]
    cases += [(generator.randrange(ELEMENTS + 1), generator.randint(1, 16)) for _ in range(40)]
    for seed, (length, size) in enumerate(cases):
        check(SMALL, Command.random(generator, length, size), pattern=pattern, seed=seed)


@pytest.mark.parametrize("steps", [SCATTER, GATHER, BOTH])
def test_every_number_of_segments(steps):
    """Records match for any number of segments, and if some blocks end one segment earlier than others."""
    generator = random.Random(steps)
    for segments in range(1, 64):
        for length, size in ((segments * GROUP, 1), (2 * segments * GROUP - generator.randint(1, GROUP), 2)):
            if length <= GROUPS.elements:
                single = generator.choice([GATHER, BOTH])
                command = Command.random(generator, length, size, steps=steps, single=single)
                check(GROUPS, command, pattern=generator.choice(["none", "geometric"]), seed=segments)


def test_large_rings():
    """Records match for blocks with many, two, one or no groups, in rings up to the largest size."""
    generator = random.Random(7)
    cases = [(length, size) for length in (0, 1, 33, MAX_NODES * GROUP - 1, MAX_NODES * GROUP, 8192)
             for size in (1, 16, 17, MAX_NODES - 1, MAX_NODES)]
    cases += [(generator.randrange(8193), generator.randint(17, MAX_NODES)) for _ in range(10)]
    for seed, (length, size) in enumerate(cases):
        check(LARGE, Command.random(generator, length, size), pattern=("none", "geometric")[seed % 2], seed=seed)


def test_silent_gather():
    """In a silent gather, records are the same except that they have no elements."""
    command = Command(1000, 3, 1, block_offset=2, stride=5)
    usual, silent = (dataclasses.replace(command, silent=silent).records(SMALL) for silent in (False, True))
    gathers = [record["phase"] == Phase.GATHER.value for record in usual]
    assert [record["length"] for record in silent] == [
        0 if gather else record["length"] for gather, record in zip(gathers, usual, strict=True)]
    assert any(record["length"] for record, gather in zip(usual, gathers, strict=True) if gather)
    for silent in (False, True):
        for pattern in STALLS:
            check(SMALL, dataclasses.replace(command, silent=silent), pattern=pattern)


def test_without_sums():
    """Without sums of integers, all ports match the usual generator in every cycle, and there are no exponents."""
    usual, layout = Unit(Bench(SEGMENT), name="ScheduleBench"), record_layout(ELEMENTS, SEGMENT)
    generator = random.Random(8)
    cases = [(length, size) for length in (0, 1, 500, ELEMENTS) for size in (1, 3)]
    cases += [(generator.randrange(ELEMENTS + 1), generator.randint(1, 16)) for _ in range(20)]
    for seed, (length, size) in enumerate(cases):
        pattern = STALLS[seed % len(STALLS)]
        command = Command.random(generator, length, size, steps=generator.choice([SCATTER, GATHER]), silent=False,
                                 sums=False)
        trace = check(SMALL, command, pattern=pattern, seed=seed)
        inputs = command.inputs(len(trace["busy"]))
        del inputs["sums"], inputs["silent"]
        expected = usual.lockstep(sources={}, sinks={"records": trace["records__ready"]}, inputs=inputs)
        for port in ("busy", "done", "records__valid"):
            np.testing.assert_array_equal(trace[port], expected[port], f"{port}, {command}")
        (when, records), (_, wanted) = (taken(run, "records", shape) for run, shape in (
            (trace, SMALL.layout), (expected, layout)))
        assert len(when) == len(command.records(SMALL))
        for field in FIELDS:
            np.testing.assert_array_equal(records[field], wanted[field], f"{field}, {command}")
        assert not records["ahead"].any()


def test_reset():
    """A reset discards a sequence, and the next sequence starts with its first segment."""
    generator = random.Random(9)
    for cut in (1, 20, 40, 41, 42, 43, 60, 100, 200, 300):
        command = Command.random(generator, 2000, 3, single=0)
        SMALL.unit.lockstep(sources={}, sinks={"records": cut % 3 != 0}, cycles=cut, inputs=command.inputs(cut))
        SMALL.unit.reset()
        check(SMALL, Command.random(generator, 1500, 4), seed=cut)


def test_layout():
    """Record fields for exponents have the usual shapes; segments ahead of the first one have numbers of their own.
    """
    for size in (SMALL, GROUPS, LARGE):
        usual = record_layout(size.elements, size.segment, size.nodes_max)
        assert {*size.layout.members} == {*usual.members, "ahead", "ahead_place"}
        assert size.layout["ahead"].shape == usual["length"].shape
        assert size.layout["ahead_place"].shape == usual["place"].shape
        segments = -(-size.elements // size.segment)
        assert size.wrapped("segment", -2) >= segments
