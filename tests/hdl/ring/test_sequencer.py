# amaranth: UnusedElaboratable=no
"""Sequencer of a collective: a reset ends all activity, parts provide their own instructions and sequences, and
sequence numbers wrap in a long command.

The parts' routes and jobs are tested on whole rings.
"""

import random

import numpy as np
import pytest
from amaranth.hdl import Assert, Assume, Module, ResetInserter, ResetSignal, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Memories, NodeConfig, Peer, RootReduce, SingleRing
from hdl.ring.header import header_layout
from hdl.ring.order import Planner, record_layout
from hdl.ring.parts.part import Instruction, Part, PartDescription
from hdl.ring.parts.registry import parts
from hdl.ring.sequencer import Sequencer
from hdl.ring.sequences import Path, Sequence
from hdl.ring.setup import longest_vector, setup_layout
from hdl.ring.topology import MAX_NODES
from hdl.streams.stream import connect_stream
from sim import formal
from sim.streams import stall_array
from sim.verilated.vectors import Unit
from tests.hdl.ring.test_order import order, taken_records
from tests.traces import moved, taken

CONFIG = NodeConfig(
    lanes=1, segment=32, topology=SingleRing(max_nodes=3),
    memories=Memories(gradient=64, weight=64, state=32, planes=1))


class IdleAfterReset(wiring.Component):
    """Specification: after a reset, a sequencer is not busy and offers nothing."""

    def __init__(self, config):
        self._unit = Sequencer(config=config)
        super().__init__({"reset": In(1), **{
            name: member for name, member in self._unit.signature.members.items()
            if member.is_port and member.flow is In}})

    def elaborate(self, platform):
        m = Module()
        unit = self._unit
        m.submodules.unit = ResetInserter(self.reset)(unit)
        was_reset = Signal()
        m.d.sync += was_reset.eq(self.reset)
        m.d.comb += Assume(~ResetSignal())
        offered = []
        for name, member in unit.signature.members.items():
            if member.is_port:
                if member.flow is In:
                    m.d.comb += getattr(unit, name).eq(getattr(self, name))
            else:
                assert isinstance(member.signature, stream.Signature), name
                port = getattr(unit, name)
                for channel in port if isinstance(port, list) else [port]:
                    assert member.flow is Out
                    ready = Signal(name=f"{name}_ready")
                    m.d.comb += channel.ready.eq(ready)
                    offered.append(channel.valid)
        assert len(offered) > 10
        for valid in (unit.busy, *offered):
            m.d.comb += Assert(~was_reset | ~valid)
        return m


@pytest.mark.parametrize("role", [Peer(), RootReduce(), Peer(interleaved=True)], ids=str)
def test_idle_after_reset(role):
    """Proof by induction from every state; the engine resets its sequencer whenever no command runs."""
    formal.prove(IdleAfterReset(CONFIG.replace(role=role)), depth=2)


# --- a part that exists only in tests

SHAPE = record_layout(longest_vector(CONFIG), CONFIG.segment)


class ObserverSequence(Sequence):
    name = "observer"

    def scatter(self, command):
        return Path(steps=command.sends)


SEQUENCE = ObserverSequence()
OBSERVER = PartDescription(
    name="observer",
    component=Part,
    instructions=(
        Instruction(name="seen", sequence=SEQUENCE, shape=SHAPE, payload=lambda record, setup: record,
                    when=lambda record, setup: record.first | setup.sum),
        Instruction(name="counted", sequence=SEQUENCE, shape=4, payload=lambda record, setup: record.length[:4],
                    awaited=True),
    ),
)


class Observed(wiring.Component):
    """A planner and the sequencer that it starts, in which only the sequence of the observer part has a path."""

    def __init__(self):
        super().__init__({
            "length": In(range(longest_vector(CONFIG) + 1)), "size": In(range(17)), "rank": In(range(16)),
            "sum": In(1), "start": In(1), "done": In(1), "busy": Out(1), "seen": Out(stream.Signature(SHAPE)),
            "counted": Out(stream.Signature(4))})

    def elaborate(self, platform):
        m = Module()
        observed = (*parts(CONFIG), OBSERVER)
        m.submodules.planner = planner = Planner(elements=longest_vector(CONFIG), segment=CONFIG.segment)
        m.submodules.unit = unit = Sequencer(config=CONFIG, parts=observed)
        assert unit.setup.shape() == setup_layout(CONFIG, observed)
        path = unit.setup.observer_scatter
        for name in ("length", "size", "rank", "start"):
            m.d.comb += getattr(planner, name).eq(getattr(self, name))
        m.d.comb += [unit.start.eq(planner.done), unit.setup.plan.eq(planner.plan), unit.setup.sum.eq(self.sum),
                     planner.stride.eq(1), path.steps.eq(self.size - 1), path.first.eq(planner.own),
                     unit.counted_done.eq(self.done), self.busy.eq(unit.busy)]
        for name in ("seen", "counted"):
            connect_stream(m, getattr(unit, name), getattr(self, name))
        return m


