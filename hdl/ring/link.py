"""Link between neighbouring nodes, with words in one direction and credits in the other.

The wires have no back pressure. Instead, the receiver can store a fixed number of packets. The transmitter
needs a credit to start a packet, and the receiver returns one whenever a whole packet has left it. Data and credits
are registered at both ends, so a link may have any latency. docs/ring/link.md shows why this cannot deadlock.
"""

from amaranth.hdl import Const, Module, Mux, ResetInserter, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import Queue, connect_stream, word_layout

__all__ = ["Ingress", "LinkReceiver", "LinkSignature", "LinkTransmitter", "check_sizes", "levels"]


class LinkSignature(wiring.Signature):
    """Wires of one directed link, as seen by the transmitter.

    Members
    -------
    valid : Out(1)
        A word is sent in this cycle.
    data : Out(32)
    last : Out(1)
        The word ends its packet.
    credit : In(1)
        One-cycle pulse for each packet that has left the receiver.
    """

    def __init__(self):
        super().__init__({"valid": Out(1), "data": Out(32), "last": Out(1), "credit": In(1)})

    def __repr__(self):
        return "LinkSignature()"


def check_sizes(segments, words, role):
    """Raise ValueError unless these are valid sizes for a link end."""
    if not isinstance(segments, int) or segments < 2:
        raise ValueError(f"Segment count must be an integer of at least 2, not {segments!r}")
    if not isinstance(words, int) or words < 5:
        raise ValueError(f"{role} must be an integer of at least 5, not {words!r}")


def levels(segments, packet_words):
    """Return the signature members for a receiver's fill level."""
    return {"level": Out(range(segments * packet_words + 1)), "packets": Out(range(segments + 1)), "overrun": Out(1)}


class LinkTransmitter(wiring.Component):
    """Send packets as long as there are credits.

    Latency is :attr:`latency` cycles from a word at ``i`` to the wires, throughput one word per cycle. The wires are
    registers; ``i.ready`` and ``may_start`` depend only on registers and ``reset_link``.

    A credit is spent when a packet's first word enters the queue, so all queued words can be sent immediately. Words
    stay in the queue's block memory until overwritten, so the last packet can be sent again if a whole packet fits.

    Parameters
    ----------
    segments : int
        Capacity of the receiver at the far end, in packets; at least 2.
    egress_words : int
        Depth of the queue, in words; at least 5. A whole packet needs :func:`~hdl.ring.header.packet_words`.
    throttled : bool
        Whether words leave only in cycles with ``enable``.

    Members
    -------
    i : In(stream of word_layout())
    ring_o : Out(LinkSignature())
    may_start : Out(1)
        There is a credit for a packet that starts in this cycle or the next, provided that packets have at least
        two words. A packet started without a credit overflows the receiver.
    credits : Out(range(segments + 1))
        Number of packets that may be started.
    reset_link : In(1)
        Level: drops all queued words and any word offered at ``i``, and restores all credits. The next word is the
        first of a packet.
    enable : In(1)
        Present if ``throttled``. The wires depend combinationally on it.
    """

    latency = 3

    def __init__(self, *, segments, egress_words, throttled=False):
        check_sizes(segments, egress_words, "Egress depth")
        self._throttled = throttled
        self._segments = segments
        self._egress_words = egress_words
        super().__init__({
            "i": In(stream.Signature(word_layout())),
            "ring_o": Out(LinkSignature()),
            "may_start": Out(1),
            "credits": Out(range(segments + 1), init=segments),
            "reset_link": In(1),
            **({"enable": In(1, init=1)} if throttled else {}),
        })

    @property
    def segments(self):
        return self._segments

    @property
    def egress_words(self):
        return self._egress_words

    def elaborate(self, platform):
        m = Module()
        first = Signal(init=1)  # the next word at `i` starts a packet
        spend = Signal()

        m.submodules.queue = queue = ResetInserter(self.reset_link)(
            Queue(shape=word_layout(), depth=self._egress_words, block=True)
        )
        connect_stream(m, self.i, queue.i)
        with m.If(self.reset_link):
            m.d.comb += [queue.i.valid.eq(0), self.i.ready.eq(1)]

        enable = self.enable if self._throttled else Const(1)
        m.d.comb += [
            queue.o.ready.eq(enable),
            self.ring_o.valid.eq(queue.o.valid & enable if self._throttled else queue.o.valid),
            self.ring_o.data.eq(queue.o.payload.data),
            self.ring_o.last.eq(queue.o.payload.last),
            self.may_start.eq((self.credits != 0) & ~self.reset_link),
            spend.eq(queue.i.valid & queue.i.ready & first),
        ]
        with m.If(queue.i.valid & queue.i.ready):
            m.d.sync += first.eq(queue.i.payload.last)
        with m.If(spend & ~self.ring_o.credit):
            m.d.sync += self.credits.eq(self.credits - 1)
        # A spurious credit would allow packets for which the receiver has no free space.
        with m.Elif(self.ring_o.credit & ~spend & (self.credits != self._segments)):
            m.d.sync += self.credits.eq(self.credits + 1)
        with m.If(self.reset_link):
            m.d.sync += [first.eq(1), self.credits.eq(self._segments)]
        return m


