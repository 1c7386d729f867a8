"""Quantizer that converts elements to the integers of reproducible sums."""

from types import SimpleNamespace

from amaranth.hdl import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.reproducible.layout import SPARE, check_width, integers_layout
from hdl.floating.format import FP32
from hdl.floating.stages import shift_right
from hdl.group import GROUP
from hdl.streams.stream import beat_layout

__all__ = ["Quantizer"]


class Quantizer(wiring.Component):
    """Convert elements to integers below the exponents of their groups, rounding to nearest even.

    A packet consists of groups of 32 elements; its last group may be shorter. Each group has an exponent field F, the
    largest exponent field of the finite elements of all addends, and at least 1. With ``spare`` bits kept free for
    the sum, an integer has b = ``width`` - ``spare`` bits: it is the multiple of 2**(F - 125 - b) nearest to its
    element, limited to ±(2**(b - 1) - 1). The integer of an infinity or a NaN is 0, and its flags are set; a lane
    without ``keep`` has integer 0 and no flags. An element with an exponent field above F has an unspecified result.
    The parity is computed in parallel with the integers, not from them, so it detects any later change.

    Latency is :attr:`latency` cycles, throughput one beat per cycle. All stages move together while the output is
    free or accepted. ``i.ready`` depends combinationally on ``o.ready`` and ``fields.valid``, and ``fields.ready`` on
    ``o.ready`` and ``i``; every output of ``o`` is a register.

    Parameters
    ----------
    width : int
        Width of the integers in bits: 16 or 32. A beat has 32 // ``width`` lanes.

    Members
    -------
    i : In(stream of beat_layout(lanes))
        Elements in binary32.
    fields : In(stream of 8 bits)
        Exponent field F of each group, 1 to 254, taken with the group's last beat.
    spare : In(range(9))
        Base-2 logarithm of the number of addends, rounded up. It must be stable while beats are in the unit.
    o : Out(stream of integers_layout(width, parity=True))
    """

    latency = 4

    def __init__(self, *, width):
        check_width(width)
        self._width = width
        self._lanes = 32 // width
        super().__init__({
            "i": In(stream.Signature(beat_layout(self._lanes))),
            "fields": In(stream.Signature(8)),
            "spare": In(SPARE),
            "o": Out(stream.Signature(integers_layout(width, parity=True))),
        })

    @property
    def width(self):
        """Width of the integers in bits."""
        return self._width

    def elaborate(self, platform):
        m = Module()
        advance = Signal()
        taken = Signal()
        final = Signal()  # this beat is the last one of its group
        beats = GROUP // self._lanes
        position = Signal(range(beats))
        m.d.comb += [
            advance.eq(self.o.ready | ~self.o.valid),
            final.eq((position == beats - 1) | self.i.payload.last),
            taken.eq(self.i.valid & self.fields.valid),
            self.i.ready.eq(advance & self.fields.valid),
            self.fields.ready.eq(advance & self.i.valid & final),
        ]
        with m.If(advance & taken):
            m.d.sync += position.eq(Mux(self.i.payload.last, 0, position + 1))

        def register(stage, *, clear=None, **values):
            """Return registers that advance with the pipeline; ``clear`` sets them to zero."""
            later = {name: Signal(Value.cast(value).shape(), name=f"{stage}_{name}", reset_less=True)
                     for name, value in values.items()}
            with m.If(advance):
                m.d.sync += [later[name].eq(value) for name, value in values.items()]
                if clear is not None:
                    with m.If(clear):
                        m.d.sync += [signal.eq(0) for signal in later.values()]
            return SimpleNamespace(**later)

        # The valid bit must be defined after reset, so it passes through flip-flops with a reset.
        valid, last = taken, self.i.payload.last
        for cycle in range(1, self.latency):
            following = Signal(name=f"valid_{cycle}")
            with m.If(advance):
                m.d.sync += following.eq(valid)
            valid, last = following, register(f"frame_{cycle}", last=last).last

        # Stage 1: add the spare bits to the exponent field, for all lanes.
        beat = register("beat", elements=self.i.payload.elements.as_value(), keep=self.i.payload.keep,
                        reach=self.fields.payload + self.spare)
        lanes = (self._lane(m, register, beat, lane) for lane in range(self._lanes))
        integers, flags, parities = zip(*lanes, strict=True)
        result = register("result", data=Cat(integers), special=Cat(flags), last=last, parities=Cat(parities))
        m.d.comb += [
            self.o.payload.data.eq(result.data),
            self.o.payload.special.as_value().eq(result.special),
            self.o.payload.last.eq(result.last),
            self.o.payload.parity.eq(result.parities.xor()),
        ]
        with m.If(advance):
            m.d.sync += self.o.valid.eq(valid)
        return m

    def _lane(self, m, register, beat, lane):
        """Build stages 2 and 3 of a lane and the addition of stage 4; return the integer, its flags, and bits whose
        XOR is the parity of both.
        """
        width = self._width

        # Stage 2: unpack, and compute the distance from the integer's highest magnitude bit.
        element = data.View(FP32.layout, beat.elements.word_select(lane, 32))
        keep = beat.keep[lane]
        normal = element.exponent.any()
        special = element.exponent.all() & keep
        nan = element.fraction.any()
        distance = Signal(len(beat.reach), name=f"distance_{lane}")
        m.d.comb += distance.eq(beat.reach - Cat(element.exponent[0] | ~normal, element.exponent[1:]))
        bits = (width - 1).bit_length()
        opened = register(
            f"opened_{lane}",
            significand=Cat(element.fraction, normal), amount=distance[:bits], sign=element.sign,
            zero=special | ~keep | distance[bits:].any(),
            special=Cat(special & (nan | ~element.sign), special & (nan | element.sign)))

        # Stage 3: shift into magnitude and guard bit. A number that is shifted out of all these bits rounds to
        # zero, as does an infinity or a NaN. The magnitude is complemented here if the integer is negative.
        significand = opened.significand
        excess = len(significand) - width  # bits below the guard bit if the exponent is F and no bits are spare
        value = significand[excess:] if excess > 0 else Cat(C(0, -excess), significand)
        window, lost = shift_right(m, value, opened.amount, width=width)
        if excess > 0:
            lost = Cat(significand[:excess].any(), lost)
        aligned = register(
            f"aligned_{lane}", clear=opened.zero, magnitude=window[1:] ^ opened.sign.replicate(width - 1),
            guard=window[0] & ~self._full(m, significand, opened.amount, lane), sign=opened.sign)
        rest = register(f"rest_{lane}", sticky=lost.any(), special=opened.special)

        # Stage 4: round and negate, in one addition.
        up = aligned.guard & (rest.sticky | (aligned.magnitude[0] ^ aligned.sign))
        integer = Signal(width, name=f"integer_{lane}")
        value, carry = Cat(aligned.magnitude, aligned.sign), up ^ aligned.sign
        m.d.comb += integer.eq(value + carry)
        return integer, rest.special, Cat(value.xor() ^ rest.special.xor(), carry & self._changes(value))

    @classmethod
    def _changes(cls, value):
        """Return whether incrementing a number, which has an even width, changes an odd number of its bits.

        The carry passes through pairs of ones, and both bits of each such pair change. In the first pair that is not
        all ones, one bit changes if the pair's low bit is 0, and both bits change if it is 1. The tree of pairs is as
        fast as the carry chain.
        """
        return cls._change_tree([(value[start:start + 2].all(), ~value[start]) for start in range(0, len(value), 2)])

    @classmethod
    def _change_tree(cls, pairs):
        """Return whether a carry into the lowest pair of bits changes an odd number of bits.

        For each pair of bits, ``pairs`` contains two flags: whether a carry passes through the pair, and whether
        exactly one bit changes if a carry reaches it.
        """
        while len(pairs) > 1:
            pairs = [(low & high, changes | (low & other))
                     for (low, changes), (high, other) in zip(pairs[::2], pairs[1::2], strict=True)]
        return pairs[0][1]

    def _full(self, m, significand, amount, lane):
        """Return whether a number has exponent F and the largest magnitude, so that it must not be rounded up.

        The magnitude is then the highest ``width - 1 - spare`` bits of the significand. If the significand has no
        further bits, the guard bit is zero and the number is not rounded up anyway.
        """
        excess = len(significand) - self._width
        ones = Cat(bit | (self.spare >= index - excess) if index - excess <= max(SPARE) else bit
                   for index, bit in enumerate(significand) if index > max(excess, 0)).all()
        full = Signal(name=f"full_{lane}")
        m.d.comb += full.eq(ones & (amount == self.spare))
        return full
