"""Runner of commands that need no other node."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import EventStatus, command_layout, event_layout

__all__ = ["CommandRunner"]


class CommandRunner(wiring.Component):
    """Run commands on a datapath, one after the other, and report each by one event.

    The datapath is held in reset between commands, and has a cycle between the end of its reset and :attr:`start`. A
    command without length ends with OK at once, without starting it, unless ``always``.

    The acceptance of a command and :attr:`start` are two cycles apart, :attr:`done` or :attr:`bad` and the offer of
    the event one; the next command is accepted in the cycle after the event. The event counts the cycles from the one
    after the acceptance to the one of :attr:`done` or :attr:`bad`. While ``link_reset`` is high, a command that is
    not done in this cycle ends in it.

    Parameters
    ----------
    failure : EventStatus
        Status of a command that the datapath rejects.
    most : int
        Largest :attr:`progress` in one cycle.
    other : EventStatus, optional
        Status of a command with the other kind of error.
    always : bool
        Whether a command without length starts the datapath like any other.

    Members
    -------
    command : In(stream of command_layout())
        Command to run. Fields for the datapath must be sampled when it is taken.
    event : Out(stream of event_layout())
        Its detail is the sum of :attr:`progress`, or :attr:`number` for a wrong command.
    link_reset : In(1)
    weight_version : In(32)
        Version in the event.
    reset : Out(1)
        Reset of the datapath; a register, since its fan-out is large.
    start : Out(1)
    progress : In(range(most + 1))
        Counted while the command runs, including the cycle of :attr:`done`.
    done, bad : In(1)
        The command has ended with OK, or is wrong; the latter has precedence.
    number : In(32)
        Position of the error in a wrong command.
    is_other : In(1)
        With ``bad``: the status is ``other``. Present with ``other`` only.
    busy : Out(1)
        High in each cycle that the event counts.
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

            # A memory's answers to the command before have passed when the datapath leaves its reset.
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
