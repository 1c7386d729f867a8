"""NVFP4 as an operand format for products in blocks."""

from amaranth.hdl import C, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring

from hdl.features.block_operands.block_form import MINIFLOATS, BlockForm, SubsetRounder, rounder_signature
from hdl.features.mx.format import ONES
from hdl.features.mx.pipeline import Pipeline
from hdl.features.nvfp4.element import find_element
from hdl.features.nvfp4.format import NAN_SCALE
from hdl.features.nvfp4.scale import KEY, ORIGIN, find_scale, open_scale
from hdl.floating.format import FP32
from hdl.floating.stages import register, wait

__all__ = ["ScaledForm", "ScaledRounder"]


class ScaledForm(BlockForm):
    """NVFP4: E2M1 elements with an E4M3 scale, which is 8 to 15 times a power of two."""

    @property
    def kept(self):
        """Number of high fraction bits needed for rounding, as in a key of the codec's quantizer."""
        return 6

    @property
    def places(self):
        """Number of binary places of the smallest element."""
        return 1

    @property
    def largest(self):
        """Largest factor, for element 6."""
        return MINIFLOATS[-1]

    @property
    def scale(self):
        """Layout of a block's scale: (8 + ``fraction``) * 2 ** (``exponent`` - 127)."""
        return data.StructLayout({"exponent": FP32.exponent_bits, "fraction": 3})

    @property
    def scaled_bits(self):
        """Width in bits of the signed dot product of two blocks, multiplied by the fractions of their scales."""
        return (self.block * self.largest ** 2 * 15 ** 2).bit_length() + 1

    @property
    def scaling(self):
        """Number of cycles needed to multiply a dot product by the fractions of both scales."""
        return 1

    @property
    def lead(self):
        """Latency in cycles from the largest key of a block to the scale."""
        return ScaledRounder.lead

    @property
    def key_bits(self):
        """Number of bits of a key."""
        return KEY.size

    def key(self, opened):
        """Magnitude of a number, reduced to the relevant bits; the largest one in a block determines its scale."""
        lost = FP32.fraction_bits - self.kept
        return Cat(opened.fraction[:lost].any(), opened.fraction[lost:], opened.exponent)

    def rounder(self):
        """Create a :class:`ScaledRounder`."""
        return ScaledRounder(form=self)


class ScaledRounder(wiring.Component):
    """Round blocks to E2M1 elements with an E4M3 scale, as integers in units of the smallest element.

    Scales and elements are computed as in the :class:`~hdl.features.nvfp4.quantizer.Quantizer`, three cycles after
    the arrival of the largest key. Members and latency are as in :class:`SubsetRounder`; ``odd`` has no effect.

    Parameters
    ----------
    form : ScaledForm
    """

    latency = SubsetRounder.latency
    #: Cycles from a key to its scale.
    lead = 3

    def __init__(self, *, form):
        self._form = form
        super().__init__(rounder_signature(form))

    def elaborate(self, platform):
        m = Module()
        pipeline, power = Pipeline(m, C(1, 1)), self._form.codec.power
        code = find_scale(m, pipeline, data.View(KEY, self.key), power)
        opened = open_scale(m, code)
        scale = Signal(self._form.scale, reset_less=True)
        m.d.comb += self.scale.eq(scale)
        with m.If(wait(m, "opens", self.opens, self.lead - 1)):
            m.d.sync += [scale.fraction.eq(opened.fraction), scale.exponent.eq(
                Mux(code == NAN_SCALE, ONES, opened.field + (ORIGIN - 3 + power)))]
        # Stages 1 and 2: the interval of the element relative to its scale, and the element within that interval.
        operand = self.element
        key = Cat(operand.rest, operand.fraction, Mux(self.present, operand.exponent, 0))
        magnitude = find_element(m, pipeline, "element", data.View(KEY, key), Cat(scale.fraction, scale.exponent),
                                 wait(m, "fraction", scale.fraction, 1))
        # Stage 3: determine the element.
        rounded = register(m, "found", magnitude=magnitude, sign=wait(m, "sign", operand.sign, 2))
        # Stage 4: convert the element to an integer.
        integer = Signal(4)
        with m.Switch(rounded.magnitude):
            for element, number in enumerate(MINIFLOATS):
                with m.Case(element):
                    m.d.comb += integer.eq(number)
        factor = Signal.like(self.factor, reset_less=True)
        m.d.comb += self.factor.eq(factor)
        m.d.sync += factor.eq(Mux(rounded.sign, -integer, integer))
        return m
