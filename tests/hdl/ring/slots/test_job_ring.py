# amaranth: UnusedElaboratable=no
"""Two jobs on one ring, all units of slots: each word of a job comes in the same cycle, whatever the other one does."""

import numpy as np
import pytest
from amaranth.hdl import Cat, Module, ResetInserter, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.ring.link import Ingress
from hdl.ring.replay.control_hub import ControlHub
from hdl.ring.replay.control_word import ControlType
from hdl.ring.slots.clock import DRIFT_BITS
from hdl.ring.slots.job_link import JobUnits
from hdl.ring.slots.job_table import JOBS, JobFrame
from hdl.streams.stream import connect_stream
from sim.verilated.vectors import Unit
from tests.hdl.ring.slots.wires import FORWARD, PACKET, Source, Wires, in_order

NODES, SEGMENTS = 4, 12
FRAME = JobFrame(longest=37)


class Node(wiring.Component):
    """All units of slots of a node, between the wires and packets."""

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
            source.on.eq(self.on), source.words.eq(FRAME.longest),
            ingress.i.valid.eq(units.arrived), ingress.i.payload.eq(units.word), ingress.o.ready.eq(self.takes),
        ]
        return m


class Ring(wiring.Component):
    """Nodes on wires."""

    def __init__(self):
        each = {}
        for n in range(NODES):
            each |= {f"drift_{n}": In(signed(DRIFT_BITS)), f"forward_{n}": In(6), f"back_{n}": In(6),
                     f"on_{n}": In(1), f"takes_{n}": In(1), f"flush_{n}": In(1), f"placed_{n}": In(1),
                     f"damage_{n}": In(1), f"valid_{n}": Out(1), f"data_{n}": Out(32), f"lost_{n}": Out(1),
                     f"overrun_{n}": Out(1), f"granted_{n}": Out(1), f"window_{n}": Out(1), f"time_{n}": Out(1),
                     f"restarted_{n}": Out(1)}
        super().__init__(each)

    def elaborate(self, platform):
        m = Module()
        nodes = [Node(rank) for rank in range(NODES)]
        width = sum(len(getattr(nodes[0].units.ring_o, name)) for name in FORWARD)
        ways = [(Wires(width), Wires(1)) for _ in nodes]
        for n, (node, (forward, back)) in enumerate(zip(nodes, ways, strict=True)):
            m.submodules += [node, forward, back]
            units = node.units
            shown = {"valid": node.ingress.o.valid & node.ingress.o.ready, "data": node.ingress.o.payload.data,
                     "lost": units.lost, "overrun": node.ingress.overrun, "granted": units.granted,
                     "time": units.valid, "restarted": units.repairs.link_restarts}
            m.d.comb += [
                forward.i.eq(Cat(getattr(units.ring_o, name) for name in FORWARD)
                             ^ (getattr(self, f"damage_{n}") & ~units.ring_o.kind) << 9),
                forward.delay.eq(getattr(self, f"forward_{n}")), back.delay.eq(getattr(self, f"back_{n}")),
                back.i.eq(nodes[(n + 1) % NODES].units.ring_i.line), units.ring_o.line.eq(back.o),
                Cat(getattr(units.ring_i, name) for name in FORWARD).eq(ways[n - 1][0].o),
                *(getattr(node, name).eq(getattr(self, f"{name}_{n}")) for name in ("on", "takes", "flush", "placed")),
                units.drift.eq(getattr(self, f"drift_{n}")),
                *(getattr(self, f"{name}_{n}").eq(value) for name, value in shown.items()),
            ]
        return m


@pytest.fixture(scope="module")
def unit():
    return Unit(Ring(), name="JobRing", level="-O0")


def play(unit, *, forward=(16,), back=(16,), drifts=(0,), cycles=20_000, **more):
    rows = {}
    for n in range(NODES):
        rows |= {f"drift_{n}": drifts[n % len(drifts)] % 256, f"forward_{n}": forward[n % len(forward)],
                 f"back_{n}": back[n % len(back)], f"on_{n}": 1, f"takes_{n}": 1,
                 f"placed_{n}": np.arange(cycles) >= 50 * (n + 1)}
    unit.reset()
    return unit.run(rows | more, cycles=cycles)


@pytest.mark.parametrize(("forward", "back", "drifts"), [
    ([16], [16], [0]), ([1, 40, 16, 9], [1, 40, 16, 9], [0, 105, -105, 77]), ([3, 9], [1, 14], [0]),
])
def test_packets(unit, forward, back, drifts):
    found = play(unit, forward=forward, back=back, drifts=drifts)
    assert all(not found[f"{name}_{n}"].any() for n in range(NODES) for name in ("lost", "overrun"))
    counts = [in_order(found, n, PACKET) for n in range(NODES)]
    grants = [np.flatnonzero(found[f"granted_{n}"]) for n in range(NODES)]
    print(FRAME, FRAME.cycles, FRAME.pairs, FRAME.window)
    print(counts, [len(g) for g in grants], [g[:3] for g in grants])
    assert min(counts) > 10 * FRAME.pairs * FRAME.longest
