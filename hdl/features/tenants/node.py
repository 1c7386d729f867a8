"""Node extension for tenants, with memory windows and supervision of their commands."""

from amaranth.hdl import Cat, Mux, ResetInserter, Signal

from hdl.control.engine import FAR
from hdl.control.source import Setting
from hdl.features.tenants.command_watch import BudgetClock, CommandWatch
from hdl.features.tenants.windows import WindowTable
from hdl.node_extension import NodeExtension
from hdl.streams.stream import connect_stream

__all__ = ["TenantsNode"]


class TenantsNode(NodeExtension):
    """Node extension for memory windows and supervision of commands. A change of tenant resets the queue."""

    def make_queue(self, m, units):
        config, host_port, registers, queue = self._config, units.host_port, units.registers, units.queue
        m.submodules.windows = windows = WindowTable(config=config)
        units.tenancy = windows.tenancy
        self._watches = [CommandWatch(gated=config.has_quorum) for _ in range(config.queues)]
        units.cuts = [watch.cut for watch in self._watches]
        status = queue.queue_status
        busy = status.running | status.waiting | (status.commands != 0)
        if config.queues > 1:
            busy |= queue.program_status.running
        if FAR in windows.tenancy.windows.shape().members:
            units.far_owes = Signal()
            busy |= units.far_owes
        # Delaying ``busy`` by a cycle is harmless, since a request to change windows or tenant takes longer.
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
        return ResetInserter(windows.changed)(queue)

    def memory_options(self, units, space):
        return {"owners": units.owners(space)}

    def connect_memory(self, m, units, space, memory):
        m.d.comb += memory.window.eq(units.tenancy.windows[space.name])
        for strays, stray in zip(units.strays, memory.strays, strict=False):
            strays.append(stray)

    def completion(self, m, units, number):
        watch = self._watches[number]
        m.d.comb += watch.stray.eq(Cat(units.strays[number]).any())
        return watch.i

    def replacement(self, units, engine, source):
        """Return a reset or timeout that ends a command over its budget, or None. On the ring,
        :class:`~hdl.features.tenants.sources.Cut` ends it in order on all nodes. A command that waits for far memory
        gets a timeout of 0 instead of a reset, which would lose outstanding answers."""
        cut = units.cuts[units.queue_of(engine)]
        if source == Setting("timeout") and FAR in engine.links:
            return Mux(cut, 0, units.registers.timeout)
        if source == Setting("link_reset") and not engine.links:
            return units.registers.link_reset | cut
        return None
