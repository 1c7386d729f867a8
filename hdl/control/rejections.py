"""Events for commands that are rejected."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.command_checker import verdict_layout
from hdl.control.command_control import Rejection
from hdl.control.program_layouts import check_queues
from hdl.control.protocol import EventStatus, event_layout

__all__ = ["Rejections", "rejection_layout"]


def rejection_layout():
    """Layout of a rejected command. ``rejected`` is high until its event is taken. ``count`` is the number of cycles
    that the command waited, plus one; ``missing`` lists the flags that are not set; ``after`` is the event detail for
    an unmet dependency."""
    return data.StructLayout({
        "rejected": 1, "reason": Rejection, "tag": 16, "count": 32, "missing": 16, "after": 32})


class Rejections(wiring.Component):
    """Generate events for rejected commands, one queue at a time, lowest queue first.

    An event is offered in the cycle after the rejection, and the next event no earlier than the cycle after the first
    one was taken. Until it is taken, ``i`` must be stable.

    Parameters
    ----------
    queues : int
        Number of queues, 1 to 3.

    Members
    -------
    i : In(array of rejection_layout())
    verdict : In(verdict_layout())
        The checker's verdict on a command that it has refused.
    stale : In(32)
        Detail for events with status STALE.
    weight_version : In(32)
        Weight version for events.
    o : Out(stream of event_layout())
    taken : Out(queues)
        The event of a queue is taken in this cycle.
    """

    def __init__(self, *, queues):
        check_queues(queues)
        self._queues = queues
        super().__init__({
            "i": In(data.ArrayLayout(rejection_layout(), queues)),
            "verdict": In(verdict_layout()),
            "stale": In(32),
            "weight_version": In(32),
            "o": Out(stream.Signature(event_layout())),
            "taken": Out(queues),
        })

    def elaborate(self, platform):
        m = Module()
        event, queues = self.o.payload, range(self._queues)
        first = Signal(range(max(self._queues, 2)))
        status, detail = Signal(8), Signal(32)
        for n in reversed(queues):
            with m.If(self.i[n].rejected):
                m.d.comb += first.eq(n)
        chosen = Signal(rejection_layout())
        m.d.comb += chosen.eq(self.i[first])
        with m.Switch(chosen.reason):
            with m.Case(Rejection.VERDICT):
                m.d.comb += [status.eq(self.verdict.status), detail.eq(self.verdict.detail)]
            with m.Case(Rejection.LINK_RESET):
                m.d.comb += status.eq(EventStatus.LINK_RESET)
            with m.Case(Rejection.FLAGS):
                m.d.comb += [status.eq(EventStatus.WAIT_TIMEOUT), detail.eq(chosen.missing)]
            with m.Case(Rejection.AFTER):
                m.d.comb += [status.eq(EventStatus.AFTER_TIMEOUT), detail.eq(chosen.after)]
            with m.Case(Rejection.STALE):
                m.d.comb += [status.eq(EventStatus.STALE), detail.eq(self.stale)]
        # This register keeps the selection and the subtraction off the path to the event memory.
        with m.If(~self.o.valid):
            m.d.sync += [
                self.o.valid.eq(chosen.rejected), event.tag.eq(chosen.tag), event.status.eq(status),
                event.queue.eq(first), event.detail.eq(detail), event.cycles.eq(chosen.count - 1),
                event.weight_version.eq(self.weight_version),
            ]
        with m.Elif(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        for n in queues:
            m.d.comb += self.taken[n].eq(self.o.valid & self.o.ready & (event.queue == n))
        return m