class Ingress(wiring.Component):
    """Packet buffer at the end of a link, which tolerates any words from the peer.

    Latency is 3 cycles from a word at ``i`` to ``o``, throughput one word per cycle. ``o`` consists of registers.

    Parameters
    ----------
    segments, packet_words : int
        As for :class:`LinkReceiver`.

    Members
    -------
    i : In(stream of word_layout())
        Words from the link; always accepted.
    o : Out(stream of word_layout())
    level, packets, overrun
        As in :class:`LinkReceiver`.
    leaves : Out(1)
        The last word of a packet is accepted at ``o`` in this cycle.
    """

    def __init__(self, *, segments, packet_words):
        check_sizes(segments, packet_words, "Packet length")
        self._segments = segments
        self._packet_words = packet_words
        super().__init__({
            "i": In(stream.Signature(word_layout(), always_ready=True)),
            "o": Out(stream.Signature(word_layout())),
            **levels(segments, packet_words),
            "leaves": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        position = Signal(range(self._packet_words))  # position of the incoming word in its packet
        dropping = Signal()  # the rest of the incoming packet is not stored
        starts = Signal()
        final = Signal()
        word = self.i.payload

        # The number of rows in a block memory is a power of two anyway, so addresses wrap by themselves.
        rows = 1 << (self._segments * self._packet_words - 1).bit_length()
        m.submodules.queue = queue = Queue(shape=word_layout(), depth=rows, block=True)
        connect_stream(m, queue.o, self.o)

        # The queue is never full, because it has room for all words of all packets.
        m.d.comb += [
            starts.eq(self.i.valid & ~dropping & (position == 0) & (self.packets != self._segments)),
            self.leaves.eq(self.o.valid & self.o.ready & self.o.payload.last),
            final.eq(position == self._packet_words - 1),
            queue.i.valid.eq(starts | (self.i.valid & ~dropping & (position != 0))),
            queue.i.payload.data.eq(word.data),
            queue.i.payload.last.eq(word.last | final),
            self.level.eq(queue.level),
        ]
        m.d.sync += self.packets.eq(self.packets + starts - self.leaves)
        with m.If(self.i.valid):
            m.d.sync += [
                position.eq(Mux(word.last, 0, position + 1)),
                dropping.eq(~word.last & (dropping | ~queue.i.valid | final)),
            ]
            with m.If(~dropping & (~queue.i.valid | (final & ~word.last))):
                m.d.sync += self.overrun.eq(1)
        return m


class LinkReceiver(wiring.Component):
    """Store incoming packets until the node accepts them.

    Latency is :attr:`latency` cycles from a word on the wires to its offer at ``o``, throughput one word per cycle. A
    word need not wait for the rest of its packet. ``o`` and ``ring_i.credit`` are registers; the credit is sent in
    the cycle after the last word of a packet has been taken.

    Regardless of what the peer sends, at most ``segments`` packets of at most ``packet_words`` words are stored,
    each with ``last``. A packet without a credit is dropped and one that is too long is truncated; ``overrun``
    reports both. Packets already stored are not affected.

    Parameters
    ----------
    segments : int
        Capacity in packets; at least 2.
    packet_words : int
        Number of words in the longest packet, header and CRC included; at least 5. See
        :func:`~hdl.ring.header.packet_words`.

    Members
    -------
    ring_i : In(LinkSignature())
    o : Out(stream of word_layout())
    level : Out(range(segments * packet_words + 1))
        Number of words stored.
    packets : Out(range(segments + 1))
        Number of packets stored; the last one may be incomplete.
    overrun : Out(1)
        The peer has sent more than its credits allow; sticky until ``reset_link``.
    reset_link : In(1)
        Level: drops stored and incoming words, and returns no credit. The next word is the first of a packet.
    """

    latency = 3

    def __init__(self, *, segments, packet_words):
        check_sizes(segments, packet_words, "Packet length")
        self._segments = segments
        self._packet_words = packet_words
        super().__init__({
            "ring_i": In(LinkSignature()),
            "o": Out(stream.Signature(word_layout())),
            **levels(segments, packet_words),
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
        connect_stream(m, ingress.o, self.o)
        m.d.comb += [
            ingress.i.valid.eq(self.ring_i.valid),
            ingress.i.payload.data.eq(self.ring_i.data),
            ingress.i.payload.last.eq(self.ring_i.last),
            self.level.eq(ingress.level),
            self.packets.eq(ingress.packets),
            self.overrun.eq(ingress.overrun),
        ]
        m.d.sync += self.ring_i.credit.eq(ingress.leaves)
        return ResetInserter(self.reset_link)(m)
