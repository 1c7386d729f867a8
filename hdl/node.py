"""One accelerator node: memories, the collective engine, and the host's way in."""

from amaranth.hdl import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.command_queue import CommandQueue
from hdl.control.host_port import HostPort
from hdl.control.registers import RegisterFile
from hdl.memory import HostAccess, LanedMemory
from hdl.ring.collective import CollectiveEngine
from hdl.ring.link import LinkSignature
from hdl.stream import connect_stream, word_layout

__all__ = ["Node"]


class Node(wiring.Component):
    """One accelerator of a ring.

    The host writes gradients and weights into the node's memories and pushes commands; the collective engine carries
    them out with the ring's other nodes. docs/architecture.md has the picture, docs/protocol.md the host's side.

    Parameters
    ----------
    config : NodeConfig

    Members
    -------
    host_i, host_o : In, Out(stream of word_layout())
        Request and response packets.
    ring_i, ring_o : In, Out(LinkSignature())
        From the predecessor, to the successor.
    """

    def __init__(self, config):
        self._config = config
        super().__init__(
            {
                "host_i": In(stream.Signature(word_layout())),
                "host_o": Out(stream.Signature(word_layout())),
                "ring_i": In(LinkSignature()),
                "ring_o": Out(LinkSignature()),
            }
        )

    @property
    def config(self):
        return self._config

    def elaborate(self, platform):
        m = Module()
        config = self._config
        lanes = config.lanes
        gradient_rows = config.gradient_words // lanes
        weight_rows = config.weight_words // lanes
        state_rows = config.state_words // lanes

        m.submodules.host_port = host_port = HostPort(config=config)
        m.submodules.registers = registers = RegisterFile(config=config)
        m.submodules.queue = queue = CommandQueue(config=config)
        m.submodules.engine = engine = CollectiveEngine(config=config)
        m.submodules.access = access = HostAccess(
            rows=(gradient_rows, weight_rows, *[state_rows] * config.state_planes), lanes=lanes
        )

        # Ports of a memory in order of priority: what the ring waits for first, the host last.
        def memory(name, space, rows, readers, writers):
            readers = [*readers, getattr(access, f"read_{space}")]
            writers = [*writers, getattr(access, f"write_{space}")]
            unit = LanedMemory(rows=rows, lanes=lanes, readers=len(readers), writers=len(writers))
            m.submodules[name] = unit
            for reader, port in zip(readers, unit.read, strict=True):
                wiring.connect(m, reader=reader, memory=port)
            for writer, port in zip(writers, unit.write, strict=True):
                wiring.connect(m, writer=writer, memory=port)

        memory("gradients", 0, gradient_rows, engine.gradient_read, [engine.gradient_write])
        memory("weights", 1, weight_rows, [engine.weight_read], engine.weight_write)
        for plane in range(config.state_planes):
            memory(
                f"state_{plane}", 2 + plane, state_rows, [engine.state_read[plane]], [engine.state_write[plane]]
            )

        connect_stream(m, self.host_i, host_port.i)
        connect_stream(m, host_port.o, self.host_o)
        wiring.connect(m, host_port=host_port.bus, registers=registers.bus)
        wiring.connect(m, host_port=host_port.memory_read, access=access.read)
        wiring.connect(m, host_port=host_port.memory_write, access=access.write)
        connect_stream(m, host_port.commands, queue.commands)
        connect_stream(m, queue.events, host_port.events)
        connect_stream(m, queue.start, engine.command)
        connect_stream(m, engine.event, queue.completions)
        wiring.connect(m, engine=engine.ring_i, node=wiring.flipped(self.ring_i))
        wiring.connect(m, engine=engine.ring_o, node=wiring.flipped(self.ring_o))
        m.d.comb += [
            host_port.commands_full.eq(queue.full),
            queue.timeout.eq(registers.timeout),
            queue.weight_version.eq(engine.weight_version),
            queue.set_flags.eq(registers.set_flags),
            queue.link_reset.eq(registers.link_reset),
            registers.flags.eq(queue.flags),
            registers.last_error.eq(queue.last_error),
            registers.queue_status.eq(queue.queue_status),
            registers.weight_version.eq(engine.weight_version),
            Cat(queue.rule, engine.settings.nesterov, queue.packed_state).eq(registers.optimizer),
            engine.settings.rule.eq(queue.checked.rule),
            engine.packed_state.eq(queue.checked.packed_state),
            engine.timeout.eq(registers.timeout),
            engine.link_reset.eq(registers.link_reset),
        ]
        for name in engine.settings.shape().members:
            if name not in ("rule", "nesterov"):
                m.d.comb += engine.settings[name].eq(getattr(registers, name))
        for name in engine.count.shape().members:
            m.d.comb += registers.count[name].eq(engine.count[name])
        return m
