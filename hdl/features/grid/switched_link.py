"""Link ends of a node with two ports: two receivers, one transmitter, and the switch between them."""

from amaranth.hdl import Module, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.grid.switch import LinkSwitch, switch_layout
from hdl.ring.header import packet_words
from hdl.ring.link import LinkReceiver, LinkTransmitter
from hdl.ring.link_ends import moves_layout, pace_of
from hdl.ring.ports import link_signature, port_members, port_names
from hdl.ring.topology import MAX_PORTS, Source
from hdl.streams.stream import SkidBuffer, connect_stream, word_layout

__all__ = ["SwitchedLink", "seats_layout"]


def _replay():
    """Module that implements the ends of replay links; only nodes with replay import it."""
    from hdl.features.replay import link_ends

    return link_ends


def seats_layout():
    """Ports of a two-port node: the switch setting and, for each ring (field ``port`` of commands), the ports for
    receiving and sending."""
    ports = data.ArrayLayout(1, MAX_PORTS)
    return data.StructLayout({"switch": switch_layout(), "receives": ports, "sends": ports})


#: Initial setting: one ring over port 0.
_FIRST = {"switch": {"sources": [Source.ENGINE, Source.OFF], "listens": 0b01}, "receives": [0, 1], "sends": [0, 1]}


