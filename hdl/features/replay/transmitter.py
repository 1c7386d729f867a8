"""Transmitter of a link that retransmits words."""

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.features.replay.check import check_of
from hdl.features.replay.control_word import ControlType, restart_layout
from hdl.features.replay.line import MESSAGE_BITS, Listener, message_layout
from hdl.features.replay.signature import ReplayLinkSignature
from hdl.features.replay.window import NUMBER_BITS, Window
from hdl.streams.stream import word_layout

__all__ = ["ReplayTransmitter"]

#: Cycles from the first START on the wires to its answer, with zero-latency wires.
ENDS = 35
#: Number of cycles without progress, in addition to twice the latency of the wires, after which a restart is sent:
#: enough time for four messages.
PATIENCE = 4 * MESSAGE_BITS + 5
#: Number of cycles, in addition to ``ENDS``, that START may remain unanswered before it is repeated: for the first
#: repetition, and for all later ones.
START_AGAIN, START_AGAIN_LATER = 255, 1023


def _row_layout():
    return data.StructLayout({"data": 32, "last": 1, "kind": 1, "check": 8})


def _link_layout():
    """State of an idle link, except for the number of its last restart: the number of the window's first word, the
    number of packets known to have left the receiver, whether START has been answered, and the number of cycles from
    START to its answer, not counting the cycles in the units at both ends."""
    return data.StructLayout({"base": NUMBER_BITS, "given": 4, "started": 1, "round": NUMBER_BITS + 1})


