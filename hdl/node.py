"""One accelerator node: memories, the collective engine, and the host's way in."""

import functools
import operator

from amaranth.hdl import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.command_queue import CommandQueue
from hdl.control.host_port import HostPort
from hdl.control.protocol import Operation
from hdl.control.registers import RegisterFile
from hdl.masking.engine import MaskEngine
from hdl.memory import HostAccess, LanedMemory
from hdl.quantization.engine import InferenceEngine
from hdl.ring.collective import CollectiveEngine
from hdl.ring.link import LinkSignature
from hdl.streams.stream import connect_stream, word_layout

__all__ = ["Node"]


class Node(wiring.Component):
    """One accelerator of a ring.

    The host writes gradients and weights into the node's memories and pushes commands; the collective engine carries
    them out with the ring's other nodes, and other engines those that need none. docs/architecture.md has the
    picture, docs/protocol.md the host's side.

    Parameters
    ----------
    config : NodeConfig
        Of a full node; a reduced one is a :class:`~hdl.int16_node.node.Int16Node`.

    Members
    -------
    host_i, host_o : In, Out(stream of word_layout())
        Request and response packets.
    ring_i, ring_o : In, Out(LinkSignature())
        From the predecessor, to the successor.
    """

    def __init__(self, config):
        if config.reduced:
            raise ValueError(f"Element of a full node must be fp32, not {config.element!r}")
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

    @property
    def memories(self):
        """Name of the submodule that holds each memory space, in order."""
        config = self._config
        planes = [f"state_{plane}" for plane in range(config.state_planes)]
        optional = {"masters": config.has_master, "codebook": config.codebook_words, "residuals": config.has_residual}
        return ("gradients", "weights", *planes, *(name for name, present in optional.items() if present))

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
            rows=tuple(capacity // lanes for capacity in config.spaces), lanes=lanes
        )

        # Ports of a memory in order of priority: what the ring waits for first, the host last.
        def memory(name, rows, readers, writers):
            space = self.memories.index(name)
            readers = [*readers, getattr(access, f"read_{space}")]
            writers = [*writers, getattr(access, f"write_{space}")]
            unit = LanedMemory(rows=rows, lanes=lanes, readers=len(readers), writers=len(writers))
            m.submodules[name] = unit
            for reader, port in zip(readers, unit.read, strict=True):
                wiring.connect(m, reader=reader, memory=port)
            for writer, port in zip(writers, unit.write, strict=True):
                wiring.connect(m, writer=writer, memory=port)

        # The readers and writers of both memories behind the ring's.
        gradient_ports, weight_ports = ([], []), ([], [])
        apart = []  # engines beside the collective one, and their operations
        if config.masking or config.error_feedback:
            m.submodules.masking = masking = MaskEngine(config=config)
            gradient_ports = [masking.gradient_read], [masking.gradient_write]
            weight_ports = [*masking.weight_read], [masking.weight_write]
            m.d.comb += [
                masking.alternative.eq(registers.mask_alternative),
                masking.threshold.eq(registers.mask_threshold),
            ]
            apart.append((masking, (Operation.MASK, Operation.SPARSIFY)))
        if config.quantization:
            m.submodules.inference = inference = InferenceEngine(config=config)
            gradient_ports = [*gradient_ports[0], *inference.gradient_read], [
                *gradient_ports[1], inference.gradient_write]
            weight_ports = [*weight_ports[0], *inference.weight_read], weight_ports[1]
            apart.append((inference, (Operation.INFER,)))
        self._engines(m, registers, queue, engine, apart)

        readers, writers = gradient_ports
        memory("gradients", gradient_rows, [*engine.gradient_read, *readers], [engine.gradient_write, *writers])
        readers, writers = weight_ports
        memory("weights", weight_rows, [engine.weight_read, *readers], [*engine.weight_write, *writers])
        for plane in range(config.state_planes):
            memory(f"state_{plane}", state_rows, [engine.state_read[plane]], [engine.state_write[plane]])
        if config.has_master:
            memory("masters", state_rows, engine.master_read, engine.master_write)
        if config.codebook_words:
            memory("codebook", config.codebook_words // lanes, engine.codebook_read, [])
        if config.has_residual:
            memory("residuals", gradient_rows, engine.residual_read, engine.residual_write)

        connect_stream(m, self.host_i, host_port.i)
        connect_stream(m, host_port.o, self.host_o)
        wiring.connect(m, host_port=host_port.bus, registers=registers.bus)
        wiring.connect(m, host_port=host_port.memory_read, access=access.read)
        wiring.connect(m, host_port=host_port.memory_write, access=access.write)
        connect_stream(m, host_port.commands, queue.commands)
        connect_stream(m, queue.events, host_port.events)
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
        return m

    def _engines(self, m, registers, queue, engine, apart):
        """Connect all engines. A command goes to the engine that has its operation; only one of them runs."""
        if not apart:
            connect_stream(m, queue.start, engine.command)
            connect_stream(m, engine.event, queue.completions)
        else:
            given = queue.start.payload.operation
            chosen = [functools.reduce(operator.or_, (given == operation for operation in operations))
                      for _, operations in apart]
            units = [(engine, ~Cat(chosen).any()), *zip((unit for unit, _ in apart), chosen, strict=True)]
            for unit, mine in units:
                m.d.comb += [
                    unit.command.payload.eq(queue.start.payload),
                    unit.command.valid.eq(queue.start.valid & mine),
                    unit.event.ready.eq(queue.completions.ready),
                ]
                with m.If(mine):
                    m.d.comb += queue.start.ready.eq(unit.command.ready)
                with m.If(unit.event.valid):
                    m.d.comb += [queue.completions.valid.eq(1), queue.completions.payload.eq(unit.event.payload)]
        counts = {name: engine.count[name] for name in engine.count.shape().members}
        for unit, _ in apart:
            m.d.comb += [unit.weight_version.eq(engine.weight_version), unit.link_reset.eq(registers.link_reset)]
            for name in unit.count.shape().members:
                counts[name] = counts.get(name, 0) | unit.count[name]
        for name, count in counts.items():
            m.d.comb += registers.count[name].eq(count)
