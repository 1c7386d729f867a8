"""Watches over commands that run: accesses outside of their windows, and their budget of cycles."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import EventStatus, event_layout
from hdl.control.registers import register
from hdl.streams.stream import connect_stream

__all__ = ["BudgetClock", "CommandWatch"]


#: Bits of times: one more than those of a budget, so that the sign of a difference tells which comes first.
_TIME = register("BUDGET").width + 1


class BudgetClock(wiring.Component):
    """Count cycles, and tell by which count a command that starts now has used up its budget.

    One clock serves all watches, so that each of them needs but a register and a comparison.

    Members
    -------
    budget : In(31)
    now : Out(32)
        Cycles, modulo 2^32.
    deadline : Out(32)
        ``now`` in the cycle after so many more as the budget has. Combinational.
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
    """Change the event of a command that has left its window, or has taken too long.

    Its status becomes ``OUT_OF_WINDOW`` or else ``OVER_BUDGET``, whatever the engine says; the rest is the engine's.
    What comes after the engine has offered the event does not count. Combinational from :attr:`i` to :attr:`o`.

    Parameters
    ----------
    gated : bool
        Whether a gate may access memory for a command that it holds back.

    Members
    -------
    offered : In(1), if ``gated``
        There is a command for the engine, or for a gate in front of it.
    started : In(1)
        The engine takes a command.
    stray : In(1)
        The command has accessed a row outside of its window.
    now, deadline : In(32)
        Those of a :class:`BudgetClock`, whose budget is the cycles, the event's first one not included, that a
        command may take; zero for any number.
    cut : Out(1)
        The command has taken more, and has to end: until its event is taken.
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
        counts = Signal()  # the budget is not used up
        begins, over = Signal(), Signal()  # in its first cycle nothing but a budget of zero is used up
        m.d.sync += begins.eq(self.started)
        m.d.comb += over.eq(counts & ~(self.now - deadline)[_TIME - 1])
        connect_stream(m, self.i, self.o)
        before = 0
        if self._gated:  # accesses of the gate, which have ended before the command is taken
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
