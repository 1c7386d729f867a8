"""Runner for commands that take one cycle."""

from amaranth.hdl import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.protocol import EventStatus, command_layout, event_layout

__all__ = ["ImmediateRunner", "counts_layout"]


def counts_layout():
    """Layout of the per-cycle counter increments, keyed by register name."""
    return data.StructLayout({"command_cycles": 1})


class ImmediateRunner(wiring.Component):
    """Run commands that take one cycle, one at a time, and report each by an event.

    A command takes only the cycle after its acceptance, when its event is offered. The next command is accepted in
    the cycle after the event. ``command.ready`` and ``event.valid`` are registers.

    Members
    -------
    command : In(stream of command_layout())
    event : Out(stream of event_layout())
        Status OK, detail 0, one cycle.
    weight_version : In(32)
        Weight version for the event.
    count : Out(counts_layout())
    """

    def __init__(self):
        super().__init__({
            "command": In(stream.Signature(command_layout())),
            "event": Out(stream.Signature(event_layout())),
            "weight_version": In(32),
            "count": Out(counts_layout()),
        })

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [
            self.command.ready.eq(~self.event.valid),
            self.event.payload.weight_version.eq(self.weight_version),
            self.count.command_cycles.eq(self.command.valid & self.command.ready),
        ]
        with m.If(self.command.ready):
            m.d.sync += [
                self.event.valid.eq(self.command.valid),
                self.event.payload.tag.eq(self.command.payload.tag),
                self.event.payload.status.eq(EventStatus.OK),
                self.event.payload.cycles.eq(self.command.valid),
            ]
        with m.Elif(self.event.ready):
            m.d.sync += self.event.valid.eq(0)
        return m
