"""Forms that block formats take in the array: comparison keys, stored elements, integer elements."""

import abc
import dataclasses
import itertools

from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.features.mx.format import ONES, BlockCodec, Rounding
from hdl.features.mx.microscaling import Element, Microscaling
from hdl.features.mx.shared_exponent import SharedExponent
from hdl.floating.format import FP32
from hdl.floating.stages import register, shift_right

__all__ = ["MINIFLOATS", "BlockForm", "MinifloatForm", "MinifloatRounder", "SubsetForm", "SubsetRounder", "form_of",
           "rounder_signature"]

#: Magnitudes of E2M1 by code, in units of the smallest one.
MINIFLOATS = (0, 1, 2, 3, 4, 6, 8, 12)
#: Elements that are at least this number of binades below their block's exponent are zeros.
_NOTHING = 5


@dataclasses.dataclass(frozen=True)
class BlockForm(abc.ABC):
    """Form of a block format with a shared exponent, and elements as integers times a power of two.

    The product of two factors of one stands for 2 ** (sum of both blocks' exponents - 254 - 2 * ``places``), times
    the product of both scales' fractions if scales have fractions.

    Parameters
    ----------
    codec : BlockCodec
    """

    codec: BlockCodec

    @property
    def block(self):
        """Number of elements in a block."""
        return self.codec.block

    @property
    def kept(self):
        """Number of highest fraction bits that rounding needs; the rest are reduced to a sticky bit."""
        return self.codec.fraction_bits + 1

    @property
    def guard(self):
        """Number of bits kept below the last place of the largest elements, for subsets with lower exponents."""
        return (1 << self.codec.difference_bits) - 1

    @property
    def places(self):
        """Position of the highest bit in factors of the largest elements; bit 0 represents a factor of one."""
        return self.codec.top_field - 1 + self.codec.fraction_bits + self.guard

    @property
    @abc.abstractmethod
    def largest(self):
        """Largest factor."""

    @property
    def factor_bits(self):
        """Number of bits of an integer factor, including the sign."""
        return self.largest.bit_length() + 1

    @property
    def total_bits(self):
        """Number of bits of a dot product of two blocks, with sign."""
        return (self.block * self.largest ** 2).bit_length() + 1

    @property
    def scale(self):
        """Layout of a block's scale: its exponent, all ones for a NaN, and possibly a fraction."""
        return data.StructLayout({"exponent": FP32.exponent_bits})

    @property
    def scaled_bits(self):
        """Number of bits of a dot product of two blocks times the fractions of their scales, with sign."""
        return self.total_bits

    @property
    def scaling(self):
        """Number of cycles for multiplying a dot product by the fractions of both scales."""
        return 0

    @property
    def lead(self):
        """Cycles from the largest key of a block to its scale."""
        return 1

    @property
    def element(self):
        """Layout of a stored element."""
        return data.StructLayout({"rest": 1, "fraction": self.kept, "sign": 1, "exponent": FP32.exponent_bits})

    def store(self, opened):
        """Stored element of a number; subnormal values are handled by the rounder."""
        lost = FP32.fraction_bits - self.kept
        return Cat(opened.fraction[:lost].any(), opened.fraction[lost:], opened.sign, opened.exponent)

    @property
    def key_bits(self):
        """Number of bits of a key."""
        return FP32.exponent_bits

    def key(self, opened):
        """Comparison key of a number; the largest key in a block determines the block's exponent."""
        return opened.exponent

    @abc.abstractmethod
    def rounder(self):
        """Create the unit that rounds the elements of a lane."""


class SubsetForm(BlockForm):
    """MX9, MX6 and MX4: integers, and for each pair a difference from the block's exponent."""

    @property
    def largest(self):
        """Largest factor, which occurs in a subset that has the exponent of its block."""
        return self.codec.largest << self.guard

    def rounder(self):
        """Create a :class:`SubsetRounder`."""
        return SubsetRounder(form=self)


