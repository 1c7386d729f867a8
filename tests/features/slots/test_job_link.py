# amaranth: UnusedElaboratable=no
"""Two jobs share a ring that has all slot units: one job never affects when the other's words arrive."""

import numpy as np
import pytest
from amaranth.hdl import Cat, Const, Module, ResetInserter, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.config import NodeConfig
from hdl.features.programs.feature import Programs
from hdl.features.replay.control_hub import ControlHub
from hdl.features.replay.control_word import ControlType
from hdl.features.slots.clock import DRIFT_BITS
from hdl.features.slots.feature import Slots
from hdl.features.slots.job_link import JobLink, JobUnits
from hdl.features.slots.job_table import JOBS, JobFrame
from hdl.ring.link import Ingress
from hdl.streams.stream import connect_stream
from sim.verilated.vectors import Unit
from tests.features.slots.wires import PACKET, Source, WiredRing, in_order
from tests.refusals import refuses

NODES, SEGMENTS = 4, 12
FRAME = JobFrame(longest=37)


class Node(wiring.Component):
    """All slot units of one node, connected to a packet source and a packet sink."""

    def __init__(self, rank):
        self._rank = rank
        self.units = JobUnits(frame=FRAME, depth=128)
        self.ingress = Ingress(segments=SEGMENTS, packet_words=FRAME.longest)
        super().__init__({"on": In(1), "takes": In(1), "flush": In(1), "placed": In(1)})

    def elaborate(self, platform):
        m = Module()
        units, ingress = self.units, self.ingress
        hub = ControlHub(takes=[(ControlType.COLLECT, ControlType.GRANT), (ControlType.SYNC,)])
        source = Source(type=PACKET)
        m.submodules.units, m.submodules.hub = units, hub
        m.submodules.ingress, m.submodules.source = ResetInserter(self.flush)(ingress), source
        connect_stream(m, units.control_o, hub.i)
        connect_stream(m, hub.o, units.control_i)
        for number, words in enumerate((units.record_words, units.clock_words)):
            connect_stream(m, hub.take[number], words.i)
            connect_stream(m, words.o, hub.give[number])
        connect_stream(m, source.o, units.i)
        m.d.comb += [
            units.place.rank.eq(self._rank), units.place.size.eq(self.placed * NODES),
            hub.reset_link.eq(~self.placed), units.flush.eq(self.flush),
            units.room.eq(SEGMENTS - ingress.packets - ((self._rank < JOBS) & (ingress.packets != SEGMENTS))),
            source.on.eq(self.on), source.words.eq(FRAME.longest), source.to.eq(self._rank),
            ingress.i.valid.eq(units.arrived), ingress.i.payload.eq(units.word), ingress.o.ready.eq(self.takes),
        ]
        return m


def harm(jobs, sends):
    """Corrupt a data bit and ``last`` in packet words of the given jobs; bit 4 identifies a word's job."""
    wrong = jobs.bit_select(sends.data[4], 1) & ~sends.kind
    return Cat(0, Const(0, 8), wrong, Const(0, 23), wrong)


@pytest.fixture(scope="module")
def unit():
    return Unit(WiredRing(
        NODES, Node, lambda node: (node.units.ring_o, node.units.ring_i), {
            "drift": (signed(DRIFT_BITS), lambda node: node.units.drift), "on": (1, lambda node: node.on),
            "takes": (1, lambda node: node.takes), "flush": (1, lambda node: node.flush),
            "placed": (1, lambda node: node.placed)}, {
            "valid": (1, lambda node: node.ingress.o.valid & node.ingress.o.ready),
            "data": (32, lambda node: node.ingress.o.payload.data), "lost": (1, lambda node: node.units.lost),
            "overrun": (1, lambda node: node.ingress.overrun), "granted": (1, lambda node: node.units.granted),
            "time": (1, lambda node: node.units.valid)}, (JOBS, harm)), name="JobRing", level="-O0")


