"""Watch over the command that runs: an access outside of its window, and its budget of cycles."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import EventStatus, event_layout
from hdl.control.registers import register
from hdl.streams.stream import connect_stream

__all__ = ["CUT_TIMEOUT", "CommandWatch"]

#: Time-out of the ring, in place of TIMEOUT, for a command that has to end.
CUT_TIMEOUT = 256


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
    budget : In(31)
        Cycles, the event's first one not included, that a command may take; zero for any number.
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
            "started": In(1), "stray": In(1), "budget": In(register("BUDGET").width), "cut": Out(1),
            "i": In(stream.Signature(event_layout())),
            "o": Out(stream.Signature(event_layout())),
        })

    def elaborate(self, platform):
        m = Module()
        strayed = Signal()
        left = Signal.like(self.budget)  # cycles until it is over
        counts = Signal()
        connect_stream(m, self.i, self.o)
        before = 0
        if self._gated:  # accesses of the gate, which have ended before the command is taken
            before = Signal()
            m.d.sync += before.eq(self.offered & ~self.started & (before | self.stray))
        with m.If(self.started):
            m.d.sync += [strayed.eq(before), self.cut.eq(0), left.eq(self.budget), counts.eq(self.budget != 0)]
        with m.Elif(~self.i.valid):
            m.d.sync += [left.eq(left - 1), strayed.eq(strayed | self.stray)]
            with m.If(counts & (left == 0)):
                m.d.sync += [self.cut.eq(1), counts.eq(0)]
        with m.Elif(self.i.ready):
            m.d.sync += [counts.eq(0), self.cut.eq(0)]
        m.d.comb += self.o.payload.status.eq(
            Mux(strayed, EventStatus.OUT_OF_WINDOW, Mux(self.cut, EventStatus.OVER_BUDGET, self.i.payload.status)))
        return m
