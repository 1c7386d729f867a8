"""Link ends of a node that sends in time slots instead of using credits."""

from amaranth.hdl import Module, Mux, ResetInserter, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.registry import CODECS
from hdl.control.sequencer import place_layout
from hdl.features.replay.control_transmitter import ControlTransmitter
from hdl.features.replay.link_ends import repairs_layout
from hdl.features.replay.receiver import ReplayReceiver
from hdl.features.replay.unit_words import unit_words_signature
from hdl.features.slots.clock import DRIFT_BITS, Clock, Departures
from hdl.features.slots.layouts import MAX_SLOTS
from hdl.features.slots.path import SlotPath
from hdl.features.slots.place import PositionRelay
from hdl.features.slots.records import RecordLaps
from hdl.features.slots.table import SlotTable
from hdl.ring.header import OVERHEAD_WORDS, packet_words
from hdl.ring.link import Ingress
from hdl.ring.link_ends import moves_layout
from hdl.ring.ports import port_members
from hdl.streams.stream import connect_stream, word_layout

__all__ = ["PERIOD", "SlotLink", "ask_for_laps", "connect_clock", "connect_time", "connect_units", "egress_words",
           "link_members", "state_layout", "test_layout", "usual_words"]

#: Period in cycles of rank 0's SYNC.
PERIOD = 2048

#: Maximum number of unacknowledged control words in flight: words of 16 nodes, and a SYNC with its FOLLOW.
_WINDOW = 31

_SHIFT_BITS = 16


def test_layout():
    """Layout of register TIME_TEST: the drift of TIME, and the shift applied to TIME when ``move`` rises."""
    return data.StructLayout({"drift": DRIFT_BITS, "shift": _SHIFT_BITS, "move": 1, "free": 7})


def state_layout():
    """Layout of register TIME_STATUS: whether TIME is valid, number of words lost in the path, and rank 0's error."""
    return data.StructLayout({"valid": 1, "free": 7, "lost": 8, "error": 16})


def egress_words(config):
    """Capacity in words for packets that wait for their slots: three longest packets and part of a fourth."""
    return 1 << (3 * packet_words(config.segment)).bit_length()


def link_members(config):
    """Return the members that all link ends with slots have."""
    words, control = stream.Signature(word_layout()), stream.Signature(unsigned(32))
    return {
        **port_members(config),
        "i": In(words), "o": Out(words), "may_start": Out(1), "overrun": Out(1), "reset_link": In(1),
        "sent": Out(moves_layout()), "received": Out(moves_layout()), "repairs": Out(repairs_layout()),
        "control_i": In(control), "control_o": Out(control), "delay": Out(32),
        "clock_words": Out(unit_words_signature()), "record_words": Out(unit_words_signature()),
        "place": In(place_layout()), "test": In(test_layout()), "now": Out(32), "state": Out(state_layout()),
        "superframes": Out(16),
    }


def connect_clock(m, *, clock, departures, transmitter):
    """Connect the clock to the state of the link to the successor."""
    link = clock.clock.link
    m.d.comb += [
        departures.fresh.eq(transmitter.fresh), departures.kind.eq(transmitter.ring_o.kind),
        departures.data.eq(transmitter.ring_o.data), link.departed.eq(departures.departed),
        link.repaired.eq(transmitter.restarted | transmitter.repeated), link.settled.eq(transmitter.settled),
        link.round.eq(transmitter.round),
    ]


def connect_units(m, *, path, clock, laps, table, departures, transmitter, receiver, rank):
    """Connect a node's slot units, except for the node's record and requests for LAP words.

    Control words are sent between superframes.
    """
    wiring.connect(m, transmitter=transmitter.ring_o, path=path.transmitter)
    wiring.connect(m, receiver=receiver.ring_i, path=path.receiver)
    connect_clock(m, clock=clock, departures=departures, transmitter=transmitter)
    state = clock.clock
    m.d.comb += [
        laps.now.eq(state.time), laps.valid.eq(state.valid), laps.way.eq(state.way),
        laps.error.eq(state.error), laps.over.eq(table.over), laps.left.eq(table.left),
        table.slots.eq(laps.slots), table.granted.eq(laps.granted), table.target.eq(laps.target),
        table.sets.eq(laps.sets), table.gap.eq(laps.gap),
        table.rank.eq(rank), table.now.eq(state.time), path.mode.eq(table.mode), path.rank.eq(rank),
        transmitter.enable.eq(table.mode.as_value() == 0), transmitter.hush.eq(path.hush),
    ]