def play(unit, *, forward=(16,), back=(16,), drifts=(0,), cycles=20_000, **more):
    rows = {}
    for n in range(NODES):
        rows |= {f"drift_{n}": drifts[n % len(drifts)] % 256, f"forward_{n}": forward[n % len(forward)],
                 f"back_{n}": back[n % len(back)], f"on_{n}": 1, f"takes_{n}": 1,
                 f"placed_{n}": np.arange(cycles) >= 50 * (n + 1)}
    unit.reset()
    return unit.run(rows | more, cycles=cycles)


CYCLES = 20_000
WIRES = [([16], [16], [0]), ([1, 40, 16, 9], [1, 40, 16, 9], [0, 105, -105, 77]), ([3, 9], [1, 14], [0])]


@pytest.mark.parametrize(("forward", "back", "drifts"), WIRES)
def test_packets(unit, forward, back, drifts):
    """If both jobs use all slots, all packets arrive in order, for any wire latencies and clock drifts."""
    trace = play(unit, forward=forward, back=back, drifts=drifts)
    assert all(not trace[f"{name}_{n}"].any() for n in range(NODES) for name in ("lost", "overrun"))
    grants = {int(trace[f"granted_{n}"].sum()) for n in range(NODES)}
    counts = [in_order(trace, n, PACKET) for n in range(NODES)]
    assert grants == {17}
    # Some packets of the last superframe may still be in flight: packets stored at rank 0, plus a few more.
    assert max(counts) <= 17 * FRAME.pairs * FRAME.longest
    assert min(counts) >= (17 * FRAME.pairs - FRAME.kept - 6) * FRAME.longest


def bursts(generator, share):
    """Return a random signal that changes at most once every 100 cycles."""
    level = np.repeat(generator.random(CYCLES // 100) < share, 100)
    return level.astype(np.uint64)


def behaviours(job, generator):
    """Return inputs of the ring for various behaviours of one job's nodes, keyed by the name of the behaviour."""
    first, second = job, job + JOBS
    damage = (generator.random(CYCLES) < .02).astype(np.uint64) << job
    late = (np.arange(CYCLES) < 9000).astype(np.uint64)
    flushed = {f"flush_{n}": bursts(generator, .1) for n in (first, second)}
    return {
        "rests": {f"on_{n}": 0 for n in (first, second)},
        "runs": {},
        "stalls": {f"takes_{second}": late},
        "begins": {f"on_{n}": 1 - late for n in (first, second)},
        "slows": {f"{name}_{n}": bursts(generator, .5) for n in (first, second) for name in ("on", "takes")},
        "damaged": {f"damage_{n}": damage for n in range(NODES)},
        "reset": flushed,
        "fails": flushed | {f"damage_{first}": damage, f"takes_{first}": late},
    }


@pytest.mark.parametrize("job", range(JOBS))
@pytest.mark.parametrize(("forward", "back", "drifts"), WIRES[1:])
def test_apart(unit, job, forward, back, drifts):
    """Words of one job arrive in the same cycles, no matter how the nodes of the other job behave."""
    generator = np.random.default_rng(job)
    rest, seen = range(1 - job, NODES, JOBS), None
    moved = set()
    slow = {f"takes_{1 - job}": bursts(generator, .7), f"on_{3 - job}": bursts(generator, .8)}
    for name, behaviour in behaviours(job, generator).items():
        trace = play(unit, forward=forward, back=back, drifts=drifts, **slow | behaviour)
        traces = {f"{key}_{n}": (trace[f"{key}_{n}"] * (trace[f"valid_{n}"] != 0 if key == "data" else 1)).tobytes()
                  for n in range(NODES) for key in ("valid", "data", "granted", "overrun", "time")}
        seen = seen or traces
        assert [key for key in traces if int(key[-1]) in rest and traces[key] != seen[key]] == [], name
        assert all(in_order(trace, n, PACKET) > 1000 for n in rest), name
        moved.add((traces[f"valid_{job}"], traces[f"data_{job}"]))
    assert len(moved) == 8


def test_parameters():
    refuses("Node with ends of links for jobs must have 2 jobs, not 1",
            JobLink, config=NodeConfig(link=Slots(), programs=Programs()))
