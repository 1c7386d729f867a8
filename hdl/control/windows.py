"""Windows of tenants: the part of each memory space that a tenant has."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hdl.control.engine import FAR
from hdl.control.registers import register
from hdl.group import GROUP
from hdl.guard import window_layout
from hdl.memory_map import MOST_SPACES, MemorySpace

__all__ = ["FAR_SPACE", "MOST_TENANTS", "PRIVILEGED", "WindowTable", "asked_layout", "found_layout", "tenancy_layout",
           "windowed"]

#: Number of the privileged host, which needs no window; tenants have the numbers behind it.
PRIVILEGED = 0

#: Numbers of tenants in gateware, one of which nobody has.
MOST_TENANTS = 3

#: Number of the far memory in register WINDOW. The host port does not reach it, so it is no space of requests.
FAR_SPACE = MOST_SPACES - 1

_TENANT = MOST_TENANTS.bit_length()


def windowed(config):
    """Memory spaces that have windows: all but the trace, which only the privileged host reads, and the far memory of
    a node that moves activations there. That of a server is other spaces."""
    spaces = tuple(space for space in config.memories if space.name != "trace")
    if not config.far_words or config.is_server:
        return spaces
    return (*spaces, MemorySpace(name=FAR, number=FAR_SPACE, words=config.far_words, title="far memory", region=FAR))


def tenancy_layout(config):
    """Tenant whose commands a node executes, and its window in each memory space."""
    return data.StructLayout({"tenant": _TENANT, "windows": data.StructLayout(
        {space.name: window_layout(space.words) for space in windowed(config)})})


def asked_layout():
    """Tenant and memory space of a window."""
    return data.StructLayout({"tenant": _TENANT, "space": 4})


def found_layout():
    """Window in any memory, in groups."""
    width = register("WINDOW_BOUND").width
    return data.StructLayout({"base": width, "size": width})


class WindowTable(wiring.Component):
    """Keep the windows of two tenants in each memory space, and give those of the one that the node executes.

    While ``set`` of :attr:`window` is high, the window of its tenant and space becomes that from ``base`` to
    ``bound``; one with ``base`` > ``bound``, or beyond the memory, becomes an empty one. The tenant is taken over
    from its register. Neither happens while the node is ``busy``; and in a node with control words, which come at any
    time, the tenant changes only while links are reset, so that the one before is forgotten. Windows in
    :attr:`tenancy` follow :attr:`latency` cycle later. The privileged host, tenant 0, has all of each memory, and
    tenant 3 nothing.

    Parameters
    ----------
    config : NodeConfig

    Members
    -------
    tenant, window, base, bound : In
        Registers TENANT, WINDOW, WINDOW_BASE and WINDOW_BOUND.
    busy : In(1)
        A command, or a program, is in the node.
    link_reset : In(1), in a node with control words
    tenancy : Out(tenancy_layout(config))
    changed : Out(1)
        The tenant changes with the next edge.
    asked : In(asked_layout())
    found : Out(found_layout())
        Window of the tenant and the space that a request asks for, in the same cycle; empty if there is none. That of
        the privileged host is empty too.
    """

    latency = 1

    def __init__(self, *, config):
        self._config = config
        self._spaces = windowed(config)
        layout = tenancy_layout(config)["windows"].shape
        #: Windows of each tenant, for specifications.
        self.kept = {tenant: Signal(layout, name=f"windows_{tenant}") for tenant in range(1, MOST_TENANTS)}
        super().__init__({
            "tenant": In(_TENANT), "window": In(register("WINDOW").width),
            "base": In(register("WINDOW_BASE").width), "bound": In(register("WINDOW_BOUND").width),
            "busy": In(1),
            **({"link_reset": In(1)} if config.has_signals else {}),
            "tenancy": Out(tenancy_layout(config)),
            "changed": Out(1),
            "asked": In(asked_layout()),
            "found": Out(found_layout()),
        })

    def elaborate(self, platform):
        m = Module()
        fields = {field.name: self.window[field.bit:field.bit + field.width] for field in register("WINDOW").fields}
        windows = self.tenancy.windows
        kept = self.kept
        capacity = Signal.like(self.bound)
        size = Signal.like(self.bound)
        with m.Switch(fields["space"]):
            for space in self._spaces:
                with m.Case(space.number):
                    m.d.comb += capacity.eq(space.words // GROUP)
        free = ~self.busy & self.link_reset if self._config.has_signals else ~self.busy
        good = (self.base <= self.bound) & (self.bound <= capacity)
        m.d.comb += [
            size.eq(Mux(good, self.bound - self.base, 0)),
            self.changed.eq(free & (self.tenant != self.tenancy.tenant)),
        ]
        with m.If(free):
            m.d.sync += self.tenancy.tenant.eq(self.tenant)
        with m.If(~self.busy):
            with m.If(fields["set"]):
                for tenant, ours in kept.items():
                    for space in self._spaces:
                        with m.If((fields["tenant"] == tenant) & (fields["space"] == space.number)):
                            m.d.sync += [ours[space.name].base.eq(self.base), ours[space.name].size.eq(size)]
        with m.Switch(self.tenancy.tenant):
            for tenant, ours in kept.items():
                with m.Case(tenant):
                    m.d.sync += windows.eq(ours)
            with m.Case(PRIVILEGED):
                for space in self._spaces:
                    m.d.sync += [windows[space.name].base.eq(0), windows[space.name].size.eq(space.words // GROUP)]
            with m.Default():
                m.d.sync += windows.eq(0)
        with m.Switch(self.asked.tenant):
            for tenant, ours in kept.items():
                with m.Case(tenant), m.Switch(self.asked.space):
                    for space in self._spaces:
                        if space.number == FAR_SPACE:
                            continue
                        with m.Case(space.number):
                            m.d.comb += [self.found.base.eq(ours[space.name].base),
                                         self.found.size.eq(ours[space.name].size)]
        return m
