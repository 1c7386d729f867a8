"""Throttle that limits the number of cycles in which a unit of a node may work."""

from amaranth.hdl import C, Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["RATE_BITS", "Throttle"]

#: Width of a rate in bits; a unit works in ``rate`` out of every 65,536 cycles.
RATE_BITS = 16


class Throttle(wiring.Component):
    """Enable a unit in ``rate`` out of every 65,536 cycles, as evenly spaced as whole cycles allow.

    A 16-bit accumulator adds the rate in each cycle, and its carry enables the next cycle. Any W cycles at a constant
    rate therefore contain W * rate / 65,536 enabled cycles, with an error below one. A rate of 0 enables every cycle.
    ``enable`` depends only on registers; a rate takes effect :attr:`latency` cycle after the input.

    Parameters
    ----------
    paced : bool
        Whether to count only cycles with ``step`` high; ``enable`` then changes only after these cycles.

    Members
    -------
    rate : In(16)
    step : In(1)
        Present only if ``paced``.
    enable : Out(1)
    """

    latency = 1

    def __init__(self, *, paced=False):
        if not isinstance(paced, bool):
            raise ValueError(f"paced must be True or False, not {paced!r}")
        self._paced = paced
        super().__init__({"rate": In(RATE_BITS), **({"step": In(1)} if paced else {}), "enable": Out(1, init=1)})

    def elaborate(self, platform):
        m = Module()
        total, carry = Signal(RATE_BITS), Signal()
        with m.If(self.step if self._paced else C(1)):
            m.d.sync += [Cat(total, carry).eq(total + self.rate)]
        full = Signal(init=1)  # a rate of 0 enables all cycles
        m.d.sync += full.eq(self.rate == 0)
        m.d.comb += self.enable.eq(carry | full)
        return m
