"""READY and CLOSE words, with which nodes report gradients to rank 0, and rank 0 reports closed rounds."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.sequencer import place_layout
from hdl.features.quorum.layouts import INDEX_BITS, closing_layout, quorum_signature
from hdl.features.replay.control_word import ControlType, control_layout, message_layout, ready_layout

__all__ = ["CLOSE_WORDS", "QuorumRelay"]

#: Number of words in a CLOSE message: round number, masks, and index of the scale.
CLOSE_WORDS = 3


class QuorumRelay(wiring.Component):
    """Forward READY messages to rank 0, and each CLOSE message from rank 0 once around the ring.

    Rank 0 removes both types from the ring, so circular waits are impossible: rank 0 accepts all words, and the
    other nodes wait only for their successor. A node's own READY has priority over arriving words, but never
    interrupts a message. A word is offered at ``o`` :attr:`latency` cycle after it arrives at ``i``, and a round is
    ``closed`` in the cycle after the last word of its CLOSE was taken.

    A node without a position sends nothing and drops all words. Without a rank 0, a node drops its returning READYs.
    ``o`` comes from registers; ``i.ready`` depends combinationally on ``i``, ``o.ready`` and ``rounds.ready``.

    Members
    -------
    i : In(stream of message_layout())
        READYs and CLOSEs from the predecessor.
    o : Out(stream of message_layout())
        READYs and CLOSEs to the successor.
    place : In(place_layout())
    alive : In(1)
        A node of the ring is active.
    rounds : In(quorum_signature())
    reset_link : In(1)
        Level: discard all state.
    """

    latency = 1

    i: In(stream.Signature(message_layout()))
    o: Out(stream.Signature(message_layout()))
    place: In(place_layout())
    alive: In(1)
    rounds: In(quorum_signature())
    reset_link: In(1)

    def elaborate(self, platform):
        m = Module()
        rounds, position = self.rounds, self.place
        word = self.i.payload
        header, ready = data.View(control_layout(), word.data), data.View(ready_layout(), word.data)
        count = Signal(range(CLOSE_WORDS))  # number of words of a CLOSE that have arrived
        sent = Signal(range(CLOSE_WORDS))
        known = position.size != 0
        first = known & (position.rank == 0)
        is_ready, is_close = Signal(), Signal()
        wanted, free, taken, inserts = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            rounds.place.eq(position),
            rounds.alive.eq(self.alive),
            is_ready.eq(word.first & (ready.type == ControlType.READY) & (ready.zeros == 0)),
            is_close.eq(Mux(word.first, (header.type == ControlType.CLOSE) & (header.words == CLOSE_WORDS - 1),
                            count != 0)),
            free.eq(self.o.ready | ~self.o.valid),
            # Words to forward.
            wanted.eq(known & ~first & (is_close | (is_ready & (ready.source != position.rank)))),
            inserts.eq(rounds.ready.valid & known & ~first & (count == 0)),
            self.i.ready.eq(Mux(first, rounds.heard.ready | ~is_ready, ~wanted | (free & ~inserts))),
            taken.eq(self.i.valid & self.i.ready),
            # At rank 0, other nodes' gradients have priority over its own.
            rounds.heard.valid.eq(first & ((self.i.valid & is_ready) | rounds.ready.valid)),
            rounds.ready.ready.eq(Mux(first, rounds.heard.ready & ~(self.i.valid & is_ready), inserts & free)),
        ]
        own = Signal(ready_layout())
        m.d.comb += [
            own.type.eq(ControlType.READY),
            own.source.eq(position.rank),
            own.slot.eq(rounds.ready.payload.slot),
            own.tag.eq(rounds.ready.payload.tag),
        ]
        heard = Mux(self.i.valid & is_ready, ready.as_value(), own.as_value())
        heard = data.View(ready_layout(), heard)
        m.d.comb += [
            rounds.heard.payload.source.eq(heard.source), rounds.heard.payload.slot.eq(heard.slot),
            rounds.heard.payload.tag.eq(heard.tag),
        ]

        # Send this node's CLOSE word by word.
        outgoing = rounds.close.payload
        words = [Signal(32, name=f"close_{n}") for n in range(CLOSE_WORDS)]
        head = data.View(control_layout(), words[0])
        m.d.comb += [
            head.type.eq(ControlType.CLOSE), head.words.eq(CLOSE_WORDS - 1), head.tag.eq(outgoing.tag),
            words[1][:16].eq(outgoing.on_time), words[1][16:].eq(outgoing.late), words[2].eq(outgoing.index),
        ]
        closes = first & rounds.close.valid
        m.d.comb += rounds.close.ready.eq(first & free & (sent == CLOSE_WORDS - 1))

        payload = self.o.payload
        with m.If(free):
            m.d.sync += self.o.valid.eq(inserts | closes | (wanted & self.i.valid))
            m.d.sync += payload.eq(word)
            with m.If(inserts):
                m.d.sync += [payload.data.eq(own), payload.first.eq(1), payload.last.eq(1)]
            with m.If(first):
                m.d.sync += [payload.first.eq(sent == 0), payload.last.eq(sent == CLOSE_WORDS - 1)]
                with m.Switch(sent):
                    for n in range(CLOSE_WORDS):
                        with m.Case(n):
                            m.d.sync += payload.data.eq(words[n])
                with m.If(closes):
                    m.d.sync += sent.eq(Mux(sent == CLOSE_WORDS - 1, 0, sent + 1))

        # Receive a CLOSE.
        closing = rounds.closing
        came = Signal(closing_layout())
        m.d.comb += closing.eq(came)
        m.d.sync += rounds.closed.eq(0)
        with m.If(taken & is_close & known):
            m.d.sync += count.eq(Mux(count == CLOSE_WORDS - 1, 0, count + 1))
            with m.Switch(count):
                with m.Case(0):
                    m.d.sync += came.tag.eq(header.tag)
                with m.Case(1):
                    m.d.sync += [came.on_time.eq(word.data[:16]), came.late.eq(word.data[16:])]
                with m.Default():
                    m.d.sync += [came.index.eq(word.data[:INDEX_BITS]), rounds.closed.eq(1)]
        with m.If(self.reset_link):
            m.d.sync += [self.o.valid.eq(0), rounds.closed.eq(0), count.eq(0), sent.eq(0)]
        return m