class MinifloatForm(BlockForm):
    """MXFP4: elements of E2M1 with a power-of-two scale, which is rounded down or up."""

    @property
    def largest(self):
        """Largest factor, for element 6."""
        return MINIFLOATS[-1]

    @property
    def key_bits(self):
        """Number of bits of a key."""
        return FP32.exponent_bits + self.codec.rounds_up

    def key(self, opened):
        """Exponent of a number; if scales are rounded up, also a low bit, set if the number raises the scale."""
        if not self.codec.rounds_up:
            return opened.exponent
        return Cat(opened.fraction[-1] & opened.fraction[:-1].any(), opened.exponent)

    def exponent(self, key):
        """Exponent of a block, at least the format's lowest one."""
        if not self.codec.rounds_up:
            return Mux(key > self.codec.lowest, key, self.codec.lowest)
        exponent = key[1:]
        raised = (exponent + (key[0] & (exponent < ONES - 1)))[:8]
        return Mux(exponent > self.codec.lowest - 1, raised, self.codec.lowest)

    def rounder(self):
        """Create a :class:`MinifloatRounder`."""
        return MinifloatRounder(form=self)


def form_of(codec):
    """Return the form of a codec; raise ValueError if the array does not support the codec."""
    if isinstance(codec, SharedExponent) and (
            codec.block, codec.subset, codec.exponent_bits, codec.difference_bits) == (16, 2, 8, 1):
        form = SubsetForm(codec)
    elif isinstance(codec, Microscaling) and codec.element is Element.FP4_E2M1:
        form = MinifloatForm(codec)
    elif hasattr(codec, "operand_form"):
        form = codec.operand_form()
    else:
        raise ValueError("Blocks must be of 16 elements with exponents of 8 bits and differences of one bit for "
                         f"every two elements, or of elements of E2M1, not {codec!r}")
    if codec.rounding is not Rounding.NEAREST_EVEN:
        raise ValueError(f"Rounding of operands must be to nearest even, not {codec.rounding!r}")
    return form


def rounder_signature(form):
    """Ports of a unit that rounds the elements of blocks in the given form."""
    return {"opens": In(1), "key": In(form.key_bits), "element": In(form.element), "present": In(1), "odd": In(1),
            "scale": Out(form.scale), "factor": Out(signed(form.factor_bits))}


