"""Link ends of a node on a ring shared by two jobs, which send alternately in slots of TIME."""

from amaranth.hdl import Module, Mux, ResetInserter, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.sequencer import place_layout
from hdl.features.replay.control_transmitter import ControlTransmitter
from hdl.features.replay.link_ends import repairs_layout
from hdl.features.replay.receiver import ReplayReceiver
from hdl.features.replay.unit_words import unit_words_signature
from hdl.features.slots.clock import Clock, Departures
from hdl.features.slots.job_path import JobPath
from hdl.features.slots.job_rooms import ROOM_BITS, RoomLaps
from hdl.features.slots.job_table import JOBS, SHIFT_BITS, JobFrame, JobTable
from hdl.features.slots.link import PERIOD, connect_clock, connect_time, egress_words, link_members
from hdl.ring.header import packet_words
from hdl.ring.link import Ingress
from hdl.streams.stream import connect_stream

__all__ = ["JobLink", "JobUnits"]

#: Maximum number of unacknowledged control words in flight.
_WINDOW = 31


class JobUnits(wiring.Component):
    """All slot units of a node on a ring with two jobs, which connect control words and packets to the wires.

    Neither job can reset these units: they are held in reset in a node without a position in the ring, and otherwise
    run continuously. Rank 0 computes when its slots have travelled around the ring, from the round trips and the
    error of its own SYNC.

    Parameters
    ----------
    frame : JobFrame
    depth : int
        Capacity in words for packets; at least 5.

    Members
    -------
    clock : Clock
        Not a port.
    """

    def __init__(self, *, frame, depth):
        self._frame = frame
        self.clock = Clock(period=PERIOD, arrival=ReplayReceiver.latency - 2)
        self.path = JobPath(depth=depth, frame=frame)
        path = self.path.signature.members
        clock = self.clock.clock.signature.members
        super().__init__({
            **{name: path[name] for name in ("i", "flush", "word", "arrived", "whole", "left", "lost", "ring_i",
                                             "ring_o")},
            "clock_words": Out(unit_words_signature()), "record_words": Out(unit_words_signature()),
            "control_i": In(stream.Signature(unsigned(32))), "control_o": Out(stream.Signature(unsigned(32))),
            "place": In(place_layout()), "room": In(ROOM_BITS), "granted": Out(1),
            "drift": In(clock["drift"].shape), "shift": In(32), "shifts": In(1),
            "now": Out(32), "valid": Out(1), "error": Out(clock["error"].shape), "delay": Out(32),
            "repairs": Out(repairs_layout()),
        })

    def elaborate(self, platform):
        m = Module()
        clock, path = self.clock, self.path
        m.submodules.clock, m.submodules.path = clock, path
        m.submodules.laps = laps = RoomLaps()
        m.submodules.departures = departures = Departures()
        m.submodules.sending = sending = JobTable(frame=self._frame)
        m.submodules.coming = coming = JobTable(frame=self._frame)
        m.submodules.transmitter = transmitter = ControlTransmitter(window=_WINDOW)
        m.submodules.receiver = receiver = ReplayReceiver(segments=2, packet_words=5)

        # Connect wires, packets and control words.
        for name in ("ring_i", "ring_o"):
            wiring.connect(m, node=wiring.flipped(getattr(self, name)), path=getattr(path, name))
        wiring.connect(m, transmitter=transmitter.ring_o, path=path.transmitter)
        wiring.connect(m, receiver=receiver.ring_i, path=path.receiver)
        connect_stream(m, self.i, path.i)
        connect_stream(m, self.control_i, transmitter.control)
        connect_stream(m, receiver.control, self.control_o)
        for words, unit in ((self.clock_words, clock), (self.record_words, laps)):
            connect_stream(m, words.i, unit.i)
            connect_stream(m, unit.o, words.o)
            m.d.comb += unit.place.eq(self.place)
        for unit in (clock, laps, departures, transmitter, receiver):
            m.d.comb += unit.reset_link.eq(self.place.size == 0)

        # Connect TIME.
        connect_clock(m, clock=clock, departures=departures, transmitter=transmitter)
        state = clock.clock
        m.d.comb += [
            state.drift.eq(self.drift), state.shift.eq(self.shift), state.shifts.eq(self.shifts),
            self.now.eq(state.time), self.error.eq(state.error),
        ]

        # Latency around the ring, which rank 0 measures with its SYNCs.
        master, lag = self.place.rank == 0, Signal(SHIFT_BITS)
        returned, known = Signal(), Signal()  # the latency has been measured and is short enough
        with m.If(state.looped):
            m.d.sync += lag.eq(state.way - state.error)
        m.d.sync += [returned.eq(state.looped), known.eq((known | returned) & (lag <= self._frame.way))]
        with m.If(self.place.size == 0):
            m.d.sync += [returned.eq(0), known.eq(0)]

        # Connect the slots.
        m.d.comb += self.valid.eq(state.valid & (known | ~master))
        for table, shift in ((sending, Mux(master, 0, state.way)), (coming, Mux(master, lag, state.way))):
            m.d.comb += [table.now.eq(state.time), table.valid.eq(self.valid), table.shift.eq(shift),
                         table.job.eq(self.place.rank[0])]
        m.d.comb += [
            path.slot.eq(sending.slot), path.coming.eq(coming.slot), path.wraps.eq(master),
            transmitter.enable.eq(sending.control), laps.room.eq(self.room),
            laps.window.eq(sending.window), laps.opens.eq(sending.opens), laps.number.eq(sending.number),
            path.flush.eq(self.flush), path.clear.eq(self.place.size == 0), self.granted.eq(laps.granted),
        ]
        left = Signal(ROOM_BITS)  # number of packets that may be sent in this superframe
        m.d.comb += path.goes.eq(left != 0)
        with m.If(laps.granted):
            m.d.sync += left.eq(laps.allowed)
        with m.Elif(sending.opens | ~self.valid):
            m.d.sync += left.eq(0)
        with m.Elif(path.left):
            m.d.sync += left.eq(left - 1)
        m.d.comb += [getattr(self, name).eq(getattr(path, name)) for name in (
            "word", "arrived", "whole", "left", "lost")]
        m.d.comb += [
            self.delay.eq(transmitter.delay), self.repairs.link_restarts.eq(transmitter.restarted),
            self.repairs.words_repeated.eq(transmitter.repeated),
            self.repairs.checks_failed.eq(receiver.failed),
        ]
        return m


