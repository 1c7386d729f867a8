"""Formats of blocks as the array multiplies them: what is compared, what is stored, and elements as integers."""

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

#: Magnitudes of E2M1 in units of the smallest, by their codes.
MINIFLOATS = (0, 1, 2, 3, 4, 6, 8, 12)
#: Binades below a block's exponent from which on all elements are zeros.
_NOTHING = 5


@dataclasses.dataclass(frozen=True)
class BlockForm(abc.ABC):
    """Format of blocks with an exponent, of which elements are integers beside a power of two.

    A factor of one stands for the square root of 2 ** (exponents of both blocks - 254 - 2 * ``places``), and times
    that of both scales where these have fractions.

    Parameters
    ----------
    codec : BlockCodec
    """

    codec: BlockCodec

    @property
    def block(self):
        """Elements of a block."""
        return self.codec.block

    @property
    def kept(self):
        """Highest bits of the fraction that rounding needs; of the others, whether there are any."""
        return self.codec.fraction_bits + 1

    @property
    def guard(self):
        """Bits below the last place of the largest elements, which those of lower subsets have."""
        return (1 << self.codec.difference_bits) - 1

    @property
    def places(self):
        """Places of the largest elements' highest bit above a factor of one."""
        return self.codec.top_field - 1 + self.codec.fraction_bits + self.guard

    @property
    @abc.abstractmethod
    def largest(self):
        """The largest factor."""

    @property
    def factor_bits(self):
        """Bits of a factor, with its sign."""
        return self.largest.bit_length() + 1

    @property
    def total_bits(self):
        """Bits of a dot product of two blocks, with its sign."""
        return (self.block * self.largest ** 2).bit_length() + 1

    @property
    def scale(self):
        """Layout of a block's scale: its exponent, of all ones for a NaN, and maybe a fraction."""
        return data.StructLayout({"exponent": FP32.exponent_bits})

    @property
    def scaled_bits(self):
        """Bits of a dot product of two blocks times the fractions of their scales, with its sign."""
        return self.total_bits

    @property
    def scaling(self):
        """Cycles in which a dot product is multiplied by these."""
        return 0

    @property
    def lead(self):
        """Cycles from the largest key of a block to its scale."""
        return 1

    @property
    def element(self):
        """Layout of an element as it is stored."""
        return data.StructLayout({"rest": 1, "fraction": self.kept, "sign": 1, "exponent": FP32.exponent_bits})

    def store(self, opened):
        """Element of a number, whose subnormal values are left to the rounder."""
        lost = FP32.fraction_bits - self.kept
        return Cat(opened.fraction[:lost].any(), opened.fraction[lost:], opened.sign, opened.exponent)

    @property
    def key_bits(self):
        """Bits of a key."""
        return FP32.exponent_bits

    def key(self, opened):
        """Key of a number; the largest one of a block tells its exponent."""
        return opened.exponent

    @abc.abstractmethod
    def rounder(self):
        """Make the unit that rounds the elements of a lane."""


class SubsetForm(BlockForm):
    """MX9, MX6 and MX4: integers, and a difference to the block's exponent for every two of them."""

    @property
    def largest(self):
        """The largest factor, of an element of a subset with the block's exponent."""
        return self.codec.largest << self.guard

    def rounder(self):
        """Make a :class:`SubsetRounder`."""
        return SubsetRounder(form=self)


class MinifloatForm(BlockForm):
    """MXFP4, of elements of E2M1 below a power of two, which is rounded down or up."""

    @property
    def largest(self):
        """The largest factor, of 6."""
        return MINIFLOATS[-1]

    @property
    def key_bits(self):
        """Bits of a key."""
        return FP32.exponent_bits + self.codec.rounds_up

    def key(self, opened):
        """An exponent, and below it whether the number raises it by one, where scales are rounded up."""
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
        """Make a :class:`MinifloatRounder`."""
        return MinifloatRounder(form=self)


def form_of(codec):
    """Form of a codec; ValueError if the array has none."""
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
    """Members of a rounder of elements of a form."""
    return {"opens": In(1), "key": In(form.key_bits), "element": In(form.element), "present": In(1), "odd": In(1),
            "scale": Out(form.scale), "factor": Out(signed(form.factor_bits))}