@pytest.mark.parametrize("pattern", ["none", "geometric"])
def test_part_brings_a_sequence(pattern):
    """Instructions get the records that they request, in order. A command ends when the instructions that it waits
    for have ended."""
    unit, generator = Unit(Observed(), name="ObservedSequencer"), random.Random(11)
    for seed in range(20):
        length, size, every = generator.randint(0, 64), generator.randint(2, 5), generator.randrange(2)
        rank, cycles, late = generator.randrange(size), 1200, 900
        case = f"seed {seed}: {length} elements, rank {rank} of {size}, every record {every}"
        start, done = np.zeros(cycles, np.uint8), np.zeros(cycles, np.uint8)
        start[0] = 1
        expected = [record for record in order(length, size, rank, True, False, CONFIG.segment) if record[4]]
        done[late:late + len(expected)] = 1
        trace = unit.lockstep(
            sources={}, sinks={name: stall_array(pattern, cycles, seed=seed) for name in ("seen", "counted")},
            inputs={"length": length, "size": size, "rank": rank, "sum": every, "start": start, "done": done})
        assert taken_records(trace, SHAPE, "seen")[1] == [record for record in expected if every or record[5]], case
        assert moved(trace, "counted")[1].tolist() == [record[4] % 16 for record in expected], case
        assert trace["busy"][late] == bool(expected), case
        assert not trace["busy"][late + len(expected):].any(), case


# --- headers of a long command

#: On the largest ring, some blocks need nine segments, so every block has nine. A command then has more packets than
#: there are sequence numbers.
LONG = NodeConfig(
    lanes=1, segment=32, topology=SingleRing(max_nodes=MAX_NODES),
    memories=Memories(gradient=1 << 16, weight=32, state=32, planes=0), masking=False, sparsify=False)
NUMBERS = 1 << header_layout()["sequence"].width


class Headed(wiring.Component):
    """A planner and the sequencer that it starts. The sequencer has only egress paths, as for an all-reduce."""

    def __init__(self):
        super().__init__({
            "length": In(range(longest_vector(LONG) + 1)), "size": In(8), "rank": In(8), "start": In(1),
            "busy": Out(1), "header": Out(stream.Signature(header_layout()))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.planner = planner = Planner(
            elements=longest_vector(LONG), segment=LONG.segment, nodes_max=MAX_NODES)
        m.submodules.unit = unit = Sequencer(config=LONG)
        for name in ("length", "size", "rank", "start"):
            m.d.comb += getattr(planner, name).eq(getattr(self, name))
        scatter, gather = unit.setup.egress_scatter, unit.setup.egress_gather
        m.d.comb += [unit.start.eq(planner.done), unit.setup.plan.eq(planner.plan), unit.setup.rank.eq(self.rank),
                     planner.stride.eq(1), self.busy.eq(unit.busy),
                     scatter.steps.eq(self.size - 1), scatter.first.eq(planner.own),
                     gather.steps.eq(self.size - 1), gather.first.eq(planner.following)]
        connect_stream(m, unit.header, self.header)
        for name, member in unit.signature.members.items():
            if member.is_signature and name != "header":
                for channel in port if isinstance(port := getattr(unit, name), list) else [port]:
                    m.d.comb += channel.ready.eq(1)
        return m


def test_numbers_start_again():
    """Headers on the largest ring have the expected values in all fields, and sequence numbers wrap to 0."""
    unit, generator, size = Unit(Headed(), name="HeadedSequencer"), random.Random(12), MAX_NODES
    for seed in range(3):
        length, rank = longest_vector(LONG) - generator.randrange(32 * 7), generator.choice([0, 100, size - 1])
        cycles = 20_000
        case = f"seed {seed}: {length} elements, rank {rank} of {size}"
        start = np.zeros(cycles, np.uint8)
        start[0] = 1
        trace = unit.lockstep(sources={}, sinks={"header": stall_array("geometric", cycles, seed=seed)},
                              inputs={"length": length, "size": size, "rank": rank, "start": start})
        _, headers = taken(trace, "header", header_layout())
        expected = order(length, size, rank, True, True, LONG.segment)
        assert len(expected) > NUMBERS, case
        assert headers["sequence"].tolist() == [number % NUMBERS for number in range(len(expected))], case
        for name, column in (("segment", 1), ("block", 2), ("length", 4)):
            assert headers[name].tolist() == [record[column] for record in expected], (name, case)
        assert set(headers["source"].tolist()) == {rank}, case
        assert not trace["busy"][-1], case


@pytest.mark.parametrize(("size", "segments"), [(2, 1024), (3, 800), (16, 200), (17, 180), (100, 25), (255, 1),
                                                (255, 2), (255, 20)])
def test_headers_of_a_command_differ(size, segments):
    """No two packets of a command on a link have the same sequence number, block and segment. A packet is therefore
    never mistaken for another one, even if ``NUMBERS`` packets in between are lost."""
    for rank in (0, size // 2, size - 1):
        records = order(32 * size * segments, size, rank, True, True, 32)
        headers = {(number % NUMBERS, record[1], record[2]) for number, record in enumerate(records)}
        assert len(headers) == len(records) == 2 * (size - 1) * segments
        places = {}
        for number, (phase, segment, block, *_) in enumerate(records):
            places.setdefault((segment, block), {})[phase] = number
        both = [phases[1] - phases[0] for phases in places.values() if len(phases) == 2]
        assert max(both, default=0) <= 3 * (size - 1) + 1 < NUMBERS
