"""Gapless packing of codes of a few bits into words, for any number of lanes.

Codes are processed in sets of eight. The bits of eight codes at one bit position form a byte, called a **plane**, and
eight codes of w bits form w bytes, lowest position first. A single circuit can therefore pack codes of any width: bit
positions that a packet does not use are omitted as whole bytes. Four sets, or :data:`~hdl.group.GROUP` codes, take w
words. A group that ``last`` cuts short is padded with zeros, so a packet of n codes takes w * ceil(n / 32) words.
"""

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.group import GROUP
from hdl.streams.stream import check_lanes

__all__ = ["PLANE", "GroupAssembler", "GroupSplitter", "check_words", "chunk_layout", "code_layout", "word_count"]

#: Number of codes in a plane. A plane is a byte: one bit of each code, all from the same bit position.
PLANE = 8


def word_count(lanes, width):
    """Number of words per beat of a packed stream for codes of up to ``width`` bits, one per lane and cycle.

    The stream transfers 1, 2 or 4 words, that is, 4 * words bytes, at a time.
    """
    check_lanes(lanes)
    words = 1
    while 32 * words < lanes * width:
        words *= 2
    return words


def code_layout(lanes, width):
    """Payload of unpacked streams: ``codes`` of ``width`` bits, and ``last`` to end a group."""
    return data.StructLayout({"codes": data.ArrayLayout(unsigned(width), lanes), "last": 1})


def chunk_layout(words):
    """Payload of bytes to pack: ``count`` bytes, lowest first, with zeros above them.

    ``align`` means that the next byte begins a new word, and ``last`` that the packet has no more bytes.
    """
    return data.StructLayout({"data": 32 * words, "count": range(4 * words + 1), "align": 1, "last": 1})


def check_words(words):
    if words not in (1, 2, 4):
        raise ValueError(f"Word count must be 1, 2 or 4, not {words!r}")


