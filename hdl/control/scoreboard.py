"""Scoreboard of the queues: which commands of other queues must finish before a command may start."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.program_layouts import check_queues

__all__ = ["AFTER_MAX", "LEAD_MAX", "Scoreboard", "after_layout", "others"]

#: Maximum number of passes by which one queue may be ahead of another.
LEAD_MAX = 15

#: Largest value of ``after`` with which a dependency can be met.
AFTER_MAX = (1 << 14) - 1


def others(queue, queues):
    """Return the queues that a command's ``after`` and ``lag`` pairs refer to, in the order of the pairs."""
    return [other for other in range(queues) if other != queue]


def after_layout():
    """Dependency on another queue, which must have completed ``after`` commands of the pass that is ``lag`` passes
    earlier."""
    return data.StructLayout({"after": 16, "lag": 2})


class Scoreboard(wiring.Component):
    """Count the finished commands of each queue, and compare with the counts required by the queue heads.

    In pass p of this queue, a dependency on ``after`` commands of another queue's program, ``lag`` passes back, is
    met once that queue has finished (p - lag) · length + after commands. A dependency on a pass before the first, or
    with ``after`` = 0, is met immediately; with ``after`` above 16,383, it is never met. Counts are never
    decremented: they are 16 bits wide and compared modulo 2^16. A queue is ``held`` at the start of a pass while it
    is :data:`LEAD_MAX` passes ahead of another queue, so that counts are never 2^15 apart.

    ``holds`` is valid :attr:`settling` cycles after a head has changed, or a pass has begun, and rises
    :attr:`latency` cycles after the ``done`` that it was waiting for.

    Parameters
    ----------
    queues : int
        Number of queues, 2 or 3.

    Members
    -------
    clear : In(1)
        Pulse: a run begins, and all counts become zero.
    active : In(queues)
        A queue has commands to start.
    lengths : In(array of 16 bits)
        Number of commands in the program of each queue.
    begins : In(queues)
        Pulse: a queue begins its next pass.
    done : In(queues)
        Pulse: a command of a queue's program has ended with OK.
    after : In(array of arrays of after_layout())
        Dependencies of the command at the head of each queue, on the queues of :func:`others` in their order.
    holds : Out(queues)
        All dependencies of the command are met.
    missing : Out(array of queues - 1 bits)
        Dependencies that are not met.
    held : Out(queues)
    counts : Out(array of 16 bits)
        Number of commands done in each queue.
    early : Out(array of 2 bits)
        Number of passes that each queue has begun before its current one; at most 3.
    bases : Out(array of arrays of 16 bits)
        Number of commands of the other queues in these passes.
    """

    settling = 3
    latency = 2

    def __init__(self, *, queues):
        check_queues(queues, least=2)
        self._queues = queues
        super().__init__({
            "clear": In(1),
            "active": In(queues),
            "lengths": In(data.ArrayLayout(16, queues)),
            "begins": In(queues),
            "done": In(queues),
            "after": In(data.ArrayLayout(data.ArrayLayout(after_layout(), queues - 1), queues)),
            "holds": Out(queues),
            "missing": Out(data.ArrayLayout(queues - 1, queues)),
            "held": Out(queues),
            "counts": Out(data.ArrayLayout(16, queues)),
            "early": Out(data.ArrayLayout(2, queues)),
            "bases": Out(data.ArrayLayout(data.ArrayLayout(16, queues - 1), queues)),
        })

    def elaborate(self, platform):
        m = Module()
        queues = range(self._queues)
        for n in queues:
            m.d.sync += self.counts[n].eq(Mux(self.clear, 0, self.counts[n] + self.done[n]))
        for queue in queues:
            early = self.early[queue]
            with m.If(self.clear):
                m.d.sync += early.eq(0)
            with m.Elif(self.begins[queue] & ~early.all()):
                m.d.sync += early.eq(early + 1)
            for index, other in enumerate(others(queue, self._queues)):
                self._dependency(m, queue, index, other, early)
            m.d.comb += self.holds[queue].eq(self.missing[queue] == 0)
        held = [[] for _ in queues]
        for lower in queues:
            for upper in range(lower + 1, self._queues):
                for queue, leads in zip((lower, upper), self._leads(m, lower, upper), strict=True):
                    held[queue].append(leads)
        m.d.comb += self.held.eq(Cat(Cat(leads).any() for leads in held))
        return m

    def _dependency(self, m, queue, index, other, early):
        """Compare the count of another queue with the count that the head of a queue requires."""
        suffix = f"{queue}_{other}"
        pair = self.after[queue][index]
        base = self.bases[queue][index]
        total, back = Signal(16, name=f"total_{suffix}"), Signal(16, name=f"back_{suffix}")
        target = Signal(16, name=f"target_{suffix}")
        free, never = Signal(name=f"free_{suffix}"), Signal(name=f"never_{suffix}")
        length = self.lengths[other]
        with m.If(self.clear):
            m.d.sync += base.eq(0)
        with m.Elif(self.begins[queue]):
            m.d.sync += base.eq(base + length)
        m.d.sync += [
            back.eq(Mux(pair.lag[0], length, 0) + Mux(pair.lag[1], length << 1, 0)),
            total.eq(base + pair.after),
            target.eq(total - back),
            free.eq((pair.after == 0) | (early < pair.lag)),
            never.eq(pair.after[AFTER_MAX.bit_length():].any()),
            self.missing[queue][index].eq(~free & (never | (self.counts[other] - target)[15])),
        ]

    def _leads(self, m, lower, upper):
        """Return whether queue ``lower`` is too far ahead of queue ``upper``, and whether ``upper`` is too far ahead
        of ``lower``."""
        width = LEAD_MAX.bit_length() + 1
        lead = Signal(width, name=f"lead_{lower}_{upper}")  # passes by which `lower` is ahead; signed
        up, down = self.begins[lower], self.begins[upper]
        with m.If(self.clear):
            m.d.sync += lead.eq(0)
        with m.Elif(up ^ down):
            m.d.sync += lead.eq(lead + Cat(1, down.replicate(width - 1)))
        return (lead == LEAD_MAX) & self.active[upper], (lead == (1 << width) - LEAD_MAX) & self.active[lower]