class SubsetRounder(wiring.Component):
    """Round the elements of blocks to integers, each pair with its own power of two.

    An element is taken in each cycle, and its factor is output :attr:`latency` cycles later. The factors of a block
    that contains infinities or NaNs are meaningless; its exponent is all ones.

    Parameters
    ----------
    form : SubsetForm

    Members
    -------
    opens : In(1)
        Elements of the next block start to arrive ``form.lead`` cycles later.
    key : In(form.key_bits)
        Largest key of this block, with ``opens``.
    element : In(form.element)
    present : In(1)
        An element is present; otherwise, it is taken to be zero.
    odd : In(1)
        The element is the second one of a pair.
    scale : Out(form.scale)
        Scale of the block of ``element``.
    factor : Out(signed)
    """

    latency = 4

    def __init__(self, *, form):
        self._form = form
        super().__init__(rounder_signature(form))

    def elaborate(self, platform):
        m = Module()
        kept, value = self._form.kept, self.element
        shared = Signal(8, reset_less=True)
        m.d.comb += self.scale.exponent.eq(shared)
        with m.If(self.opens):
            m.d.sync += shared.eq(self.key)
        # Stage 1: whether the element has the block's exponent.
        here = Signal()
        m.d.comb += here.eq(self.present & (value.exponent == shared))
        opened = register(m, "opened", rest=Cat(value.rest, value.fraction), sign=value.sign, exponent=value.exponent,
                          top=here, zero=~self.present | ~value.exponent.any(), shared=shared, odd=self.odd)
        before = register(m, "before", top=opened.top)
        # Stage 2: the difference is zero if an element of the pair has the block's exponent; compute the shift.
        lower = ~(opened.top | Mux(opened.odd, before.top, here))
        right = Signal(9)
        m.d.comb += right.eq((Cat(C(0, 1), opened.shared) - Cat(lower, opened.exponent))[1:])
        places = (kept + 1).bit_length()
        aimed = register(m, "aimed", amount=right[:places], zero=opened.zero | right[places:8].any(),
                         rest=opened.rest, sign=opened.sign, lower=lower)
        # Stage 3: shift magnitude and guard bit.
        window, lost = shift_right(m, Cat(aimed.rest[1:], C(1, 1)), aimed.amount, width=kept + 1)
        shifted = register(m, "shifted", window=Mux(aimed.zero, 0, window),
                           sticky=~aimed.zero & (lost.any() | aimed.rest[0]), sign=aimed.sign, lower=aimed.lower)
        # Stage 4: round, unless the result would need one more bit, and shift by the difference of the subset.
        magnitude = Signal(kept)
        up = shifted.window[0] & (shifted.sticky | shifted.window[1]) & ~shifted.window[1:].all()
        m.d.comb += magnitude.eq(shifted.window[1:] + up)
        moved = Mux(shifted.lower, magnitude, Cat(C(0, 1), magnitude))
        factor = Signal.like(self.factor, reset_less=True)
        m.d.comb += self.factor.eq(factor)
        m.d.sync += factor.eq((Cat(moved, C(0, 1)) ^ shifted.sign.replicate(kept + 2)) + shifted.sign)
        return m


class MinifloatRounder(wiring.Component):
    """Round the elements of blocks to E2M1, as integers in units of the smallest one.

    Six bits determine a magnitude: the difference of the block's exponent and the element's, the two highest bits of
    its fraction, and a sticky bit. Members and latency are as in :class:`SubsetRounder`; ``odd`` has no effect.

    Parameters
    ----------
    form : MinifloatForm
    """

    latency = SubsetRounder.latency

    def __init__(self, *, form):
        self._form = form
        super().__init__(rounder_signature(form))

    def elaborate(self, platform):
        m = Module()
        value = self.element
        shared = Signal(8, reset_less=True)
        m.d.comb += self.scale.exponent.eq(shared)
        with m.If(self.opens):
            m.d.sync += shared.eq(self._form.exponent(self.key))
        # Stage 1: subtract the element's exponent from the block's.
        opened = register(m, "opened", rest=Cat(value.rest, value.fraction), sign=value.sign,
                          below=(shared - value.exponent)[:8], zero=~self.present | ~value.exponent.any())
        # Stage 2: limit the difference to the relevant range.
        nothing = opened.zero | (opened.below >= _NOTHING)
        aimed = register(m, "aimed", rest=opened.rest, sign=opened.sign, below=Mux(nothing, 7, opened.below[:3]))
        # Stage 3: determine the magnitude.
        magnitude = Signal(4)
        with m.Switch(Cat(aimed.rest, aimed.below)):
            for below in range(_NOTHING):
                for rest in range(8):
                    with m.Case(below << 3 | rest):
                        m.d.comb += magnitude.eq(_nearest(rest + 8, below))
        rounded = register(m, "found", magnitude=magnitude, sign=aimed.sign)
        # Stage 4: apply the sign.
        factor = Signal.like(self.factor, reset_less=True)
        m.d.comb += self.factor.eq(factor)
        m.d.sync += factor.eq(Mux(rounded.sign, -rounded.magnitude, rounded.magnitude))
        return m


def _nearest(number, below):
    """Magnitude of E2M1 nearest to ``number`` / 2 ** ``below``, in smallest units; ties to even codes."""
    steps = (low + high for low, high in itertools.pairwise(MINIFLOATS))
    return MINIFLOATS[sum(2 * number + code % 2 > step << below for code, step in enumerate(steps))]
