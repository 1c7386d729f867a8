# amaranth: UnusedElaboratable=no
"""TIME of all nodes in a ring of replay links, for wires of any latency: hdl/features/slots/clock.py"""

import numpy as np
import pytest
from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.features.replay.control_hub import ControlHub
from hdl.features.replay.control_word import ControlType
from hdl.features.replay.keepalive import KeepAlive
from hdl.features.replay.receiver import ReplayReceiver
from hdl.features.replay.transmitter import ReplayTransmitter
from hdl.features.slots.clock import DRIFT_BITS, Clock, Departures
from hdl.ring.header import packet_words
from hdl.streams.stream import connect_stream
from sim.verilated.vectors import Unit
from tests.features.slots.wires import FORWARD, Wires

NODES = 8
PACKET = 36
#: Initial TIMEs and clock drifts relative to rank 0: up to 1,000 cycles and 105 / 2^20 (100 ppm).
SHIFTS = (0, 1000, -1000, 999, -1, 517, -700, 1000)
DRIFTS = (0, 105, -105, 105, -105, 100, -3, -105)


class Node(wiring.Component):
    """Node with a clock, a KEEPALIVE unit and the ends of both links."""

    def __init__(self):
        self.clock, self.alive = Clock(arrival=ReplayReceiver.latency - 2), KeepAlive()
        self.transmitter = ReplayTransmitter(segments=4, egress_words=256, timed=True)
        self.receiver = ReplayReceiver(segments=4, packet_words=packet_words(32))
        super().__init__({"traffic": In(1), "reset_link": In(1), "size": In(5), "rank": In(4)})

    def elaborate(self, platform):
        m = Module()
        clock, alive, transmitter, receiver = self.clock, self.alive, self.transmitter, self.receiver
        m.submodules += [clock, alive, transmitter, receiver]
        m.submodules.hub = hub = ControlHub(takes=[(ControlType.KEEPALIVE,), (ControlType.SYNC,)])
        m.submodules.departures = departures = Departures()
        connect_stream(m, receiver.control, hub.i)
        connect_stream(m, hub.o, transmitter.control)
        connect_stream(m, hub.take[1], clock.i)
        connect_stream(m, clock.o, hub.give[1])
        index, link = Signal(range(PACKET)), clock.clock.link
        m.d.comb += [
            alive.i.valid.eq(hub.take[0].valid), alive.i.payload.eq(hub.take[0].payload.data),
            hub.take[0].ready.eq(alive.i.ready), hub.give[0].valid.eq(alive.o.valid),
            alive.o.ready.eq(hub.give[0].ready), hub.give[0].payload.eq(Cat(alive.o.payload, Const(3, 2))),
            alive.at_work.eq(self.traffic), departures.fresh.eq(transmitter.fresh),
            departures.kind.eq(transmitter.ring_o.kind), departures.data.eq(transmitter.ring_o.data),
            link.departed.eq(departures.departed), link.repaired.eq(transmitter.restarted | transmitter.repeated),
            link.settled.eq(transmitter.settled), link.round.eq(transmitter.round),
            receiver.o.ready.eq(1), transmitter.i.valid.eq(self.traffic & ((index != 0) | transmitter.may_start)),
            transmitter.i.payload.last.eq(index == PACKET - 1),
            *(unit.reset_link.eq(self.reset_link) for unit in (clock, transmitter, receiver, hub, departures)),
        ]
        for unit in (clock, alive):
            m.d.comb += [unit.place.rank.eq(self.rank), unit.place.size.eq(self.size)]
        with m.If(transmitter.i.valid & transmitter.i.ready):
            m.d.sync += index.eq(Mux(transmitter.i.payload.last, 0, index + 1))
        return m


