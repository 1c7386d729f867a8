"""Representation of block formats in the array: comparison keys, stored elements, integer factors."""

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

#: E2M1 magnitudes in units of the smallest one, indexed by code.
MINIFLOATS = (0, 1, 2, 3, 4, 6, 8, 12)
#: Elements at least this many binades below their block's exponent become zero.
_NOTHING = 5


@dataclasses.dataclass(frozen=True)
class BlockForm(abc.ABC):
    """Representation of a block format in the array: a shared exponent, and integers times a power of two.

    If two factors are both 1, their product represents 2 ** (sum of both blocks' exponents - 254 - 2 * ``places``),
    times the product of both scales' fractions, if the format has them.

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
        """Number of high fraction bits used in rounding; the rest are reduced to a sticky bit."""
        return self.codec.fraction_bits + 1

    @property
    def guard(self):
        """Number of bits kept below the largest elements' last place, for subsets with lower exponents."""
        return (1 << self.codec.difference_bits) - 1

    @property
    def places(self):
        """Position of the highest set bit in the factors of the largest elements; position 0 stands for a factor of
        one."""
        return self.codec.top_field - 1 + self.codec.fraction_bits + self.guard

    @property
    @abc.abstractmethod
    def largest(self):
        """Largest factor."""

    @property
    def factor_bits(self):
        """Width of an integer factor in bits, including the sign."""
        return self.largest.bit_length() + 1

    @property
    def total_bits(self):
        """Width in bits of the dot product of two blocks, including the sign."""
        return (self.block * self.largest ** 2).bit_length() + 1

    @property
    def scale(self):
        """Layout of a block's scale: an exponent (all ones for a NaN), and a fraction if the format has one."""
        return data.StructLayout({"exponent": FP32.exponent_bits})

    @property
    def scaled_bits(self):
        """Width in bits of the signed dot product of two blocks, multiplied by the fractions of their scales."""
        return self.total_bits

    @property
    def scaling(self):
        """Number of cycles needed to multiply a dot product by the fractions of both scales."""
        return 0

    @property
    def lead(self):
        """Latency in cycles from the largest key of a block to its scale."""
        return 1

    @property
    def element(self):
        """Layout of a stored element."""
        return data.StructLayout({"rest": 1, "fraction": self.kept, "sign": 1, "exponent": FP32.exponent_bits})

    def store(self, opened):
        """Convert a number to a stored element. Subnormals are handled by the rounder."""
        lost = FP32.fraction_bits - self.kept
        return Cat(opened.fraction[:lost].any(), opened.fraction[lost:], opened.sign, opened.exponent)

    @property
    def key_bits(self):
        """Number of bits of a key."""
        return FP32.exponent_bits

    def key(self, opened):
        """Return a number's comparison key. The largest key in a block determines the block's exponent."""
        return opened.exponent

    @abc.abstractmethod
    def rounder(self):
        """Create the unit that rounds one lane's elements."""


class SubsetForm(BlockForm):
    """MX9, MX6 and MX4: integers, and for each pair of elements an offset from the block's exponent."""

    @property
    def largest(self):
        """Largest factor. It occurs in subsets that have the exponent of their block."""
        return self.codec.largest << self.guard

    def rounder(self):
        """Create a :class:`SubsetRounder`."""
        return SubsetRounder(form=self)


class MinifloatForm(BlockForm):
    """MXFP4: E2M1 elements with a power-of-two scale that is rounded down or up."""

    @property
    def largest(self):
        """Largest factor, for element 6."""
        return MINIFLOATS[-1]

    @property
    def key_bits(self):
        """Number of bits of a key."""
        return FP32.exponent_bits + self.codec.rounds_up

    def key(self, opened):
        """Exponent of a number. If scales are rounded up, an additional lowest bit indicates whether the number
        raises the exponent of its block."""
        if not self.codec.rounds_up:
            return opened.exponent
        return Cat(opened.fraction[-1] & opened.fraction[:-1].any(), opened.exponent)

    def exponent(self, key):
        """Exponent of a block, no lower than the format's lowest exponent."""
        if not self.codec.rounds_up:
            return Mux(key > self.codec.lowest, key, self.codec.lowest)
        exponent = key[1:]
        raised = (exponent + (key[0] & (exponent < ONES - 1)))[:8]
        return Mux(exponent > self.codec.lowest - 1, raised, self.codec.lowest)

    def rounder(self):
        """Create a :class:`MinifloatRounder`."""
        return MinifloatRounder(form=self)


def form_of(codec):
    """Return the form of a codec. Raises ValueError if the array does not support it."""
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
    """Ports of a unit that rounds the elements of blocks in this form."""
    return {"opens": In(1), "key": In(form.key_bits), "element": In(form.element), "present": In(1), "odd": In(1),
            "scale": Out(form.scale), "factor": Out(signed(form.factor_bits))}


class SubsetRounder(wiring.Component):
    """Round the elements of blocks to integers, with a separate power of two for each pair.

    Takes one element per cycle and outputs its factor :attr:`latency` cycles later. If a block contains infinities or
    NaNs, its factors are meaningless and its exponent is all ones.

    Parameters
    ----------
    form : SubsetForm

    Members
    -------
    opens : In(1)
        The first element of the next block arrives ``form.lead`` cycles later.
    key : In(form.key_bits)
        Largest key of this block; valid with ``opens``.
    element : In(form.element)
    present : In(1)
        There is an element; otherwise zero is assumed.
    odd : In(1)
        This is the second element of a pair.
    scale : Out(form.scale)
        Scale of the block that contains ``element``.
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
        # Stage 2: the difference is zero if either element of the pair has the block's exponent; compute the shift.
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
        # Stage 4: round, unless this would need one more bit, and shift by the difference of the subset.
        magnitude = Signal(kept)
        up = shifted.window[0] & (shifted.sticky | shifted.window[1]) & ~shifted.window[1:].all()
        m.d.comb += magnitude.eq(shifted.window[1:] + up)
        moved = Mux(shifted.lower, magnitude, Cat(C(0, 1), magnitude))
        factor = Signal.like(self.factor, reset_less=True)
        m.d.comb += self.factor.eq(factor)
        m.d.sync += factor.eq((Cat(moved, C(0, 1)) ^ shifted.sign.replicate(kept + 2)) + shifted.sign)
        return m


class MinifloatRounder(wiring.Component):
    """Round the elements of blocks to E2M1, represented as integers in units of the smallest magnitude.

    Six bits determine a magnitude: the difference of the block's and the element's exponents, the two highest
    fraction bits, and a sticky bit. Members and latency are as in :class:`SubsetRounder`; ``odd`` has no effect.

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
        # Stage 1: subtract the element's exponent from the block's exponent.
        opened = register(m, "opened", rest=Cat(value.rest, value.fraction), sign=value.sign,
                          below=(shared - value.exponent)[:8], zero=~self.present | ~value.exponent.any())
        # Stage 2: clamp the difference.
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
    """E2M1 magnitude nearest to ``number`` / 2 ** ``below``, in units of the smallest magnitude; ties go to even
    codes."""
    steps = (low + high for low, high in itertools.pairwise(MINIFLOATS))
    return MINIFLOATS[sum(2 * number + code % 2 > step << below for code, step in enumerate(steps))]