class JobLink(wiring.Component):
    """Link ends on a ring with two jobs; the counterpart for one job is :class:`~hdl.features.slots.link.SlotLink`.

    A node without a position resets all units and drives nothing. ``reset_link`` drops only packets of this node, in
    both directions, because TIME, all control words and passing words belong to both jobs.

    The room of a node is the number of packets that its receiver can still hold. It is one less at ranks 0 and 1,
    since one packet may still be on its way to them when the window opens.

    Parameters
    ----------
    config : NodeConfig
        Configuration of a node with two jobs.

    Members
    -------
    ring_i, ring_o, i, o, may_start, overrun, reset_link, sent, received, repairs, control_i, control_o, delay,
    clock_words, record_words, place, test, now, state, superframes
        As in :class:`~hdl.features.slots.link.SlotLink`. ``place`` is the position on the whole ring.
    """

    def __init__(self, *, config):
        if config.link.jobs != JOBS:
            raise ValueError(f"Node with ends of links for jobs must have {JOBS} jobs, not {config.link.jobs!r}")
        self._config = config
        super().__init__(link_members(config))

    def elaborate(self, platform):
        m = Module()
        segments, longest = self._config.link.ingress, packet_words(self._config.segment)
        m.submodules.units = units = JobUnits(frame=JobFrame.of(self._config), depth=egress_words(self._config))
        ingress = Ingress(segments=segments, packet_words=longest)
        m.submodules.ingress = ResetInserter(self.reset_link)(ingress)
        for name in ("ring_i", "ring_o", "clock_words", "record_words"):
            wiring.connect(m, node=wiring.flipped(getattr(self, name)), units=getattr(units, name))
        connect_stream(m, self.control_i, units.control_i)
        connect_stream(m, units.control_o, self.control_o)
        reset = self.reset_link
        connect_time(m, link=self, units=units, now=units.now, lost=units.lost, granted=units.granted)
        m.d.comb += [
            units.place.eq(self.place), units.flush.eq(reset), self.delay.eq(units.delay),
            self.repairs.eq(units.repairs),
            units.room.eq(segments - ingress.packets - Mux((self.place.rank < JOBS) & (ingress.packets != segments),
                                                           1, 0)),
        ]

        # Packets for the successor in this job, and packets from the predecessor.
        connect_stream(m, self.i, units.i)
        with m.If(reset):
            m.d.comb += [units.i.valid.eq(0), self.i.ready.eq(1)]
        enters = units.i.valid & units.i.ready
        connect_stream(m, ingress.o, self.o)
        m.d.comb += [
            self.may_start.eq((units.whole <= segments) & ~reset),
            self.sent.word.eq(enters), self.sent.packet.eq(enters & self.i.payload.last),
            ingress.i.valid.eq(units.arrived), ingress.i.payload.eq(units.word), self.overrun.eq(ingress.overrun),
        ]
        m.d.sync += [self.received.word.eq(units.arrived),
                     self.received.packet.eq(units.arrived & units.word.last)]
        return m