class Ring(wiring.Component):
    """Ring of up to eight nodes; the remaining nodes are unused."""

    def __init__(self):
        each = {}
        for n in range(NODES):
            each |= {f"drift_{n}": In(signed(DRIFT_BITS)), f"shift_{n}": In(32), f"shifts_{n}": In(1),
                     f"forward_{n}": In(6), f"back_{n}": In(6), f"time_{n}": Out(32), f"valid_{n}": Out(1),
                     f"way_{n}": Out(15), f"damage_{n}": In(1), f"reset_{n}": In(1)}
        super().__init__({**each, "size": In(5), "traffic": In(1), "error": Out(signed(16)), "looped": Out(1)})

    def elaborate(self, platform):
        m = Module()
        nodes = [Node() for _ in range(NODES)]
        ways = [(Wires(sum(len(getattr(node.transmitter.ring_o, name)) for name in FORWARD)), Wires(1))
                for node in nodes]
        last = Signal(len(ways[0][0].o))
        for n, (node, (forward, back)) in enumerate(zip(nodes, ways, strict=True)):
            m.submodules += [node, forward, back]
            sends, receives, clock = node.transmitter.ring_o, node.receiver.ring_i, node.clock.clock
            following = nodes[(n + 1) % NODES].receiver.ring_i
            m.d.comb += [
                forward.i.eq(Cat(getattr(sends, name) for name in FORWARD) ^ getattr(self, f"damage_{n}") << 9),
                forward.delay.eq(getattr(self, f"forward_{n}")), back.delay.eq(getattr(self, f"back_{n}")),
                back.i.eq(Mux(self.size == n + 1, nodes[0].receiver.ring_i.line, following.line)),
                sends.line.eq(back.o),
                Cat(getattr(receives, name) for name in FORWARD).eq(ways[n - 1][0].o if n else last),
                node.rank.eq(n), node.size.eq(Mux(n < self.size, self.size, 0)), node.traffic.eq(self.traffic),
                node.reset_link.eq(getattr(self, f"reset_{n}")),
                *(getattr(clock, name).eq(getattr(self, f"{name}_{n}")) for name in ("drift", "shift", "shifts")),
                *(getattr(self, f"{name}_{n}").eq(getattr(clock, name)) for name in ("time", "valid", "way")),
            ]
            with m.If(self.size == n + 1):
                m.d.comb += last.eq(forward.o)
        first = nodes[0].clock.clock
        m.d.comb += [self.error.eq(first.error), self.looped.eq(first.looped)]
        return m


@pytest.fixture(scope="module")
def unit():
    return Unit(Ring(), name="RingOfClocks", level="-O0")


def play(unit, *, size, cycles, forward, back, traffic=0, drifts=DRIFTS, **more):
    """Run a ring; return each node's TIME relative to rank 0 and its validity, for each cycle, and the trace."""
    rows = {"size": size, "traffic": traffic}
    for n in range(NODES):
        shift, shifts = np.zeros(cycles, np.uint64), np.zeros(cycles, np.uint64)
        shift[5], shifts[5] = SHIFTS[n] % (1 << 32), n > 0
        rows |= {f"shift_{n}": shift, f"shifts_{n}": shifts, f"drift_{n}": drifts[n] % 256,
                 f"forward_{n}": forward[n % len(forward)], f"back_{n}": back[n % len(back)]}
    unit.reset()
    trace = unit.run(rows | more, cycles=cycles)
    times = np.array([trace[f"time_{n}"] for n in range(size)]).astype(np.int64)
    valid = np.array([trace[f"valid_{n}"] for n in range(size)]).astype(bool)
    return times - times[0], valid, trace


@pytest.mark.parametrize("traffic", [0, 1])
@pytest.mark.parametrize(("size", "wires"), [(2, [1]), (3, [16, 7, 33]), (5, [16]), (8, [16]),
                                             (8, [1, 16, 5, 40, 2, 63, 3, 8])])