def connect_time(m, *, link, units, now, lost, granted):
    """Connect the units' TIME to the registers of a node's links; count lost words and superframes."""
    moved, lost_words, test = Signal(), Signal(8), link.test
    m.d.sync += [moved.eq(test.move), lost_words.eq(lost_words + lost),
                 link.superframes.eq(link.superframes + granted)]
    m.d.comb += [
        units.drift.eq(test.drift), units.shift.eq(test.shift.as_signed()), units.shifts.eq(test.move & ~moved),
        link.now.eq(now), link.state.valid.eq(units.valid), link.state.error.eq(units.error),
        link.state.lost.eq(lost_words),
    ]


def ask_for_laps(m, *, laps, table, clock, reset_link):
    """Request a LAP at rank 0 (at no other rank does ``looped`` pulse) once there are no slots, no records are
    expected, and the previous LAP has returned or has been missing for two SYNCs. The first LAP waits for a SYNC to
    return."""
    waits, late = Signal(init=1), Signal(init=1)
    m.d.comb += laps.ask.eq(~(table.active | table.over | laps.gathers | laps.granted | waits))
    with m.If(laps.ask):
        m.d.sync += [waits.eq(1), late.eq(0)]
    with m.Elif(laps.home | (clock.looped & late)):
        m.d.sync += waits.eq(0)
    with m.Elif(clock.looped):
        m.d.sync += late.eq(1)
    with m.If(reset_link):
        m.d.sync += [waits.eq(1), late.eq(1)]


def usual_words(config):
    """Number of words in the longest packet of gradients or new weights. Uncoded broadcast packets may be longer."""
    return OVERHEAD_WORDS + max(CODECS[name].max_words(config.segment)
                                for name in (config.gradients, config.weights.codec))


