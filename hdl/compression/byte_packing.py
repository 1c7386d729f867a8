"""Pack bytes of planes into words without gaps, and unpack them; see :mod:`hdl.compression.planes`."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.planes import check_words, chunk_layout
from hdl.streams.stream import beat_layout

__all__ = ["BytePacker", "ByteUnpacker"]


class BytePacker(wiring.Component):
    """Pack bytes into words, and words into beats.

    One chunk of up to 4 * ``words`` bytes is taken per cycle. An extra cycle is needed after the last chunk of a
    packet if its bytes do not fit in the beat being filled, and after an aligned chunk that also fills the next beat.
    A beat is offered :attr:`latency` cycles after the chunk that completes it is taken. ``i.ready`` depends
    combinationally on ``o.ready``.

    Parameters
    ----------
    words : int
        Number of words per beat: 1, 2 or 4.

    Members
    -------
    i : In(stream of chunk_layout(words))
    o : Out(stream of beat_layout(words))
    """

    latency = 2

    def __init__(self, *, words):
        check_words(words)
        self._words = words
        super().__init__({
            "i": In(stream.Signature(chunk_layout(words))),
            "o": Out(stream.Signature(beat_layout(words))),
        })

    @property
    def words(self):
        """Words per beat."""
        return self._words

    def elaborate(self, platform):
        m = Module()
        size = 4 * self._words
        # The chunk, the position of its first byte in the beat, and the position after its last byte. The positions
        # are computed one chunk ahead, so that little logic is left in the cycle that decides whether the chunk
        # moves.
        chunk = Signal(self.i.payload.shape())
        chunk_valid = Signal()
        first = Signal(range(size))
        total = Signal(range(2 * size))
        position = Signal(range(size))  # position after the bytes packed so far
        waiting = Signal(8 * size)
        tail = Signal()  # the bytes in `waiting` must be output before more are taken
        tail_last = Signal()
        tail_end = Signal(range(size))

        rotated = chunk.data
        for bit in range(len(first)):
            turned = Signal(8 * size, name=f"turned_{1 << bit}")
            m.d.comb += turned.eq(Mux(first[bit], rotated.rotate_left(8 << bit), rotated))
            rotated = turned
        merged = Signal(8 * size)
        end = Signal(range(size))
        m.d.comb += end.eq(Mux(tail, tail_end, first))
        for byte in range(size):
            part = slice(8 * byte, 8 * byte + 8)
            m.d.comb += merged[part].eq(Mux(byte < end, waiting[part], Mux(tail, 0, rotated[part])))

        # A last word that is only partly filled counts as a whole word.
        whole = Signal()
        full = Signal()
        more = Signal()
        splitting = Signal()
        emit = Signal()
        free = Signal()
        move = Signal()
        following = Signal(range(size))
        count = Signal(range(2 * size))
        m.d.comb += [
            whole.eq(chunk.align | chunk.last),
            full.eq((total >= size) | (whole & (total > size - 4))),
            more.eq(total > size),
            splitting.eq((chunk.last & more) | (whole & (total > 2 * size - 4))),
            emit.eq(full | chunk.last),
            free.eq(self.o.ready | ~self.o.valid),
            move.eq(chunk_valid & ~tail & (free | ~emit)),
            self.i.ready.eq(~chunk_valid | move),
            following.eq(Mux(chunk_valid, Mux(chunk.last, 0, Mux(chunk.align, (total + 3) & ~3, total)), position)),
            count.eq(Mux(tail, tail_end, total)),
        ]
        with m.If(self.i.ready):
            m.d.sync += [
                chunk.eq(self.i.payload), chunk_valid.eq(self.i.valid),
                first.eq(following), total.eq(following + self.i.payload.count),
            ]
        with m.If(free):
            m.d.sync += [
                self.o.valid.eq(tail | (move & emit)),
                self.o.payload.elements.eq(merged),
                self.o.payload.last.eq(Mux(tail, tail_last, chunk.last & ~more)),
                self.o.payload.keep.eq(Cat(count > 4 * word for word in range(self._words))),
                tail.eq(0),
            ]
        with m.If(move):
            m.d.sync += [
                position.eq(following), waiting.eq(Mux(full, rotated, merged)),
                tail.eq(splitting), tail_last.eq(chunk.last), tail_end.eq(total),
            ]
        return m


class ByteUnpacker(wiring.Component):
    """Unpack packets of words into bytes: show the next bytes, and take any number of them per cycle.

    The first bytes of a packet are shown :attr:`latency` cycles after their beat is accepted, and ``shown`` is low
    for one cycle between packets. ``window`` and ``shown`` depend only on registers; ``enough``, ``stops``, ``take``
    and ``i.ready`` also depend on ``want`` and the inputs listed after it.

    Parameters
    ----------
    words : int
        Number of words per beat: 1, 2 or 4.

    Members
    -------
    i : In(stream of beat_layout(words))
    window : Out(32 * words)
        The next bytes.
    shown : Out(1)
        A packet is present and ``window`` is valid.
    want : In(range(4 * words + 1))
        Number of bytes to take.
    align : In(1)
        Take the rest of the current word instead.
    enough : Out(1)
        The wanted bytes are available.
    stops : Out(1)
        The packet ends with or before the wanted bytes.
    allow : In(1)
        Take the wanted bytes if ``enough`` or ``stops``.
    take : Out(1)
        The bytes are taken in this cycle.
    done : In(1)
        Drop the rest of this packet, from the next cycle on; otherwise, reading stops at the end of the packet.
    """

    latency = 2

    def __init__(self, *, words):
        check_words(words)
        self._words = words
        super().__init__({
            "i": In(stream.Signature(beat_layout(words))),
            "window": Out(32 * words), "shown": Out(1), "want": In(range(4 * words + 1)), "align": In(1),
            "enough": Out(1), "stops": Out(1), "allow": In(1), "take": Out(1), "done": In(1),
        })

    @property
    def words(self):
        """Words per beat."""
        return self._words

    def elaborate(self, platform):
        m = Module()
        size = 4 * self._words
        layout = data.StructLayout({"bytes": 8 * size, "end": range(size + 1), "last": 1, "valid": 1})
        front = Signal(layout)
        back = Signal(layout)
        position = Signal(range(size + 1))
        dropping = Signal()

        after = Signal(range(2 * size))
        over = Signal()  # the next position is beyond the end of the front beat
        exact = Signal()  # the next position is at the start of a beat
        early = Signal()
        moving = Signal()  # the position moves in this cycle, provided that bytes are shown
        advance = Signal()
        fill = Signal()
        m.d.comb += [
            self.shown.eq(~early),
            after.eq(Mux(self.align, (position + 3) & ~3, position + self.want)),
            over.eq(after[-1]),
            exact.eq(~after[:-1].any()),
            moving.eq(self.allow & (front.last | ~over | exact | back.valid)),
            self.take.eq(moving & self.shown),
            # Of the inputs to these signals, all but the position are known early in the cycle.
            early.eq(~front.valid | dropping | (position == size)),
            advance.eq(early | (self.allow & ~front.last & over & (exact | back.valid))),
            fill.eq(early | ~back.valid | (self.allow & ~front.last & over)),
            self.i.ready.eq(fill),
            self.enough.eq(self.shown & Mux(
                front.last, after <= front.end,
                ~over | exact | (back.valid & (~back.last | (after <= size + back.end))))),
            self.stops.eq(self.shown & Mux(
                front.last, after >= front.end, back.valid & back.last & (after >= size + back.end))),
        ]
        window = Cat(front.bytes, back.bytes)
        step = size
        while step > 1:
            step //= 2
            # Each step keeps the bytes to be shown, plus those that later steps may shift into their place.
            shifted = Signal(8 * (size + step - 1), name=f"shifted_{step}")
            m.d.comb += shifted.eq(Mux(position[step.bit_length() - 1], window[8 * step:], window))
            window = shifted
        m.d.comb += self.window.eq(window)

        with m.If(advance):
            m.d.sync += front.eq(back)
        with m.If(early | moving):  # covers all cycles in which bytes advance or are taken, but is known earlier
            m.d.sync += position.eq(Mux(early, 0, Mux(over & ~front.last, after[:-1], after)))
        with m.If(fill):
            m.d.sync += [
                back.bytes.eq(self.i.payload.elements),
                back.end.eq(sum(self.i.payload.keep).shift_left(2)),
                back.last.eq(self.i.payload.last),
                back.valid.eq(self.i.valid),
            ]
        with m.If(self.done):
            m.d.sync += dropping.eq(1)
        with m.Elif(dropping & front.valid & front.last):
            m.d.sync += dropping.eq(0)
        return m
