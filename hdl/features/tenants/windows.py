"""Memory windows, which are the ranges of each memory space that belong to a tenant."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from hdl.control.registers import register
from hdl.control.tenancy import (
    FAR_SPACE,
    MAX_TENANTS,
    TENANT_BITS,
    asked_layout,
    found_layout,
    tenancy_layout,
    windowed,
)
from hdl.group import GROUP
from hdl.guard import window_layout

__all__ = ["WindowTable"]


class WindowTable(wiring.Component):
    """Store two tenants' windows in each memory space, and output the windows of the running tenant.

    While ``set`` of :attr:`window` is high, the window of its tenant and space becomes the range from ``base`` to
    ``bound``; if ``base`` > ``bound``, or if it exceeds the memory, the window becomes empty. The tenant is taken
    from its register. Both can change only while the node is not ``busy``. In a node with control words, which may
    arrive at any time, the tenant changes only while links are reset, so that the previous tenant's state is
    discarded. The privileged host (tenant 0) can access all memory, and tenant 3 none.

    All windows are stored in one small memory, which is read in the cycle of a request. In other cycles the windows
    in :attr:`tenancy` are updated from it, one after another. A change reaches them within :attr:`latency` cycles,
    plus one for each request in between; a command takes longer to arrive, since it is sent in a packet. After a
    reset, no tenant has a window: the memory is being cleared, which takes fewer than four times the latency, and
    is not read for tenants until then.

    Parameters
    ----------
    config : NodeConfig

    Members
    -------
    tenant, window, base, bound : In
        Registers TENANT, WINDOW, WINDOW_BASE and WINDOW_BOUND.
    busy : In(1)
        The node has a command or a program.
    link_reset : In(1), in a node with control words
    tenancy : Out(tenancy_layout(config))
    changed : Out(1)
        The tenant changes at the next clock edge.
    asked : In(asked_layout())
    found : Out(found_layout())
        Window of the requested tenant and space, in the same cycle. Empty if there is none, and for the trace, which
        has no windows.
    """

    def __init__(self, *, config):
        self._config = config
        self._spaces = windowed(config)
        self._bits = max(bits_for(len(self._spaces) - 1), 1)  # width of a memory space number in bits
        #: The window being updated or cleared, and whether all windows are being cleared. Formal tests read both.
        self.turn, self.clearing = Signal(self._bits + TENANT_BITS), Signal(init=1)
        super().__init__({
            "tenant": In(TENANT_BITS), "window": In(register("WINDOW").width),
            "base": In(register("WINDOW_BASE").width), "bound": In(register("WINDOW_BOUND").width),
            "busy": In(1),
            **({"link_reset": In(1)} if config.has_signals else {}),
            "tenancy": Out(tenancy_layout(config)),
            "changed": Out(1),
            "asked": In(asked_layout()),
            "found": Out(found_layout()),
        })

    @property
    def latency(self):
        return (1 << self._bits) + 1

    def elaborate(self, platform):
        m = Module()
        config, spaces, bits, asked = self._config, self._spaces, self._bits, self.asked
        fields = {field.name: self.window[field.bit:field.bit + field.width] for field in register("WINDOW").fields}
        layout = window_layout(max(space.words for space in spaces))
        everything = [{"base": 0, "size": space.words // GROUP} for space in spaces]
        m.submodules.memory = memory = Memory(shape=layout, depth=MAX_TENANTS + 1 << bits, init=everything)
        write, read = memory.write_port(), memory.read_port(domain="comb")
        turn, clearing = self.turn, self.clearing
        capacity = Signal.like(self.bound)
        index = Signal(bits)  # memory space of the window to set
        known = Signal()
        free = ~self.busy & self.link_reset if config.has_signals else ~self.busy

        with m.Switch(fields["space"]):
            for n, space in enumerate(spaces):
                with m.Case(space.number):
                    m.d.comb += [capacity.eq(space.words // GROUP), index.eq(n), known.eq(1)]
        good = (self.base <= self.bound) & (self.bound <= capacity) & ~clearing
        number = Mux(clearing, turn[bits:], fields["tenant"])
        m.d.comb += [
            write.addr.eq(Cat(Mux(clearing, turn[:bits], index), number)),
            write.data.base.eq(self.base), write.data.size.eq(Mux(good, self.bound - self.base, 0)),
            write.en.eq((clearing | (fields["set"] & known & ~self.busy)) & number.any() & ~number.all()),
            self.changed.eq(free & (self.tenant != self.tenancy.tenant)),
        ]
        with m.If(free):
            m.d.sync += self.tenancy.tenant.eq(self.tenant)

        who = Mux(asked.valid, asked.tenant, self.tenancy.tenant)
        nobody = clearing & who.any()  # while windows are being cleared, a tenant gets tenant 3's empty windows
        last = sum(space.number != FAR_SPACE for space in spaces)
        m.d.comb += [
            read.addr.eq(Cat(Mux(asked.valid, asked.space[:bits], turn[:bits]), who | nobody.replicate(TENANT_BITS))),
            self.found.base.eq(read.data.base), self.found.size.eq(Mux(asked.space < last, read.data.size, 0)),
        ]
        with m.If(~asked.valid):
            m.d.sync += [turn.eq(turn + 1), clearing.eq(clearing & ~turn.all())]
            for n, space in enumerate(spaces):
                with m.If(turn[:bits] == n):
                    m.d.sync += [self.tenancy.windows[space.name].base.eq(read.data.base),
                                 self.tenancy.windows[space.name].size.eq(read.data.size)]
        return m
