"""The int16 node: the commands of a full node on 16-bit integers, in a ring of one, on a fraction of the area."""

from amaranth.hdl import Cat, Const, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.host_port import HostPort
from hdl.control.protocol import Operation
from hdl.control.register_file import RegisterFile
from hdl.int16_node.engine import Engine
from hdl.int16_node.masking import Masker
from hdl.int16_node.memory import ElementMemory, HostAccess
from hdl.int16_node.queue import CommandQueue
from hdl.ring.link import LinkSignature
from hdl.streams.stream import connect_stream, word_layout

__all__ = ["Int16Node"]


class Int16Node(wiring.Component):
    """Single accelerator with 16-bit integer elements and the host protocol of any node.

    docs/int16_node.md lists the differences from a full node.

    Parameters
    ----------
    config : NodeConfig
        Configuration with ``element`` "int16".

    Members
    -------
    host_i, host_o : In, Out(stream of word_layout())
        Request and response packets.
    ring_i, ring_o : In, Out(LinkSignature())
        Links as of :class:`~hdl.node.Node`; nothing is ever sent, and received words are ignored.
    """

    def __init__(self, config):
        if not config.reduced:
            raise ValueError(f"Element of a reduced node must be int16, not {config.element!r}")
        self._config = config
        super().__init__({
            "host_i": In(stream.Signature(word_layout())),
            "host_o": Out(stream.Signature(word_layout())),
            "ring_i": In(LinkSignature()),
            "ring_o": Out(LinkSignature()),
        })

    @property
    def config(self):
        return self._config

    @property
    def memories(self):
        """Names of the submodules that hold the memory spaces, in order."""
        return ("gradients", "weights")

    def elaborate(self, platform):
        m = Module()
        config = self._config
        m.submodules.host_port = host_port = HostPort(config=config)
        m.submodules.registers = registers = RegisterFile(config=config)
        m.submodules.queue = queue = CommandQueue(config=config)
        m.submodules.engine = engine = Engine(config=config)
        m.submodules.access = access = HostAccess(words=config.memories.words)
        m.submodules.gradients = gradients = ElementMemory(words=config.gradient_words)
        m.submodules.weights = weights = ElementMemory(words=config.weight_words)

        connect_stream(m, self.host_i, host_port.i)
        connect_stream(m, host_port.o, self.host_o)
        wiring.connect(m, host_port=host_port.bus, registers=registers.bus)
        wiring.connect(m, host_port=host_port.memory_read, access=access.read)
        wiring.connect(m, host_port=host_port.memory_write, access=access.write)
        wiring.connect(m, access=access.memory_0, memory=gradients.host)
        wiring.connect(m, access=access.memory_1, memory=weights.host)
        connect_stream(m, host_port.commands, queue.commands)
        connect_stream(m, queue.events, host_port.events)
        m.d.comb += [
            host_port.commands_full.eq(queue.full),
            queue.timeout.eq(registers.timeout),
            queue.weight_version.eq(engine.weight_version),
            queue.set_flags.eq(registers.set_flags),
            queue.link_reset.eq(registers.link_reset),
            queue.rule.eq(registers.optimizer),
            registers.flags.eq(queue.flags),
            registers.last_error.eq(queue.last_error),
            registers.queue_status.eq(queue.queue_status),
            registers.weight_version.eq(engine.weight_version),
            engine.gradient_scale.eq(registers.gradient_scale),
            engine.learning_rate.eq(registers.learning_rate),
            engine.threshold.eq(registers.mask_threshold),
            engine.link_reset.eq(registers.link_reset),
        ]
        units = [(engine, Const(1))]
        if config.masking:
            m.submodules.masker = masker = Masker(config=config)
            m.d.comb += masker.alternative.eq(registers.mask_alternative)
            masks = queue.operation == Operation.MASK
            units = [(engine, ~masks), (masker, masks)]
        self._engines(m, queue, registers, (gradients, weights), units)
        return m

    def _engines(self, m, queue, registers, memories, units):
        """Connect the engines; the memories and the queue belong to the engine whose condition holds."""
        counts = {}
        for unit, mine in units:
            ports = unit.gradients, unit.weights
            m.d.comb += [
                unit.word.eq(queue.word), unit.fields.eq(queue.fields), unit.operation.eq(queue.operation),
                unit.start.eq(queue.start),
            ]
            for port, memory in zip(ports, memories, strict=True):
                m.d.comb += [port.q.eq(memory.engine.q), port.ready.eq(memory.engine.ready)]
            with m.If(mine):
                m.d.comb += [queue.done.eq(unit.done), queue.status.eq(unit.status), queue.detail.eq(unit.detail)]
                for port, memory in zip(ports, memories, strict=True):
                    m.d.comb += [getattr(memory.engine, name).eq(getattr(port, name))
                                 for name in ("en", "write", "address", "data")]
            for name in unit.count.shape().members:
                counts.setdefault(name, []).append(unit.count[name])
        for name, given in counts.items():
            m.d.comb += registers.count[name].eq(Cat(given).any())
