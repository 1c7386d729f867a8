"""Pipeline registers that advance together, for units that convert numbers to blocks and back."""

from types import SimpleNamespace

from amaranth.hdl import Mux, Signal, Value
from amaranth.lib.memory import Memory

__all__ = ["Pipeline"]

#: Longest delay, in steps, for which flip-flops are used.
_SHORT = 8
#: Depth of the memory that a LUT provides, in words of one bit.
_LUT_ROWS = 16


class Pipeline:
    """Registers of pipeline stages that advance together when ``advance`` is high."""

    def __init__(self, m, advance):
        self.m = m
        self.advance = advance

    def register(self, name, **values):
        """Return the values one step later, under the same names, using registers without a reset."""
        return self._register(name, values, reset_less=True)

    def flags(self, name, **values):
        """Return the registered values as in :meth:`register`, but with a reset to zero."""
        return self._register(name, values, reset_less=False)

    def _register(self, name, values, *, reset_less):
        later = {}
        for key, value in values.items():
            later[key] = Signal(Value.cast(value).shape(), name=f"{name}_{key}", reset_less=reset_less)
            with self.m.If(self.advance):
                self.m.d.sync += later[key].eq(value)
        return SimpleNamespace(**later)

    def delay(self, name, value, steps):
        """Delay a value by some steps, using flip-flops or, if that is smaller, a memory."""
        rows = steps - 1
        if steps <= _SHORT:
            for age in range(steps):
                value = self.register(f"{name}_{age}", value=value).value
            return value
        spare = rows % _LUT_ROWS
        if rows > _LUT_ROWS and spare <= _SHORT // 2:
            value = self.delay(f"{name}_early", value, spare)
            rows -= spare
        m = self.m
        memory = Memory(shape=len(value), depth=rows, init=[])
        m.submodules[name] = memory
        write = memory.write_port()
        read = memory.read_port(domain="comb")
        index = Signal(range(rows), name=f"{name}_place")
        m.d.comb += [write.addr.eq(index), read.addr.eq(index), write.data.eq(value), write.en.eq(self.advance)]
        with m.If(self.advance):
            m.d.sync += index.eq(Mux(index == rows - 1, 0, index + 1))
        return self.register(f"{name}_read", value=read.data).value
