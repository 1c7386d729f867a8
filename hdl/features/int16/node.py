"""The int16 node: a full node's commands on 16-bit integers, for a ring of one, in less area."""

from amaranth.hdl import Cat, Const, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.control.engine import at, check_engines, operations_of
from hdl.control.host_port import HostPort
from hdl.control.host_side import connect_host_side, host_members
from hdl.control.register_file import RegisterFile
from hdl.control.source import WEIGHT_VERSION
from hdl.features.int16.description import describe as engines
from hdl.features.int16.memory import ElementMemory, HostAccess
from hdl.features.int16.queue import CommandQueue
from hdl.ring.link import LinkSignature

__all__ = ["Int16Node"]


class Int16Node(wiring.Component):
    """Standalone accelerator for 16-bit integers, with the same host protocol as any other node.

    docs/int16_node.md lists the differences from a full node.

    Parameters
    ----------
    config : NodeConfig
        Configuration with ``element`` set to "int16".

    Members
    -------
    host_i, host_o : In, Out(stream of word_layout())
        Request and response packets.
    ring_i, ring_o : In, Out(LinkSignature())
        Links as in :class:`~hdl.node.Node`; nothing is ever sent, and received words are ignored.
    """

    def __init__(self, config):
        if config.has_ring:
            raise ValueError(f"Configuration of an int16 node must be an Int16Config, not {config!r}")
        self._config = config
        self._engines = engines(config)
        check_engines(self._engines, config)
        super().__init__({
            **host_members(),
            "ring_i": In(LinkSignature()),
            "ring_o": Out(LinkSignature()),
        })

    @property
    def config(self):
        return self._config

    @property
    def memories(self):
        """Names of the memory spaces' submodules, in order."""
        return self._config.memory_map.names

    def elaborate(self, platform):
        m = Module()
        config = self._config
        m.submodules.host_port = host_port = HostPort(config=config)
        m.submodules.registers = registers = RegisterFile(config=config)
        described = self._engines
        m.submodules.queue = queue = CommandQueue(config=config, operations=operations_of(described))
        units = [(engine, engine.make()) for engine in described]
        for engine, unit in units:
            m.submodules[engine.name] = unit
        m.submodules.access = access = HostAccess(words=config.memory_map.words)
        memories = {space.name: ElementMemory(words=space.words) for space in config.memory_map}
        for space in config.memory_map:
            m.submodules[space.name] = memory = memories[space.name]
            wiring.connect(m, access=getattr(access, f"memory_{space.number}"), memory=memory.host)

        version = next(at(unit, engine.outputs[WEIGHT_VERSION]) for engine, unit in units
                       if WEIGHT_VERSION in engine.outputs)
        connect_host_side(m, self, host_port=host_port, registers=registers, queue=queue, access=access,
                          weight_version=version)
        m.d.comb += [
            queue.rule.eq(registers.optimizer),
            *(at(unit, path).eq(getattr(registers, setting.name)) for engine, unit in units
              for path, setting in engine.inputs.items()),
        ]
        # The first engine gets all operations not handled by other engines; the queue rejects unknown operations.
        rest = [Cat(queue.operation == operation.code for operation in engine.operations).any()
                  for engine in described[1:]]
        chosen = [~Cat(rest).any() if rest else Const(1), *rest]
        self._connect(m, queue, registers, memories, list(zip(units, chosen, strict=True)))
        return m

    def _connect(self, m, queue, registers, memories, units):
        """Connect the engines to the memories and the queue, which are used by the engine whose condition is true."""
        counts = {}
        for (engine, unit), active in units:
            joined = [(at(unit, path), memories[name]) for name, paths in engine.reads.items() for path in paths]
            m.d.comb += [
                unit.word.eq(queue.word), unit.fields.eq(queue.fields), unit.operation.eq(queue.operation),
                unit.start.eq(queue.start),
            ]
            for port, memory in joined:
                m.d.comb += [port.q.eq(memory.engine.q), port.ready.eq(memory.engine.ready)]
            with m.If(active):
                m.d.comb += [queue.done.eq(unit.done), queue.status.eq(unit.status), queue.detail.eq(unit.detail)]
                for port, memory in joined:
                    m.d.comb += [getattr(memory.engine, name).eq(getattr(port, name))
                                 for name in ("en", "write", "address", "data")]
            for name in unit.count.shape().members:
                counts.setdefault(name, []).append(unit.count[name])
        for name, pulses in counts.items():
            m.d.comb += registers.count[name].eq(Cat(pulses).any())
