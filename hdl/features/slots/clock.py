"""Node clock that counts TIME, and the control words with which rank 0 sets TIME on all other nodes."""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.sequencer import place_layout
from hdl.features.replay.control_word import SINGLE_IN_SLOTS, ControlType, control_layout, message_layout, sync_layout
from hdl.features.replay.window import NUMBER_BITS

__all__ = ["DRIFT_BITS", "FRACTION_BITS", "Clock", "Departures", "clock_signature", "departure_layout"]

#: Width in bits of the drift used in tests, whose unit is 0.95 ppm; number of fraction bits of the cycle count to
#: which the drift is added.
DRIFT_BITS, FRACTION_BITS = 8, 20

#: Width in bits of the sum of all round trips, and of a SYNC's number.
_SUM_BITS, _NUMBER_BITS = 16, 4

#: Width in bits of the number of words that follow a message's first word, on links with slots. In a FOLLOW, two
#: words follow.
_LEFT_BITS = 2

#: Cycles to wait after the round trip; within this time, a link with a missing word would have restarted.
_PATIENCE = 255


def departure_layout():
    """Layout of the state of the link to the successor: whether a SYNC is on its wires for the first time, whether a
    word is being resent or a RESTART is being sent, whether all words have arrived, and the round-trip latency in
    cycles."""
    return data.StructLayout({"departed": 1, "repaired": 1, "settled": 1, "round": NUMBER_BITS + 1})


def clock_signature():
    """Interface between a clock and the rest of its node, as seen by the node.

    Members
    -------
    link : Out(departure_layout())
    drift : Out(signed(8))
        For tests: extra speed of TIME at ranks other than 0, in cycles per 2^20 cycles.
    shift, shifts : Out(32), Out(1)
        For tests: a pulse adds ``shift`` to TIME at these ranks.
    time : In(32)
    valid : In(1)
        TIME has been set (at rank 0: a SYNC has been sent).
    way : In(15)
        Latency of the wires from rank 0 to this node when TIME was set: half of all round trips. At rank 0, the
        latency of the whole ring, after a SYNC has circulated.
    error : In(signed(16))
        At rank 0: the change of TIME that its own SYNC would have made.
    looped : In(1)
        Pulse: there is a new ``error``, so all nodes have been set.
    """
    return wiring.Signature({
        "link": Out(departure_layout()), "drift": Out(signed(DRIFT_BITS)), "shift": Out(32), "shifts": Out(1),
        "time": In(32), "valid": In(1), "way": In(_SUM_BITS - 1), "error": In(signed(_SUM_BITS)), "looped": In(1),
    })


class Departures(wiring.Component):
    """Detect SYNCs that leave on the wires of a replay link.

    ``departed`` depends combinationally on all inputs except ``reset_link``. A message's words after the first (at
    most three) are never mistaken for a SYNC, regardless of their value.

    Members
    -------
    fresh, kind : In(1)
        Whether a word is on the wires for the first time, and whether it is a control word.
    data : In(32)
    departed : Out(1)
        This word is a SYNC.
    reset_link : In(1)
        Level: the next word is the first of a message.
    """

    fresh: In(1)
    kind: In(1)
    data: In(32)
    departed: Out(1)
    reset_link: In(1)

    def elaborate(self, platform):
        m = Module()
        word = data.View(control_layout(), self.data)
        words = word.words[:_LEFT_BITS]
        left, follow = Signal.like(words), Signal.like(words)
        single = Cat(word.type == type for type in SINGLE_IN_SLOTS).any()
        m.d.comb += [
            follow.eq(Mux(left != 0, left - 1, Mux(single, 0, words))),
            self.departed.eq(self.fresh & self.kind & (left == 0) & (word.type == ControlType.SYNC)
                             & (words == 0)),
        ]
        with m.If(self.fresh & self.kind):
            m.d.sync += left.eq(follow)
        with m.If(self.reset_link):
            m.d.sync += left.eq(0)
        return m


