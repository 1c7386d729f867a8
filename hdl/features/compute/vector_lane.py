# amaranth: UnusedElaboratable=no
# The constructor creates the multiplier, since its latency is needed even without elaboration.
"""Multiply-add pipeline in a lane of the vector unit."""

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.floating.add import FloatAdder
from hdl.floating.format import FP32
from hdl.floating.multiply import FloatMultiplier
from hdl.floating.stages import register
from hdl.streams.delay import DelayLine

__all__ = ["VectorLane"]


class VectorLane(wiring.Component):
    """Compute ``a * b + c`` in every cycle, rounding both the product and the sum to nearest even.

    Adding -0.0 leaves every product unchanged, and multiplying by 1.0 leaves every number unchanged. Latency is
    :attr:`latency` cycles. There is no handshake, and no register is reset.

    Parameters
    ----------
    dsps : int
        Number of DSP blocks for the multiplier: 4, 2 or 1.

    Members
    -------
    a, b, c : In(32)
    o : Out(32)
    """

    def __init__(self, *, dsps=4):
        self._multiplier = FloatMultiplier(dsps=dsps)
        super().__init__({"a": In(FP32.width), "b": In(FP32.width), "c": In(FP32.width), "o": Out(FP32.width)})

    @property
    def latency(self):
        """Cycles from the operands to their result."""
        return self._multiplier.latency + 1 + FloatAdder.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.multiplier = multiplier = self._multiplier
        m.submodules.adder = adder = FloatAdder()
        m.submodules.addend = addend = DelayLine(shape=FP32.width, cycles=multiplier.latency + 1)
        product = register(m, "product", o=multiplier.o)
        m.d.comb += [
            multiplier.a.eq(self.a), multiplier.b.eq(self.b), addend.i.eq(self.c),
            adder.a.eq(product.o), adder.b.eq(addend.o), self.o.eq(adder.o),
        ]
        return m
