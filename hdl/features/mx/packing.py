"""Packing of shared-exponent blocks into words without gaps, and the reverse."""

import math

from amaranth.hdl import Array, C, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.mx.format import WORD, block_layout, check_among, check_codec, choice_port
from hdl.floating.stages import shift_left
from hdl.streams.stream import beat_layout

__all__ = ["Packer", "Unpacker", "check_words", "min_words", "positions"]


def positions(codec, lanes):
    """Return the start positions of beats in a word, the bits per beat, and the maximum number of words that a beat
    completes."""
    beats = codec.block // lanes
    sizes = [codec.header_bits * (beat == 0) + lanes * codec.code_bits for beat in range(beats)]
    start, words, seen = 0, 1, []
    while not seen or start:
        for beat, size in enumerate(sizes):
            seen.append(start)
            after = start + size
            words = max(words, -(-after // WORD) if beat == beats - 1 else after // WORD)
            start = after % WORD
    return sorted(set(seen)), sizes, words


def min_words(codec, lanes):
    """Minimum number of words that hold a beat with the header of its block."""
    return -(-(codec.header_bits + lanes * codec.code_bits) // WORD)


def _together(codec, among, lanes):
    """Combine :func:`positions` over several formats: all start positions, each format's sizes of the first and later
    beats, and the maximum number of words."""
    formats = [positions(option, lanes) for option in among or [codec]]
    return (sorted({start for starts, _, _ in formats for start in starts}),
            [(sizes[0], sizes[-1]) for _, sizes, _ in formats], max(words for _, _, words in formats))


def _of(unit, values):
    """Select the value for the chosen format, or return the only value."""
    return values[0] if len(values) == 1 else Array(values)[unit.choice]


def check_words(words, least):
    """Return ``words``, or the minimum ``least`` if it is None; raises ``ValueError`` if it is too small."""
    if words is None:
        return least
    if not isinstance(words, int) or words < least:
        raise ValueError(f"Word count must be an integer of at least {least}, not {words!r}")
    return words


class Packer(wiring.Component):
    """Pack blocks into words.

    One beat is accepted per cycle. Any words that it completes are offered :attr:`latency` cycle later; the last beat
    of a packet also flushes the incomplete word. ``i.ready`` depends combinationally on ``o.ready``.

    Parameters
    ----------
    codec : BlockCodec
    lanes : int
        Elements per beat of a block.
    words : int or None
        Words per output beat; by default the maximum that a beat can complete.
    among : sequence of SharedExponent
        Formats to choose from, as in a :class:`~hdl.features.mx.quantizer.Quantizer`.

    Members
    -------
    i : In(stream of block_layout(codec, lanes))
    choice : In, if there is ``among``
    o : Out(stream of beat_layout(words))
        Each beat keeps at least one word, but not necessarily all.
    """

    latency = 1

    def __init__(self, *, codec, lanes, words=None, among=()):
        check_codec(codec, lanes)
        layout = block_layout(codec, lanes)
        self._codec = codec
        self._lanes = lanes
        self._among = check_among(codec, among)
        self._words = check_words(words, _together(codec, self._among, lanes)[-1])
        super().__init__({"i": In(stream.Signature(layout)), **choice_port(self._among),
                          "o": Out(stream.Signature(beat_layout(self._words)))})

    @property
    def words(self):
        """Number of words in a beat of the output."""
        return self._words

    def elaborate(self, platform):
        m = Module()
        codec, among = self._codec, self._among
        starts, pairs, most = _together(codec, among, self._lanes)
        unit = math.gcd(WORD, *starts)
        beat = self.i.payload
        longest, several = max(first for first, _ in pairs), codec.block > self._lanes
        piece = Signal(longest)
        body = beat.codes.as_value()
        if among:
            body = _of(self, [Cat(Cat(code[:other.mantissa_bits], code[-1]) for code in beat.codes)
                              for other in among])
        header = Cat(beat.exponent, *([beat.differences] if codec.subsets else []))
        if several:
            m.d.comb += piece.eq(Mux(beat.first, Cat(header, body), body))
        else:
            m.d.comb += piece.eq(Cat(header, body))

        # Bits of the incomplete word so far, zero-extended, and their number divided by `unit`.
        left = Signal(max(starts[-1], 1))
        count = Signal(range(max(WORD // unit, 2)))
        moved = Signal(len(left) + len(piece))
        m.d.comb += moved.eq(shift_left(m, Cat(piece, C(0, len(left))), (count * unit)[:5]) | left
                             if unit < WORD else piece)
        total = Signal(range((starts[-1] + longest) // unit + 1))
        first, further = (_of(self, [sizes[which] // unit for sizes in pairs]) for which in (0, 1))
        m.d.comb += total.eq(count + (Mux(beat.first, first, further) if several else first))
        shift = (WORD // unit).bit_length() - 1
        whole = Signal(range(max(most, 1) + 1))
        rest = Signal.like(count)
        m.d.comb += [whole.eq(total >> shift), rest.eq(total[:shift] if shift else 0)]

        ready = Signal()
        m.d.comb += [ready.eq(self.o.ready | ~self.o.valid), self.i.ready.eq(ready)]
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(ready & self.i.valid):
            ends = beat.last & (rest != 0)
            m.d.sync += [
                self.o.valid.eq((whole != 0) | ends),
                self.o.payload.last.eq(beat.last),
                count.eq(Mux(beat.last, 0, rest)),
            ]
            for word in range(most):
                m.d.sync += [
                    self.o.payload.elements[word].eq(moved[WORD * word:WORD * (word + 1)]),
                    self.o.payload.keep[word].eq((whole > word) | (ends & (whole == word))),
                ]
            with m.Switch(whole):
                for number in range(most + 1):
                    with m.Case(number):
                        m.d.sync += left.eq(Mux(beat.last, 0, moved[WORD * number:WORD * number + len(left)]))
        return m


class Unpacker(wiring.Component):
    """Unpack words into blocks.

    One beat is output per cycle while words are available; a word is accepted when a beat needs its bits. A beat is
    offered :attr:`latency` cycle after its last word was accepted. ``i.ready`` depends combinationally on
    ``o.ready``.

    A packet that ends inside a block raises ``error`` with the first incomplete beat. That beat and the rest of the
    block are output as NaN, encoded in the exponent; the next packet is not affected. Fewer than 32 bits after the
    last block are ignored.

    Parameters
    ----------
    codec : BlockCodec
    lanes : int
        Elements per beat of a block.
    words : int or None
        Words per input beat; at least, and by default, the maximum that a beat of a block needs.
    among : sequence of SharedExponent
        Formats to choose from, as in a :class:`~hdl.features.mx.quantizer.Quantizer`; in ``o`` narrower
        magnitudes are in the highest bits, where they have the same value.

    Members
    -------
    choice : In, if there is ``among``
    i : In(stream of beat_layout(words))
        ``keep`` must be all ones except in the last beat, as usual.
    o : Out(stream of block_layout(codec, lanes))
    error : Out(1)
        Pulse: a block is incomplete.
    """

    latency = 1

    def __init__(self, *, codec, lanes, words=None, among=()):
        check_codec(codec, lanes)
        layout = block_layout(codec, lanes)
        self._codec = codec
        self._lanes = lanes
        self._among = check_among(codec, among)
        self._words = check_words(words, min_words(codec, lanes))
        super().__init__({
            **choice_port(self._among),
            "i": In(stream.Signature(beat_layout(self._words))), "o": Out(stream.Signature(layout)), "error": Out(1)})

    @property
    def words(self):
        """Number of words in a beat of the input."""
        return self._words

    def elaborate(self, platform):
        m = Module()
        codec, lanes = self._codec, self._lanes
        pairs, beats = _together(codec, self._among, lanes)[1], codec.block // lanes
        row = WORD * self._words
        unit = math.gcd(WORD, *(size for sizes in pairs for size in sizes))
        longest = max(first for first, _ in pairs)
        opening, further = (_of(self, [sizes[which] // unit for sizes in pairs]) for which in (0, 1))
        beat = self.i.payload

        # The most recent input words, the number of their units already used, and whether they end a packet.
        held = Signal(row, reset_less=True)
        whole = row // unit
        used = Signal(range(max(whole, 2)), init=whole - 1)  # number of used units - 1; initially all are used
        ended = Signal()
        count = Signal(range(self._words + 1))

        index = Signal(range(max(beats, 2)))
        first = (index == 0) if beats > 1 else C(1, 1)
        final = (index == beats - 1) if beats > 1 else C(1, 1)
        stop = Signal(range(2 * whole + 1))
        crossing = Signal()
        taking = Signal()
        m.d.comb += [
            stop.eq(used + (Mux(first, opening, further) if beats > 1 else opening) + 1),
            crossing.eq(stop > whole),
            taking.eq(crossing & ~ended),
        ]

        # End of the packet, if already known.
        fresh = Signal.like(count)
        known = Signal()
        end = Signal(range(2 * self._words + 1))
        lacking = Signal()
        finished = Signal()
        word = WORD // unit
        m.d.comb += [
            fresh.eq(sum(beat.keep)),
            known.eq(ended | (taking & beat.last)),
            end.eq(Mux(ended, count, fresh + self._words)),
            lacking.eq(known & (stop > end * word)),
            finished.eq(final & known & (stop + word > end * word)),
        ]

        free = Signal()
        go = Signal()
        m.d.comb += [
            free.eq(self.o.ready | ~self.o.valid),
            go.eq(free & (~taking | self.i.valid)),
            self.i.ready.eq(free & taking),
        ]
        window = Signal(row - unit + longest)
        m.d.comb += window.eq(Cat(held[unit:], beat.elements))
        for bit in reversed(range((whole - 1).bit_length())):
            step = unit << bit
            remaining = longest + step - unit
            moved = Signal(min(remaining, len(window)), name=f"moved_{step}")
            m.d.comb += moved.eq(Mux(used[bit], window[step:], window))
            window = moved
        header = window[:codec.header_bits]
        body = window[codec.header_bits:longest]
        if beats > 1:
            body = Mux(first, body, window[:lanes * codec.code_bits])
        if self._among:
            body = _of(self, [Cat(
                Cat(C(0, codec.magnitude_bits - other.magnitude_bits), body.word_select(lane, other.code_bits))
                for lane in range(lanes)) for other in self._among])

        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        m.d.sync += self.error.eq(0)
        with m.If(go):
            m.d.sync += [
                self.o.valid.eq(1),
                self.o.payload.first.eq(first),
                self.o.payload.last.eq(finished),
                self.o.payload.codes.eq(body),
                used.eq(Mux(finished | lacking, whole - 1, stop - 1 - Mux(taking, whole, 0))),
                ended.eq(~finished & (known | lacking)),
            ]
            if beats > 1:
                m.d.sync += index.eq(Mux(final, 0, index + 1))
            with m.If(first):
                m.d.sync += self.o.payload.exponent.eq(header[:codec.exponent_bits])
                if codec.subsets:
                    m.d.sync += self.o.payload.differences.eq(header[codec.exponent_bits:])
            with m.If(lacking):
                m.d.sync += [self.o.payload.exponent.eq(codec.nan), self.error.eq(~ended | (count != 0))]
            with m.If(taking):
                m.d.sync += [held.eq(beat.elements), count.eq(fresh)]
            with m.If(lacking):
                m.d.sync += count.eq(0)
        return m
