"""Extension of nodes with slots, through which rank 0's host accesses all nodes with messages."""

from amaranth.lib import wiring

from hdl.features.slots.access import MESSAGES, MessageAccess
from hdl.node_extension import NodeExtension
from hdl.streams.stream import connect_stream

__all__ = ["SlotsNode"]


class SlotsNode(NodeExtension):
    """Node extension that inserts a gate between the host and the host port in nodes with messages."""

    def host(self, m, units):
        if not self._config.link.messages:
            return None
        m.submodules.messages = access = MessageAccess()
        connect_stream(m, units.node.host_i, access.i)
        connect_stream(m, access.o, units.node.host_o)
        wiring.connect(m, ring=units.outputs[MESSAGES], access=access.ring)
        return access