class SwitchedLink(wiring.Component):
    """Connect a node with two ports to its rings: receivers, the transmitter, and the switch.

    Packets from the two ports wait separately, since a neighbour may be one command ahead. The transmitter changes
    ports once all its credits have returned, when it holds no word and none is in flight; until then ``may_start`` is
    low.

    Latency from ``i`` to a port is the sum of the latencies of :class:`~hdl.ring.link.LinkTransmitter` and the
    switch, and from a port to ``o`` of :class:`~hdl.ring.link.LinkReceiver` and a skid buffer; throughput is one word
    per cycle. All wires to other nodes are registers; ``o`` depends combinationally on ``ring`` and ``expecting``.

    After a reset, and until ``load``, ring 0 uses port 0, and port 1 is off.

    Parameters
    ----------
    config : NodeConfig
        Configuration, which gives the number and length of packets that a receiver can hold.

    Members
    -------
    ring_i, ring_o, ring_1_i, ring_1_o : In, Out(link_signature(config))
    i, o, may_start, overrun, reset_link
        As in :class:`~hdl.ring.link_ends.LinkEnds`, for the ring selected by ``ring``.
    sent, received : Out(moves_layout(2))
        Words that are sent, and words from a port that the node receives on.
    repairs : Out(repairs_layout(2))
        Only with replay.
    control_i, control_o : In, Out(stream of unsigned(32))
        Only with replay: control words of ring 0. They are sent on ring 0's output port, and wait while the
        transmitter uses the other port. After a new setting or a reset the first word starts the link, as the first
        packet does, so none may be offered before all nodes have their settings. Control words from the input port of
        ring 0 are forwarded; all other ones are dropped.
    delay : Out(32)
        Measured latency in cycles of the link to the most recent successor: the wires plus one cycle for the switch;
        zero without replay.
    ring : In(1)
        Ring of the packets sent and received; changes only between packets.
    expecting : In(1)
        Whether a packet may begin at ``o``; while low, the next packet waits, on either ring.
    load : In(1)
        Pulse: load ``seats``, if the node is ``still``.
    seats : In(seats_layout())
    still : Out(1)
        No packet is in this unit or in flight: all credits have returned, and receivers and ports are empty.
    throttle, wire_delay
        As in :class:`~hdl.ring.link_ends.LinkEnds`. Bypassing words are not slowed.
    """

    #: Whether packets are buffered in the link ends until they are accepted.
    buffered = True

    def __init__(self, *, config):
        self._config = config
        super().__init__({
            **port_members(config, MAX_PORTS),
            "i": In(stream.Signature(word_layout())),
            "o": Out(stream.Signature(word_layout())),
            "may_start": Out(1),
            "overrun": Out(1),
            "reset_link": In(1),
            "sent": Out(moves_layout(MAX_PORTS)),
            "received": Out(moves_layout(MAX_PORTS)),
            **(_replay().repair_members(MAX_PORTS) if config.link.replay else {}),
            "delay": Out(32),
            "ring": In(1),
            "expecting": In(1),
            "load": In(1),
            "seats": In(seats_layout()),
            "still": Out(1),
            **pace_of(config).members(),
        })

    def elaborate(self, platform):
        m = Module()
        config = self._config
        segments, longest, pace = config.link.ingress, packet_words(config.segment), pace_of(config)
        m.submodules.switch = switch = LinkSwitch(signature=link_signature(config))
        seats = Signal(seats_layout(), init=_FIRST)
        wanted = seats.sends[self.ring]
        loads, loaded, reset = Signal(), Signal(), Signal()
        m.d.sync += loaded.eq(loads)
        if config.link.replay:
            ends = _replay()
            transmitter = ends.ReplayTransmitter(
                segments=segments, egress_words=ends.WINDOW + 1, window=ends.WINDOW, ports=MAX_PORTS,
                throttled=pace.throttled)
            receivers = [ends.ReplayReceiver(segments=segments, packet_words=longest) for _ in range(MAX_PORTS)]
            home = transmitter.home & ~transmitter.ring_o.valid
            m.d.comb += [
                transmitter.port.eq(wanted), switch.port.eq(transmitter.at), self.may_start.eq(transmitter.may_start),
                reset.eq(self.reset_link | loaded),  # after a new setting, all links start again
            ]
            self._repair(m, transmitter, receivers, seats, reset)
        else:
            transmitter = LinkTransmitter(
                segments=segments, egress_words=longest, throttled=pace.throttled)
            receivers = [LinkReceiver(segments=segments, packet_words=longest) for _ in range(MAX_PORTS)]
            home = transmitter.credits == segments
            with m.If(home):
                m.d.sync += switch.port.eq(wanted)
            listening = [receiver.ring_i for receiver in receivers]
            m.d.comb += [
                self.may_start.eq(transmitter.may_start & (switch.port == wanted)),
                reset.eq(self.reset_link),
                self.sent.word.eq(transmitter.ring_o.valid),
                self.sent.packet.eq(transmitter.ring_o.valid & transmitter.ring_o.last),
                self.received.word.eq(sum(wires.valid for wires in listening)),
                self.received.packet.eq(sum(wires.valid & wires.last for wires in listening)),
            ]
        m.submodules.transmitter = transmitter
        arriving = []
        for number, receiver in enumerate(receivers):
            m.submodules[f"receiver_{number}"] = receiver
            m.submodules[f"arriving_{number}"] = buffer = ResetInserter(self.reset_link)(
                SkidBuffer(shape=word_layout()))
            connect_stream(m, receiver.o, buffer.i)
            wiring.connect(m, switch=switch.receivers[number], receiver=receiver.ring_i)
            incoming, outgoing = (getattr(self, name) for name in port_names(number))
            wiring.connect(m, node=wiring.flipped(incoming), switch=switch.ring_i[number])
            wiring.connect(m, node=wiring.flipped(outgoing), switch=switch.ring_o[number])
            m.d.comb += receiver.reset_link.eq(reset)
            arriving.append(buffer)
        wiring.connect(m, transmitter=pace.connect(m, self, transmitter), switch=switch.transmitter)
        connect_stream(m, self.i, transmitter.i)

        with m.If(loads):
            m.d.sync += seats.eq(self.seats)
        empty = [(receiver.packets == 0) & ~buffer.o.valid
                 for receiver, buffer in zip(receivers, arriving, strict=True)]
        m.d.comb += [
            loads.eq(self.load & self.still),
            switch.setting.eq(seats.switch),
            transmitter.reset_link.eq(reset),
            self.overrun.eq(receivers[0].overrun | receivers[1].overrun),
            self.still.eq(home & switch.still & empty[0] & empty[1]),
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

    def _repair(self, m, transmitter, receivers, seats, reset):
        """Count words as they enter and leave; connect the control words to ring 0's ports."""
        # All nodes are known to have their settings if a packet has been sent or expected since links were reset, or
        # if there is a control word to send: the first one is sent at the beginning of a run.
        begun = Signal()
        first = seats.sends[0]
        # The transmitter accepts no word until it uses the first port, so this signal may be a cycle late.
        may_tell = Signal()
        m.d.sync += may_tell.eq(
            begun & (seats.sends[self.ring] == first) & (seats.switch.sources[first] == Source.ENGINE))
        with m.If(self.i.valid | self.expecting | self.control_i.valid):
            m.d.sync += begun.eq(1)
        with m.If(reset):
            m.d.sync += begun.eq(0)
        m.d.comb += [
            *_replay().repairs_of(self, transmitter, receivers, reset),
            transmitter.control.payload.eq(self.control_i.payload),
            transmitter.control.valid.eq(self.control_i.valid & may_tell),
            self.control_i.ready.eq(transmitter.control.ready & may_tell),
        ]
        for number, receiver in enumerate(receivers):
            m.d.comb += receiver.control.ready.eq(1)
            with m.If(seats.receives[0] == number):
                m.d.comb += [
                    self.control_o.payload.eq(receiver.control.payload),
                    self.control_o.valid.eq(receiver.control.valid),
                    receiver.control.ready.eq(self.control_o.ready),
                ]