class SubsetRounder(wiring.Component):
    """Round the elements of blocks to integers, each pair of them beside a power of two of its own.

    An element is taken in each cycle, and its factor is given :attr:`latency` cycles later. What comes of a block of
    infinities or NaNs means nothing; its exponent has all ones.

    Parameters
    ----------
    form : SubsetForm

    Members
    -------
    opens : In(1)
        Elements of another block come from ``form.lead`` cycles later on.
    key : In(form.key_bits)
        Its largest key, with ``opens``.
    element : In(form.element)
    present : In(1)
        There is an element, and not a zero in its place.
    odd : In(1)
        It is the second one of a pair.
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
        kept, given = self._form.kept, self.element
        shared = Signal(8, reset_less=True)
        m.d.comb += self.scale.exponent.eq(shared)
        with m.If(self.opens):
            m.d.sync += shared.eq(self.key)
        # 1: whether the element has the block's exponent.
        here = Signal()
        m.d.comb += here.eq(self.present & (given.exponent == shared))
        opened = register(m, "opened", rest=Cat(given.rest, given.fraction), sign=given.sign, exponent=given.exponent,
                          top=here, zero=~self.present | ~given.exponent.any(), shared=shared, odd=self.odd)
        before = register(m, "before", top=opened.top)
        # 2: the difference is none where one of a pair of elements has it; how far to shift.
        lower = ~(opened.top | Mux(opened.odd, before.top, here))
        right = Signal(9)
        m.d.comb += right.eq((Cat(C(0, 1), opened.shared) - Cat(lower, opened.exponent))[1:])
        places = (kept + 1).bit_length()
        aimed = register(m, "aimed", amount=right[:places], zero=opened.zero | right[places:8].any(),
                         rest=opened.rest, sign=opened.sign, lower=lower)
        # 3: shift magnitude and guard bit.
        window, lost = shift_right(m, Cat(aimed.rest[1:], C(1, 1)), aimed.amount, width=kept + 1)
        shifted = register(m, "shifted", window=Mux(aimed.zero, 0, window),
                           sticky=~aimed.zero & (lost.any() | aimed.rest[0]), sign=aimed.sign, lower=aimed.lower)
        # 4: round, unless that would take one bit more, and move to the place of the subset.
        magnitude = Signal(kept)
        up = shifted.window[0] & (shifted.sticky | shifted.window[1]) & ~shifted.window[1:].all()
        m.d.comb += magnitude.eq(shifted.window[1:] + up)
        moved = Mux(shifted.lower, magnitude, Cat(C(0, 1), magnitude))
        factor = Signal.like(self.factor, reset_less=True)
        m.d.comb += self.factor.eq(factor)
        m.d.sync += factor.eq((Cat(moved, C(0, 1)) ^ shifted.sign.replicate(kept + 2)) + shifted.sign)
        return m


class MinifloatRounder(wiring.Component):
    """Round the elements of blocks to E2M1, as integers in units of the smallest of them.

    Six bits tell a magnitude: how far the element's exponent lies below the block's, the two highest bits of its
    fraction, and whether there are more. Members and latency are those of :class:`SubsetRounder`; pairs mean nothing.

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
        given = self.element
        shared = Signal(8, reset_less=True)
        m.d.comb += self.scale.exponent.eq(shared)
        with m.If(self.opens):
            m.d.sync += shared.eq(self._form.exponent(self.key))
        # 1: how far below the block's exponent the element's lies.
        opened = register(m, "opened", rest=Cat(given.rest, given.fraction), sign=given.sign,
                          below=(shared - given.exponent)[:8], zero=~self.present | ~given.exponent.any())
        # 2: as far as it matters.
        nothing = opened.zero | (opened.below >= _NOTHING)
        aimed = register(m, "aimed", rest=opened.rest, sign=opened.sign, below=Mux(nothing, 7, opened.below[:3]))
        # 3: the magnitude.
        magnitude = Signal(4)
        with m.Switch(Cat(aimed.rest, aimed.below)):
            for below in range(_NOTHING):
                for rest in range(8):
                    with m.Case(below << 3 | rest):
                        m.d.comb += magnitude.eq(_nearest(rest + 8, below))
        found = register(m, "found", magnitude=magnitude, sign=aimed.sign)
        # 4: its sign.
        factor = Signal.like(self.factor, reset_less=True)
        m.d.comb += self.factor.eq(factor)
        m.d.sync += factor.eq(Mux(found.sign, -found.magnitude, found.magnitude))
        return m


def _nearest(number, below):
    """Magnitude of E2M1 nearest to ``number`` / 2 ** ``below``, or the one of even code, in units of the smallest."""
    steps = (low + high for low, high in itertools.pairwise(MINIFLOATS))
    return MINIFLOATS[sum(2 * number + code % 2 > step << below for code, step in enumerate(steps))]
