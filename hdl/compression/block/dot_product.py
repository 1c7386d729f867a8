"""The dot product of blocks with shared exponents: integers inside a block, and one exponent for all of it."""

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.compression.block.format import BlockCodec, block_layout

__all__ = ["BlockDotProduct", "dot_product_layout"]

#: Width of an operand of a multiplier block.
_MULTIPLIER = 18


def _largest(codec):
    """The largest element as an integer, of which one is the smallest number of the format above zero."""
    if codec.complement:
        return 1 << codec.magnitude_bits
    fraction = (codec.largest & ((1 << codec.fraction_bits) - 1)) | 1 << codec.fraction_bits
    return fraction << codec.top_field - 1


def _guard(codec):
    """Bits below the last place of a block's largest elements, which those of lower subsets have."""
    return (1 << codec.difference_bits) - 1


def _moves(codec):
    """Whether products are made of significands, and moved to their places: integers are too wide to multiply."""
    return _largest(codec).bit_length() + 1 > _MULTIPLIER


def dot_product_layout(codec):
    """The dot product of two blocks: ``total`` * 2 ** (``exponent`` - :attr:`BlockDotProduct.scale`).

    ``total`` is exact. ``exponent`` is the sum of both blocks', as they are stored. With ``nan`` the result is a NaN,
    and both are unspecified. ``last`` marks the last block of a packet.
    """
    bound = codec.block * _largest(codec) ** 2 << 2 * _guard(codec)
    return data.StructLayout({"total": signed(bound.bit_length() + 1), "exponent": codec.exponent_bits + 1, "nan": 1,
                              "last": 1})


