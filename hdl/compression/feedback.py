"""Adder for packets, and an encoder for error feedback, which also outputs its encoding errors."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.words import WordDecoder, WordEncoder
from hdl.floating.add import FloatAdder
from hdl.streams.delay import DelayLine
from hdl.streams.route import Fork, PacketDemux
from hdl.streams.rows import BlockBuffer
from hdl.streams.stream import Queue, SkidBuffer, beat_layout, check_lanes, connect_stream, word_layout

__all__ = ["FeedbackEncoder", "PacketAdder"]


class PacketAdder(wiring.Component):
    """Add or subtract packets of elements in binary32, rounding to nearest even.

    The n-th beat of a packet at ``a`` is taken together with the n-th beat of the packet at ``b``, which is at least
    as long: further beats of ``b`` are dropped, one per cycle, and ``keep`` and ``last`` of the result come from
    ``a``. Results that are not finite can be replaced with +0.0.

    If the result queue is empty, the result of a pair is offered :attr:`latency` cycles after the pair was taken;
    throughput is one beat per cycle. No ready signal passes through the arithmetic: a pair is taken when the queue
    has a free slot. ``a.ready`` depends combinationally on ``b.valid`` and ``paired.valid``, ``b.ready`` on
    ``a.valid`` and ``paired.valid``; the output is a register.

    Parameters
    ----------
    lanes : int
        Number of elements per beat: 1, 2, 4 or 8.
    subtract : bool
        Whether ``b`` is subtracted from ``a``.
    finite : bool
        Whether a result that is not finite becomes +0.0.
    choice : bool
        Whether a packet of ``a`` may come without a packet of ``b``. +0.0 is then added, which changes only -0.0.

    Members
    -------
    a, b : In(stream of beat_layout(lanes))
    paired : In(stream of 1 bit)
        With ``choice`` only: whether ``b`` has a packet for the next packet of ``a``. Taken with the last beat.
    o : Out(stream of beat_layout(lanes))
    """

    latency = FloatAdder.latency + 1
    #: Capacity of the queue in beats: the beats in flight at full rate, rounded up to whole LUT memories.
    depth = 17

    def __init__(self, *, lanes, subtract=False, finite=False, choice=False):
        check_lanes(lanes)
        for name, value in (("Subtract", subtract), ("Finite", finite), ("Choice", choice)):
            if not isinstance(value, bool):
                raise ValueError(f"{name} must be True or False, not {value!r}")
        self._lanes = lanes
        self._subtract = subtract
        self._finite = finite
        self._choice = choice
        beats = stream.Signature(beat_layout(lanes))
        paired = {"paired": In(stream.Signature(1))} if choice else {}
        super().__init__({"a": In(beats), "b": In(beats), **paired, "o": Out(beats)})

    def elaborate(self, platform):
        m = Module()
        lanes, a, b = self._lanes, self.a, self.b
        room = Signal()
        dropping = Signal()  # drop beats of `b` beyond the length of the packet at `a`
        wanted = Signal()
        there = Signal()
        taken = Signal()
        m.d.comb += [
            wanted.eq(self.paired.payload if self._choice else 1),
            there.eq(self.paired.valid if self._choice else 1),
            a.ready.eq(room & there & (~wanted | (b.valid & ~dropping))),
            b.ready.eq(dropping | (room & there & wanted & a.valid)),
            taken.eq(a.valid & a.ready),
        ]
        if self._choice:
            m.d.comb += self.paired.ready.eq(taken & a.payload.last)
        with m.If(dropping):
            with m.If(b.valid):
                m.d.sync += dropping.eq(~b.payload.last)
        with m.Elif(taken & wanted):
            m.d.sync += dropping.eq(a.payload.last & ~b.payload.last)

        # Unlike the data, the valid bit passes through flip-flops with a reset, since it must be 0 after reset.
        valid = taken
        for cycle in range(FloatAdder.latency):
            following = Signal(name=f"valid_{cycle + 1}")
            m.d.sync += following.eq(valid)
            valid = following
        framing = data.StructLayout({"keep": lanes, "last": 1})
        m.submodules.framing = frame = DelayLine(shape=framing, cycles=FloatAdder.latency)
        m.submodules.queue = queue = Queue(shape=beat_layout(lanes), depth=self.depth)
        m.d.comb += [
            frame.i.keep.eq(a.payload.keep),
            frame.i.last.eq(a.payload.last),
            queue.i.valid.eq(valid),  # the queue has a free slot
            queue.i.payload.keep.eq(frame.o.keep),
            queue.i.payload.last.eq(frame.o.last),
        ]
        for lane in range(lanes):
            m.submodules[f"adder_{lane}"] = adder = FloatAdder()
            element = b.payload.elements[lane]
            addend = Signal(32, name=f"addend_{lane}")
            special = adder.o[23:31].all() if self._finite else 0
            m.d.comb += [
                addend.eq(Mux(wanted, Cat(element[:31], element[31] ^ self._subtract), 0)),
                adder.a.eq(a.payload.elements[lane]),
                adder.b.eq(addend),
                queue.i.payload.elements[lane].eq(Mux(special, 0, adder.o)),
            ]
        connect_stream(m, queue.o, self.o)
        # A pair reserves its slot in the queue when it is taken.
        places = Signal(range(self.depth + 1), init=self.depth)
        m.d.comb += room.eq(places != 0)
        m.d.sync += places.eq(places - taken + (self.o.valid & self.o.ready))
        return m


class FeedbackEncoder(wiring.Component):
    """Encode packets of elements as link words, and output the encoding errors.

    If the codec is not exact, words are decoded as they leave, and the error of an element is the element minus its
    decoded value, or +0.0 if either is not finite. A block of the codec enters the encoder only when it is complete,
    so all words and errors of a packet leave, whether or not another packet follows.

    Throughput is one beat, or one word, per cycle, whichever takes longer. For a block of n beats, the first word is
    offered n + 1 cycles later than it would be by the codec's :class:`~hdl.compression.words.WordEncoder`; with an
    exact codec, it is offered at the same time. If one output is stalled, the others stall eventually, but no output
    needs another one to begin first. ``i.ready`` depends only on registers or, with an exact codec, on ``o.ready``
    and ``restored.ready``.

    Parameters
    ----------
    codec : one of GRADIENT_CODECS
    lanes : int
        Elements in a beat: 1, 2, 4 or 8.

    Members
    -------
    i : In(stream of beat_layout(lanes))
    restore : In(stream of 1 bit)
        One per packet: whether the packet is also sent to ``restored``. Taken with the packet's last beat.
    o : Out(stream of word_layout())
    restored : Out(stream of beat_layout(lanes))
        Decoded words: whole blocks of the codec.
    error : Out(stream of beat_layout(lanes))
        Encoding errors of the elements; absent with an exact codec.
    """

    def __init__(self, *, codec, lanes):
        check_lanes(lanes)
        self._codec = codec
        self._lanes = lanes
        beats = stream.Signature(beat_layout(lanes))
        super().__init__({
            "i": In(beats), "restore": In(stream.Signature(1)), "o": Out(stream.Signature(word_layout())),
            "restored": Out(beats), **({} if codec.exact else {"error": Out(beats)}),
        })

    @property
    def depth(self):
        """Maximum number of beats of elements in flight through encoder and decoder."""
        return 2 * max(self._codec.block // self._lanes, 1) + 49

    def elaborate(self, platform):
        m = Module()
        lanes, codec = self._lanes, self._codec
        beats = beat_layout(lanes)
        m.submodules.encoder = encoder = WordEncoder(codec=codec, lanes=lanes)
        m.submodules.known = known = PacketDemux(outputs=2, shape=beats)
        m.d.comb += [
            known.route.valid.eq(self.restore.valid),
            known.route.payload.eq(Cat(1, self.restore.payload)),
            self.restore.ready.eq(known.route.ready),
        ]
        connect_stream(m, known.o[1], self.restored)
        if codec.exact:
            connect_stream(m, self.i, known.i)
            connect_stream(m, known.o[0], encoder.i)
            connect_stream(m, encoder.o, self.o)
            return m

        m.submodules.buffer = buffer = BlockBuffer(lanes=lanes, beats=max(codec.block // lanes, 1))
        m.submodules.given = inputs = Fork(shape=beats, outputs=2)
        m.submodules.delayed = delayed = Queue(shape=beats, depth=self.depth, block=False)
        # There is no combinational ready path from the decoder back to the encoder.
        m.submodules.words = words = SkidBuffer(shape=encoder.o.payload.shape())
        m.submodules.encoded = encoded = Fork(shape=encoder.o.payload.shape(), outputs=2)
        m.submodules.decoder = decoder = WordDecoder(codec=codec, lanes=lanes)
        m.submodules.difference = difference = PacketAdder(lanes=lanes, subtract=True, finite=True)
        m.d.comb += [inputs.enable.eq(0b11), encoded.enable.eq(0b11)]
        connect_stream(m, self.i, buffer.i)
        connect_stream(m, buffer.o, inputs.i)
        connect_stream(m, inputs.o[0], encoder.i)
        connect_stream(m, inputs.o[1], delayed.i)
        connect_stream(m, encoder.o, words.i)
        connect_stream(m, words.o, encoded.i)
        connect_stream(m, encoded.o[0], self.o)
        connect_stream(m, encoded.o[1], decoder.i)
        connect_stream(m, decoder.o, known.i)
        connect_stream(m, delayed.o, difference.a)
        connect_stream(m, known.o[0], difference.b)
        connect_stream(m, difference.o, self.error)
        return m
