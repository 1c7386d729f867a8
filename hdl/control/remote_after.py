"""Dependencies on commands of other nodes, which must complete before a command may start."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.program_layouts import check_queues
from hdl.control.scoreboard import AFTER_MAX, others
from hdl.control.sequencer import RUN_BITS, place_layout
from hdl.control.source import Interface

__all__ = ["SIGNALS", "RemoteAfter", "remote_layout", "signals_signature"]

#: Interface between control words and command queues (:func:`signals_signature`).
SIGNALS = Interface("signals")


def remote_layout():
    """Dependency of a ``remote`` command: node ``unit`` must have completed ``after`` commands of ``queue`` in the
    pass ``lag`` passes earlier."""
    return data.StructLayout({"after": 16, "lag": 2, "queue": 2, "remote": 1, "unit": 4})


def signals_signature(queues):
    """Interface between command queues and the units for control words, from the queues' point of view.

    Members
    -------
    place : Out(place_layout())
    run : Out(6)
        Number of the run; 0 if there has been no run since the links were reset.
    done : Out(array of 16 bits)
        Number of commands completed in each queue during this run.
    at_work : Out(1)
        A queue without collectives is running a command of a program.
    of_node, of_queue : Out
        Node and queue of the requested count.
    count : In(16), current : In(1)
        The requested count, one cycle later, and whether it belongs to this run.
    alive : In(1)
        Pulse: some node of the ring is working, possibly this one.
    """
    return wiring.Signature({
        "place": Out(place_layout()),
        "run": Out(RUN_BITS),
        "done": Out(data.ArrayLayout(16, queues)),
        "at_work": Out(1),
        "of_node": Out(4),
        "of_queue": Out(2),
        "count": In(16),
        "current": In(1),
        "alive": In(1),
    })


class RemoteAfter(wiring.Component):
    """Compare counts from other nodes with the counts required by the commands at queue heads.

    All nodes of a ring have programs of the same lengths, so passes of all nodes have the same number of commands. In
    pass p of this queue, a dependency on ``after`` commands of a queue's program, ``lag`` passes back, is met when
    that node has reported (p - lag) · length + after finished commands in the run. A dependency on a pass before the
    first, or with ``after`` = 0, is met immediately; with ``after`` above 16,383, it is never met.

    Queues are served round-robin. ``missing`` is valid :attr:`settling` cycles after a head has changed, or a pass
    has begun, and falls at most :attr:`latency` cycles after the count could be read.

    Parameters
    ----------
    queues : int
        Number of queues (2 or 3).

    Members
    -------
    clear : In(1)
        Pulse: a run begins.
    lengths : In(array of 16 bits)
        Number of commands in the program of each queue.
    begins : In(queues)
        Pulse: a queue begins its next pass.
    early, bases : In
        Outputs of the :class:`~hdl.control.scoreboard.Scoreboard`.
    after : In(array of remote_layout())
        Dependency of the command at the head of each queue.
    of_node, of_queue : Out, count, current : In
        See :func:`signals_signature`.
    missing : Out(queues)
        The dependency of a queue's command is not met.
    """

    def __init__(self, *, queues):
        check_queues(queues, least=2)
        self._queues = queues
        super().__init__({
            "clear": In(1),
            "lengths": In(data.ArrayLayout(16, queues)),
            "begins": In(queues),
            "early": In(data.ArrayLayout(2, queues)),
            "bases": In(data.ArrayLayout(data.ArrayLayout(16, queues - 1), queues)),
            "after": In(data.ArrayLayout(remote_layout(), queues)),
            "of_node": Out(4),
            "of_queue": Out(2),
            "count": In(16),
            "current": In(1),
            "missing": Out(queues),
        })

    @property
    def settling(self):
        return self._queues + 2

    @property
    def latency(self):
        return self._queues + 1

    def elaborate(self, platform):
        m = Module()
        queues = range(self._queues)
        own = Signal(data.ArrayLayout(16, self._queues))  # number of commands in all earlier passes, by queue
        for n in queues:
            with m.If(self.clear):
                m.d.sync += own[n].eq(0)
            with m.Elif(self.begins[n]):
                m.d.sync += own[n].eq(own[n] + self.lengths[n])

        # A pipeline of three stages: select the queue to serve, compute the required count, read the actual count.
        turns = [Signal(range(self._queues), name=f"turn_{stage}") for stage in range(3)]
        turn, summed, asked = turns
        m.d.sync += [turn.eq(Mux(turn == self._queues - 1, 0, turn + 1)), summed.eq(turn), asked.eq(summed)]
        pair = Signal(remote_layout())
        base, length, early = Signal(16), Signal(16), Signal(2)
        m.d.comb += [pair.eq(self.after[turn]), length.eq(self.lengths[pair.queue]), early.eq(self.early[turn])]
        with m.Switch(turn):
            for n in queues:
                with m.Case(n):
                    m.d.comb += base.eq(own[n])
                    for index, other in enumerate(others(n, self._queues)):
                        with m.If(pair.queue == other):
                            m.d.comb += base.eq(self.bases[n][index])
        back, total, target = Signal(16), Signal(16), Signal(16)
        free, never = (Signal(2, name=name) for name in ("free", "never"))  # one bit for each of the two later stages
        m.d.sync += [
            back.eq(Mux(pair.lag[0], length, 0) + Mux(pair.lag[1], length << 1, 0)),
            total.eq(base + pair.after),
            free[0].eq(~pair.remote | (pair.after == 0) | (early < pair.lag)),
            never[0].eq(pair.after[AFTER_MAX.bit_length():].any()),
            self.of_node.eq(pair.unit),
            self.of_queue.eq(pair.queue),
            target.eq(total - back),
            free[1].eq(free[0]),
            never[1].eq(never[0]),
        ]
        holds = self.current & ~never[1] & ~(self.count - target)[15]
        for n in queues:
            with m.If(asked == n):
                m.d.sync += self.missing[n].eq(~free[1] & ~holds)
        return m
