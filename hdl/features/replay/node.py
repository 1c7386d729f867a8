"""Extension of a node for replay links and for the control words with which nodes report to each other."""

from amaranth.lib import wiring

from hdl.control.remote_after import SIGNALS
from hdl.node_extension import NodeExtension

__all__ = ["ReplayNode"]


class ReplayNode(NodeExtension):
    """Node extension that connects control words to the command queues."""

    def connect(self, m, units):
        if SIGNALS in units.outputs:
            wiring.connect(m, queues=units.queue.signals, control_words=units.outputs[SIGNALS])
