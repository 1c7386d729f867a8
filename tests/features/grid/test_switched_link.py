# amaranth: UnusedElaboratable=no
"""Links of two-port nodes in a grid: hdl/features/grid/switched_link.py."""

import numpy as np
import pytest
from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Credits, NodeConfig
from hdl.features.grid.feature import Grid
from hdl.features.grid.switched_link import SwitchedLink, seats_layout
from hdl.features.replay.feature import Replay
from hdl.ring.ports import joined, link_signature, ports_of, wires_per_link
from hdl.streams.stream import connect_stream, word_layout
from host.features.grid.grid import Part, Shape, Topology
from sim.verilated.vectors import Feed, Unit, pack, unpack

CONFIG = NodeConfig(segment=32, link=Credits(ingress=2))
REPLAY = NodeConfig(segment=32, topology=Grid(), link=Replay(ingress=2))
CONTROLS = ("control_i", "control_o")
ROWS = COLUMNS = 2
NODES = ROWS * COLUMNS
WIRES = 3  # number of registers on the wires between nodes


class Node(wiring.Component):
    """Switched link with an engine that exchanges ``quota`` packets per phase; packets carry the phase's parity."""

    def __init__(self, config):
        self.config = config
        super().__init__({
            **{name: member for name, member in SwitchedLink(config=config).signature.members.items()
               if name.startswith("ring_") or name in CONTROLS},
            "i": In(stream.Signature(word_layout())),
            "o": Out(stream.Signature(word_layout())),
            "quota": In(8),
            "load": In(1),
            "seats": In(seats_layout()),
            "reset_link": In(1),
            "still": Out(1),
            "overrun": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.link = link = SwitchedLink(config=self.config)
        if self.config.link.replay:
            connect_stream(m, self.control_i, link.control_i)
            connect_stream(m, link.control_o, self.control_o)
        for (before, behind), (inner_before, inner_behind) in zip(ports_of(self), ports_of(link), strict=True):
            wiring.connect(m, node=wiring.flipped(before), link=inner_before)
            wiring.connect(m, node=wiring.flipped(behind), link=inner_behind)
        phase, sent, received, first = Signal(), Signal(8), Signal(8), Signal(init=1)
        sending, receiving = self.i.valid & self.i.ready, self.o.valid & self.o.ready
        may = ~first | (link.may_start & (self.i.payload.data[31] == phase) & (sent != self.quota))
        m.d.comb += [
            link.i.payload.eq(self.i.payload), link.i.valid.eq(self.i.valid & may),
            self.i.ready.eq(link.i.ready & may),
            self.o.payload.eq(link.o.payload), self.o.valid.eq(link.o.valid), link.o.ready.eq(self.o.ready),
            link.expecting.eq(received != self.quota), link.ring.eq(phase), link.load.eq(self.load),
            link.seats.eq(self.seats),
            link.reset_link.eq(self.reset_link), self.still.eq(link.still), self.overrun.eq(link.overrun),
        ]
        with m.If(sending):
            m.d.sync += [first.eq(self.i.payload.last), sent.eq(sent + self.i.payload.last)]
        with m.If(receiving):
            m.d.sync += received.eq(received + self.o.payload.last)
        with m.If((self.quota != 0) & (sent == self.quota) & (received == self.quota)):
            m.d.sync += [phase.eq(~phase), sent.eq(0), received.eq(0)]
        with m.If(self.load | self.reset_link):
            m.d.sync += [phase.eq(0), sent.eq(0), received.eq(0), first.eq(1)]
        return m


class SwitchedGrid(wiring.Component):
    """Grid of nodes, connected by wires with a delay of a few cycles."""

    def __init__(self, config):
        self.config = config
        inner = Node(config).signature.members
        super().__init__({f"{name}_{node}": inner[name] for node in range(NODES)
                          for name in ("i", "o", "quota", "load", "seats", "reset_link", "still", "overrun",
                                       *(CONTROLS if config.link.replay else ()))}
                         | {"words": Out(2 * NODES)}
                         | {f"{name}_{link}": Out(wires) for link in range(2 * NODES) for name, wires in zip(
                             ("wires", "back"), wires_per_link(link_signature(config)), strict=True)})

    def elaborate(self, platform):
        m = Module()
        nodes = [Node(self.config) for _ in range(NODES)]
        for number, node in enumerate(nodes):
            m.submodules[f"node_{number}"] = node
            connect_stream(m, getattr(self, f"i_{number}"), node.i)
            connect_stream(m, node.o, getattr(self, f"o_{number}"))
            if self.config.link.replay:
                connect_stream(m, getattr(self, f"control_i_{number}"), node.control_i)
                connect_stream(m, node.control_o, getattr(self, f"control_o_{number}"))
            for name in ("quota", "load", "seats", "reset_link"):
                m.d.comb += getattr(node, name).eq(getattr(self, f"{name}_{number}"))
            for name in ("still", "overrun"):
                m.d.comb += getattr(self, f"{name}_{number}").eq(getattr(node, name))
        for (source, port), target in Topology(ROWS, COLUMNS).links.items():
            wires = ports_of(nodes[source])[port][1]
            for stage in range(WIRES - 1):
                following = wires.signature.create(path=("stage", str(source), str(port), str(stage)))
                m.d.sync += joined(wires, following)
                wires = following
            m.d.sync += joined(wires, ports_of(nodes[target])[port][0])
        sending = [ports_of(node)[port][1] for node in nodes for port in range(2)]
        m.d.comb += self.words.eq(Cat(port.valid for port in sending))
        for node in range(NODES):
            for port, ends in enumerate(ports_of(nodes[node])):
                for wires, flow, name in ((ends[1], Out, "wires"), (ends[0], In, "back")):
                    m.d.comb += getattr(self, f"{name}_{2 * node + port}").eq(
                        Cat(getattr(wires, wire) for wire, member in wires.signature.members.items()
                            if member.flow == flow))
        return m


def beats(words, last=None):
    """Payloads of words; by default, the words form one packet."""
    last = np.arange(len(words)) == len(words) - 1 if last is None else last
    return pack(word_layout(), {"data": np.asarray(words, np.uint32), "last": last})


def quotas(*each):
    return {f"quota_{node}": quota for node, quota in enumerate(each)}


#: Packet quotas that no test can reach, so that the phase does not change.
QUIET = quotas(*[10] * NODES)


class Bench:
    """Verilated grid with methods to load switch settings and to send packets in phases."""

    def __init__(self, config=CONFIG):
        self.unit = Unit(SwitchedGrid(config), name="SwitchedGrid")
        self.plan = None
        self.slow = 3 if config.link.replay else 1  # extra time for start-up and acknowledgements

    def switch(self, plan):
        """Load a plan's switch settings, and run until the grid is quiet."""
        self.plan = plan
        self.unit.run({name: value for node in range(NODES) for name, value in (
            (f"load_{node}", np.arange(40) == 20), (f"seats_{node}", self.seats(plan, node)))})

    def seats(self, plan, node):
        setting = plan.settings[node]
        listens = 0
        receives, sends = [0, 1], [0, 1]
        for ring, seat in enumerate(setting.seats):
            if seat is not None:
                receives[ring], sends[ring] = seat.receives, seat.sends
                listens |= (seat.size > 1) << seat.receives
        return seats_layout().const({"switch": {"sources": list(setting.outputs), "listens": listens},
                                     "receives": receives, "sends": sends}).as_value().value

    def ring_of(self, node, phase):
        """Ring that a node belongs to during a phase."""
        grid = self.plan.shape is Shape.GRID
        which = phase % 2 if grid else 0
        return next(ring for ring in self.plan.rings if node in ring
                    and (not grid or (ring[0] // COLUMNS == ring[-1] // COLUMNS) == (which == 0)))

    def run(self, generator, *, phases, quota, cycles, density=0.7, sources=None, sinks=None):
        """Send packets on all rings; check that each node receives its predecessor's packets in order."""
        active = self.plan.active
        cycles *= self.slow
        packets = {(node, phase): [self.packet(generator, phase) for _ in range(quota)]
                   for node in active for phase in range(phases)}
        sources, sinks = dict(sources or {}), dict(sinks or {})
        for node in range(NODES):
            sent = [word for phase in range(phases) for packet in packets.get((node, phase), ()) for word in packet]
            words, last = (np.array([word[index] for word in sent], np.uint32) for index in range(2))
            sources[f"i_{node}"] = Feed(beats(words, last), generator.random(cycles) < density)
            sinks[f"o_{node}"] = generator.random(cycles) < density
        trace = self.unit.lockstep(sources=sources, sinks=sinks, cycles=cycles, inputs=quotas(*[quota] * NODES))
        for node in active:
            taken = (trace[f"o_{node}__valid"] & trace[f"o_{node}__ready"]).astype(bool)
            got = unpack(word_layout(), trace[f"o_{node}__payload"][taken])
            expected = []
            for phase in range(phases):
                ring = self.ring_of(node, phase)
                if len(ring) > 1:
                    expected += [word for packet in packets[ring[ring.index(node) - 1], phase] for word in packet]
            assert list(zip(got["data"].tolist(), got["last"].tolist(), strict=True)) == expected, node
            assert not trace[f"overrun_{node}"].any()
        return trace

    def pass_on(self, rows=None, *, node=0, to=1, ready=True, cycles=60, quotas=QUIET):
        """Offer ``rows`` as payloads at ``node``, and accept packets at node ``to``."""
        return self.unit.lockstep(sources={} if rows is None else {f"i_{node}": Feed(rows)}, sinks={f"o_{to}": ready},
                                  cycles=cycles, inputs=quotas)

    @staticmethod
    def packet(generator, phase):
        length = int(generator.integers(2, 20))
        words = generator.integers(0, 1 << 31, length).tolist()
        words[0] |= (phase & 1) << 31
        return [(word, int(index == length - 1)) for index, word in enumerate(words)]


@pytest.fixture(scope="module")
def bench():
    return Bench()


@pytest.fixture(scope="module")
def replaying():
    return Bench(REPLAY)


@pytest.fixture(params=["bench", "replaying"])
def either(request):
    return request.getfixturevalue(request.param)


PLANS = [("", Shape.FLAT), ("node3", Shape.FLAT), ("node0", Shape.FLAT), ("card1", Shape.FLAT),
         ("link0:0", Shape.FLAT), ("", Shape.HORIZONTAL), ("", Shape.GRID)]


@pytest.mark.parametrize(("disabled", "shape"), PLANS)
def test_packets_follow_rings(either, disabled, shape):
    """Each node receives its ring predecessor's packets, possibly via other nodes; unused ports are constant."""
    generator = np.random.default_rng(len(disabled) + 10 * len(shape.value))
    plan = Topology(ROWS, COLUMNS).disable(*map(Part.parse, disabled.split())).plan(shape)
    either.switch(plan)
    grid = shape is Shape.GRID
    trace = either.run(generator, phases=10 if grid else 1, quota=5 if grid else 60, cycles=6000)
    assert all(trace[f"still_{node}"][-1] for node in range(NODES))
    for node, setting in enumerate(plan.settings):
        for port, source in enumerate(setting.outputs):
            words = trace["words"] >> (2 * node + port) & 1
            assert words.any() == (source != 0), (node, port)
            if source == 0:
                assert len(set(trace[f"wires_{2 * node + port}"].tolist())) == 1, (node, port)
            heard = {seat.receives for seat in setting.seats if seat is not None and seat.size > 1}
            if port not in heard and 2 + port not in setting.outputs:
                assert not trace[f"back_{2 * node + port}"].any(), (node, port)


def test_every_change(either):
    """After any change of plan, no word has been lost, duplicated or left in the grid."""
    generator = np.random.default_rng(5)
    plans = [Topology(ROWS, COLUMNS).disable(*map(Part.parse, disabled.split())).plan(shape)
             for disabled, shape in PLANS]
    for old in plans:
        for new in plans:
            for plan in (old, new):
                either.switch(plan)
                grid = plan.shape is Shape.GRID
                trace = either.run(generator, phases=4 if grid else 1, quota=3 if grid else 10, cycles=1200)
                assert all(trace[f"still_{node}"][-1] for node in range(NODES))


@pytest.mark.parametrize("shape", [Shape.GRID, Shape.FLAT, Shape.VERTICAL])
def test_control_words(replaying, shape):
    """Control words reach the successor on ring 0 before and between packets; without ring 0, they wait."""
    generator = np.random.default_rng(31)
    plan = Topology(ROWS, COLUMNS).plan(shape)
    replaying.switch(plan)
    sent = {node: (generator.integers(0, 1 << 28, 80) << 4 | 3).astype(np.uint32) for node in range(NODES)}
    listening = {f"control_o_{node}": True for node in range(NODES)}

    def controls(some):
        return {f"control_i_{node}": Feed(words[some], generator.random(6000) < 0.2) for node, words in sent.items()}

    def check(trace, some):
        for ring in plan.rings[:ROWS if shape is Shape.GRID else 1]:
            for index, node in enumerate(ring):
                heard = trace[f"control_o_{node}__payload"][trace[f"control_o_{node}__valid"].astype(bool)]
                assert heard.tolist() == sent[ring[index - 1]][some].tolist(), node

    trace = replaying.unit.lockstep(sources=controls(slice(40)), sinks=listening, cycles=800)
    if shape is Shape.VERTICAL:
        assert not trace["words"].any()
        return
    check(trace, slice(40))
    trace = replaying.run(generator, phases=5 if shape is Shape.GRID else 1, quota=20, cycles=3000,
                          sources=controls(slice(40, 80)), sinks=listening)
    check(trace, slice(40, 80))


def test_not_while_words_move(bench):
    """A switch setting that is loaded while packets are in flight is ignored."""
    generator = np.random.default_rng(6)
    plan = Topology(ROWS, COLUMNS).plan(Shape.FLAT)
    bench.switch(plan)
    bench.run(generator, phases=1, quota=10, cycles=1200)
    bench.switch(plan)
    rows = beats(range(6))  # more words than fit in the buffer after a receiver
    other = Topology(ROWS, COLUMNS).plan(Shape.HORIZONTAL)
    # Node 1 holds a packet from node 0; neither node reports ``still`` from the first word on.
    trace = bench.pass_on(rows, ready=np.zeros(60, bool))
    still = {node: trace[f"still_{node}"].astype(bool) for node in range(NODES)}
    start = int(np.flatnonzero(trace["i_0__valid"] & trace["i_0__ready"])[0])
    assert not still[0][start + 1:].any()
    assert still[1][:start + 3 + 1 + WIRES].all()
    assert not still[1][start + 3 + 1 + WIRES:].any()
    assert still[2].all()
    seats = {f"seats_{node}": bench.seats(other, node) for node in range(NODES)}
    loads = {f"load_{node}": np.arange(30) == 5 for node in (0, 1)}
    bench.unit.run({**seats, **loads})
    # Once the packet has arrived, both nodes report ``still``, and their settings are unchanged.
    trace = bench.pass_on()
    assert trace["o_1__valid"].sum() == 6
    assert trace["still_0"][-1]
    assert trace["still_1"][-1]
    # Node 1 still sends to node 3, as in the flat ring, instead of back to node 0.
    trace = bench.pass_on(rows, node=1, to=3)
    assert trace["o_3__valid"].sum() == 6
    bench.switch(plan)
    bench.run(generator, phases=1, quota=10, cycles=1200)


def test_short_packet_behind_a_receiver(bench):
    """If two words fit in the receiver's buffer, the sender reports ``still``, but the next node does not."""
    plan = Topology(ROWS, COLUMNS).plan(Shape.FLAT)
    bench.switch(plan)
    trace = bench.pass_on(beats([1, 2]), ready=np.zeros(60, bool))
    assert trace["still_0"][-1]
    start = int(np.flatnonzero(trace["i_0__valid"] & trace["i_0__ready"])[0])
    assert not trace["still_1"][start + 3 + 1 + WIRES:].any()  # also while the packet is passing through the receiver
    trace = bench.pass_on(cycles=10)
    assert trace["o_1__valid"].sum() == 2
    assert trace["still_1"][-1]


def test_packets_that_are_not_expected_wait(bench):
    """If only two packets are expected, a third packet waits at the receiving node."""
    plan = Topology(ROWS, COLUMNS).plan(Shape.FLAT)
    bench.switch(plan)
    trace = bench.pass_on(beats(range(12), np.arange(12) % 4 == 3), cycles=100, quotas=quotas(10, 2, 10, 10))
    assert unpack(word_layout(), trace["o_1__payload"][trace["o_1__valid"].astype(bool)])["data"].tolist() == [
        *range(8)]
    assert not trace["still_1"][-1]
    trace = bench.pass_on(cycles=20)
    assert unpack(word_layout(), trace["o_1__payload"][trace["o_1__valid"].astype(bool)])["data"].tolist() == [
        *range(8, 12)]
    assert trace["still_1"][-1]


def test_latency(bench):
    """A word takes 4 cycles from the engine to the port, then 4 cycles plus the wire latency to the other engine."""
    plan = Topology(ROWS, COLUMNS).disable(Part.parse("node3")).plan(Shape.FLAT)
    assert plan.rings == ((0, 1, 2),)
    bench.switch(plan)
    for node, port, other, hops in ((0, 0, 1, 1), (1, 0, 2, 2), (2, 1, 0, 1)):  # node 0 forwards words from 1 to 2
        trace = bench.pass_on(beats([1, 2]), node=node, to=other, cycles=80)
        start = int(np.flatnonzero(trace[f"i_{node}__valid"] & trace[f"i_{node}__ready"])[0])
        assert np.flatnonzero(trace["words"] >> (2 * node + port) & 1)[0] == start + 3 + 1
        comes = np.flatnonzero(trace[f"o_{other}__valid"])[0]
        assert comes == start + 4 + hops * WIRES + (hops - 1) * 1 + 4


def test_reset(bench):
    """Resetting all links in the middle of a packet discards all packets and keeps the switch settings."""
    generator = np.random.default_rng(8)
    plan = Topology(ROWS, COLUMNS).plan(Shape.FLAT)
    for length in range(20, 60, 7):
        bench.switch(plan)
        rows = beats(range(40), np.arange(40) % 8 == 7)
        bench.unit.lockstep(sources={f"i_{node}": Feed(rows) for node in range(NODES)},
                            sinks={f"o_{node}": generator.random(length) < 0.5 for node in range(NODES)},
                            cycles=length, inputs=quotas(*[100] * NODES))
        trace = bench.unit.run({f"reset_link_{node}": np.ones(20, bool) for node in range(NODES)})
        assert all(trace[f"still_{node}"][-1] for node in range(NODES))
        # After a reset in the middle of an expected packet, an unexpected packet still waits.
        assert not bench.pass_on(beats(range(5)), quotas=quotas(10, 0, 0, 0))["o_1__valid"].any()
        assert bench.pass_on()["o_1__valid"].sum() == 5
        bench.switch(plan)
        bench.run(generator, phases=1, quota=10, cycles=1200)
