# amaranth: UnusedElaboratable=no
"""A ring of eight nodes with all units of slots, host ports behind gates of messages, and packets without end."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.config import NodeConfig
from hdl.control.host_port import HostPort
from hdl.ring.header import packet_words
from hdl.ring.link import Ingress
from hdl.ring.replay.control_hub import ControlHub
from hdl.ring.replay.control_transmitter import ControlTransmitter
from hdl.ring.replay.control_word import ControlType
from hdl.ring.replay.receiver import ReplayReceiver
from hdl.ring.slots.clock import Clock, Departures
from hdl.ring.slots.layouts import MOST_SLOTS
from hdl.ring.slots.link import ask_for_laps, connect_units
from hdl.ring.slots.messages import MessageGate
from hdl.ring.slots.path import SlotPath
from hdl.ring.slots.records import RecordLaps
from hdl.ring.slots.table import SlotTable
from hdl.streams.stream import connect_stream, word_layout
from tests.hdl.ring.slots.wires import FORWARD, PACKET, Source, Wires

__all__ = ["CONFIG", "LONGEST", "MEMORY", "NODES", "Ring"]

NODES, LONGEST = 8, packet_words(256)
#: Elements of each node's memory, and configuration of its host port.
MEMORY, CONFIG = 1024, NodeConfig(gradient_words=1024, weight_words=1024, state_planes=0)


class Node(wiring.Component):
    """All units of slots of a node, between the wires, packets, and a host port with a memory and no registers."""

    def __init__(self, rank):
        self._rank = rank
        self.path, self.clock = SlotPath(depth=512), Clock(arrival=ReplayReceiver.latency - 2)
        self.laps, self.table, self.gate = RecordLaps(), SlotTable(), MessageGate()
        self.ingress = Ingress(segments=MOST_SLOTS + 4, packet_words=LONGEST)
        words = stream.Signature(word_layout())
        super().__init__({"stalls": In(1), "host_i": In(words), "host_o": Out(words), "bad": Out(1),
                          "count": Out(24)})

    def elaborate(self, platform):
        m = Module()
        path, clock, laps, table, ingress = self.path, self.clock, self.laps, self.table, self.ingress
        transmitter = ControlTransmitter(window=31)
        receiver = ReplayReceiver(segments=2, packet_words=5)
        hub = ControlHub(takes=[(ControlType.SYNC,), (ControlType.LAP, ControlType.RECORD)])
        departures, packets = Departures(), Source(type=PACKET)
        m.submodules += [path, clock, laps, table, ingress, transmitter, receiver, hub, departures, packets]
        connect_units(m, path=path, clock=clock, laps=laps, table=table, departures=departures,
                      transmitter=transmitter, receiver=receiver, rank=self._rank)
        connect_stream(m, receiver.control, hub.i)
        connect_stream(m, hub.o, transmitter.control)
        for number, unit in enumerate((clock, laps)):
            connect_stream(m, hub.take[number], unit.i)
            connect_stream(m, unit.o, hub.give[number])
            m.d.comb += [unit.place.rank.eq(self._rank), unit.place.size.eq(NODES)]
        connect_stream(m, packets.o, path.i)
        ask_for_laps(m, laps=laps, table=table, clock=clock.clock, reset_link=0)
        m.d.comb += [
            # The source has packets as fast as they leave.
            laps.record.pending.eq(Mux(self.stalls, 0, MOST_SLOTS)),
            laps.record.room.eq(MOST_SLOTS + 4 - ingress.packets), laps.record.longest.eq(LONGEST),
            laps.record.wants.eq(path.message_whole != 0),
            path.starts.eq(table.starts),
            packets.on.eq(1), packets.words.eq(LONGEST),
            ingress.i.valid.eq(path.arrived), ingress.i.payload.eq(path.word), ingress.o.ready.eq(~self.stalls),
        ]
        # Packets come whole and in order.
        with m.If(path.lost | ingress.overrun):
            m.d.sync += self.bad.eq(1)
        with m.If(ingress.o.valid & ingress.o.ready):
            m.d.sync += self.count.eq(self.count + 1)
            with m.If(ingress.o.payload.data[8:] != self.count):
                m.d.sync += self.bad.eq(1)
        self._host_port(m)
        return m

    def _host_port(self, m):
        m.submodules.gate = gate = self.gate
        m.submodules.port = port = HostPort(config=CONFIG)
        connect_stream(m, wiring.flipped(self.host_i), gate.host_i)
        connect_stream(m, gate.host_o, wiring.flipped(self.host_o))
        connect_stream(m, gate.port_i, port.i)
        connect_stream(m, port.o, gate.port_o)
        connect_stream(m, gate.message_o, self.path.message_i)
        m.d.comb += [gate.word.eq(self.path.word), gate.heard.eq(self.path.heard), gate.rank.eq(self._rank),
                     port.bus.done.eq(1)]
        m.submodules.memory = memory = Memory(shape=32, depth=MEMORY, init=[])
        write, read = memory.write_port(), memory.read_port(domain="comb")
        place, left = Signal(range(MEMORY)), Signal(16)
        source, sink = port.memory_read, port.memory_write
        m.d.comb += [
            source.request.ready.eq(left == 0), sink.request.ready.eq(1), read.addr.eq(place), write.addr.eq(place),
            source.data.valid.eq(left != 0), source.data.payload.data.eq(read.data),
            source.data.payload.last.eq(left == 1), sink.data.ready.eq(1),
            write.en.eq(sink.data.valid), write.data.eq(sink.data.payload.data),
        ]
        with m.If(source.request.valid & source.request.ready):
            m.d.sync += [place.eq(source.request.payload.address), left.eq(source.request.payload.count)]
        with m.Elif(sink.request.valid):
            m.d.sync += place.eq(sink.request.payload.address)
        with m.Elif((source.data.valid & source.data.ready) | sink.data.valid):
            m.d.sync += [place.eq(place + 1), left.eq(left - source.data.valid)]


class Ring(wiring.Component):
    """Eight nodes on wires of 16 cycles, and the host at rank 0.

    Members
    -------
    host_i, host_o : In, Out(stream of word_layout())
    stalls : In(8)
        Nodes that neither send packets nor take them.
    now, granted, slots, target : Out
        TIME and tables of rank 0; with ``granted`` the TIME at which slots begin.
    heard, word : Out
        Words of messages at the last rank.
    bad : Out(8)
        Nodes to which packets did not come whole and in order.
    count : Out(24)
        Words of packets that have come to the last rank.
    damage : In(1)
        Invert a bit of words of packets and messages that rank 2 sends.
    """

    wire = 16

    def __init__(self):
        words = stream.Signature(word_layout())
        super().__init__({
            "host_i": In(words), "host_o": Out(words), "stalls": In(NODES), "now": Out(32), "granted": Out(1),
            "slots": Out(22), "target": Out(16), "heard": Out(1), "word": Out(word_layout()), "bad": Out(NODES),
            "count": Out(24), "damage": In(1)})

    def elaborate(self, platform):
        m = Module()
        nodes = [Node(rank) for rank in range(NODES)]
        width = sum(len(getattr(nodes[0].path.ring_o, name)) for name in FORWARD)
        ways = [(Wires(width), Wires(1)) for _ in nodes]
        first, last = nodes[0], nodes[-1]
        connect_stream(m, wiring.flipped(self.host_i), first.host_i)
        connect_stream(m, first.host_o, wiring.flipped(self.host_o))
        m.d.comb += [
            self.now.eq(first.clock.clock.time), self.granted.eq(first.laps.granted),
            self.slots.eq(first.laps.slots), self.count.eq(last.count),
            self.target.eq(first.clock.clock.time + first.table.left + 1),
            self.heard.eq(last.path.heard), self.word.eq(last.path.word)]
        for n, (node, (forward, back)) in enumerate(zip(nodes, ways, strict=True)):
            m.submodules += [node, forward, back]
            sends, receives = node.path.ring_o, node.path.ring_i
            damage = self.damage & sends.valid & ~sends.kind
            m.d.comb += [
                forward.i.eq(Cat(getattr(sends, name) for name in FORWARD) ^ (damage << 9 if n == 2 else 0)),
                forward.delay.eq(self.wire), back.delay.eq(self.wire),
                back.i.eq(nodes[(n + 1) % NODES].path.ring_i.line), sends.line.eq(back.o),
                Cat(getattr(receives, name) for name in FORWARD).eq(ways[n - 1][0].o),
                node.stalls.eq(self.stalls[n]), self.bad[n].eq(node.bad),
            ]
            if n:
                m.d.comb += node.host_o.ready.eq(1)
        return m