class BlockDotProduct(wiring.Component):
    """Multiply two streams of blocks, element by element, and add up what each pair of blocks gives.

    Nothing is aligned element by element: products of integers are added within a subset, the sum is shifted by both
    subsets' differences, and what comes of a block is added up. Exponents are added once per pair of blocks. A block
    that is NaN makes the result one, and so do elements that are NaNs or infinities.

    One pair of beats is taken per cycle, and a result is offered :attr:`latency` cycles after the last pair of a
    block. Both streams must have packets of the same lengths. All stages move together when the output is free;
    ``a.ready`` depends combinationally on ``o.ready`` and ``b.valid``, and ``b.ready`` on ``a.valid``.

    Parameters
    ----------
    codec : BlockCodec
    lanes : int
        Elements in a beat: a power of two, at most a block.

    Members
    -------
    a, b : In(stream of block_layout(codec, lanes))
    o : Out(stream of dot_product_layout(codec))
    """

    def __init__(self, *, codec, lanes):
        if not isinstance(codec, BlockCodec):
            raise TypeError(f"Codec must be a BlockCodec, not {codec!r}")
        block = stream.Signature(block_layout(codec, lanes))
        self._codec = codec
        self._lanes = lanes
        super().__init__({"a": In(block), "b": In(block), "o": Out(stream.Signature(dot_product_layout(codec)))})

    @property
    def scale(self):
        """Offset that is subtracted from the exponent of a result."""
        codec = self._codec
        bias = 127 - codec.lowest  # of an exponent as it is stored
        # From the smallest number of the format up to that whose exponent is the block's.
        places = codec.top_field - 1 + codec.fraction_bits
        return 2 * (bias + places + _guard(codec))

    @property
    def latency(self):
        """Cycles from the acceptance of a block's last pair of beats to the offer of its result."""
        codec = self._codec
        return 4 + (self._lanes.bit_length() - 1) + (codec.subsets > 0) + 2 * _moves(codec)

    def elaborate(self, platform):
        m = Module()
        codec, lanes = self._codec, self._lanes
        beats = codec.block // lanes
        free = Signal()
        both = Signal()
        m.d.comb += [
            free.eq(self.o.ready | ~self.o.valid),
            both.eq(self.a.valid & self.b.valid),
            self.a.ready.eq(free & self.b.valid),
            self.b.ready.eq(free & self.a.valid),
        ]

        def register(value, name, *, reset_less=True):
            later = Signal(value.shape(), name=name, reset_less=reset_less)
            with m.If(free):
                m.d.sync += later.eq(value)
            return later

        # Where in its block the pair is, and what both blocks say of all their elements.
        index = Signal(range(max(beats, 2)))
        if beats > 1:
            with m.If(free & both):
                m.d.sync += index.eq(Mux(index == beats - 1, 0, index + 1))
        first = register(index == 0, "first_0")
        final = register(both & (index == beats - 1 if beats > 1 else C(1, 1)), "final_0", reset_less=False)
        valid = register(both, "valid_0", reset_less=False)
        last = register(self.a.payload.last | self.b.payload.last, "last_0")
        nan = (self.a.payload.exponent == codec.nan) | (self.b.payload.exponent == codec.nan)

        integers = []
        for lane in range(lanes):
            pair = []
            for name, port in (("a", self.a), ("b", self.b)):
                integer, place, special = self._integer(m, port.payload.codes[lane], f"{name}_{lane}")
                nan = nan | special
                pair.append((register(integer, f"{name}_integer_{lane}"), register(place, f"{name}_place_{lane}")))
            integers.append(pair)
        nan = register(nan, "nan_0")
        exponent = register(self.a.payload.exponent + self.b.payload.exponent, "exponent_0")
        shifts = []
        if codec.subsets:
            step = max(lanes // codec.subset, 1)
            per_subset = max(codec.subset // lanes, 1)
            width = codec.difference_bits
            places = index >> (per_subset.bit_length() - 1) if beats > 1 else C(0, 1)
            groups = [port.payload.differences.as_value().word_select(places, step * width)
                      for port in (self.a, self.b)]
            # As many places up as both differences leave of the guard bits.
            shifts = [register(sum(Cat(~group[place * width:(place + 1) * width], C(0, 1)) for group in groups),
                               f"shift_{place}_0") for place in range(step)]

        tags = [first, final, valid, last, nan, exponent, *shifts]
        stage = 0

        def move():
            """One stage on: all that is not a sum of products."""
            nonlocal tags, stage
            stage += 1
            tags = [register(tag, f"tag_{place}_{stage}", reset_less=place not in (1, 2))
                    for place, tag in enumerate(tags)]

        values = [register(a * b, f"product_{lane}") for lane, ((a, _), (b, _)) in enumerate(integers)]
        if _moves(codec):
            # Each product to its place, by the sum of both fields: coarse steps first, in two stages.
            amounts = [register(a + b, f"amount_{lane}") for lane, ((_, a), (_, b)) in enumerate(integers)]
            move()
            width = 2 * _largest(codec).bit_length() + 1
            half = len(amounts[0]) // 2
            for low, high in ((half, len(amounts[0])), (0, half)):
                for lane, value in enumerate(values):
                    widened = Signal(signed(width), name=f"wide_{low}_{lane}")
                    m.d.comb += widened.eq(value)
                    moved = self._left(m, widened, amounts[lane][low:high], low, f"{low}_{lane}")
                    values[lane] = register(moved, f"placed_{low}_{lane}")
                if low:
                    amounts = [register(amount, f"amount_{low}_{lane}") for lane, amount in enumerate(amounts)]
                    move()
        move()
        shifted = not codec.subsets
        while len(values) > 1 or not shifted:
            if not shifted and lanes // len(values) == min(codec.subset, lanes):
                values = [register(self._up(m, value, shift, f"{stage}_{place}"), f"up_{place}")
                          for place, (value, shift) in enumerate(zip(values, tags[6:], strict=True))]
                shifted = True
            else:
                values = [register(values[place] + values[place + 1], f"sum_{stage}_{place}")
                          for place in range(0, len(values), 2)]
            move()

        first, final, valid, last, nan, exponent, *_ = tags
        total = Signal(dot_product_layout(codec)["total"].shape, reset_less=True)
        spoiled = Signal(reset_less=True)
        with m.If(free & valid):
            m.d.sync += [total.eq(Mux(first, 0, total) + values[0]), spoiled.eq((spoiled & ~first) | nan)]
        final, last, exponent = (register(tag, f"{name}_total", reset_less=name != "final") for name, tag in (
            ("final", final), ("last", last), ("exponent", exponent)))
        with m.If(free):
            m.d.sync += [
                self.o.valid.eq(final), self.o.payload.total.eq(total), self.o.payload.exponent.eq(exponent),
                self.o.payload.nan.eq(spoiled), self.o.payload.last.eq(last),
            ]
        return m

    def _integer(self, m, code, name):
        """An element as a signed integer, how far that is to be moved up, and whether it is a NaN or an infinity."""
        codec = self._codec
        place = special = C(0, 1)
        if codec.complement:
            return code.as_signed(), place, special
        magnitude = code[:-1]
        if codec.top_field > 1:
            field, fraction = magnitude[codec.fraction_bits:], magnitude[:codec.fraction_bits]
            significand = Cat(fraction, field.any())
            if codec.infinities:
                special = field.all()
            if codec.nan_magnitude is not None:
                special = magnitude == codec.nan_magnitude
            if _moves(codec):
                place = Mux(field.any(), (field - 1)[:len(field)], 0)
                magnitude = significand
            else:
                magnitude = Signal(_largest(codec).bit_length(), name=f"opened_{name}")
                with m.Switch(field):
                    for number in range(codec.top_field + 1):
                        with m.Case(number):
                            m.d.comb += magnitude.eq(significand.shift_left(max(number - 1, 0)))
        integer = Signal(signed(len(magnitude) + 1), name=f"integer_{name}")
        m.d.comb += integer.eq((Cat(magnitude, C(0, 1)) ^ code[-1].replicate(len(magnitude) + 1)) + code[-1])
        return integer, place, special

    def _up(self, m, value, shift, name):
        """The sum of a subset, moved up by what its differences leave of the guard bits."""
        most = 2 * _guard(self._codec)
        widened = Signal(signed(len(value) + most), name=f"widened_{name}")
        m.d.comb += widened.eq(value)
        return self._left(m, widened, shift[:most.bit_length()], 0, name)

    def _left(self, m, value, amount, first, name):
        """A signed number shifted left, within its width; the amount's lowest bit has the weight 2 ** first."""
        for bit in range(len(amount)):
            result = Signal(value.shape(), name=f"moved_{name}_{bit}")
            step = 1 << first + bit
            m.d.comb += result.eq(Mux(amount[bit], value.as_unsigned().shift_left(step)[:len(value)], value))
            value = result
        return value
