"""Source of external mask bits, which are read from memory and combined with generated mask bits."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.masking.mask import MAX_LANES, mask_beat_layout
from hdl.streams.stream import check_lanes

__all__ = ["MaskSource"]

_WORD = 32


class MaskSource(wiring.Component):
    """Distribute the bits of words to the lanes of mask beats, and AND them with beats marked ``external``.

    A job's bits are stored without gaps, row by row and matrix by matrix, starting at bit 0 of the first word; a row
    may start within a word. Each job starts with a new word, and the rest of its last word is ignored. A word is
    accepted together with the first beat that needs one of its bits, never earlier. Beats that are not external pass
    unchanged.

    Latency is :attr:`latency` cycle, throughput one beat per cycle. ``i.ready`` depends combinationally on
    ``o.ready`` and ``words.valid``, and ``words.ready`` on ``o.ready`` and ``i``.

    Parameters
    ----------
    lanes : int
        Number of elements per beat: 1, 2, 4, 8 or 16.

    Members
    -------
    i : In(stream of mask_beat_layout(lanes))
    words : In(stream of 32)
    o : Out(stream of mask_beat_layout(lanes))
        The same beats, with ``external`` cleared.
    """

    latency = 1

    def __init__(self, *, lanes):
        check_lanes(lanes, most=MAX_LANES)
        self._lanes = lanes
        super().__init__({
            "i": In(stream.Signature(mask_beat_layout(lanes))),
            "words": In(stream.Signature(_WORD)),
            "o": Out(stream.Signature(mask_beat_layout(lanes))),
        })

    @property
    def lanes(self):
        return self._lanes

    def elaborate(self, platform):
        m = Module()
        beat = self.i.payload
        # Position of the last bit used from the current word.
        used = Signal(range(_WORD), init=_WORD - 1)
        held = Signal(_WORD - 1, reset_less=True)  # the word except bit 0, which is used when the word is accepted

        # The kept lanes are contiguous from lane 0, so the end of `keep` gives their number.
        ends = beat.keep & ~(beat.keep >> 1)
        count = Signal(range(self._lanes + 1))
        following = Signal(range(2 * _WORD))
        short = Signal()
        m.d.comb += [
            count.eq(Cat(
                Cat(end for lane, end in enumerate(ends) if lane + 1 >> bit & 1).any()
                for bit in range(len(count)))),
            following.eq(used + count),
            short.eq(beat.external & following[-1]),
        ]

        window = Signal(self._lanes)
        free = Signal()
        go = Signal()
        m.d.comb += [
            window.eq(Cat(held, self.words.payload).bit_select(used, self._lanes)),
            free.eq(self.o.ready | ~self.o.valid),
            go.eq(self.i.valid & (~short | self.words.valid)),
            self.i.ready.eq(free & (~short | self.words.valid)),
            self.words.ready.eq(free & self.i.valid & short),
        ]
        with m.If(free):
            m.d.sync += [
                self.o.valid.eq(go),
                self.o.payload.eq(beat),
                self.o.payload.mask.eq(beat.mask & Mux(beat.external, window, ~0)),
                self.o.payload.external.eq(0),
            ]
            with m.If(go):
                with m.If(short):
                    m.d.sync += held.eq(self.words.payload[1:])
                with m.If(beat.external):
                    m.d.sync += used.eq(following)
                with m.If(beat.last):
                    m.d.sync += used.eq(_WORD - 1)
        return m
