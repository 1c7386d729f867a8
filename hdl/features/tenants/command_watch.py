"""Supervision of running commands, which detects accesses outside their windows and exceeded cycle budgets."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import EventStatus, event_layout
from hdl.control.registers import register
from hdl.streams.stream import connect_stream

__all__ = ["BudgetClock", "CommandWatch"]


#: Width of a time in bits: one more than a budget, so that the sign of a difference gives the order.
_TIME = register("BUDGET").width + 1


class BudgetClock(wiring.Component):
    """Count cycles, and compute the time at which a command that starts now will exceed its budget.

    All watches share one clock, so each of them needs only a register and a comparator.

    Members
    -------
    budget : In(31)
    now : Out(32)
        Number of cycles, modulo 2^32.
    deadline : Out(32)
        Value of ``now`` in the cycle after ``budget`` more cycles. Depends combinationally on ``budget``.
    """

    def __init__(self):
        super().__init__({"budget": In(register("BUDGET").width), "now": Out(_TIME), "deadline": Out(_TIME)})

    def elaborate(self, platform):
        m = Module()
        following = Signal.like(self.now)
        m.d.comb += [following.eq(self.now + 1), self.deadline.eq(following + self.budget)]
        m.d.sync += self.now.eq(following)
        return m


class CommandWatch(wiring.Component):
    """Replace the status of a command that has left its window or exceeded its budget.

    The status becomes ``OUT_OF_WINDOW`` or otherwise ``OVER_BUDGET``, regardless of the status from the engine; the
    rest of the event is unchanged. Accesses and cycles after the engine has offered its event have no effect. ``o``
    depends combinationally on ``i``.

    Parameters
    ----------
    gated : bool
        Whether a gate before the engine may access memory for a command while it delays the command.

    Members
    -------
    offered : In(1), if ``gated``
        A command is offered to the engine, or to a gate before it.
    started : In(1)
        The engine takes a command.
    stray : In(1)
        The command has accessed a row outside of its window.
    now, deadline : In(32)
        Outputs of a :class:`BudgetClock`; its budget is the maximum cycles of a command, without the event's first
        cycle; zero for no limit.
    cut : Out(1)
        The command has exceeded its budget, and must end; held until its event is taken.
    i : In(stream of event_layout())
        Events of the engine.
    o : Out(stream of event_layout())
    """

    def __init__(self, *, gated=False):
        self._gated = gated
        super().__init__({
            **({"offered": In(1)} if gated else {}),
            "started": In(1), "stray": In(1), "now": In(_TIME), "deadline": In(_TIME), "cut": Out(1),
            "i": In(stream.Signature(event_layout())),
            "o": Out(stream.Signature(event_layout())),
        })

    def elaborate(self, platform):
        m = Module()
        strayed = Signal()
        deadline = Signal.like(self.deadline, reset_less=True)
        counts = Signal()  # the budget is not yet used up
        begins, over = Signal(), Signal()  # in its first cycle, a command can only exceed a budget of zero
        m.d.sync += begins.eq(self.started)
        m.d.comb += over.eq(counts & ~(self.now - deadline)[_TIME - 1])
        connect_stream(m, self.i, self.o)
        before = 0
        if self._gated:  # the gate may access memory before the command starts
            before = Signal()
            m.d.sync += before.eq(self.offered & ~self.started & (before | self.stray))
        with m.If(self.started):
            m.d.sync += [strayed.eq(before), self.cut.eq(0), deadline.eq(self.deadline), counts.eq(1)]
        with m.Elif(~self.i.valid):
            m.d.sync += strayed.eq(strayed | self.stray)
            with m.If(over):
                m.d.sync += [self.cut.eq(~begins), counts.eq(0)]
        with m.Elif(self.i.ready):
            m.d.sync += [counts.eq(0), self.cut.eq(0)]
        m.d.comb += self.o.payload.status.eq(
            Mux(strayed, EventStatus.OUT_OF_WINDOW, Mux(self.cut, EventStatus.OVER_BUDGET, self.i.payload.status)))
        return m
