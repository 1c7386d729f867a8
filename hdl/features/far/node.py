"""Node members for a far memory: its port, and either the server memories or the move engine."""

from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from hdl.control.engine import FAR, at
from hdl.features.far.guard import FarGuard
from hdl.features.far.memories import FarMemories
from hdl.features.far.mover import OUTSTANDING
from hdl.features.far.port import far_signature
from hdl.node_extension import NodeExtension

__all__ = ["FarNode"]


class FarNode(NodeExtension):
    """Port of the far memory; in a node with tenants, a guard sits between the port and the engine."""

    _port = None

    def members(self):
        config = self._config
        return {"far": Out(far_signature(config.far_words // config.lanes, config.lanes))}

    def make_memories(self, m, units):
        if self._config.far_bases:
            self._memories(m, units)
        moving = [engine for engine, _ in units.engines if FAR in engine.links]
        if units.tenancy is None or not moving:
            return
        config = self._config
        m.submodules.far_guard = guard = FarGuard(
            rows=config.far_words // config.lanes, lanes=config.lanes, outstanding=OUTSTANDING)
        wiring.connect(m, guard=guard.far, node=wiring.flipped(units.node.far))
        m.d.comb += [guard.window.eq(units.tenancy.windows[FAR]), guard.link_reset.eq(units.registers.link_reset),
                     units.far_owes.eq(guard.owes)]
        units.strays[units.queue_of(*moving)].append(guard.stray)
        self._port = guard.engine

    def link(self, units, port):
        return self._port if port == FAR else None

    def _memories(self, m, units):
        """Create the memories that reside in the far memory, with ports in the usual order."""
        config, registers = self._config, units.registers
        spaces = [config.memory_map[name] for name in config.far_bases]
        reading = [(engine, unit) for engine, unit in units.engines if engine.reads.keys() & config.far_bases.keys()]
        readers, writers = ({space.name: units.ports(kind, space) for space in spaces} for kind in ("read", "write"))
        guarded = units.tenancy is not None
        m.submodules.far_memories = memories = FarMemories(
            config=config,
            readers={space.name: tuple(group for group, (engine, unit) in enumerate(reading)
                                       for _ in engine.ports(unit, "read", space.name)) for space in spaces},
            writers={name: len(ports) - 1 for name, ports in writers.items()},
            owners={space.name: units.owners(space) for space in spaces} if guarded else None)
        if guarded:
            m.d.comb += [getattr(memories, f"{space.name}_window").eq(units.tenancy.windows[space.name])
                         for space in spaces]
            for strays, stray in zip(units.strays, memories.strays, strict=False):
                strays.append(stray)
        for kind, ports in (("read", readers), ("write", writers)):
            for name, outer in ports.items():
                for port, inner in zip(outer, getattr(memories, f"{name}_{kind}"), strict=True):
                    wiring.connect(m, port=port, memory=inner)
        wiring.connect(m, memories=memories.far, node=wiring.flipped(units.node.far))
        m.d.comb += [
            memories.link_reset.eq(registers.link_reset), memories.timeout.eq(registers.timeout),
            registers.far_silent.eq(memories.silent), registers.far_lost.eq(memories.lost),
            *(memories.abandon[group].eq(at(unit, engine.abandons)) for group, (engine, unit) in enumerate(reading)
              if engine.abandons),
        ]