class ReplayTransmitter(wiring.Component):
    """Send packets on credit, and retransmit from the word that the receiver requests.

    Latency is :attr:`latency` cycles from a word at ``i`` to the wires, throughput one word per cycle. The wires are
    registers; ``i.ready`` depends on registers, ``control.valid`` and ``reset_link``; all other outputs depend only
    on registers and ``reset_link``.

    A word is stored until two consecutive messages have acknowledged it. Numbers in messages are compared with the
    highest number ever sent, not with the next word's number, which decreases with each restart.

    After a reset the first word is START, and packets wait for its answer, which takes the round trip plus twice
    :data:`~hdl.features.replay.line.MESSAGE_BITS` cycles. The answer gives the phase of the receiver's messages,
    and ``delay``.

    With two ports, each has a link with its own numbers, phase and latency; only one link is in use. When all words
    have arrived and all credits have returned, the transmitter can switch to the other link in two cycles: the link
    then has a state of about 30 bits, which is stored. Each link starts when the first word for it is waiting.

    Parameters
    ----------
    segments : int
        Number of packets that the receiver at the far end can hold; 2 to 15.
    egress_words : int
        Minimum capacity for words that are not yet sent or not yet acknowledged; 5 to 512, and never less than
        ``window`` + 1.
    window : int
        Maximum number of unacknowledged words; a power of two minus 1, from 3 to 255.
    ports : int
        Number of links: 1 or 2.
    throttled : bool
        Whether words other than restarts are sent only while ``enable`` is high.
    timed : bool
        Whether there is an output ``round``.

    Members
    -------
    i : In(stream of word_layout())
    control : In(stream of unsigned(32))
        Control words, inserted between any two words. They have priority over words of packets.
    ring_o : Out(ReplayLinkSignature())
    may_start, credits, reset_link
        As in :class:`~hdl.ring.link.LinkTransmitter`.
    settled : Out(1)
        All accepted words have arrived.
    fresh, repeated, restarted : Out(1)
        High during a word on the wires that is sent for the first time, is repeated, or is RESTART.
    delay : Out(10)
        Latency of the wires in cycles: half the round trip of START and its answer, without the cycles at both ends.
    port : In(1)
        With two ports: port to send on. No word is accepted while ``port`` differs from ``at``.
    at : Out(1)
        With two ports: port of ``ring_o``.
    home : Out(1)
        With two ports: all words have arrived, and all credits have returned.
    enable : In(1)
        Only if ``throttled``.
    round : Out(11)
        Only if ``timed``, valid once a word has left: round-trip latency of the wires; ``delay`` is half of it.
    """

    latency = 3

    def __init__(self, *, segments, egress_words, window=255, ports=1, throttled=False, timed=False):
        if not isinstance(segments, int) or not 2 <= segments <= 15:
            raise ValueError(f"Segment count must be an integer from 2 to 15, not {segments!r}")
        if not isinstance(egress_words, int) or not 5 <= egress_words <= 512:
            raise ValueError(f"Egress depth must be an integer from 5 to 512, not {egress_words!r}")
        if window not in tuple((1 << bits) - 1 for bits in range(2, 9)):
            raise ValueError(f"Window must be 3, 7, 15, 31, 63, 127 or 255, not {window!r}")
        if isinstance(ports, bool) or ports not in (1, 2):
            raise ValueError(f"Port count must be 1 or 2, not {ports!r}")
        self._segments = segments
        self._window = window
        self._ports = ports
        self._throttled = throttled
        self._timed = timed
        self._rows = 1 << (max(egress_words, window + 1) - 1).bit_length()
        super().__init__({
            "i": In(stream.Signature(word_layout())),
            "control": In(stream.Signature(unsigned(32))),
            "ring_o": Out(ReplayLinkSignature()),
            "may_start": Out(1),
            "credits": Out(range(segments + 1)),
            "reset_link": In(1),
            "settled": Out(1),
            "fresh": Out(1),
            "repeated": Out(1),
            "restarted": Out(1),
            "delay": Out(NUMBER_BITS),
            **({"port": In(1), "at": Out(1), "home": Out(1)} if ports > 1 else {}),
            **({"enable": In(1, init=1)} if throttled else {}),
            **({"round": Out(NUMBER_BITS + 1)} if timed else {}),
        })

    @property
    def segments(self):
        return self._segments

    @property
    def rows(self):
        """Maximum number of stored words."""
        return self._rows

    def elaborate(self, platform):
        m = Module()
        has_ports = self._ports > 1
        m.submodules.memory = memory = Memory(
            shape=_row_layout(), depth=self._rows, init=[], attrs={"no_rw_check": 1}
        )
        m.submodules.listener = listener = Listener(ports=self._ports)
        window = Window(rows=self._rows, window=self._window)
        leaves = Signal()  # the transmitter switches to the other port
        m.submodules.window = ResetInserter(leaves)(window) if has_ports else window
        link = Signal(_link_layout())
        id, next_id = Signal(2), Signal(2)
        m.d.comb += next_id.eq(id)
        confirmed = Signal()  # the receiver has seen the last restart
        holds = Signal()  # words wait for `confirmed`, since the last restart was not requested
        # The first restart is START, sent immediately or when a word is waiting.
        restart_due = Signal(init=not has_ports)
        asked = Signal() if has_ports else Const(1)
        again = Signal()
        timer = Signal(NUMBER_BITS + 1)
        spent = Signal(4)  # number of packets that have been started
        said = Signal(message_layout())

        self._take(m, memory, window, spent)
        number, sends = self._send(m, memory, window, link, id, restart_due, holds)
        m.d.comb += [
            listener.line.eq(self.ring_o.line),
            window.complete.eq(listener.complete & listener.good),
            window.expect.eq(listener.message.expect - link.base),
            window.count.eq(link.started),
        ]
        m.d.sync += said.eq(listener.message)

        # Evaluate a message from the receiver.
        latest, demanded, confirms = Signal(), Signal(), Signal()
        away = Signal(4)  # number of packets not yet known to have left the receiver
        m.d.comb += [
            latest.eq(window.judged & (said.id == id)),
            demanded.eq(latest & said.recover),
            confirms.eq(latest & ~said.recover & ~confirmed),
            away.eq(spent - link.given),
            self.credits.eq(Mux(away > self._segments, 0, self._segments - away)),
            self.settled.eq(window.settled),
            self.delay.eq(link.round[1:]),
        ]
        if self._timed:
            m.d.comb += self.round.eq(link.round - 1)  # `delay` needs no correction: halving drops this cycle
        with m.If(window.judged):
            m.d.sync += link.given.eq(said.given)
        with m.If(confirms):
            m.d.sync += [confirmed.eq(1), holds.eq(0)]

        # Restart on request or after PATIENCE; before the first word, repeat START until it is answered.
        m.d.comb += listener.lost.eq(
            listener.complete & ~link.started & ~(listener.good & asked & (listener.message.id == id)))
        m.d.sync += [timer.eq(timer + 1), restart_due.eq(0)]
        with m.If(~link.started):
            with m.If(listener.marked):
                m.d.sync += link.round.eq(timer + 1)
            with m.If(restart_due):
                m.d.comb += next_id.eq(id + 1)
            with m.If(listener.complete & ~listener.lost):
                m.d.sync += [link.started.eq(1), confirmed.eq(1), timer.eq(-PATIENCE)]
            with m.Elif(restart_due):
                m.d.sync += timer.eq(-ENDS)
            if has_ports:
                with m.Elif(~asked):
                    m.d.sync += [restart_due.eq(~window.settled), asked.eq(~window.settled)]
            with m.Elif(timer == Mux(again, START_AGAIN_LATER, START_AGAIN)):
                m.d.sync += [restart_due.eq(1), again.eq(1)]
        with m.Elif(demanded | (timer == link.round)):
            # Restarts with no words between them share a number, so that one still in flight is not mistaken for a
            # later one.
            m.d.comb += [
                window.demanded.eq(demanded), window.goes_back.eq(1), next_id.eq(id + (demanded | ~holds))]
            m.d.sync += [restart_due.eq(1), confirmed.eq(0), holds.eq(~demanded), timer.eq(-PATIENCE)]
        with m.Elif((window.judged & window.differs) | confirms | (~window.flying & confirmed)):
            m.d.sync += timer.eq(-PATIENCE)

        if has_ports:
            other = Signal(_link_layout())
            elsewhere = self.at != self.port
            at_rest = Signal()  # stays high if no word is taken and no restart requested
            m.d.sync += at_rest.eq(
                elsewhere & self.home & ~restart_due & ~sends & ~self.ring_o.valid & ~window.pending)
            m.d.comb += [
                self.home.eq(window.settled & (away == 0)),
                leaves.eq(elsewhere & at_rest & ~restart_due & (confirmed | ~link.started)),
                listener.swap.eq(leaves),
            ]
            with m.If(leaves):
                m.d.sync += [
                    self.at.eq(self.port),
                    Cat(link, other).eq(Cat(other, link)),
                    other.base.eq(number),
                    spent.eq(other.given),
                    confirmed.eq(other.started),
                    restart_due.eq(0),
                    asked.eq(other.started),
                ]

        # A link reset does not reset the restart number, so a START sent before the reset, which may still be in
        # flight, has a different number than the one sent after it.
        kept = Module()
        kept.submodules.link = ResetInserter(self.reset_link)(m)
        if has_ports:
            other_id = Signal(2)
            with kept.If(leaves & ~self.reset_link):
                kept.d.sync += [id.eq(other_id), other_id.eq(next_id)]
            with kept.Elif(~self.reset_link):
                kept.d.sync += id.eq(next_id)
        else:
            with kept.If(~self.reset_link):
                kept.d.sync += id.eq(next_id)
        return kept

    def _take(self, m, memory, window, spent):
        """Accept words; the first word of a packet spends a credit."""
        port = memory.write_port()
        first = Signal(init=1)  # the next word at i starts a packet
        taken = Signal()
        row = port.data
        here = 1 if self._ports == 1 else self.at == self.port
        room = window.room & here
        m.d.comb += [
            taken.eq(self.i.valid & room & ~self.control.valid),
            window.enters.eq(room & (self.i.valid | self.control.valid)),
            self.i.ready.eq((room & ~self.control.valid) | self.reset_link),
            self.control.ready.eq(room | self.reset_link),
            self.may_start.eq((self.credits != 0) & here & ~self.reset_link),
            port.addr.eq(window.write),
            port.en.eq(window.room),  # a free row may be written with any data
            row.kind.eq(self.control.valid),
            row.data.eq(Mux(row.kind, self.control.payload, self.i.payload.data)),
            row.last.eq(self.i.payload.last & ~row.kind),
            row.check.eq(check_of(Cat(row.data, row.last, row.kind))),
        ]
        with m.If(taken):
            m.d.sync += [first.eq(self.i.payload.last), spent.eq(spent + first)]

    def _send(self, m, memory, window, link, id, restart_due, holds):
        """Send words through the memory's latch and the wires' register. Return the number of the next word, one
        cycle later, and whether the latch holds a word.
        """
        port = memory.read_port()
        fetch = Signal()
        fetched, is_restart, is_new = Signal(), Signal(), Signal()
        number = Signal(NUMBER_BITS)
        restart = Signal(restart_layout())
        m.d.comb += [
            restart.type.eq(Mux(link.started, ControlType.RESTART, ControlType.START)),
            restart.number.eq(number),
            restart.id.eq(id),
        ]
        m.d.comb += [
            fetch.eq(link.started & ~restart_due & ~holds & window.pending & (self.enable if self._throttled else 1)),
            window.fetches.eq(fetch),
            port.addr.eq(window.send),
            port.en.eq(fetch),
        ]
        m.d.sync += [
            fetched.eq(fetch | restart_due), is_restart.eq(restart_due), is_new.eq(~window.repeats),
            number.eq(window.send + link.base),
            self.ring_o.valid.eq(fetched),
            self.fresh.eq(fetched & is_new & ~is_restart),
            self.repeated.eq(fetched & ~is_new & ~is_restart),
            self.restarted.eq(fetched & is_restart & link.started),
        ]
        with m.If(fetched):
            m.d.sync += [
                self.ring_o.data.eq(Mux(is_restart, restart, port.data.data)),
                self.ring_o.last.eq(port.data.last | is_restart),
                self.ring_o.kind.eq(port.data.kind | is_restart),
                self.ring_o.check.eq(
                    Mux(is_restart, check_of(Cat(restart, 1, 1)), port.data.check ^ number[:8])),
            ]
        return number, fetched
