"""Guard of a far port, which restricts an engine's requests to the tenant's window of the far memory."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.features.far.port import far_signature
from hdl.guard import Guard, window_layout

__all__ = ["FarGuard"]


class FarGuard(wiring.Component):
    """Map the rows of an engine's requests to the tenant's window of the far memory, and block requests outside it.

    The guard does not delay requests, and delays answers by :attr:`latency` cycle. Writes outside the window are
    accepted immediately and dropped; reads outside it are accepted when no answer is pending, and answered with zeros
    in the next cycle.

    Answers to requests made before a link reset are dropped, and reads wait until all of them have arrived: the far
    memory does not distinguish tenants, and a row requested by one tenant must not reach the next one.

    Parameters
    ----------
    rows, lanes : int
        Number of rows of the far memory, and of elements in a row.
    outstanding : int
        Maximum number of row requests that the engine has outstanding.

    Members
    -------
    window : In(window_layout(rows * lanes))
    engine : In(far_signature(rows, lanes))
    far : Out(far_signature(rows, lanes))
    link_reset : In(1)
    stray : Out(1)
        In the previous cycle, the engine tried to access a row outside the window.
    owes : Out(1)
        High while answers of the far memory are pending.
    """

    latency = 1

    def __init__(self, *, rows, lanes, outstanding):
        if not isinstance(outstanding, int) or outstanding < 1:
            raise ValueError(f"Outstanding rows must be a positive integer, not {outstanding!r}")
        self._rows, self._lanes = rows, lanes
        #: For formal verification: number of pending rows, and whether they were requested before a link reset.
        self.owed, self.old = Signal(range(outstanding + 1)), Signal()
        super().__init__({
            "window": In(window_layout(rows * lanes)),
            "engine": In(far_signature(rows, lanes)), "far": Out(far_signature(rows, lanes)),
            "link_reset": In(1), "stray": Out(1), "owes": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        engine, far = self.engine, self.far
        m.submodules.guard = guard = Guard(rows=self._rows, lanes=self._lanes)
        owed, old, following = self.owed, self.old, Signal.like(self.owed)
        was_reset = Signal()  # links were reset while rows were pending
        may, asked, outside, zeros = Signal(), Signal(), Signal(), Signal()
        answer = Signal(32 * self._lanes)  # output register; resetting it to answer with zeros saves logic
        m.d.comb += [
            guard.window.eq(self.window), guard.row.eq(engine.row),
            self.owes.eq(owed != 0), old.eq(was_reset & self.owes), may.eq(engine.write | ~old),
            far.valid.eq(engine.valid & guard.allowed & may),
            far.write.eq(engine.write), far.row.eq(guard.place), far.keep.eq(engine.keep),
            engine.ready.eq(Mux(guard.allowed, far.ready & may, engine.write | ~self.owes)),
            asked.eq(far.valid & far.ready & ~far.write),
            outside.eq(engine.valid & engine.ready & ~guard.allowed),
            zeros.eq(outside & ~engine.write & ~self.link_reset),
            following.eq(owed + asked - (far.response & self.owes)),
        ]
        for lane in range(self._lanes):
            m.d.comb += [far.elements[lane].eq(engine.elements[lane]),
                         engine.answer[lane].eq(answer.word_select(lane, 32))]
        m.d.sync += [
            owed.eq(following), was_reset.eq(self.link_reset | old),
            self.stray.eq(outside), engine.response.eq((far.response & ~old) | zeros),
            answer.eq(Mux(zeros, 0, Cat(far.answer))),
        ]
        return m
