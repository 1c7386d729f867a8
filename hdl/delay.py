"""A delay for what travels beside a pipeline."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["DelayLine"]

#: Cycles from which a memory is smaller than flip-flops.
_MEMORY = 4


class DelayLine(wiring.Component):
    """What is on ``i`` is on ``o`` as many cycles later as ``cycles`` says.

    A short delay is a chain of flip-flops, a longer one a memory that is written round and round, since ECP5 has no
    shift registers but those made of flip-flops. There is no reset: ``o`` is unspecified until it has been fed.

    Parameters
    ----------
    shape : ShapeLike
    cycles : int
        Zero or more.

    Members
    -------
    i : In(shape)
    o : Out(shape)
    """

    def __init__(self, *, shape, cycles):
        if not isinstance(cycles, int) or cycles < 0:
            raise ValueError(f"Delay must be zero or more cycles, not {cycles!r}")
        self._shape = shape
        self._cycles = cycles
        super().__init__({"i": In(shape), "o": Out(shape)})

    @property
    def latency(self):
        """Cycles from ``i`` to ``o``."""
        return self._cycles

    def elaborate(self, platform):
        m = Module()
        if self._cycles < _MEMORY:
            value = self.i
            for age in range(self._cycles):
                later = Signal(self._shape, name=f"age_{age + 1}", reset_less=True)
                m.d.sync += later.eq(value)
                value = later
            m.d.comb += self.o.eq(value)
            return m

        # The place after the one that is written was written longest ago, and is never both read and written.
        m.submodules.memory = memory = Memory(
            shape=self._shape, depth=self._cycles, init=[], attrs={"no_rw_check": 1}
        )
        write = memory.write_port()
        read = memory.read_port()
        place = Signal(range(self._cycles))
        following = Signal(range(self._cycles))
        m.d.comb += [
            following.eq(Mux(place == self._cycles - 1, 0, place + 1)),
            write.addr.eq(place),
            write.data.eq(self.i),
            write.en.eq(1),
            read.addr.eq(following),
            self.o.eq(read.data),
        ]
        m.d.sync += place.eq(following)
        return m