def test_offset(unit, size, wires, traffic):
    """Valid TIMEs are within one cycle of rank 0's, with or without traffic, and ``error`` is 0."""
    offsets, valid, trace = play(unit, size=size, cycles=30_000, forward=wires, back=wires, traffic=traffic)
    first = [int(np.argmax(row)) for row in valid]
    assert all(valid[n, first[n]:].all() for n in range(size))
    assert 4096 <= first[0] < 4096 + 60
    assert all(first[n - 1] < first[n] < 4096 + 600 * n for n in range(1, size)), first
    worst = [int(abs(offsets[n, first[n]:]).max()) for n in range(size)]
    assert max(worst) <= 1, worst
    assert worst[1] == 1 or traffic  # clock drift has a visible effect
    assert (abs(offsets[1:, 4000]) >= np.array([abs(shift) for shift in SHIFTS[1:size]]) - 3).all()
    looped = np.flatnonzero(trace["looped"])
    assert len(looped) in (6, 7)
    assert abs(trace["error"].astype(np.int16)).max() == 0
    ways = np.cumsum([wires[n % len(wires)] for n in range(size)])
    ways = np.roll(ways, 1)  # rank 0 uses the latency of the entire ring
    assert [int(trace[f"way_{n}"][-1]) for n in range(size)] == ways.tolist()
    print(f"{size} nodes, wires {wires}, traffic {traffic}: TIMEs valid {[f - 4096 for f in first]} cycles behind "
          f"the period, offsets at most {worst}")


@pytest.mark.parametrize(("forward", "back"), [([16], [20]), ([17], [16]), ([3, 40, 16, 9], [60, 1, 16, 8])])
def test_unequal(unit, forward, back):
    """With unequal latencies, TIME is off by half the accumulated difference; rank 0 measures the total error."""
    size = 8
    offsets, _, trace = play(unit, size=size, cycles=9_000, forward=forward, back=back, drifts=[0] * NODES)
    differences = np.array([back[n % len(back)] - forward[n % len(forward)] for n in range(size)])
    due = np.cumsum([0, *differences]) / 2
    print(f"forward {forward}, back {back}: offsets {offsets[:, -1].tolist()}, half of all differences "
          f"{due[:-1].tolist()}, at rank 0 {int(trace['error'].astype(np.int16)[-1])} of {due[-1]}")
    assert offsets[:, -1].tolist() == np.floor(due[:-1]).astype(int).tolist()
    assert trace["error"].astype(np.int16)[-1] == np.floor(due[-1])


@pytest.mark.parametrize("link", [0, 1, 2])
def test_damage(unit, link):
    """A SYNC that was damaged or delayed by a repetition does not set TIME, so no node has a wrong TIME."""
    size, cycles, set_by_first = 4, 9_000, set()
    for at in range(4096, 4096 + 168, 8):
        damage = np.zeros(cycles, np.uint64)
        damage[at:at + 8] = 1
        offsets, valid, _ = play(unit, size=size, cycles=cycles, forward=[16], back=[16], drifts=[0] * NODES,
                                     **{f"damage_{link}": damage})
        assert not offsets[valid].any(), at
        assert valid[:, -1].all(), at
        set_by_first.add(tuple(valid[:, 7000].tolist()))
    # Either all nodes have a TIME, or only those up to the damaged link.
    assert set_by_first == {(True,) * size, tuple(rank <= link for rank in range(size))}


def test_reset(unit):
    """After a link reset, TIME keeps counting but is invalid until the next SYNC."""
    size, cycles = 4, 14_000
    reset = np.zeros(cycles, np.uint64)
    reset[6000:6100] = 1
    offsets, valid, _ = play(unit, size=size, cycles=cycles, forward=[16], back=[16], drifts=[0] * NODES,
                             **{f"reset_{n}": reset for n in range(size)})
    assert valid[:, 5999].all()
    assert not valid[:, 6002:6100].any()
    assert valid[:, -1].all()
    assert not offsets[:, 5999:].any()
