"""Replay links in a node, with nodes that report to each other through control words."""

from amaranth.lib import wiring

from hdl.control.remote_after import SIGNALS
from hdl.node_extension import NodeExtension

__all__ = ["ReplayNode"]


class ReplayNode(NodeExtension):
    """Control words for the queues of commands."""

    def connect(self, m, units):
        if SIGNALS in units.outputs:
            wiring.connect(m, queues=units.queue.signals, control_words=units.outputs[SIGNALS])
