"""The switch in the collective engine."""

from amaranth.hdl import Mux

from hdl.control.engine import OperationDescription
from hdl.control.protocol import Operation
from hdl.features.grid.switched_link import SwitchedLink
from hdl.ring.extension import CollectiveExtension

__all__ = ["GridExtension"]


class GridExtension(CollectiveExtension):
    """Link ends at two ports, and the operation SWITCH, which sets the ports of a ring between packets."""

    link = SwitchedLink

    def operations(self):
        return (OperationDescription(code=Operation.SWITCH, queue=1, privileged=True),)

    def immediate(self):
        return (Operation.SWITCH,)

    def make(self, m, units):
        units.links_reset = units.link.load & units.link.still

    def connect(self, m, units):
        link, control, command = units.link, units.control, units.command
        is_switch = command.operation == Operation.SWITCH
        m.d.comb += [
            # Control words of ring 0 can be sent between commands.
            link.ring.eq(Mux(control.busy, command.port, 0)),
            link.expecting.eq(units.datapath.expected.valid | control.drain),
            link.seats.eq(command.gradient_base),
            link.load.eq(control.planning & is_switch & ~units.engine.link_reset),
            control.kind.busy.eq(is_switch & ~link.still),
        ]
