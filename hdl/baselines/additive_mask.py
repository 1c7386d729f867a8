# amaranth: UnusedElaboratable=no
"""Masking by floating-point arithmetic: the baseline for comparison with the mask multiplexer."""

from amaranth.hdl import C, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.floating.add import FloatAdder
from hdl.floating.format import FP32
from hdl.floating.multiply import FloatMultiplier
from hdl.masking.mask import MAX_LANES
from hdl.streams.delay import DelayLine
from hdl.streams.stream import check_lanes

__all__ = ["AdditiveMask"]

_ONE = FP32.bias << FP32.fraction_bits
_SIGN = 1 << FP32.width - 1


class AdditiveMask(wiring.Component):
    """Mask fp32 elements with arithmetic: x * m + (1 - m) * alternative, where m is 1.0 or 0.0.

    Latency is :attr:`latency` cycles, and operands are accepted in every cycle. There is no handshake, although a
    unit in a node would need one.

    A masked infinity or NaN becomes NaN, since it is multiplied by zero.

    Parameters
    ----------
    lanes : int
        Number of elements per beat: 1, 2, 4, 8 or 16.
    given : bool
        Whether ``alternative`` is the whole second term, (1 - m) * alternative, which saves one multiplier and one
        adder per lane.
    dsps : int
        Maximum number of DSP blocks per multiplier: 4, 2 or 1.

    Members
    -------
    x, m : In(32).array(lanes)
    alternative : In(32).array(lanes)
        Replacement for masked elements or, with ``given``, the complete second term. Must be stable while operands
        are in flight, and the same in all lanes.
    o : Out(32).array(lanes)
    """

    def __init__(self, *, lanes, given=False, dsps=4):
        check_lanes(lanes, most=MAX_LANES)
        self._lanes = lanes
        self._given = given
        self._dsps = dsps
        self._multiplier = FloatMultiplier(dsps=dsps)
        vector = In(FP32.width).array(lanes)
        super().__init__({"x": vector, "m": vector, "alternative": In(FP32.width).array(lanes),
                          "o": Out(FP32.width).array(lanes)})

    @property
    def latency(self):
        """Number of cycles from the operands to the result."""
        return self._multiplier.latency + FloatAdder.latency * (1 if self._given else 2)

    def elaborate(self, platform):
        m = Module()

        def unit(name, component, a, b):
            m.submodules[name] = component
            m.d.comb += [component.a.eq(a), component.b.eq(b)]
            return component.o

        def delay(name, value, cycles):
            m.submodules[name] = line = DelayLine(shape=FP32.width, cycles=cycles)
            m.d.comb += line.i.eq(value)
            return line.o

        for lane in range(self._lanes):
            x, factor, term = self.x[lane], self.m[lane], self.alternative[lane]
            if self._given:
                term = delay(f"term_{lane}", term, self._multiplier.latency)
            else:
                # The alternative must be stable while operands are in flight, so it needs no delay registers.
                rest = unit(f"rest_{lane}", FloatAdder(), C(_ONE, FP32.width), factor ^ _SIGN)
                term = unit(f"term_{lane}", FloatMultiplier(dsps=self._dsps), rest, term)
                x, factor = (delay(f"{name}_{lane}", value, FloatAdder.latency)
                             for name, value in (("x", x), ("m", factor)))
            product = unit(f"product_{lane}", FloatMultiplier(dsps=self._dsps), x, factor)
            m.d.comb += self.o[lane].eq(unit(f"sum_{lane}", FloatAdder(), product, term))
        return m
