"""One accelerator node: memories, engines and host port."""

import functools
import operator

from amaranth.hdl import Cat, Const, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.control.command_queue import CommandQueue
from hdl.control.engine import at, check_engines, operations_of
from hdl.control.host_port import HostPort
from hdl.control.host_side import connect_host_side, host_members
from hdl.control.register_file import RegisterFile
from hdl.control.registers import register
from hdl.engines import engines as engines_of
from hdl.host_access import HostAccess
from hdl.memory import LanedMemory
from hdl.ring.link import LinkSignature
from hdl.streams.stream import connect_stream

__all__ = ["Node"]


class Node(wiring.Component):
    """One accelerator of a ring.

    The host writes gradients and weights into the node's memories and pushes commands; the collective engine carries
    them out with the ring's other nodes, and other engines the local ones. docs/architecture.md has the
    picture, docs/protocol.md the host's side.

    Nothing here knows an engine: :mod:`hdl.control.engine` says how one describes itself, and how it is joined to
    memories and registers follows from that.

    Parameters
    ----------
    config : NodeConfig
        Configuration of a full node; a reduced one is a :class:`~hdl.int16_node.node.Int16Node`.
    engines : sequence of EngineDescription, optional
        One or more engines, in order of priority at the memories. By default, :func:`hdl.engines.engines`.

    Members
    -------
    host_i, host_o : In, Out(stream of word_layout())
        Request and response packets.
    ring_i, ring_o : In, Out(LinkSignature())
        Links from the predecessor and to the successor.
    """

    def __init__(self, config, engines=None):
        if config.reduced:
            raise ValueError(f"Element of a full node must be fp32, not {config.element!r}")
        self._config = config
        self._engines = tuple(engines_of(config) if engines is None else engines)
        check_engines(self._engines, config.memories)
        super().__init__(
            {
                **host_members(),
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
        return self._config.memories.names

    def elaborate(self, platform):
        m = Module()
        config = self._config
        m.submodules.host_port = host_port = HostPort(config=config)
        m.submodules.registers = registers = RegisterFile(config=config)
        m.submodules.queue = queue = CommandQueue(config=config, operations=operations_of(self._engines))
        units = [(engine, engine.make()) for engine in self._engines]
        for engine, unit in units:
            m.submodules[engine.name] = unit
        m.submodules.access = access = HostAccess(
            rows=tuple(space.words // config.lanes for space in config.memories), lanes=config.lanes)
        for space in config.memories:
            self._memory(m, space, units, access)

        self._commands(m, queue, units)
        for engine, unit in units:
            for port, path in engine.links.items():
                wiring.connect(m, engine=at(unit, path), node=wiring.flipped(getattr(self, port)))

        fields = {field.name: registers.optimizer[field.bit:field.bit + field.width]
                  for field in register("OPTIMIZER").fields}
        version = next((at(unit, engine.outputs["weight_version"]) for engine, unit in units
                        if "weight_version" in engine.outputs), Const(0, 32))
        roots = {"checked": queue.checked[0], "optimizer": fields}

        def source(path):
            """Signal that feeds an engine's input."""
            root, _, name = path.partition(".")
            if name:
                return roots[root][name]
            return version if root == "weight_version" else getattr(registers, root)

        connect_host_side(m, self, host_port=host_port, registers=registers, queue=queue, access=access,
                          weight_version=version)
        m.d.comb += [
            queue.rule.eq(fields["rule"]),
            queue.packed_state.eq(fields["packed_state"]),
            *(at(unit, path).eq(source(given)) for engine, unit in units for path, given in engine.inputs.items()),
        ]
        counts = {}
        for _, unit in units:
            for name in unit.count.shape().members:
                counts[name] = counts.get(name, 0) | unit.count[name]
        m.d.comb += [registers.count[name].eq(count) for name, count in counts.items()]
        return m

    def _memory(self, m, space, units, access):
        """Make a memory with the ports of the engines in order of priority, and the host's port last."""
        lanes = self._config.lanes

        def ports(kind):
            for engine, unit in units:
                for path in getattr(engine, kind).get(space.name, ()):
                    found = at(unit, path)
                    yield from found if isinstance(found, (list, tuple)) else [found]

        readers = [*ports("reads"), getattr(access, f"read_{space.number}")]
        writers = [*ports("writes"), getattr(access, f"write_{space.number}")]
        m.submodules[space.name] = memory = LanedMemory(
            rows=space.words // lanes, lanes=lanes, readers=len(readers), writers=len(writers))
        for reader, port in zip(readers, memory.read, strict=True):
            wiring.connect(m, reader=reader, memory=port)
        for writer, port in zip(writers, memory.write, strict=True):
            wiring.connect(m, writer=writer, memory=port)

    def _commands(self, m, queue, units):
        """Give each command to the engine that has its operation; only one of them runs."""
        (_, first), *others = units
        if not others:
            connect_stream(m, queue.start[0], first.command)
            connect_stream(m, first.event, queue.completions[0])
            return
        given = queue.start[0].payload.operation
        chosen = [functools.reduce(operator.or_, (given == operation.code for operation in engine.operations))
                  for engine, _ in others]
        # An operation that none of the others has is for the first: the checker lets nothing else through.
        for unit, mine in [(first, ~Cat(chosen).any()),
                           *((unit, mine) for (_, unit), mine in zip(others, chosen, strict=True))]:
            m.d.comb += [
                unit.command.payload.eq(queue.start[0].payload),
                unit.command.valid.eq(queue.start[0].valid & mine),
                unit.event.ready.eq(queue.completions[0].ready),
            ]
            with m.If(mine):
                m.d.comb += queue.start[0].ready.eq(unit.command.ready)
            with m.If(unit.event.valid):
                m.d.comb += [queue.completions[0].valid.eq(1), queue.completions[0].payload.eq(unit.event.payload)]
