"""Accelerator node with memories, engines and host port."""

import functools
import operator

from amaranth.hdl import Cat, Const, Module
from amaranth.lib import wiring

from hdl.control.command_queue import CommandQueue
from hdl.control.engine import at, check_engines, operations_of
from hdl.control.host_port import HostPort
from hdl.control.host_side import connect_host_side, host_members
from hdl.control.immediate import ImmediateRunner
from hdl.control.protocol import EventStatus, Operation
from hdl.control.register_file import RegisterFile
from hdl.control.registers import fields_of
from hdl.control.source import WEIGHT_VERSION, Status
from hdl.engines import engines as engines_of
from hdl.host_access import HostAccess
from hdl.memory import LanedMemory
from hdl.node_extension import NodeUnits, node_extensions
from hdl.ring.ports import port_members
from hdl.streams.stream import connect_stream

__all__ = ["Node"]


class Node(wiring.Component):
    """One accelerator node of a ring.

    The host writes gradients and weights into the node's memories and pushes commands. The collective engine executes
    collectives with the other nodes of the ring, and other engines execute the local commands. docs/architecture.md
    contains the block diagram, and docs/protocol.md describes the host's side.

    Nothing here depends on a specific engine: each engine has a description (:mod:`hdl.control.engine`), which
    defines its connections to memories and registers.

    Parameters
    ----------
    config : NodeConfig
        Configuration of a floating-point node; the integer node is :class:`~hdl.features.int16.node.Int16Node`.
    engines : sequence of EngineDescription, optional
        One or more engines, in order of memory priority; by default :func:`hdl.engines.engines`.

    Members
    -------
    host_i, host_o : In, Out(stream of word_layout())
        Request and response packets.
    ring_i, ring_o : In, Out(link_signature(config))
        Links from the predecessor and to the successor. The links of a second port are ``ring_1_i`` and ``ring_1_o``.
    far : Out(far_signature(rows, lanes))
        Port to the far memory, in a node that has one (:mod:`hdl.features.far.node`).
    """

    def __init__(self, config, engines=None):
        if not config.has_ring:
            raise ValueError(f"Configuration of a full node must be a NodeConfig or a ServerConfig, not {config!r}")
        self._config = config
        self._engines = tuple(engines_of(config) if engines is None else engines)
        check_engines(self._engines, config)
        super().__init__(
            {
                **host_members(),
                **port_members(config, config.topology.ports),
                **{name: member for extension in node_extensions(config)
                   for name, member in extension.members().items()},
            }
        )

    @property
    def config(self):
        return self._config

    @property
    def memories(self):
        """For each memory space except the trace, in order: submodule name or range of words in far memory."""
        bases = self._config.far_bases
        return tuple(range(bases[space.name], bases[space.name] + space.words) if space.name in bases else space.name
                     for space in self._config.memory_map if space.name != "trace")

    def elaborate(self, platform):
        m = Module()
        config = self._config
        m.submodules.host_port = host_port = HostPort(config=config)
        m.submodules.registers = registers = RegisterFile(config=config)
        queue = CommandQueue(config=config, operations=operations_of(self._engines))
        units = NodeUnits(node=self, host_port=host_port, registers=registers, queue=queue,
                          strays=[[] for _ in range(config.queues)])
        added = node_extensions(config)
        m.submodules.queue = _first((extension.make_queue(m, units) for extension in added), queue)
        units.engines += [(engine, engine.make()) for engine in self._engines]
        for engine, unit in units.engines:
            m.submodules[engine.name] = unit
        m.submodules.access = units.access = access = HostAccess(
            rows=tuple(space.words // config.lanes for space in config.memory_map), lanes=config.lanes,
            late=bool(config.far_bases))
        for space in config.memory_map:
            if space.name == "trace":
                read, write = (getattr(access, f"{kind}_{space.number}") for kind in ("read", "write"))
                wiring.connect(m, host=read, trace=queue.trace)
                m.d.comb += write.ready.eq(1)  # never used: the host port rejects writes to the trace
            elif space.name not in config.far_bases:
                self._memory(m, space, units, added)
        for extension in added:
            extension.make_memories(m, units)

        counted = [unit.count for _, unit in units.engines]
        for number in range(config.queues):
            completion = _first((extension.completion(m, units, number) for extension in added),
                                queue.completions[number])
            counted += self._commands(m, units, number, completion)
        for engine, unit in units.engines:
            for port, path in engine.links.items():
                outer = _first((extension.link(units, port) for extension in added),
                               wiring.flipped(getattr(self, port)))
                wiring.connect(m, engine=at(unit, path), node=outer)

        joined = {}
        for engine, unit in units.engines:
            for name, path in engine.joins.items():
                joined.setdefault(name, []).append(at(unit, path))
        for left, right in joined.values():
            wiring.connect(m, one=left, other=right)

        units.outputs.update({purpose: at(unit, path) for engine, unit in units.engines
                              for purpose, path in engine.outputs.items()})
        units.weight_version = version = units.outputs.get(WEIGHT_VERSION, Const(0, 32))

        def signal(engine, source):
            """Return the signal that a source provides for an input of an engine."""
            if source in units.outputs and source not in engine.outputs:
                return units.outputs[source]
            replacement = _first(extension.replacement(units, engine, source) for extension in added)
            return source.signal(units, engine) if replacement is None else replacement

        connect_host_side(m, _first((extension.host(m, units) for extension in added), self), host_port=host_port,
                          registers=registers, queue=queue, access=access, weight_version=version,
                          enable=_first(extension.host_enable(m, units) for extension in added))
        fields = fields_of(registers, "OPTIMIZER")
        m.d.comb += [
            queue.rule.eq(fields["rule"]),
            queue.packed_state.eq(fields["packed_state"]),
            *(at(unit, path).eq(signal(engine, source)) for engine, unit in units.engines
              for path, source in engine.inputs.items()),
            *(getattr(registers, purpose.name).eq(output) for purpose, output in units.outputs.items()
              if isinstance(purpose, Status)),
        ]
        for extension in added:
            extension.connect(m, units)
        # If several engines share a counter bit, it counts the cycles while any of them is active.
        counts = {}
        for count in counted:
            for name in count.shape().members:
                counts[name] = counts.get(name, 0) | count[name]
        m.d.comb += [registers.count[name].eq(count) for name, count in counts.items()]
        return m

    def _memory(self, m, space, units, added):
        """Create a memory with the engines' ports in order of priority, followed by the host port."""
        lanes = self._config.lanes
        readers, writers = units.ports("read", space), units.ports("write", space)
        watchers = [at(unit, engine.watches[space.name]) for engine, unit in units.engines
                    if space.name in engine.watches]
        options = {}
        for extension in added:
            options.update(extension.memory_options(units, space))
        m.submodules[space.name] = memory = LanedMemory(
            rows=space.words // lanes, lanes=lanes, readers=len(readers), writers=len(writers),
            watched=bool(watchers), **options)
        for extension in added:
            extension.connect_memory(m, units, space, memory)
        for watcher in watchers:
            m.d.comb += [watcher.valid.eq(memory.written.valid), watcher.row.eq(memory.written.row)]
        for reader, port in zip(readers, memory.read, strict=True):
            wiring.connect(m, reader=reader, memory=port)
        for writer, port in zip(writers, memory.write, strict=True):
            wiring.connect(m, writer=writer, memory=port)

    def _commands(self, m, units, number, completion):
        """Route the commands of a queue to the engines that execute them; only one command runs at a time."""
        start = units.queue.start[number]
        for engine, unit in units.engines:
            if number in engine.gates:
                gate = at(unit, engine.gates[number])
                connect_stream(m, start, gate.i)
                m.d.comb += [
                    gate.ended.eq(completion.valid & completion.ready),
                    gate.good.eq(completion.payload.status == EventStatus.OK),
                ]
                start = gate.o
        last = self._config.queues - 1
        own = [(unit, [operation.code for operation in engine.operations]) for engine, unit in units.engines
                if units.queue_of(engine) == number]
        counts = []
        if last and not any(Operation.QUIESCE in codes for _, codes in own):
            m.submodules[f"quiesce_{number}"] = quiesce = ImmediateRunner()
            m.d.comb += quiesce.weight_version.eq(units.queue.weight_version)
            own.insert(0, (quiesce, [Operation.QUIESCE]))
            counts.append(quiesce.count)
        (first, _), *rest = own
        if not rest:
            connect_stream(m, start, first.command)
            connect_stream(m, first.event, completion)
            return counts
        chosen = [functools.reduce(operator.or_, (start.payload.operation == code for code in codes))
                  for _, codes in rest]
        # The first engine takes all other operations, since the checker has rejected unknown operations.
        for unit, its in [(first, ~Cat(chosen).any()),
                          *((unit, its) for (unit, _), its in zip(rest, chosen, strict=True))]:
            m.d.comb += [
                unit.command.payload.eq(start.payload),
                unit.command.valid.eq(start.valid & its),
                unit.event.ready.eq(completion.ready),
            ]
            with m.If(its):
                m.d.comb += start.ready.eq(unit.command.ready)
            with m.If(unit.event.valid):
                m.d.comb += [completion.valid.eq(1), completion.payload.eq(unit.event.payload)]
        return counts


def _first(values, default=None):
    """Return the first value that is not None, or a default; all values are evaluated."""
    return next((value for value in list(values) if value is not None), default)
