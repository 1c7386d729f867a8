"""Connection of a node's programs to its other units."""

from hdl.control.host_side import connect_programs
from hdl.node_extension import NodeExtension

__all__ = ["ProgramsNode"]


class ProgramsNode(NodeExtension):
    """Node extension that connects programs to host port, registers and queues."""

    def connect(self, m, units):
        connect_programs(m, host_port=units.host_port, registers=units.registers, queue=units.queue)
