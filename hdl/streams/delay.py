"""Delay line for values that accompany a pipeline."""

from amaranth.hdl import C, Module, Mux, Shape, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["DelayLine"]

#: Minimum delay in cycles for which memory is smaller than flip-flops.
_MEMORY = 4
#: Minimum delay in cycles for block RAM, which has a slow output and thus needs an output register.
_BLOCK = 17
#: Minimum number of bits for block RAM: LUT RAM of this size would need additional LUTs to select between its parts.
_BITS = 512


class DelayLine(wiring.Component):
    """Delay ``i`` by ``cycles`` cycles.

    Short delays are chains of flip-flops; longer ones are circular buffers in memory, since the only shift registers
    in an ECP5 are flip-flops. There is no reset, so ``o`` is unspecified until the first value has passed through.

    Parameters
    ----------
    shape : ShapeLike
    cycles : int
        Number of cycles; zero or more.
    paced : bool
        Count only cycles with ``step`` high; ``o`` advances only then.

    Members
    -------
    step : In(1)
        Present only if ``paced``.
    i : In(shape)
    o : Out(shape)
    """

    def __init__(self, *, shape, cycles, paced=False):
        if not isinstance(cycles, int) or cycles < 0:
            raise ValueError(f"Delay must be zero or more cycles, not {cycles!r}")
        self._shape = shape
        self._cycles = cycles
        self._paced = paced
        super().__init__({**({"step": In(1)} if paced else {}), "i": In(shape), "o": Out(shape)})

    @property
    def latency(self):
        """Delay in cycles from ``i`` to ``o``."""
        return self._cycles

    def elaborate(self, platform):
        m = Module()
        step = self.step if self._paced else C(1, 1)
        if self._cycles < _MEMORY:
            value = self.i
            for age in range(self._cycles):
                later = Signal(self._shape, name=f"age_{age + 1}", reset_less=True)
                with m.If(step):
                    m.d.sync += later.eq(value)
                value = later
            m.d.comb += self.o.eq(value)
            return m

        # The oldest value is at the next address, so the same address is never read and written in one cycle.
        depth = self._cycles if self._cycles < _BLOCK else self._cycles - 1
        attributes = {"no_rw_check": 1}
        if depth < self._cycles and depth * Shape.cast(self._shape).width >= _BITS:
            attributes["ram_style"] = "block"
        m.submodules.memory = memory = Memory(shape=self._shape, depth=depth, init=[], attrs=attributes)
        write = memory.write_port()
        read = memory.read_port(transparent_for=())
        address = Signal(range(depth))
        following = Signal(range(depth))
        m.d.comb += [
            following.eq(Mux(address == depth - 1, 0, address + 1)),
            write.addr.eq(address),
            write.data.eq(self.i),
            write.en.eq(step),
            read.addr.eq(following),
            read.en.eq(step),
        ]
        with m.If(step):
            m.d.sync += address.eq(following)
        value = read.data
        if depth < self._cycles:
            value = Signal(self._shape, name="out", reset_less=True)
            with m.If(step):
                m.d.sync += value.eq(read.data)
        m.d.comb += self.o.eq(value)
        return m