class SlotLink(wiring.Component):
    """Link ends that send packets in slots, and control words between superframes.

    This component contains all slot units: the clock, the exchange of records, the slots of a table and the path.
    The replay link ends are used only for control words. A packet at ``i`` waits until it is complete, and then for
    a slot that is long enough. The node's record is also created here. It requests slots for the maximum number of
    packets if there has been a packet since the previous superframe, and reports the number of packets that the
    receiver can still hold. The record is sent when all packets of the predecessor's slots have arrived or the last
    one is arriving.

    Rank 0 sends LAP when no records are expected and there are no slots. Without a valid table, only control words
    are driven.

    Arriving packets are stored as in :class:`~hdl.ring.link.Ingress`, but without checking for wrong lengths or
    damage, which the depacketizer's CRC detects.

    Parameters
    ----------
    config : NodeConfig
        Configuration of a node with slots. With messages, there are also message slots, and nodes get their
        positions from rank 0.

    Members
    -------
    ring_i, ring_o, i, o, may_start, overrun, reset_link, sent, received, repairs, control_i, control_o, delay
        As in :class:`~hdl.ring.link_ends.LinkEnds`. A packet may be started while the number of waiting packets is at
        most the capacity of a receiver.
    clock_words, record_words : Out(unit_words_signature())
        Control words of the clock and of the exchange of records.
    place : In(place_layout())
        Position of this node; changes only together with ``reset_link``. With size 0 or 1, the links are not
        driven. With messages, this is the ``given`` input of a :class:`~hdl.features.slots.place.PositionRelay`.
    test : In(test_layout())
    now : Out(32)
    state : Out(state_layout())
    superframes : Out(16)
        Number of superframes for which the node had a table, modulo 65,536.
    message_i : In(stream of word_layout())
        Messages from this node, without CRC; the first word is
        :func:`~hdl.features.slots.layouts.message_header_layout`.
    message : Out(word_layout())
        Word of a message for this node, with ``heard``; depends combinationally on ``ring_i``.
    heard : Out(1)
    place_words : Out(unit_words_signature()), with messages
    rank : Out(4), with messages
    forget : Out(1), with messages
        Whether the node's position changed in this cycle.
    """

    def __init__(self, *, config):
        if not config.link.slots:
            raise ValueError("Node with ends of links in slots must have slots")
        self._config = config
        words = stream.Signature(word_layout())
        super().__init__({
            **link_members(config),
            "message_i": In(words), "message": Out(word_layout()), "heard": Out(1),
            **({"place_words": Out(unit_words_signature()), "rank": Out(4), "forget": Out(1)}
               if config.link.messages else {}),
        })

    def elaborate(self, platform):
        m = Module()
        config, reset = self._config, self.reset_link
        segments, longest = config.link.ingress, packet_words(config.segment)
        # With messages, link ends and control words keep running during a link reset by the host, since it takes a
        # message to end this reset.
        position, links, restart, drops = self.place, reset, reset, reset
        if config.link.messages:
            m.submodules.placer = placer = PositionRelay()
            position, links, restart, drops = placer.place, 0, placer.moved, reset | placer.moved
            connect_stream(m, self.place_words.i, placer.i)
            connect_stream(m, placer.o, self.place_words.o)
            m.d.comb += [placer.given.eq(self.place), self.rank.eq(position.rank), self.forget.eq(restart)]
        m.submodules.clock = clock = Clock(period=PERIOD, arrival=ReplayReceiver.latency - 2)
        m.submodules.laps = laps = RecordLaps()
        m.submodules.table = table = SlotTable(messages=config.link.messages)
        m.submodules.departures = departures = Departures()
        path = SlotPath(depth=egress_words(config))
        m.submodules.path = ResetInserter(restart)(path)
        ingress = Ingress(segments=segments, packet_words=longest)
        m.submodules.ingress = ResetInserter(drops)(ingress)
        m.submodules.transmitter = transmitter = ControlTransmitter(window=_WINDOW)
        m.submodules.receiver = receiver = ReplayReceiver(segments=2, packet_words=5)

        # Connect wires and control words.
        wiring.connect(m, node=wiring.flipped(self.ring_i), path=path.ring_i)
        wiring.connect(m, node=wiring.flipped(self.ring_o), path=path.ring_o)
        connect_units(m, path=path, clock=clock, laps=laps, table=table, departures=departures,
                      transmitter=transmitter, receiver=receiver, rank=position.rank)
        connect_stream(m, self.control_i, transmitter.control)
        connect_stream(m, receiver.control, self.control_o)
        for words, unit in ((self.clock_words, clock), (self.record_words, laps)):
            connect_stream(m, words.i, unit.i)
            connect_stream(m, unit.o, words.o)
            m.d.comb += unit.place.eq(position)
        for unit in (clock, laps, table):
            m.d.comb += unit.reset_link.eq(restart)
        for unit in (departures, transmitter, receiver):
            m.d.comb += unit.reset_link.eq(links)

        # Connect TIME, requests for LAP words, and the test inputs.
        state = clock.clock
        connect_time(m, link=self, units=state, now=state.time, lost=path.lost, granted=laps.granted)
        ask_for_laps(m, laps=laps, table=table, clock=state, reset_link=restart)

        # Packets for the successor. `most` is the number of words of the longest waiting packet, but at least the
        # usual packet length.
        enters, inside, length = Signal(), Signal(), Signal(range(longest + 1))
        usual = usual_words(config)
        recent, most = Signal(), Signal(length.shape(), init=usual)
        granted = Signal.like(laps.slots.longest)  # unlike `laps.slots`, not changed by the next records
        fits = (path.whole != 0) & (most <= granted)
        with m.If(laps.granted):
            m.d.sync += granted.eq(laps.slots.longest)
        connect_stream(m, self.i, path.i)
        with m.If(reset):
            m.d.comb += [path.i.valid.eq(inside if config.link.messages else 0), self.i.ready.eq(1)]
            if config.link.messages:  # end a truncated packet
                m.d.comb += path.i.payload.last.eq(1)
        last = path.i.payload.last if config.link.messages else self.i.payload.last
        m.d.comb += [
            enters.eq(path.i.valid & path.i.ready),
            self.may_start.eq((path.whole <= segments) & ~reset),
            path.starts.eq(table.starts & (table.mode.message | fits)),
            laps.record.pending.eq(Mux(recent, MAX_SLOTS, 0)),
            laps.record.longest.eq(most),
            self.sent.word.eq(enters), self.sent.packet.eq(enters & last),
        ]
        with m.If(enters):
            m.d.sync += [inside.eq(~last), length.eq(Mux(last, 0, length + 1))]
        with m.If(self.i.valid | inside | (path.whole != 0)):
            m.d.sync += recent.eq(1)
        with m.Elif(laps.granted):
            m.d.sync += recent.eq(0)
        with m.If(enters & last & (length >= most)):
            m.d.sync += most.eq(length + 1)
        with m.Elif((path.whole == 0) & ~inside):
            m.d.sync += most.eq(usual)
        with m.If(restart):
            m.d.sync += [inside.eq(0), length.eq(0), recent.eq(0), most.eq(usual)]

        # Packets from the predecessor.
        connect_stream(m, ingress.o, self.o)
        m.d.comb += [
            ingress.i.valid.eq(path.arrived), ingress.i.payload.eq(path.word), self.overrun.eq(ingress.overrun),
            laps.record.room.eq(segments - ingress.packets),
        ]
        m.d.sync += [self.received.word.eq(path.arrived), self.received.packet.eq(path.arrived & path.word.last)]

        # Connect the messages.
        connect_stream(m, self.message_i, path.message_i)
        m.d.comb += [
            self.message.eq(path.word), self.heard.eq(path.heard), laps.record.wants.eq(path.message_whole != 0),
            self.delay.eq(transmitter.delay), self.repairs.link_restarts.eq(transmitter.restarted),
            self.repairs.words_repeated.eq(transmitter.repeated),
            self.repairs.checks_failed.eq(receiver.failed),
        ]
        return m