class Clock(wiring.Component):
    """Count TIME, and set it from the SYNCs of rank 0, which circulate once around the ring.

    A SYNC marks the moment when it is on the wires, however long it has waited before. It is followed by a FOLLOW,
    which carries the time when the SYNC left rank 0 plus all cycles that it has spent in nodes since, and the sum
    of the round trips of all links that it has passed. To get rank 0's TIME, a node adds half of this sum and the
    cycles since the SYNC arrived. Only the total is halved, so no half cycles are lost on each link.

    A node sends its FOLLOW when its SYNC has arrived at the first attempt, that is, when all words have arrived or
    would have been resent. If a link restarts before that, there is no FOLLOW, and all later nodes keep their TIME.

    Rank 0 removes the words that have circulated. ``error`` is the change that they would have made to its own TIME:
    half the difference between the total forward and backward latencies of all links.

    TIME is set by a FOLLOW 4 cycles after its last word.

    Latency is :attr:`latency` cycles from a SYNC at ``i`` to the forwarded SYNC at ``o``. All outputs are registered,
    and ``i`` is always ready. Words that do not belong to SYNCs, or are not expected at that time, are accepted and
    dropped. A node without a position neither sends nor forwards anything.

    Parameters
    ----------
    period : int
        Cycles from one SYNC of rank 0 to the next; a power of two from 256 to 32,768.
    arrival : int
        Cycles from a word on the wires to its offer at ``i``, without waiting; 1 to 15.

    Members
    -------
    i, o : In, Out(stream of message_layout())
        From the predecessor, and to the successor.
    place : In(place_layout())
    clock : In(clock_signature())
    reset_link : In(1)
        Level: TIME is no longer valid, and all messages in progress are dropped. TIME continues.
    """

    latency = 2

    def __init__(self, *, period=4096, arrival=2):
        if period not in tuple(1 << bits for bits in range(8, _SUM_BITS)):
            raise ValueError(f"Period must be a power of two from 256 to 32768 cycles, not {period!r}")
        if isinstance(arrival, bool) or not isinstance(arrival, int) or not 1 <= arrival <= 15:
            raise ValueError(f"Arrival must be an integer from 1 to 15 cycles, not {arrival!r}")
        self._period, self._arrival = period, arrival
        super().__init__({
            "i": In(stream.Signature(message_layout())), "o": Out(stream.Signature(message_layout())),
            "place": In(place_layout()), "clock": In(clock_signature()), "reset_link": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        clock, link, word, out = self.clock, self.clock.link, self.i.payload, self.o.payload
        head, mark = data.View(control_layout(), word.data), Signal(sync_layout())
        number, same = Signal(_NUMBER_BITS), Signal()
        master = self.place.rank == 0
        # State of the node's own SYNC: to be offered; offered, but not departed; departed; a word was resent after
        # it.
        pending, handed, gone, spoiled, busy = (Signal(name=name) for name in (
            "pending", "handed", "gone", "spoiled", "busy"))
        # State of the FOLLOW: expected; still expected after one period; received; the node's own FOLLOW is offered.
        awaited, old, heard, followed = Signal(), Signal(), Signal(), Signal(init=1)
        leaving, due = Signal(2), Signal(2)  # words of a FOLLOW still to be offered, and still to be received
        sets, loads, valids = Signal(name="sets"), Signal(name="loads"), Signal(name="valids")
        m.d.comb += [self.i.ready.eq(1), mark.eq(head.tag), busy.eq(pending | handed),
                     same.eq(mark.number[:_NUMBER_BITS] == number)]

        # TIME is the sum of three registers, each loaded from only one source: counted cycles, the offset from a
        # FOLLOW, and any changes made by tests since the FOLLOW.
        cycles, offset, both = (Signal(32, name=name, init=init % (1 << 32)) for name, init in (
            ("cycles", -self._arrival), ("offset", 0), ("both", 1)))
        moved = Signal(32, init=self._arrival + 2)
        # `came`: value of `cycles` when SYNC arrived. `left`: its value `arrival` cycles after the node's own SYNC
        # left.
        came, left, base, summed = (Signal(32, name=name) for name in ("came", "left", "base", "summed"))
        rounds = Signal(_SUM_BITS)
        fraction = Signal(FRACTION_BITS)
        drifted, step = Signal(signed(FRACTION_BITS + 2), name="drifted"), Signal(signed(32), name="step")
        m.d.comb += [drifted.eq(fraction + clock.drift), summed.eq(base + rounds[1:])]
        m.d.sync += [
            cycles.eq(cycles + 1), both.eq(cycles + moved), clock.time.eq(both + offset),
            sets.eq(0), loads.eq(sets & ~master), valids.eq(loads),
            fraction.eq(drifted[:FRACTION_BITS]), moved.eq(moved + step), clock.looped.eq(sets & master),
            step.eq(Mux(clock.shifts, clock.shift.as_signed(), drifted >> FRACTION_BITS)),
        ]
        with m.If(loads):
            m.d.sync += offset.eq(summed)
        with m.If(master):
            m.d.sync += offset.eq(0)
        with m.If(sets | master):
            m.d.sync += moved.eq(moved.init)
        with m.If(loads):
            m.d.sync += heard.eq(1)
        with m.If(loads | (sets & master)):
            m.d.sync += clock.way.eq(rounds >> 1)
        with m.If(sets & master):
            m.d.sync += clock.error.eq(summed[:_SUM_BITS])
        with m.If(valids):
            m.d.sync += clock.valid.eq(1)

        # Send words to the successor.
        waited, patient, capture = Signal(range(2 ** (NUMBER_BITS + 1) + _PATIENCE)), Signal(), Signal(self._arrival)
        overdue = patient | (waited == link.round + _PATIENCE)
        first = Signal(control_layout())
        first_mark = data.View(sync_layout(), first.tag)
        follows = Signal()
        m.d.comb += [
            follows.eq(gone & ~spoiled & (capture == 0) & (link.settled | overdue) & ~followed & (master | heard)),
            first.type.eq(ControlType.SYNC), first.words.eq(Mux(pending, 0, 2)),
            first_mark.number.eq(number), first_mark.follows.eq(~pending),
        ]
        with m.If(self.o.ready | ~self.o.valid):
            m.d.sync += [self.o.valid.eq((leaving != 0) | pending | follows),
                         out.first.eq(leaving == 0), out.last.eq(Mux(leaving == 0, pending, leaving == 1)),
                         # Each of the three sources is 0 unless it is selected.
                         out.data.eq((first.as_value() & (leaving == 0).replicate(32))
                                     | ((base + left)[:32] & leaving[1].replicate(32))
                                     | ((rounds + link.round)[:_SUM_BITS] & leaving[0].replicate(32)))]
            with m.If(leaving != 0):
                m.d.sync += leaving.eq(leaving >> 1)
            with m.Elif(pending):
                m.d.sync += [pending.eq(0), handed.eq(1)]
            with m.Elif(follows):
                m.d.sync += [leaving.eq(2), followed.eq(1)]

        # Receive words from the predecessor.
        count, turn = Signal(range(self._period)), Signal()
        m.d.sync += count.eq(count + 1)
        m.d.comb += turn.eq(count == self._period - 1)
        with m.If(turn):
            m.d.sync += [old.eq(awaited), awaited.eq(awaited & ~old)]
        known, is_sync, is_follow = Signal(), Signal(), Signal()
        m.d.comb += [
            known.eq(self.i.valid & word.first & (head.type == ControlType.SYNC) & (head.reserved == 0)),
            is_sync.eq(known & (head.words == 0) & ~mark.follows & Mux(master, same, ~busy)),
            is_follow.eq(known & (head.words == 2) & mark.follows & same),
        ]
        with m.If(self.i.valid):
            m.d.sync += due.eq(Mux(word.first, 0, due >> 1))
            with m.If(known & (head.words == 0) & ~mark.follows):
                m.d.sync += [awaited.eq(is_sync), old.eq(0)]
        with m.If(self.i.valid & ~word.first & due[1]):
            m.d.sync += base.eq(word.data - came)
        with m.If(self.i.valid & ~word.first & due[0]):
            m.d.sync += [rounds.eq(word.data), sets.eq(1)]
        with m.If(is_sync):
            m.d.sync += came.eq(cycles)
            with m.If(~master):
                m.d.sync += [number.eq(mark.number), pending.eq(1), gone.eq(0), heard.eq(0), followed.eq(0)]
        with m.If(is_follow):
            m.d.sync += awaited.eq(0)
            with m.If(awaited & (leaving == 0) & (followed == master)):
                m.d.sync += due.eq(2)

        # Track the node's own SYNC.
        m.d.sync += [waited.eq(waited + 1), patient.eq(overdue), capture.eq(capture >> 1)]
        with m.If(link.departed & handed):
            m.d.sync += [handed.eq(0), gone.eq(1), spoiled.eq(0), waited.eq(0), patient.eq(0),
                         capture.eq(1 << (self._arrival - 1))]
            with m.If(master):
                m.d.sync += clock.valid.eq(1)
        with m.Elif(link.repaired):
            m.d.sync += spoiled.eq(1)
        with m.If(capture[0]):
            m.d.sync += left.eq(cycles)
        with m.If(turn & master & (self.place.size > 1) & ~busy & (leaving == 0)):
            m.d.sync += [number.eq(number + 1), pending.eq(1), gone.eq(0), awaited.eq(0), followed.eq(0), due.eq(0)]

        with m.If(link.departed & handed & master):
            m.d.sync += [base.eq(0), rounds.eq(0)]

        with m.If(self.reset_link):
            m.d.sync += [signal.eq(signal.init) for signal in (
                self.o.valid, clock.valid, clock.way, clock.error, clock.looped, count, number, pending, handed, gone,
                spoiled, awaited, old, heard, followed, leaving, due, sets, loads, valids, capture)]
        return m
