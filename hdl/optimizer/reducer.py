# amaranth: UnusedElaboratable=no
# Arithmetic units are created in the constructor, since their latencies are needed even without elaboration.
"""Adder tree for the floating-point sum of one element over all workers."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hdl.floating.add import FloatAdder
from hdl.floating.format import FP32

__all__ = ["Reducer"]


class Reducer(wiring.Component):
    """Add one element from each worker, in a balanced tree over the worker indices.

    Each level adds neighbours, (0, 1), (2, 3) and so on; an unpaired last element waits for the next level. The
    order of additions, and hence every rounding, is guaranteed. The element of a single worker passes unchanged.

    Latency is :attr:`latency` cycles, the adder's latency times ceil(log2(workers)); throughput is one sum per cycle.
    There is no handshake.

    Parameters
    ----------
    workers : int
        Number of elements to add, 1 to 8.
    format : FloatFormat

    Members
    -------
    i : In(ArrayLayout(format.width, workers))
    o : Out(format.width)
    """

    def __init__(self, *, workers, format=FP32):
        if not isinstance(workers, int) or not 1 <= workers <= 8:
            raise ValueError(f"Worker count must be between 1 and 8, not {workers!r}")
        self._workers = workers
        self._format = format
        # A binary tree with n leaves has n - 1 inner nodes, regardless of how it is balanced.
        self._adders = [FloatAdder(format=format) for _ in range(workers - 1)]
        super().__init__({"i": In(data.ArrayLayout(format.width, workers)), "o": Out(format.width)})

    @property
    def adder_latency(self):
        """Latency in cycles of one level of the adder tree."""
        return FloatAdder.latency

    @property
    def latency(self):
        """Latency in cycles from the elements to their sum."""
        return self.adder_latency * ceil_log2(self._workers)

    def elaborate(self, platform):
        m = Module()
        adders = iter(self._adders)
        level = list(self.i)
        while len(level) > 1:
            sums = []
            for left, right in zip(level[::2], level[1::2], strict=False):
                m.submodules += (adder := next(adders))
                m.d.comb += [adder.a.eq(left), adder.b.eq(right)]
                sums.append(adder.o)
            if len(level) % 2:
                waiting = level[-1]
                for _ in range(adder.latency):
                    stage = Signal(self._format.width, name="waiting", reset_less=True)
                    m.d.sync += stage.eq(waiting)
                    waiting = stage
                sums.append(waiting)
            level = sums
        m.d.comb += self.o.eq(level[0])
        return m
