"""Ends of the links of a node with two ports: a receiver at each, one transmitter, and the switch between them."""

from amaranth.hdl import Module, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.ring.header import packet_words
from hdl.ring.link import LinkReceiver, LinkTransmitter
from hdl.ring.link_ends import moves_layout
from hdl.ring.ports import link_signature, port_members, port_names
from hdl.ring.switch import LinkSwitch, switch_layout
from hdl.ring.topology import MOST_PORTS, Source
from hdl.streams.stream import SkidBuffer, connect_stream, word_layout

__all__ = ["SwitchedLink", "seats_layout"]


def seats_layout():
    """Setting of a node with two ports: that of its switch, and for each ring, which commands name by field ``port``,
    the ports by which the node receives and sends there."""
    ports = data.ArrayLayout(1, MOST_PORTS)
    return data.StructLayout({"switch": switch_layout(), "receives": ports, "sends": ports})


#: One ring over port 0.
_FIRST = {"switch": {"sources": [Source.ENGINE, Source.OFF], "listens": 0b01}, "receives": [0, 1], "sends": [0, 1]}


class SwitchedLink(wiring.Component):
    """Connect a node to its rings over two ports: receivers, the transmitter, and the switch.

    Packets that come by the two ports wait apart, since a neighbour may be one command ahead. The transmitter changes
    its port when all its credits have come home: then nothing that it has sent is on its way, and it holds no word.
    Until then ``may_start`` is low.

    Latency is that of :class:`~hdl.ring.link.LinkTransmitter` and of the switch from ``i`` to a port, and from a port
    that of :class:`~hdl.ring.link.LinkReceiver` and of a skid buffer to ``o``; throughput is one word per cycle. All
    wires that lead to other nodes are registers; ``o`` depends combinationally on ``ring`` and ``expecting``.

    After a reset, and until ``load``, ring 0 goes over port 0, and port 1 is off.

    Parameters
    ----------
    config : NodeConfig
        It says how many packets a receiver holds, and how long they are.

    Members
    -------
    ring_i, ring_o, ring_1_i, ring_1_o : In, Out(link_signature(config))
    i, o, may_start, overrun, reset_link
        As those of :class:`~hdl.ring.link_ends.LinkEnds`, of the ring that ``ring`` names.
    sent, received : Out(moves_layout(2))
        Words that leave, and that come by a port that the node listens to.
    delay : Out(32)
        Zero, as that of :class:`~hdl.ring.link_ends.LinkEnds` without replay.
    ring : In(1)
        Ring that packets are sent to and come from; changes between packets alone.
    expecting : In(1)
        A packet may begin at ``o``; without it the next packet waits, whichever its ring.
    load : In(1)
        Pulse: take over ``seats``, if the node is ``still``.
    seats : In(seats_layout())
    still : Out(1)
        No packet is here or on its way: all credits are home, and nothing is in a receiver or at a port.
    """

    def __init__(self, *, config):
        self._config = config
        super().__init__({
            **port_members(config, MOST_PORTS),
            "i": In(stream.Signature(word_layout())),
            "o": Out(stream.Signature(word_layout())),
            "may_start": Out(1),
            "overrun": Out(1),
            "reset_link": In(1),
            "sent": Out(moves_layout(MOST_PORTS)),
            "received": Out(moves_layout(MOST_PORTS)),
            "delay": Out(32),
            "ring": In(1),
            "expecting": In(1),
            "load": In(1),
            "seats": In(seats_layout()),
            "still": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        segments, longest = self._config.ingress_segments, packet_words(self._config.segment)
        m.submodules.switch = switch = LinkSwitch(signature=link_signature(self._config))
        m.submodules.transmitter = transmitter = LinkTransmitter(segments=segments, egress_words=longest)
        receivers, arriving = [], []
        for number in range(MOST_PORTS):
            m.submodules[f"receiver_{number}"] = receiver = LinkReceiver(segments=segments, packet_words=longest)
            m.submodules[f"arriving_{number}"] = buffer = ResetInserter(self.reset_link)(
                SkidBuffer(shape=word_layout()))
            connect_stream(m, receiver.o, buffer.i)
            wiring.connect(m, switch=switch.receivers[number], receiver=receiver.ring_i)
            before, behind = (getattr(self, name) for name in port_names(number))
            wiring.connect(m, node=wiring.flipped(before), switch=switch.ring_i[number])
            wiring.connect(m, node=wiring.flipped(behind), switch=switch.ring_o[number])
            m.d.comb += receiver.reset_link.eq(self.reset_link)
            receivers.append(receiver)
            arriving.append(buffer)
        wiring.connect(m, transmitter=transmitter.ring_o, switch=switch.transmitter)
        connect_stream(m, self.i, transmitter.i)

        seats = Signal(seats_layout(), init=_FIRST)
        with m.If(self.load & self.still):
            m.d.sync += seats.eq(self.seats)
        home = transmitter.credits == segments
        with m.If(home):
            m.d.sync += switch.port.eq(seats.sends[self.ring])
        empty = [(receiver.packets == 0) & ~buffer.o.valid
                 for receiver, buffer in zip(receivers, arriving, strict=True)]
        listening = [receiver.ring_i for receiver in receivers]
        m.d.comb += [
            switch.setting.eq(seats.switch),
            transmitter.reset_link.eq(self.reset_link),
            self.may_start.eq(transmitter.may_start & (switch.port == seats.sends[self.ring])),
            self.overrun.eq(receivers[0].overrun | receivers[1].overrun),
            self.still.eq(home & switch.still & empty[0] & empty[1]),
            self.sent.word.eq(transmitter.ring_o.valid),
            self.sent.packet.eq(transmitter.ring_o.valid & transmitter.ring_o.last),
            self.received.word.eq(sum(wires.valid for wires in listening)),
            self.received.packet.eq(sum(wires.valid & wires.last for wires in listening)),
        ]
        within = Signal()  # a packet has begun at o
        may_pass = within | self.expecting
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += within.eq(~self.o.payload.last)
        with m.If(self.reset_link):
            m.d.sync += within.eq(0)
        for number, buffer in enumerate(arriving):
            with m.If(seats.receives[self.ring] == number):
                m.d.comb += [
                    self.o.payload.eq(buffer.o.payload),
                    self.o.valid.eq(buffer.o.valid & may_pass),
                    buffer.o.ready.eq(self.o.ready & may_pass),
                ]
        return m
