"""Sequencer for a queue's program, which steps through the commands of each pass."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.program_layouts import DEPTH_MAX

__all__ = ["RUN_BITS", "Sequencer", "pass_layout", "place_layout", "run_layout"]

#: Width in bits of the run number, which distinguishes the reports of successive runs.
RUN_BITS = 6


def place_layout():
    """Position of a node: its rank and the ring size, which is 0 if unknown."""
    return data.StructLayout({"rank": 4, "size": 5})


def run_layout():
    """The three words that describe a run.

    ``passes`` is the number of passes, ``parity`` the parity of the first pass, and ``model`` the program number.
    Collective numbers start at ``collective`` and advance by ``collectives`` per pass. ``number`` is the run's
    number, the same on all nodes of a ring, and ``rank`` and ``size`` give the node's position there: waiting for
    other nodes uses all three. A run with number 0 reports nothing to other nodes. ``first`` is the number of passes
    between the last write of weights and this run; weight versions are compared with it, and 0 resets all versions to
    0.
    """
    return data.StructLayout({
        "passes": 16, "model": 8, "parity": 1, "number": RUN_BITS, "reserved_0": 1,
        "collective": 16, "collectives": 16,
        **place_layout().members, "first": 16, "reserved_2": 7,
    })


def pass_layout():
    """Changes that a pass applies to its commands: ``odd`` selects the second weight base, and ``collective`` is
    added to collective numbers. ``number`` counts passes since weights were written."""
    return data.StructLayout({"odd": 1, "collective": 16, "number": 16})


class Sequencer(wiring.Component):
    """Track the position in a queue's program and the passes of a run.

    In the cycle after ``start``, ``active`` is high if there is a command to run, and ``slot`` selects the first one.
    One cycle after ``advance``, ``slot`` is the next command; the last command is followed by the first of the next
    pass. ``active`` falls after the last command of the last pass, and in any case one cycle after ``stop``.

    Parameters
    ----------
    depth : int
        Maximum number of commands in a program, 1 to 1,024.

    Members
    -------
    start : In(1)
        Pulse: a run begins; only while not ``active``.
    run : In(run_layout())
        Valid in the cycle of ``start``; ``collectives`` must stay valid as long as the sequencer is active.
    length : In(16)
        Number of commands in the program; must not change while the sequencer is active.
    advance : In(1)
        The command has been started, or will not be started.
    stop : In(1)
    active : Out(1)
        Whether there is a command to start.
    slot : Out(range(depth))
    current : Out(pass_layout())
    passes : Out(16)
        Number of remaining passes, including the current one.
    begins : Out(1)
        Another pass follows; high together with ``advance``.
    """

    def __init__(self, *, depth):
        if not isinstance(depth, int) or not 1 <= depth <= DEPTH_MAX:
            raise ValueError(f"Program depth must be between 1 and {DEPTH_MAX}, not {depth!r}")
        super().__init__({
            "start": In(1),
            "run": In(run_layout()),
            "length": In(16),
            "advance": In(1),
            "stop": In(1),
            "active": Out(1),
            "slot": Out(range(max(depth, 2))),
            "current": Out(pass_layout()),
            "passes": Out(16),
            "begins": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        final = Signal()  # the last command of the pass
        # The comparison has time to settle, because loading a command takes many cycles.
        m.d.sync += final.eq(self.slot + 1 == self.length)
        only = self.passes == 1
        m.d.comb += self.begins.eq(self.active & self.advance & final & ~only & ~self.stop)
        with m.If(self.start):
            m.d.sync += [
                self.active.eq((self.run.passes != 0) & (self.length != 0)),
                self.slot.eq(0),
                self.passes.eq(Mux(self.length != 0, self.run.passes, 0)),
                self.current.odd.eq(self.run.parity),
                self.current.collective.eq(self.run.collective),
                self.current.number.eq(self.run.first),
            ]
        with m.Elif(self.stop):
            m.d.sync += [self.active.eq(0), self.passes.eq(0)]
        with m.Elif(self.active & self.advance):
            m.d.sync += self.slot.eq(self.slot + 1)
            with m.If(final):
                m.d.sync += [
                    self.slot.eq(0), self.passes.eq(self.passes - 1), self.active.eq(~only),
                    self.current.odd.eq(~self.current.odd),
                    self.current.number.eq(self.current.number + 1),
                    self.current.collective.eq(self.current.collective + self.run.collectives),
                ]
        return m
