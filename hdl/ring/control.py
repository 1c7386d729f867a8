"""Control of the collective engine: a command from its acceptance to its event."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import EventStatus, command_layout, event_layout

__all__ = ["CollectiveControl", "fault_layout", "kind_layout"]


def kind_layout():
    """The properties of a command that its control depends on.

    ``immediate``: there is nothing to run (QUIESCE). ``alone``: the ring has one node, so that nothing has to move on
    it. ``updates``: a command that ends well has changed weights.
    """
    return data.StructLayout({"immediate": 1, "alone": 1, "updates": 1})


def fault_layout():
    """A reason to give a command up: ``found`` marks it, ``status`` is an EventStatus, ``detail`` is the event's."""
    return data.StructLayout({"found": 1, "status": 8, "detail": 32})


class CollectiveControl(wiring.Component):
    """Take one command after the other through planning, its run, its abort if need be, and its report.

    ======= ==========================================================================================
    Idle    takes a command
    Plan    starts the planner, unless the command is ``immediate`` or ``link_reset`` is high
    Deal    waits for the planner, and sets the tours of all walks
    Launch  starts the datapath
    Settle  waits until the datapath is busy
    Run     waits until the command has finished, or has to be given up
    Abort   sends an ABORT, and waits for that of the predecessor
    Report  offers the event
    ======= ==========================================================================================

    ``planning`` is low wherever the planner is not needed, and ``active`` wherever the datapath is not: both are held
    in reset by them, so that nothing of a command is left for the next one, however it ended.

    While ``link_reset`` is high, a command is in Report at most :attr:`reset_cycles` cycles later, whatever the other
    inputs do. Without it, a command is in Abort for ``timeout`` + 1 cycles at most.

    Members
    -------
    command : In(stream of command_layout())
    event : Out(stream of event_layout())
        One for each command. Its detail after a time-out or a reset is the number of packets sent in this command,
        low half, and received, high half.
    timeout : In(32)
    link_reset : In(1)
    weight_version : Out(32)
        Commands that have changed weights since reset.
    busy : Out(1)
        A command is under way, and this cycle counts for it.
    kind : In(kind_layout())
        Properties of the command that was taken last; they hold until the next is taken.
    planning, plan : Out(1)
        The planner is needed; it starts in this cycle.
    planned : In(1)
        The planner is done.
    active, launch : Out(1)
        The datapath is needed; it starts in this cycle.
    running : Out(1)
        Packets are accepted.
    finished : In(1)
        The datapath is idle, and nothing is on its way.
    fault : In(fault_layout())
        Fault that ends the command; valid while ``running``.
    packets : Out(32)
        Packets sent in this command, low half, and received, high half: the detail where a fault has no other.
    moved : In(1)
        A word has been sent or received.
    packet_sent, packet_received : In(1)
    egress_stalled : In(1)
        A packet waits for a credit.
    local_nan, not_finite : In(1)
        Observations for the flags of the event.
    give_up : Out(1)
        The packet in progress has to end, and an ABORT to leave.
    abort_sent : In(1)
        The ABORT has left.
    drain : Out(1)
        Incoming packets have to be dropped. Depends combinationally on ``abort_received``.
    abort_received : In(1)
        The predecessor's ABORT has come.
    stranded : Out(1)
        The ABORT cannot leave, or the predecessor's does not come.
    """

    #: Cycles from ``link_reset`` to Report: Launch, Settle, Run and Abort.
    reset_cycles = 4

    command: In(stream.Signature(command_layout()))
    event: Out(stream.Signature(event_layout()))
    timeout: In(32)
    link_reset: In(1)
    weight_version: Out(32)
    busy: Out(1)
    kind: In(kind_layout())
    planning: Out(1)
    plan: Out(1)
    planned: In(1)
    active: Out(1)
    launch: Out(1)
    running: Out(1)
    finished: In(1)
    fault: In(fault_layout())
    packets: Out(32)
    moved: In(1)
    packet_sent: In(1)
    packet_received: In(1)
    egress_stalled: In(1)
    local_nan: In(1)
    not_finite: In(1)
    give_up: Out(1)
    abort_sent: In(1)
    drain: Out(1)
    abort_received: In(1)
    stranded: Out(1)

    def elaborate(self, platform):
        m = Module()
        event = self.event.payload
        given = self.command.payload
        waited = Signal(32)  # cycles since a word last moved on the ring, or since the command was given up
        timed_out = Signal()
        sent, received = Signal(16), Signal(16)
        aborted, abort_seen = Signal(), Signal()

        m.d.comb += [timed_out.eq((waited >= self.timeout) & ~self.kind.alone), self.packets.eq(Cat(sent, received))]
        m.d.sync += [
            sent.eq(sent + self.packet_sent),
            received.eq(received + self.packet_received),
            waited.eq(Mux(self.moved, 0, waited + 1)),
        ]

        def report(status, detail=0):
            m.d.sync += [event.status.eq(status), event.detail.eq(detail)]
            m.next = "Report"

        def give_up(status, detail):
            m.d.sync += [event.status.eq(status), event.detail.eq(detail), waited.eq(0)]
            m.next = "Abort"

        with m.FSM() as fsm:
            with m.State("Idle"):
                m.d.comb += self.command.ready.eq(1)
                m.d.sync += [
                    event.tag.eq(given.tag),
                    event.status.eq(EventStatus.OK),
                    event.flags.eq(0),
                    event.detail.eq(0),
                    event.cycles.eq(0),
                ]
                with m.If(self.command.valid):
                    m.next = "Plan"

            with m.State("Plan"):
                m.next = "Deal"
                with m.If(self.link_reset):
                    report(EventStatus.LINK_RESET)
                with m.Elif(self.kind.immediate):
                    m.next = "Report"
                with m.Else():
                    m.d.comb += self.plan.eq(1)

            with m.State("Deal"):
                m.d.sync += [sent.eq(0), received.eq(0), waited.eq(0), aborted.eq(0), abort_seen.eq(0)]
                with m.If(self.link_reset):
                    report(EventStatus.LINK_RESET)
                with m.Elif(self.planned):
                    m.next = "Launch"

            with m.State("Launch"):
                m.d.comb += self.launch.eq(1)
                m.next = "Settle"

            with m.State("Settle"):
                m.next = "Run"

            with m.State("Run"):
                m.d.sync += event.flags.eq(event.flags | Cat(self.local_nan, self.not_finite))
                with m.If(self.fault.found):
                    give_up(self.fault.status, self.fault.detail)
                with m.Elif(self.link_reset):
                    give_up(EventStatus.LINK_RESET, self.packets)
                with m.Elif(timed_out):
                    side = Mux(self.egress_stalled, EventStatus.EGRESS_TIMEOUT, EventStatus.INGRESS_TIMEOUT)
                    give_up(side, self.packets)
                with m.Elif(self.finished):
                    m.d.sync += self.weight_version.eq(self.weight_version + self.kind.updates)
                    m.next = "Report"

            with m.State("Abort"):
                # A packet right behind the ABORT belongs to the next command.
                m.d.comb += [self.give_up.eq(~aborted), self.drain.eq(~(abort_seen | self.abort_received))]
                with m.If(self.abort_sent):
                    m.d.sync += aborted.eq(1)
                m.d.sync += waited.eq(waited + 1)
                with m.If((aborted & abort_seen) | self.link_reset):
                    m.next = "Report"
                with m.Elif(waited >= self.timeout):
                    m.d.comb += self.stranded.eq(1)
                    m.next = "Report"

            with m.State("Report"):
                m.d.comb += [self.event.valid.eq(1), event.weight_version.eq(self.weight_version)]
                with m.If(self.event.ready):
                    m.next = "Idle"

        with m.If(self.abort_received & ~fsm.ongoing("Deal")):
            m.d.sync += abort_seen.eq(1)
        m.d.comb += [
            self.planning.eq(fsm.ongoing("Plan") | fsm.ongoing("Deal")),
            self.running.eq(fsm.ongoing("Run")),
            self.active.eq(fsm.ongoing("Launch") | fsm.ongoing("Settle") | fsm.ongoing("Run")),
            self.busy.eq(~fsm.ongoing("Idle") & ~fsm.ongoing("Report")),
        ]
        with m.If(self.busy):
            m.d.sync += event.cycles.eq(event.cycles + 1)
        return m