class GroupAssembler(wiring.Component):
    """Collect codes in sets of eight, and output their planes in chunks of bytes.

    If eight codes fit in one chunk, it is passed on with the beat that completes them: ``o`` and ``i.ready`` depend
    combinationally on ``i`` and ``o.ready``. If they need several chunks, these are held and offered one per cycle
    from the next cycle on.

    Parameters
    ----------
    lanes : int
        Number of codes per beat: 1, 2, 4 or 8.
    width : int
        Maximum width of a code in bits.

    Members
    -------
    i : In(stream of code_layout(lanes, width))
    size : In(range(width + 1))
        Width of a code in bits, at least 1; must be stable while the unit holds a packet.
    o : Out(stream of chunk_layout(words))
    """

    def __init__(self, *, lanes, width):
        self._words = word_count(lanes, width)
        self._lanes = lanes
        self._width = width
        super().__init__({
            "i": In(stream.Signature(code_layout(lanes, width))),
            "size": In(range(width + 1)),
            "o": Out(stream.Signature(chunk_layout(self._words))),
        })

    @property
    def words(self):
        """Size of a chunk in words."""
        return self._words

    @property
    def latency(self):
        """Latency in cycles from the beat that completes eight codes to the offer of their first chunk."""
        return 0 if self._width <= 4 * self._words else 1

    def elaborate(self, platform):
        m = Module()
        lanes, width, size = self._lanes, self._width, 4 * self._words
        beats = PLANE // lanes
        chunks = -(-width // size)
        codes = self.i.payload.codes

        # Planes of the eight codes being collected, with the newest codes in the highest lanes.
        filled = [codes[lane] for lane in range(lanes)]
        beat = Signal(range(max(beats, 2)))
        complete = Signal()
        if beats > 1:
            earlier = Signal(data.ArrayLayout(unsigned(width), PLANE - lanes))
            filled = [earlier[lane] for lane in range(PLANE - lanes)] + filled
            m.d.comb += complete.eq(beat == beats - 1)
        else:
            m.d.comb += complete.eq(1)
        planes = Cat(Cat(code[bit] for code in filled) for bit in range(width))

        if beats > 1:
            with m.If(self.i.valid & self.i.ready):
                m.d.sync += [beat.eq(beat + 1), Cat(*filled[:PLANE - lanes]).eq(Cat(*filled[lanes:]))]
        if chunks == 1:
            m.d.comb += [
                self.o.valid.eq(self.i.valid & complete),
                self.o.payload.data.eq(planes),
                self.o.payload.count.eq(self.size),
                self.o.payload.last.eq(self.i.payload.last),
                self.i.ready.eq(self.o.ready | ~complete),
            ]
            return m

        # Bytes of the previous eight codes that are still to be output.
        left = Signal(8 * chunks * size)
        count = Signal(range(width + 1))
        last = Signal()
        final = Signal()
        free = Signal()
        m.d.comb += [
            final.eq(count <= size),
            self.o.valid.eq(count != 0),
            self.o.payload.data.eq(left),
            self.o.payload.count.eq(Mux(final, count, size)),
            self.o.payload.last.eq(last & final),
            free.eq((count == 0) | (self.o.ready & final)),
            self.i.ready.eq(free | ~complete),
        ]
        with m.If(self.i.valid & self.i.ready & complete):
            m.d.sync += [left.eq(planes), count.eq(self.size), last.eq(self.i.payload.last)]
        with m.Elif(self.o.valid & self.o.ready):
            m.d.sync += [left.eq(left >> 8 * size), count.eq(Mux(final, 0, count - size))]
        return m


class GroupSplitter(wiring.Component):
    """Take planes from a :class:`ByteUnpacker`, eight codes at a time, and output the codes.

    While ``run`` is set, one chunk is taken and one beat is output per cycle. The first beat is offered one cycle
    after the last chunk of its eight codes was taken. Bits of a code above its size are zero.

    A packet must end with a whole group. If it ends early, the last eight codes are output with the bytes received so
    far, marked ``last``.

    Parameters
    ----------
    lanes : int
        Number of codes per beat: 1, 2, 4 or 8.
    width : int
        Maximum width of a code in bits.

    Members
    -------
    window, want, enough, stops, allow, take
        Ports of the unpacker, in the opposite direction.
    run : In(1)
    size : In(range(width + 1))
        Width of a code, at least 1; must be stable from the cycle before ``run`` is set until the codes are taken.
    ended : Out(1)
        The last bytes of the packet are taken in this cycle.
    error : Out(1)
        The last bytes are not the end of a group.
    o : Out(stream of code_layout(lanes, width))
    """

    latency = 1

    def __init__(self, *, lanes, width):
        self._words = words = word_count(lanes, width)
        self._lanes = lanes
        self._width = width
        super().__init__({
            "window": In(32 * words), "want": Out(range(4 * words + 1)), "enough": In(1), "stops": In(1),
            "allow": Out(1), "take": In(1), "run": In(1), "size": In(range(width + 1)),
            "ended": Out(1), "error": Out(1),
            "o": Out(stream.Signature(code_layout(lanes, width))),
        })

    @property
    def words(self):
        """Number of words per beat of the input stream, from which chunks are taken."""
        return self._words

    def elaborate(self, platform):
        m = Module()
        lanes, width, size = self._lanes, self._width, 4 * self._words
        beats = PLANE // lanes
        chunks = -(-width // size)
        eights = GROUP // PLANE

        rest = Signal(range(width + 1))  # bytes of the current eight codes still to be taken
        chunk = Signal(range(max(chunks, 2)))
        eight = Signal(range(eights))
        final = Signal()  # the current chunk is the last one of its eight codes
        closing = Signal()
        free = Signal()
        go = Signal()
        m.d.comb += [
            closing.eq(final | self.stops),
            self.allow.eq(self.run & (free | ~closing)),
            go.eq(self.take & self.run),
            self.ended.eq(go & self.stops),
            self.error.eq(self.ended & (~final | ~self.enough | (eight != eights - 1))),
        ]
        with m.If(go):
            m.d.sync += chunk.eq(chunk + 1)
            with m.If(closing):
                m.d.sync += [chunk.eq(0), eight.eq(Mux(self.stops, 0, eight + 1))]
        if chunks == 1:
            m.d.comb += [final.eq(1), self.want.eq(self.size)]
        else:
            # ``want`` comes from a register, since all other signals of a cycle depend on it.
            following = Signal.like(rest)
            m.d.comb += following.eq(Mux(go & ~closing, rest - size, self.size))
            with m.If(go | (chunk == 0)):
                m.d.sync += [rest.eq(following), final.eq(following <= size),
                             self.want.eq(Mux(following <= size, following, size))]

        # All chunks but the last one wait in registers.
        windows = []
        for number in range(chunks - 1):
            held = Signal(8 * size, name=f"held_{number}")
            with m.If(go & (chunk == number)):
                m.d.sync += held.eq(self.window)
            windows.append(Mux(chunk == number, self.window, held))
        windows.append(self.window)
        planes = Cat(windows)
        codes = [Cat(planes[8 * bit + code] & (bit < self.size) for bit in range(width))
                 for code in range(PLANE)]

        count = Signal(range(beats + 1))  # beats that remain to be output
        last = Signal()
        shift = Signal(data.ArrayLayout(unsigned(width), PLANE))
        m.d.comb += [
            self.o.valid.eq(count != 0),
            self.o.payload.last.eq(last & (count == 1)),
            free.eq((count == 0) | (self.o.ready & (count == 1))),
            *(self.o.payload.codes[lane].eq(shift[lane]) for lane in range(lanes)),
        ]
        with m.If(go & closing):
            m.d.sync += [count.eq(beats), last.eq(self.stops)]
        with m.Elif(self.o.valid & self.o.ready):
            m.d.sync += count.eq(count - 1)
        # Load codes whenever the registers are free, whether or not a new set of codes is complete: that is known too
        # late in the cycle to drive so many clock enables.
        with m.If(free):
            m.d.sync += Cat(*shift).eq(Cat(*codes))
        if beats > 1:
            with m.Elif(self.o.ready):
                m.d.sync += Cat(*shift).eq(Cat(*shift) >> lanes * width)
        return m
