"""Hashes of packets of exponent fields and of complete sums, which verify that two units use the same words.

The hash of a packet starts at :data:`START`. For each word, it is rotated left by :data:`ROTATION` bits and XORed
with the word. The hash therefore changes if any one bit is flipped. It also changes if bits at the same position of
several words are flipped, or if two different words are swapped, unless they differ in every bit.

Hashes that stay in a node are half as long: the two halves of each word are XORed (:func:`folded`), and the hash
starts at the lower half of :data:`START`. Each flipped bit still changes exactly one bit of the folded word.
"""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.reproducible.layout import check_width, codes_of, integers_layout
from hdl.streams.stream import Queue, connect_stream, word_layout

__all__ = ["HASH", "ROTATION", "START", "SUM_HASH", "FieldHash", "HashGate", "SingleFieldHash", "SumHash", "folded",
           "sum_hash"]

#: Number of bits of a hash of exponent fields.
HASH = 32
#: Number of bits of a hash of complete sums.
SUM_HASH = 16
#: Hash of an empty packet.
START = 0x9E37_79B9
#: Number of bits by which a hash rotates for each word; odd, so that words of a packet have different rotations.
ROTATION = 5


def folded(word):
    """XOR the halves of a word. The upper half is rotated, so that equal halves do not cancel."""
    return word[:SUM_HASH] ^ word[SUM_HASH:].rotate_left(1)


def sum_hash(so_far, codes):
    """Return the hash of complete sums after one more word of codes."""
    return so_far.rotate_left(ROTATION) ^ folded(codes)


