# amaranth: UnusedElaboratable=no
"""The table of windows against the golden model, and what holds in it for all writes."""


import numpy as np
import pytest
from amaranth.hdl import Assert, Assume, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.config import NodeConfig
from hdl.control.windows import FAR_SPACE, WindowTable, asked_layout, found_layout, tenancy_layout, windowed
from hdl.group import GROUP
from sim import formal
from sim.golden.windows import window
from sim.payload import from_int
from sim.verilated.vectors import Unit

CONFIG = NodeConfig(gradient_words=160, weight_words=64, state_words=32, state_planes=1, queues=3, tenants=2,
                    compute=1, activation_words=32, far_words=224)
#: A node with control words, in which the tenant changes while links are reset.
SIGNALS = NodeConfig(gradient_words=160, weight_words=64, state_words=32, state_planes=1, queues=2, tenants=2,
                     replay=True)
SET = 1 << 6


def groups(base, bound, space):
    return tuple(number // GROUP for number in window(base * GROUP, bound * GROUP, space.words))


@pytest.mark.parametrize("config", [CONFIG, SIGNALS])
def test_against_the_model(config):
    """Random writes, also of what is no window, for tenants and spaces that are none, and while the node is busy."""
    spaces = windowed(config)
    assert [space.name for space in windowed(CONFIG)] == ["gradients", "weights", "state_0", "activations", "far"]
    assert (windowed(CONFIG)[-1].number, windowed(CONFIG)[-1].words) == (FAR_SPACE, 224)
    server = NodeConfig(role="server", far_words=64, weight_words=32, gradient_words=32, state_planes=0,
                        masking=False, error_feedback=False, tenants=2)
    assert [space.name for space in windowed(server)] == ["gradients", "weights"]  # which are in the far memory
    assert asked_layout()["space"].width == 4  # any space that a request names
    unit = Unit(WindowTable(config=config))
    unit.reset()
    generator = np.random.default_rng(3)
    cycles = 6000
    inputs = {
        "tenant": np.repeat(generator.integers(0, 4, cycles // 4), 4), "busy": generator.random(cycles) < 0.3,
        "window": generator.choice([0, 1, 2, 3, 4, 15, 15], cycles) | generator.integers(0, 4, cycles) << 4
        | SET * (generator.random(cycles) < 0.5),
        "base": generator.integers(0, 5, cycles), "bound": generator.integers(0, 8, cycles),
        "asked": generator.integers(0, 4, cycles) | generator.choice([0, 1, 2, 3, 4, 15], cycles) << 2,
    }
    free = np.logical_not(inputs["busy"])
    if config.has_signals:
        inputs["link_reset"] = generator.random(cycles) < 0.4
        free &= inputs["link_reset"]
    trace = unit.run(inputs)
    kept = {(tenant, space.number): (0, 0) for tenant in (1, 2) for space in spaces}
    everything = {(0, space.number): (0, space.words // GROUP) for space in spaces}
    running, shown = 0, {space.name: (0, 0) for space in spaces}
    for cycle in range(cycles):
        now = {name: int(values[cycle]) for name, values in inputs.items()}
        found = from_int(tenancy_layout(CONFIG), int(trace["tenancy"][cycle]))
        assert found["tenant"] == running, f"{cycle=}"
        for name, (base, size) in shown.items():
            ours = found["windows"][name]
            assert (ours["size"], ours["base"] if size else 0) == (size, base if size else 0), f"{cycle=} {name}"
        asked = from_int(asked_layout(), now["asked"])
        answer = from_int(found_layout(), int(trace["found"][cycle]))
        base, size = (0, 0) if asked["space"] == FAR_SPACE else kept.get((asked["tenant"], asked["space"]), (0, 0))
        assert (answer["size"], answer["base"] if size else 0) == (size, base if size else 0), f"{cycle=}"
        assert trace["changed"][cycle] == (free[cycle] and now["tenant"] != running), f"{cycle=}"
        shown = {space.name: (everything | kept).get((running, space.number), (0, 0)) for space in spaces}
        if free[cycle]:
            running = now["tenant"]
        if not now["busy"]:
            place = now["window"] >> 4 & 3, now["window"] & 15
            if now["window"] & SET and place in kept:
                space = next(space for space in spaces if space.number == place[1])
                kept[place] = groups(now["base"], now["bound"], space)


def is_in(window, space):
    """Whether a window is empty, or in its memory."""
    return (window.size == 0) | (window.base + window.size <= space.words // GROUP)


class Stands(wiring.Component):
    """Specification: windows are in their memories, neither they nor the tenant change while a command runs, and with
    control words the tenant changes only while links are reset."""

    def __init__(self, config):
        self._config = config
        members = WindowTable(config=config).signature.members
        super().__init__({name: In(member.shape) for name, member in members.items() if member.flow is In})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = WindowTable(config=self._config)
        m.d.comb += [getattr(unit, name).eq(getattr(self, name)) for name in self.signature.members]
        windows = unit.tenancy.windows
        before, cycles = Signal.like(unit.tenancy), Signal(2)
        reset = Signal(init=1)  # links were, in the cycle before
        m.d.sync += [before.eq(unit.tenancy), reset.eq(self.link_reset if self._config.has_signals else 1)]
        with m.If(~self.busy):
            m.d.sync += cycles.eq(0)
        with m.Elif(cycles != 3):
            m.d.sync += cycles.eq(cycles + 1)
        m.d.comb += [
            Assume(~ResetSignal()),
            # A change in the cycle before the node became busy has come through in the cycle behind it.
            Assert((cycles < 1 + WindowTable.latency) | (before == unit.tenancy)),
            Assert(((cycles == 0) & reset) | (before.tenant == unit.tenancy.tenant)),
            *(Assert(is_in(ours[space.name], space)) for ours in (windows, *unit.kept.values())
              for space in windowed(self._config)),
            *(Assert(is_in(unit.found, space) | (unit.asked.space != space.number))
              for space in windowed(self._config)),
        ]
        # A window of the tenant that is executed is the one that its requests find.
        for space in windowed(self._config):
            ours = windows[space.name]
            if space.number == FAR_SPACE:  # no request reaches it
                m.d.comb += Assert((unit.asked.space != FAR_SPACE) | (unit.found.size == 0))
                continue
            with m.If((cycles > WindowTable.latency) & (unit.asked.tenant == unit.tenancy.tenant)
                      & (unit.tenancy.tenant != 0) & (unit.asked.space == space.number)):
                m.d.comb += [Assert(unit.found.base == ours.base), Assert(unit.found.size == ours.size)]
        return m


@pytest.mark.parametrize("config", [CONFIG, SIGNALS])
def test_nothing_changes_while_a_command_runs(config):
    formal.prove(Stands(config), depth=4)
