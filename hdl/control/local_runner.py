"""Runner for commands that involve no other node."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import EventStatus, command_layout, event_layout

__all__ = ["CommandRunner"]


class CommandRunner(wiring.Component):
    """Run commands on a datapath one at a time, and report each with one event.

    The datapath is held in reset between commands, with one cycle between the end of reset and :attr:`start`. Unless
    ``always`` is set, a command of length 0 ends with OK immediately, without starting the datapath.

    :attr:`start` follows two cycles after a command was accepted, and the event is offered one cycle after
    :attr:`done` or :attr:`bad`; the next command is accepted in the cycle after the event. The event counts cycles
    from the cycle after the acceptance to the cycle of :attr:`done` or :attr:`bad`. While ``link_reset`` is high, a
    command ends in the current cycle, even if it is not done.

    Parameters
    ----------
    failure : EventStatus
        Event status of a command that the datapath rejects.
    most : int
        Maximum :attr:`progress` in one cycle.
    other : EventStatus, optional
        Event status for a command with an error of the other kind (``is_other``).
    always : bool
        Whether a command of length 0 starts the datapath like any other command.

    Members
    -------
    command : In(stream of command_layout())
        Command to run. Fields for the datapath must be sampled when the command is accepted.
    event : Out(stream of event_layout())
        The detail is the sum of :attr:`progress`, or :attr:`number` for an invalid command.
    link_reset : In(1)
    weight_version : In(32)
        Weight version for the event.
    reset : Out(1)
        Reset of the datapath; a register, because of its large fan-out.
    start : Out(1)
    progress : In(range(most + 1))
        Progress of the command in this cycle; summed while it runs, including the cycle of :attr:`done`.
    done, bad : In(1)
        The command has ended with OK, or is invalid; ``bad`` takes precedence.
    number : In(32)
        Position of the error in an invalid command.
    is_other : In(1)
        Together with ``bad``, the status is ``other``. Present only if ``other`` is given.
    busy : Out(1)
        High in every cycle that the event counts.
    """

    def __init__(self, *, failure, most=1, other=None, always=False):
        for status in (failure, *(() if other is None else (other,))):
            if status not in list(EventStatus) or status == EventStatus.OK:
                raise ValueError(f"Failure must be an EventStatus other than OK, not {status!r}")
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ValueError(f"Most progress in a cycle must be at least 1, not {most!r}")
        self._failure = EventStatus(failure)
        self._other = other
        self._always = always
        super().__init__({
            "command": In(stream.Signature(command_layout())),
            "event": Out(stream.Signature(event_layout())),
            "link_reset": In(1),
            "weight_version": In(32),
            "reset": Out(1, init=1),
            "start": Out(1),
            "progress": In(range(most + 1)),
            "done": In(1),
            "bad": In(1),
            "number": In(32),
            **({} if other is None else {"is_other": In(1)}),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        event = self.event.payload

        def stop():
            m.d.sync += [event.status.eq(EventStatus.LINK_RESET), self.reset.eq(1)]
            m.next = "Report"

        with m.FSM() as fsm:
            with m.State("Idle"):
                m.d.comb += self.command.ready.eq(1)
                m.d.sync += [
                    event.tag.eq(self.command.payload.tag),
                    event.status.eq(EventStatus.OK),
                    event.detail.eq(0),
                    event.cycles.eq(0),
                ]
                with m.If(self.command.valid):
                    m.next = "Settle"
                    if not self._always:
                        with m.If(self.command.payload.length == 0):
                            m.next = "Report"

            # By the time the datapath leaves reset, all memory reads of the previous command have been answered.
            with m.State("Settle"):
                m.d.sync += self.reset.eq(0)
                m.next = "Launch"
                with m.If(self.link_reset):
                    stop()

            with m.State("Launch"):
                m.d.comb += self.start.eq(1)
                m.next = "Run"
                with m.If(self.link_reset):
                    stop()

            with m.State("Run"):
                m.d.sync += event.detail.eq(event.detail + self.progress)
                with m.If(self.bad):
                    m.d.sync += [event.status.eq(self._failure), event.detail.eq(self.number), self.reset.eq(1)]
                    if self._other is not None:
                        with m.If(self.is_other):
                            m.d.sync += event.status.eq(self._other)
                    m.next = "Report"
                with m.Elif(self.done):
                    m.d.sync += self.reset.eq(1)
                    m.next = "Report"
                with m.Elif(self.link_reset):
                    stop()

            with m.State("Report"):
                m.d.comb += [self.event.valid.eq(1), event.weight_version.eq(self.weight_version)]
                with m.If(self.event.ready):
                    m.next = "Idle"

        m.d.comb += self.busy.eq(~self.reset | fsm.ongoing("Settle"))
        with m.If(self.busy):
            m.d.sync += event.cycles.eq(event.cycles + 1)
        return m