class _Hash(wiring.Component):
    """Base class of units that form the hash of each packet that passes; their ``latency`` is 1 cycle."""

    latency = 1
    #: Number of bits of the unit's hashes.
    bits = HASH

    def __init__(self, depth, i, o, *, folds=False):
        if not isinstance(depth, int) or depth < 2:
            raise ValueError(f"Number of hashes must be an integer of at least 2, not {depth!r}")
        self._depth = depth
        self._folds = folds
        super().__init__({"i": In(stream.Signature(i)), "o": Out(stream.Signature(o)),
                          "hash": Out(stream.Signature(SUM_HASH if folds else self.bits))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.hashes = hashes = Queue(shape=self.hash.payload.shape(), depth=self._depth)
        connect_stream(m, hashes.o, self.hash)
        last = self.i.payload.last
        start = START % (1 << self.bits)
        so_far = Signal(self.bits, init=start)
        following = Signal(self.bits)
        taken = Signal()
        m.d.comb += [
            self.o.valid.eq(self.i.valid & hashes.i.ready),
            self.i.ready.eq(self.o.ready & hashes.i.ready),
            taken.eq(self.o.valid & self.o.ready),
            hashes.i.valid.eq(taken & last),
            hashes.i.payload.eq(folded(following) if self._folds else following),
        ]
        begins, added = self._pass(m, taken)
        m.d.comb += following.eq(Mux(begins, so_far.rotate_left(ROTATION), so_far) ^ added)
        with m.If(taken):
            m.d.sync += so_far.eq(Mux(last, start, following))
        return m

    def _pass(self, m, taken):
        """Connect the payloads; return whether the payload begins a word, and the bits to XOR with the hash."""
        raise NotImplementedError


class FieldHash(_Hash):
    """Form the hash of each packet of fields that passes.

    Latency is 0 cycles from ``i`` to ``o``, and :attr:`latency` cycle from the last word of a packet to its hash.
    Words wait while the queue of hashes is full. ``i.ready`` depends combinationally on ``o.ready``, and
    ``o.valid`` on ``i.valid``; ``hash`` is a register.

    Parameters
    ----------
    depth : int
        Number of hashes that can wait; at least 2.

    Members
    -------
    i : In(stream of word_layout())
    o : Out(stream of word_layout())
    hash : Out(stream of 32 bits)
        One for each packet.
    """

    def __init__(self, *, depth):
        super().__init__(depth, word_layout(), word_layout())

    def _pass(self, m, taken):
        m.d.comb += self.o.payload.eq(self.i.payload)
        return Const(1, 1), self.i.payload.data


class SingleFieldHash(_Hash):
    """Form the hash of each packet of single fields that passes, equal to the hash of the words with these fields.

    Timing and ``depth`` are as in :class:`FieldHash`.

    Parameters
    ----------
    depth : int
    folds : bool
        Whether hashes are :func:`folded`.

    Members
    -------
    i : In(stream of a field and ``last``)
        ``last`` marks the last field of a packet. It is used only in the cycle in which the field is taken.
    o : Out(stream of 8 bits)
    hash : Out(stream of 32 bits, or 16 bits with ``folds``)
        One for each packet.
    """

    def __init__(self, *, depth, folds=False):
        super().__init__(depth, data.StructLayout({"field": 8, "last": 1}), 8, folds=folds)

    def _pass(self, m, taken):
        field, last = self.i.payload.field, self.i.payload.last
        index = Signal(range(HASH // 8))  # index of the field in its word
        with m.If(taken):
            m.d.sync += index.eq(Mux(last, 0, index + 1))
        added = Signal(HASH)
        m.d.comb += [self.o.payload.eq(field), added.word_select(index, 8).eq(field)]
        return index == 0, added


class SumHash(_Hash):
    """Form the hash of the codes of each packet of complete sums that passes.

    Timing and ``depth`` are as in :class:`FieldHash`.

    Parameters
    ----------
    depth : int
        Number of hashes that can wait; at least 2.
    width : int, optional
        Width in bits of integers with flags, 16 or 32; by default, words contain codes.

    Members
    -------
    i : In(stream of integers_layout(width) or word_layout())
    o : Out(stream of integers_layout(width) or word_layout())
    hash : Out(stream of 16 bits)
        One for each packet.
    """

    bits = SUM_HASH

    def __init__(self, *, depth, width=None):
        if width is not None:
            check_width(width)
        self._width = width
        shape = word_layout() if width is None else integers_layout(width)
        super().__init__(depth, shape, shape)

    def _pass(self, m, taken):
        word = self.i.payload
        codes = word.data if self._width is None else codes_of(word, self._width)
        m.d.comb += self.o.payload.eq(word)
        return Const(1, 1), folded(codes)


class HashGate(wiring.Component):
    """Hold back the last word of each packet until its two hashes are available and equal. If they differ, neither
    this word nor any later one is offered.

    Latency is 0 cycles; the hashes are taken one cycle after both are offered, and the last word may pass one cycle
    later. ``i.ready`` depends combinationally on ``o.ready`` and ``i.payload.last``; ``o.valid`` on ``i``. The other
    outputs depend only on registers.

    Parameters
    ----------
    shape : Layout
        Payload of the packets, with a field ``last``.

    Members
    -------
    i : In(stream of shape)
    o : Out(stream of shape)
    a, b : In(stream of 16 bits)
        Two hashes for each packet. They are taken together, the next pair after the packet.
    wrong : Out(1)
        Pulse: the hashes that are taken in this cycle differ.
    """

    def __init__(self, *, shape):
        hashes = stream.Signature(SUM_HASH)
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape)),
                          "a": In(hashes), "b": In(hashes), "wrong": Out(1)})

    def elaborate(self, platform):
        m = Module()
        compared = Signal()  # the hashes are taken
        judged = Signal()
        differs = Signal()
        passes = Signal()
        m.d.comb += [
            self.a.ready.eq(compared),
            self.b.ready.eq(compared),
            self.wrong.eq(compared & differs),
            passes.eq(~self.i.payload.last | (judged & ~differs)),
            self.o.payload.eq(self.i.payload),
            self.o.valid.eq(self.i.valid & passes),
            self.i.ready.eq(self.o.ready & passes),
        ]
        m.d.sync += compared.eq(self.a.valid & self.b.valid & ~compared & ~judged)
        with m.If(~compared & ~judged):
            m.d.sync += differs.eq(self.a.payload != self.b.payload)
        with m.If(compared):
            m.d.sync += judged.eq(1)
        with m.If(self.o.valid & self.o.ready & self.i.payload.last):
            m.d.sync += judged.eq(0)
        return m
