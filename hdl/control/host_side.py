"""Host side of a node, independent of its engines: ports, and wiring of the control units."""

from amaranth.hdl import Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.program_layouts import program_header_layout
from hdl.streams.stream import connect_stream, word_layout

__all__ = ["connect_host_side", "connect_programs", "host_members"]


def host_members():
    """Members of a node for the host: ``host_i`` and ``host_o`` carry request and response packets."""
    return {"host_i": In(stream.Signature(word_layout())), "host_o": Out(stream.Signature(word_layout()))}


def connect_host_side(m, node, *, host_port, registers, queue, access, weight_version, enable=None):
    """Connect the host port, registers and command queue, and give the host access to the memories.

    The node connects the optimizer's rule and the engines.

    Parameters
    ----------
    m : Module
    node : Component
        Component that has :func:`host_members`, or a unit that is placed between those members and the host port.
    host_port : HostPort
    registers : RegisterFile
    queue : CommandQueue
        Queue of the full node or of the int16 node.
    access : HostAccess
        Access unit of the full node or of the int16 node.
    weight_version : Value
        Number of commands that have changed weights since reset.
    enable : Value, optional
        Whether packet words may be transferred in this cycle; by default, always.
    """
    connect_stream(m, node.host_i, host_port.i)
    connect_stream(m, host_port.o, node.host_o)
    if enable is not None:
        held = Signal()  # a word has been offered, and must stay offered until it is taken
        m.d.sync += held.eq(node.host_o.valid & ~node.host_o.ready)
        with m.If(~enable):
            m.d.comb += [host_port.i.valid.eq(0), node.host_i.ready.eq(0)]
        with m.If(~enable & ~held):
            m.d.comb += [node.host_o.valid.eq(0), host_port.o.ready.eq(0)]
    wiring.connect(m, host_port=host_port.bus, registers=registers.bus)
    wiring.connect(m, host_port=host_port.memory_read, access=access.read)
    wiring.connect(m, host_port=host_port.memory_write, access=access.write)
    connect_stream(m, host_port.commands, queue.commands)
    connect_stream(m, queue.events, host_port.events)
    m.d.comb += [
        host_port.commands_full.eq(queue.full),
        queue.timeout.eq(registers.timeout),
        queue.weight_version.eq(weight_version),
        queue.set_flags.eq(registers.set_flags),
        queue.link_reset.eq(registers.link_reset),
        registers.flags.eq(queue.flags),
        registers.last_error.eq(queue.last_error),
        registers.queue_status.eq(queue.queue_status),
        registers.weight_version.eq(weight_version),
    ]


def connect_programs(m, *, host_port, registers, queue):
    """Connect the host port, registers and queue of a programmable node, after :func:`connect_host_side`.

    Parameters
    ----------
    m : Module
    host_port : HostPort
    registers : RegisterFile
    queue : CommandQueue
    """
    connect_stream(m, host_port.program, queue.program)
    connect_stream(m, host_port.run, queue.run)
    header, layout = host_port.program.payload, program_header_layout(banks=2)
    banked = hasattr(queue, "banks")
    if banked:
        wiring.connect(m, host_port=host_port.banks, queue=queue.banks)
        m.d.comb += [registers.program_bank.eq(queue.program_bank), registers.program_set.eq(queue.program_set)]
    first = header.data[:layout["idle"].offset] if banked else header.data[:layout["model"].offset]
    m.d.comb += [
        host_port.program_status.eq(queue.program_status),
        queue.weight_stride.eq(registers.weight_stride),
        registers.program_status.eq(queue.program_status),
        registers.node_time.eq(queue.node_time),
        registers.trace_pointer.eq(queue.trace_pointer),
        # A program load is counted when the header for slot 0 of queue 0 arrives, whatever its number and bank.
        registers.count.program_loads.eq(host_port.program.valid & header.first & ~first.any()),
        registers.count.program_runs.eq(host_port.run.valid & host_port.run.ready),
    ]
