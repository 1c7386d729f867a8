"""Receiver of a link that retransmits words."""

from amaranth.hdl import Cat, Module, ResetInserter, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.replay.check import check_of
from hdl.features.replay.control_word import ControlType, restart_layout
from hdl.features.replay.line import Speaker
from hdl.features.replay.signature import ReplayLinkSignature
from hdl.features.replay.window import NUMBER_BITS
from hdl.ring.link import Ingress, check_sizes, levels
from hdl.streams.stream import connect_stream, word_layout

__all__ = ["ReplayReceiver"]


class ReplayReceiver(wiring.Component):
    """Store incoming packets until the node takes them, and request damaged words again.

    Latency is :attr:`latency` cycles from a word on the wires to its offer at ``o``, throughput one word per cycle.
    All outputs are registers; ``control.ready`` indicates in each cycle whether there is room for a control word.

    A word with a wrong CRC, or with a number out of sequence, is dropped together with all following words, until
    RESTART gives the next number; after a reset, all words are dropped until START. Retransmitted words that had
    already arrived are checked and dropped. A control word that arrives while another one waits at ``control`` is
    treated like a damaged one. Nothing is lost, but each such word costs a restart, so the sink of ``control``
    should always have room.

    Parameters
    ----------
    segments : int
        Number of packets that can be held, 2 to 15.
    packet_words : int
        Number of words in the longest packet, header and CRC included; at least 5. See
        :func:`~hdl.ring.header.packet_words`.

    Members
    -------
    ring_i : In(ReplayLinkSignature())
    o, level, packets, overrun, reset_link
        As in :class:`~hdl.ring.link.LinkReceiver`.
    control : Out(stream of unsigned(32))
        Control words other than RESTART, in order.
    arrived, ended : Out(1)
        One-cycle pulses when a packet word is accepted, and when a packet's last word is accepted.
    failed : Out(1)
        One-cycle pulse for each word that makes the receiver wait for a restart.
    """

    latency = 4

    def __init__(self, *, segments, packet_words):
        if not isinstance(segments, int) or not 2 <= segments <= 15:
            raise ValueError(f"Segment count must be an integer from 2 to 15, not {segments!r}")
        check_sizes(segments, packet_words, "Packet length")
        self._segments = segments
        self._packet_words = packet_words
        super().__init__({
            "ring_i": In(ReplayLinkSignature()),
            "o": Out(stream.Signature(word_layout())),
            **levels(segments, packet_words),
            "control": Out(stream.Signature(unsigned(32))),
            "arrived": Out(1),
            "ended": Out(1),
            "failed": Out(1),
            "reset_link": In(1),
        })

    @property
    def segments(self):
        return self._segments

    @property
    def packet_words(self):
        return self._packet_words

    def elaborate(self, platform):
        m = Module()
        m.submodules.ingress = ingress = Ingress(segments=self._segments, packet_words=self._packet_words)
        m.submodules.speaker = speaker = Speaker()
        ring = self.ring_i

        # First stage: register the word, the sequence number implied by its CRC, and whether it may be a RESTART.
        fields = data.View(restart_layout(), ring.data)
        type = fields.type.as_value()
        word = Signal(word_layout())
        valid, kind, is_restart = Signal(), Signal(), Signal()
        implied = Signal(8)
        m.d.sync += [
            valid.eq(ring.valid),
            implied.eq(check_of(Cat(ring.data, ring.last, ring.kind)) ^ ring.check),
            kind.eq(ring.kind),
            word.data.eq(ring.data),
            word.last.eq(ring.last),
            is_restart.eq(((type == ControlType.RESTART.value) | (type == ControlType.START.value))
                          & (fields.zeros == 0) & ring.kind & ring.last),
        ]

        # Second stage: decide what to do with the word.
        expect = Signal(NUMBER_BITS)
        number = Signal(8)  # next word number on the wires, at most 255 less than `expect`
        id = Signal(2)
        departed = Signal(4)
        recover = Signal(init=1)  # after a reset, words still in flight are dropped until START arrives
        restart = data.View(restart_layout(), word.data)
        distance = Signal(NUMBER_BITS)
        due, starts, restarts, follows, delivered = Signal(), Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            distance.eq(expect - restart.number),
            due.eq(number == expect[:8]),
            starts.eq(~word.data[0]),  # the word is START, not RESTART
            restarts.eq(valid & is_restart & (implied == 0) & (distance[8:] == 0) & (starts | speaker.active)),
            follows.eq(valid & ~recover & ~(kind & word.last) & (implied == number)
                       & ~(kind & due & self.control.valid & ~self.control.ready)),
            delivered.eq(follows & due),
            ingress.i.valid.eq(delivered & ~kind),
            ingress.i.payload.eq(word),
            # A START duplicated by a wrong `valid` is answered only once.
            speaker.start.eq(restarts & starts & ~(speaker.active & (restart.id == id))),
            Cat(speaker.now.expect, speaker.now.given, speaker.now.id, speaker.now.recover).eq(
                Cat(expect, departed, id, recover)),
            ring.line.eq(speaker.line),
            self.level.eq(ingress.level),
            self.packets.eq(ingress.packets),
            self.overrun.eq(ingress.overrun),
        ]
        connect_stream(m, ingress.o, self.o)
        m.d.sync += [
            expect.eq(expect + delivered),
            departed.eq(departed + ingress.leaves),
            self.arrived.eq(ingress.i.valid),
            self.ended.eq(ingress.i.valid & word.last),
            self.failed.eq(valid & ~recover & ~restarts & ~follows),
        ]
        with m.If(self.control.ready):
            m.d.sync += self.control.valid.eq(0)
        with m.If(delivered & kind):
            m.d.sync += [self.control.valid.eq(1), self.control.payload.eq(word.data)]
        with m.If(restarts):
            m.d.sync += [recover.eq(0), number.eq(restart.number[:8]), id.eq(restart.id)]
        with m.Elif(follows):
            m.d.sync += number.eq(number + 1)
        with m.Elif(valid):
            m.d.sync += recover.eq(1)
        return ResetInserter(self.reset_link)(m)
