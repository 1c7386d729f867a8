"""One accelerator node: memories, engines and host port."""

import functools
import operator

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from hdl.control.command_queue import CommandQueue
from hdl.control.command_watch import BudgetClock, CommandWatch
from hdl.control.engine import FAR, at, check_engines, operations_of
from hdl.control.host_port import HostPort
from hdl.control.host_side import connect_host_side, connect_programs, host_members
from hdl.control.immediate import ImmediateRunner
from hdl.control.protocol import EventStatus, Operation
from hdl.control.register_file import RegisterFile
from hdl.control.registers import register
from hdl.control.windows import WindowTable
from hdl.engines import engines as engines_of
from hdl.far.guard import FarGuard
from hdl.far.memories import FarMemories
from hdl.far.mover import OUTSTANDING
from hdl.far.port import far_signature
from hdl.host_access import HostAccess
from hdl.memory import LanedMemory
from hdl.node_features import Tenants, Throttles
from hdl.ring.ports import port_members
from hdl.ring.slots.access import MessageAccess
from hdl.streams.stream import connect_stream
from hdl.throttle import Throttle

__all__ = ["Node"]


def _fields(registers, name):
    """Fields of a setting, by their names."""
    return {field.name: getattr(registers, name.lower())[field.bit:field.bit + field.width]
            for field in register(name).fields}


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
    ring_i, ring_o : In, Out(link_signature(config))
        Links from the predecessor and to the successor. With two ports, those of the second are ``ring_1_i`` and
        ``ring_1_o``.
    far : Out(far_signature(rows, lanes))
        Port to the far memory, of a node with one.
    """

    def __init__(self, config, engines=None):
        if config.is_int16:
            raise ValueError(f"Configuration of a full node must be a NodeConfig or a ServerConfig, not {config!r}")
        self._config = config
        self._engines = tuple(engines_of(config) if engines is None else engines)
        check_engines(self._engines, config.memory_map)
        super().__init__(
            {
                **host_members(),
                **port_members(config, config.topology.ports),
                **({"far": Out(far_signature(config.far_words // config.lanes, config.lanes))}
                   if config.far_words else {}),
            }
        )

    @property
    def config(self):
        return self._config

    @property
    def memories(self):
        """Name of the submodule that holds each memory space, or its words in the far memory, in order, but for the
        trace."""
        bases = self._config.far_bases
        return tuple(range(bases[space.name], bases[space.name] + space.words) if space.name in bases else space.name
                     for space in self._config.memory_map if space.name != "trace")

    def elaborate(self, platform):
        m = Module()
        config = self._config
        m.submodules.host_port = host_port = HostPort(config=config)
        m.submodules.registers = registers = RegisterFile(config=config)
        queue = CommandQueue(config=config, operations=operations_of(self._engines))
        if config.has(Tenants):
            self._tenants(m, host_port, registers, queue)
        else:
            m.submodules.queue = queue
        units = [(engine, engine.make()) for engine in self._engines]
        for engine, unit in units:
            m.submodules[engine.name] = unit
        if config.has(Throttles):
            m.submodules.memory_throttle = self._memory_throttle = Throttle()
            m.submodules.host_throttle = host_throttle = Throttle()
            m.d.comb += [self._memory_throttle.rate.eq(registers.throttle_memory),
                         host_throttle.rate.eq(registers.throttle_host)]
        m.submodules.access = access = HostAccess(
            rows=tuple(space.words // config.lanes for space in config.memory_map), lanes=config.lanes,
            late=bool(config.far_bases))
        for space in config.memory_map:
            if space.name == "trace":
                read, write = (getattr(access, f"{kind}_{space.number}") for kind in ("read", "write"))
                wiring.connect(m, host=read, trace=queue.trace)
                m.d.comb += write.ready.eq(1)  # the host port has refused the write
            elif space.name not in config.far_bases:
                self._memory(m, space, units, access)
        if config.far_bases:
            self._far_memories(m, units, access, registers)
        far = self._far_port(m, units, registers) if config.far_words else None

        counted = [unit.count for _, unit in units]
        for number in range(config.queues):
            counted += self._commands(m, queue, number, units)
        for engine, unit in units:
            for port, path in engine.links.items():
                outer = far if port == FAR else wiring.flipped(getattr(self, port))
                wiring.connect(m, engine=at(unit, path), node=outer)

        joined = {}
        for engine, unit in units:
            for name, path in engine.joins.items():
                joined.setdefault(name, []).append(at(unit, path))
        for one, other in joined.values():
            wiring.connect(m, one=one, other=other)

        fields = _fields(registers, "OPTIMIZER")
        found = {name: at(unit, path) for engine, unit in units for name, path in engine.outputs.items()}
        version = found.get("weight_version", Const(0, 32))
        roots = {"optimizer": fields, "programs": queue.program_status if config.queues > 1 else {},
                 "throttle_compute": _fields(registers, "THROTTLE_COMPUTE") if config.has(Throttles) else {}}

        def source(engine, path):
            """Signal that feeds an engine's input."""
            root, _, name = path.partition(".")
            if path in found and path not in engine.outputs:
                return found[path]
            if config.has(Tenants) and path == "tenant":
                return self._windows.tenancy.tenant
            if config.has(Tenants) and path in ("link_reset", "timeout", "cut"):
                return self._ending(engine, path, registers)
            if root == "windows":
                return self._windows.tenancy.windows[name]
            if root == "checked":
                return queue.checked[min(engine.queue or 0, config.queues - 1)][name]
            if root == "latched":
                return found[root][name] if root in found else getattr(registers, name)
            if name:
                return roots[root][name]
            return version if root == "weight_version" else getattr(registers, root)

        host = self
        if config.link.messages:
            m.submodules.messages = host = MessageAccess()
            connect_stream(m, self.host_i, host.i)
            connect_stream(m, host.o, self.host_o)
            wiring.connect(m, ring=found["messages"], access=host.ring)
        connect_host_side(m, host, host_port=host_port, registers=registers, queue=queue, access=access,
                          weight_version=version, enable=host_throttle.enable if config.has(Throttles) else None)
        m.d.comb += [
            queue.rule.eq(fields["rule"]),
            queue.packed_state.eq(fields["packed_state"]),
            *(at(unit, path).eq(source(engine, given)) for engine, unit in units
              for path, given in engine.inputs.items()),
        ]
        m.d.comb += [getattr(registers, name).eq(found[name]) for name in (
            "link_delay", "slot_0", "slot_1", "time", "time_status", "superframes") if name in found]
        if "signals" in found:
            wiring.connect(m, queues=queue.signals, control_words=found["signals"])
        if config.queues > 1:
            connect_programs(m, host_port=host_port, registers=registers, queue=queue)
        # What two engines count, they count in one bit: the cycles in which any of them does something.
        counts = {}
        for count in counted:
            for name in count.shape().members:
                counts[name] = counts.get(name, 0) | count[name]
        m.d.comb += [registers.count[name].eq(count) for name, count in counts.items()]
        return m

    def _tenants(self, m, host_port, registers, queue):
        """Make the windows of tenants, and the watches over their commands. The queue begins anew with a tenant."""
        config, queues = self._config, range(self._config.queues)
        m.submodules.windows = self._windows = windows = WindowTable(config=config)
        self._watches = [CommandWatch(gated=config.has_quorum) for _ in queues]
        self._strays = [[] for _ in queues]
        m.submodules.queue = ResetInserter(windows.changed)(queue)
        status = queue.queue_status
        busy = status.running | status.waiting | (status.commands != 0)
        if config.queues > 1:
            busy |= queue.program_status.running
        if FAR in windows.tenancy.windows.shape().members:
            self._owes = Signal()  # the far memory has answers for the tenant
            busy |= self._owes
        # A cycle late, as the host port takes longer from a command to a request that changes windows or tenant.
        m.d.sync += [windows.busy.eq(busy), host_port.busy.eq(busy)]
        m.d.comb += [
            windows.tenant.eq(registers.tenant), windows.window.eq(registers.window),
            windows.base.eq(registers.window_base), windows.bound.eq(registers.window_bound),
            windows.asked.eq(host_port.asked), host_port.found.eq(windows.found),
            host_port.running.eq(windows.tenancy.tenant), queue.tenancy.eq(windows.tenancy),
            *([windows.link_reset.eq(registers.link_reset)] if config.has_signals else []),
        ]
        m.submodules.budget = budget = BudgetClock()
        m.d.comb += budget.budget.eq(registers.budget)
        for n, watch in enumerate(self._watches):
            m.submodules[f"watch_{n}"] = watch
            m.d.comb += [watch.started.eq(queue.start[n].valid & queue.start[n].ready),
                         watch.now.eq(budget.now), watch.deadline.eq(budget.deadline)]
            if config.has_quorum:
                m.d.comb += watch.offered.eq(queue.start[n].valid)
            connect_stream(m, watch.o, queue.completions[n])

    def _queue_of(self, engine):
        """Queue that has the commands of an engine."""
        last = self._config.queues - 1
        return last if engine.queue is None else min(engine.queue, last)

    def _ending(self, engine, name, registers):
        """Input of an engine by which a command over its budget ends: a reset, or on the ring ``cut``, by which all
        its nodes give it up in good order. With a far memory it ends in the next cycle in which that makes it wait,
        since a reset would forget what it owes."""
        cut = self._watches[self._queue_of(engine)].cut
        if name == "cut":
            return cut
        given = getattr(registers, name)
        if name == "timeout":
            return Mux(cut, 0, given) if FAR in engine.links else given
        return given if engine.links else given | cut

    def _memory(self, m, space, units, access):
        """Make a memory with the ports of the engines in order of priority, and the host's port last."""
        lanes = self._config.lanes
        guarded = self._config.has(Tenants)
        readers, writers = _ports("read", space, units, access), _ports("write", space, units, access)
        watchers = [at(unit, engine.watches[space.name]) for engine, unit in units if space.name in engine.watches]
        m.submodules[space.name] = memory = LanedMemory(
            rows=space.words // lanes, lanes=lanes, readers=len(readers), writers=len(writers),
            watched=bool(watchers), throttled=self._config.has(Throttles),
            **({"owners": self._owners(space, units)} if guarded else {}))
        if guarded:
            m.d.comb += memory.window.eq(self._windows.tenancy.windows[space.name])
            for strays, stray in zip(self._strays, memory.strays, strict=False):
                strays.append(stray)
        if self._config.has(Throttles):
            m.d.comb += memory.enable.eq(self._memory_throttle.enable)
        for watcher in watchers:
            m.d.comb += [watcher.valid.eq(memory.written.valid), watcher.row.eq(memory.written.row)]
        for reader, port in zip(readers, memory.read, strict=True):
            wiring.connect(m, reader=reader, memory=port)
        for writer, port in zip(writers, memory.write, strict=True):
            wiring.connect(m, writer=writer, memory=port)

    def _owners(self, space, units):
        """Queues of the ports at a memory: those of reads, and of writes."""
        return tuple(tuple(self._queue_of(engine) for engine, unit in units
                           for _ in _engine_ports(kind, space, [(engine, unit)])) for kind in ("read", "write"))

    def _far_memories(self, m, units, access, registers):
        """Make the memories that are in the far memory, with ports in the same order."""
        config = self._config
        spaces = [config.memory_map[name] for name in config.far_bases]
        reading = [(engine, unit) for engine, unit in units if engine.reads.keys() & config.far_bases.keys()]
        readers, writers = ({space.name: _ports(kind, space, units, access) for space in spaces}
                            for kind in ("read", "write"))
        m.submodules.far_memories = memories = FarMemories(
            config=config,
            readers={space.name: tuple(group for group, one in enumerate(reading)
                                       for _ in _engine_ports("read", space, [one])) for space in spaces},
            writers={name: len(ports) - 1 for name, ports in writers.items()},
            owners={space.name: self._owners(space, units) for space in spaces} if config.has(Tenants) else None)
        if config.has(Tenants):
            m.d.comb += [getattr(memories, f"{space.name}_window").eq(self._windows.tenancy.windows[space.name])
                         for space in spaces]
            for strays, stray in zip(self._strays, memories.strays, strict=False):
                strays.append(stray)
        for kind, ports in (("read", readers), ("write", writers)):
            for name, outer in ports.items():
                for port, inner in zip(outer, getattr(memories, f"{name}_{kind}"), strict=True):
                    wiring.connect(m, port=port, memory=inner)
        wiring.connect(m, memories=memories.far, node=wiring.flipped(self.far))
        m.d.comb += [
            memories.link_reset.eq(registers.link_reset), memories.timeout.eq(registers.timeout),
            registers.far_silent.eq(memories.silent), registers.far_lost.eq(memories.lost),
            *(memories.abandon[group].eq(at(unit, engine.abandons)) for group, (engine, unit) in enumerate(reading)
              if engine.abandons),
        ]

    def _far_port(self, m, units, registers):
        """Port of the far memory for an engine, with a guard in between if there are tenants."""
        config = self._config
        moving = [engine for engine, _ in units if FAR in engine.links]
        if not config.has(Tenants) or not moving:
            return wiring.flipped(self.far)
        m.submodules.far_guard = guard = FarGuard(
            rows=config.far_words // config.lanes, lanes=config.lanes, outstanding=OUTSTANDING)
        wiring.connect(m, guard=guard.far, node=wiring.flipped(self.far))
        m.d.comb += [guard.window.eq(self._windows.tenancy.windows[FAR]), guard.link_reset.eq(registers.link_reset),
                     self._owes.eq(guard.owes)]
        self._strays[self._queue_of(*moving)].append(guard.stray)
        return guard.engine

    def _commands(self, m, queue, number, units):
        """Give each command of a queue to the engine that has its operation; only one of them runs."""
        start, completion = queue.start[number], queue.completions[number]
        if self._config.has(Tenants):
            watch = self._watches[number]
            m.d.comb += watch.stray.eq(Cat(self._strays[number]).any())
            completion = watch.i
        for engine, unit in units:
            if number in engine.gates:
                gate = at(unit, engine.gates[number])
                connect_stream(m, start, gate.i)
                m.d.comb += [
                    gate.ended.eq(completion.valid & completion.ready),
                    gate.good.eq(completion.payload.status == EventStatus.OK),
                ]
                start = gate.o
        last = self._config.queues - 1
        mine = [(unit, [operation.code for operation in engine.operations]) for engine, unit in units
                if self._queue_of(engine) == number]
        counts = []
        if last and not any(Operation.QUIESCE in codes for _, codes in mine):
            m.submodules[f"quiesce_{number}"] = quiesce = ImmediateRunner()
            m.d.comb += quiesce.weight_version.eq(queue.weight_version)
            mine.insert(0, (quiesce, [Operation.QUIESCE]))
            counts.append(quiesce.count)
        (first, _), *others = mine
        if not others:
            connect_stream(m, start, first.command)
            connect_stream(m, first.event, completion)
            return counts
        chosen = [functools.reduce(operator.or_, (start.payload.operation == code for code in codes))
                  for _, codes in others]
        # An operation that none of the others has is for the first: the checker lets nothing else through.
        for unit, its in [(first, ~Cat(chosen).any()),
                          *((unit, its) for (unit, _), its in zip(others, chosen, strict=True))]:
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


def _engine_ports(kind, space, units):
    """Ports of engines at a memory, in order of priority; ``kind`` is ``read`` or ``write``."""
    for engine, unit in units:
        for path in getattr(engine, f"{kind}s").get(space.name, ()):
            found = at(unit, path)
            yield from found if isinstance(found, (list, tuple)) else [found]


def _ports(kind, space, units, access):
    """Ports at a memory: those of engines, and the host's last."""
    return [*_engine_ports(kind, space, units), getattr(access, f"{kind}_{space.number}")]
