"""Controller of the collective engine, which handles a command from acceptance to its event."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import EventStatus, command_layout, event_layout
from hdl.control.register_file import version_layout

__all__ = ["CUT_TIMEOUT", "CollectiveControl", "fault_layout", "kind_layout"]

#: A command that is cut short is aborted after at most this number of cycles without a word, whatever its timeout.
CUT_TIMEOUT = 256


def kind_layout():
    """Layout of the properties of a command that affect its control.

    ``immediate``: there is nothing to run (QUIESCE, SWITCH); the command fails if ``busy`` is set. ``repeated``: the
    collective has the same number as the previous one and must not run. ``alone``: the ring has only one node, so no
    words are transferred. ``updates``: if the command ends with OK, it has changed weights.
    """
    return data.StructLayout({"immediate": 1, "busy": 1, "repeated": 1, "alone": 1, "updates": 1})


def fault_layout():
    """Layout of the reason to abort a command, valid if ``found``: ``status`` and ``detail`` of the event."""
    return data.StructLayout({"found": 1, "status": 8, "detail": 32})


class CollectiveControl(wiring.Component):
    """Control each command: plan, execute, abort if necessary, and report.

    ======= ========================================================================================== Idle    accepts
    a command Plan    starts the planner, unless the command is ``immediate`` or ``repeated`` or ``link_reset`` is
    high Deal    waits for the planner, and sets the paths of all sequences Launch  starts the datapath Settle  waits
    until the datapath is busy Run     waits until the command has finished, or must be aborted Abort   sends an
    ABORT, and waits for the predecessor's Report  offers the event =======
    ==========================================================================================

    ``planning`` is low while the planner is not needed, and ``active`` while the datapath is not needed. This holds
    the units in reset, so that no state is left for the next command, no matter how the previous one ended.

    While ``link_reset`` is high, a command reaches Report within :attr:`reset_cycles` cycles, regardless of all
    other inputs. Otherwise, a command is in Abort for ``timeout`` + 1 cycles at most.

    Parameters
    ----------
    settable : bool
        Whether the host can set ``weight_version`` between commands, to continue a run from different nodes.
    cuttable : bool
        Whether a command can be cut short.
    """

    #: Latency in cycles from ``link_reset`` to the state Report, through Launch, Settle, Run and Abort.
    reset_cycles = 4

    def __init__(self, *, settable=False, cuttable=False):
        self._settable, self._cuttable = settable, cuttable
        super().__init__({
            # Commands, which are executed one at a time.
            "command": In(stream.Signature(command_layout())),
            # One event per command. After a timeout or a reset, its detail is the number of packets that this
            # command has sent (low half) and received (high half).
            "event": Out(stream.Signature(event_layout())),
            # Number of cycles without a word on the ring after which the command is aborted.
            "timeout": In(32),
            # Ends every command immediately.
            "link_reset": In(1),
            # Number of commands that have changed weights since reset.
            "weight_version": Out(32),
            # Whether a command is in progress, for counting its cycles.
            "busy": Out(1),
            # Properties of the most recent command; stable until the next command is accepted.
            "kind": In(kind_layout()),
            # Whether the planner is needed; when low, it is held in reset.
            "planning": Out(1),
            # Pulse: the planner starts.
            "plan": Out(1),
            # Pulse: the planner is done.
            "planned": In(1),
            # Whether the datapath is needed; when low, it is held in reset.
            "active": Out(1),
            # Pulse: the datapath starts.
            "launch": Out(1),
            # Whether arriving packets are accepted.
            "running": Out(1),
            # Whether the datapath is idle and no packet is in flight.
            "finished": In(1),
            # Reason to abort the command; used while ``running``.
            "fault": In(fault_layout()),
            # Number of packets sent (low half) and received (high half) in this command: a fault's default detail.
            "packets": Out(32),
            # Pulse: a word is sent or received.
            "moved": In(1),
            # Pulses: the last word of a packet is sent or received.
            "packet_sent": In(1), "packet_received": In(1),
            # Whether a packet waits for a credit.
            "egress_stalled": In(1),
            # Conditions for the flags of the event.
            "local_nan": In(1),
            "not_finite": In(1),
            # Whether the packet in progress must end and an ABORT must be sent.
            "give_up": Out(1),
            # Pulse: the ABORT was sent.
            "abort_sent": In(1),
            # Whether all incoming words are dropped; depends combinationally on ``abort_received``.
            "drain": Out(1),
            # Pulse: the predecessor's ABORT has arrived.
            "abort_received": In(1),
            # Pulse: a timeout, because the ABORT could not be sent, or no ABORT arrived from the predecessor.
            "stranded": Out(1),
            # With ``settable``: sets ``weight_version``, which continues from this value; only while idle.
            **({"set_version": In(version_layout())} if settable else {}),
            # With ``cuttable``: CUT_TIMEOUT cycles without a word suffice to abort a command.
            **({"cut": In(1)} if cuttable else {}),
        })

    def _times_out(self, waited):
        """Return whether a wait of ``waited`` cycles is too long."""
        limit = waited >= self.timeout
        return limit | (self.cut & (waited >= CUT_TIMEOUT)) if self._cuttable else limit

    def elaborate(self, platform):
        m = Module()
        event = self.event.payload
        command = self.command.payload
        waited = Signal(32)  # cycles since a word last moved on the ring, or since the abort began
        timed_out = Signal()
        sent, received = Signal(16), Signal(16)
        aborted, abort_seen = Signal(), Signal()

        m.d.comb += [timed_out.eq(self._times_out(waited) & ~self.kind.alone), self.packets.eq(Cat(sent, received))]
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
                    event.tag.eq(command.tag),
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
                    report(Mux(self.kind.busy, EventStatus.BUSY, EventStatus.OK))
                with m.Elif(self.kind.repeated):
                    report(EventStatus.REPEATED)
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
                # A packet right after the ABORT belongs to the next command.
                m.d.comb += [self.give_up.eq(~aborted), self.drain.eq(~(abort_seen | self.abort_received))]
                with m.If(self.abort_sent):
                    m.d.sync += aborted.eq(1)
                m.d.sync += waited.eq(waited + 1)
                with m.If((aborted & abort_seen) | self.link_reset):
                    m.next = "Report"
                with m.Elif(self._times_out(waited)):
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
        if self._settable:
            with m.If(self.set_version.valid):
                m.d.sync += self.weight_version.eq(self.set_version.value)
        return m
