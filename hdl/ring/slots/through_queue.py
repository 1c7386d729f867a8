"""A queue that is no register while it is empty."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.streams.stream import Queue

__all__ = ["ThroughQueue"]


class ThroughQueue(wiring.Component):
    """Hand beats on in the cycle in which they come, and keep those that are not taken.

    ``i.ready`` depends on registers alone; ``o`` depends combinationally on ``i`` while nothing is kept. A beat that
    is kept is offered in the next cycle or later.

    Parameters
    ----------
    shape : ShapeLike
        Payload of the stream.
    depth : int
        Beats that are kept; at least 2.

    Members
    -------
    i : In(stream of shape)
    o : Out(stream of shape)
    """

    def __init__(self, *, shape, depth):
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 2:
            raise ValueError(f"Depth must be an integer of at least 2, not {depth!r}")
        self._shape, self._depth = shape, depth
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = Queue(shape=self._shape, depth=self._depth)
        through = Signal()
        m.d.comb += [
            through.eq(queue.level == 0),
            self.o.valid.eq(Mux(through, self.i.valid, queue.o.valid)),
            self.o.payload.eq(Mux(through, self.i.payload, queue.o.payload)),
            queue.i.payload.eq(self.i.payload), queue.i.valid.eq(self.i.valid & ~(through & self.o.ready)),
            self.i.ready.eq(queue.i.ready), queue.o.ready.eq(self.o.ready & ~through),
        ]
        return m
