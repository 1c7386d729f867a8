# amaranth: UnusedElaboratable=no
"""Table of tenants' memory windows: compared with a model, and properties proved for all writes."""

import types

import numpy as np
import pytest
from amaranth.hdl import Array, Assert, Assume, Cat, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.config import Memories, NodeConfig
from hdl.control.tenancy import FAR_SPACE, asked_layout, found_layout, tenancy_layout, windowed
from hdl.features.compute.feature import Compute
from hdl.features.programs.feature import Programs
from hdl.features.replay.feature import Replay
from hdl.features.streaming.feature import ServerConfig, ServerMemories
from hdl.features.tenants import windows as windows_module
from hdl.features.tenants.feature import Tenants
from hdl.features.tenants.windows import WindowTable
from hdl.group import GROUP
from sim import formal
from sim.payload import from_int
from sim.verilated.vectors import Unit


def window(base: int, bound: int, capacity: int) -> tuple[int, int]:
    """Base and size of the window from ``base`` to ``bound``, or (0, 0) if it does not lie within the memory."""
    return (base, bound - base) if base <= bound <= capacity else (0, 0)


CONFIG = NodeConfig(
    memories=Memories(gradient=160, weight=64, state=32, planes=1), programs=Programs(move_queue=True),
    compute=Compute(rows=1, activations=32, far=224), features=(Tenants(),))
#: Node with control words, with a tenant that can change only during a link reset.
SIGNALS = NodeConfig(
    memories=Memories(gradient=160, weight=64, state=32, planes=1), link=Replay(), programs=Programs(),
    features=(Tenants(),))
SET = 1 << 6


def groups(base, bound, space):
    return tuple(number // GROUP for number in window(base * GROUP, bound * GROUP, space.words))


def unit_of(config):
    unit = Unit(WindowTable(config=config))
    unit.reset()
    unit.run({"busy": np.ones(64 + 16 * WindowTable(config=config).latency, np.uint8)})  # time to clear all windows
    return unit


@pytest.mark.parametrize("config", [CONFIG, SIGNALS])
def test_against_the_model(config):
    """Random writes have the modelled effect, even if windows, tenants or spaces are invalid, or the unit is busy."""
    spaces = windowed(config)
    assert [space.name for space in windowed(CONFIG)] == ["gradients", "weights", "state_0", "activations", "far"]
    assert (windowed(CONFIG)[-1].number, windowed(CONFIG)[-1].words) == (FAR_SPACE, 224)
    server = ServerConfig(memories=ServerMemories(gradient=32, weight=32, planes=0, far=64), features=(Tenants(),))
    assert [space.name for space in windowed(server)] == ["gradients", "weights"]  # the far memory has no window
    assert asked_layout()["space"].width == 4  # wide enough for any requested space
    unit = unit_of(config)
    generator = np.random.default_rng(3)
    cycles = 6000
    inputs = {
        "tenant": np.repeat(generator.integers(0, 4, cycles // 24), 24), "busy": generator.random(cycles) < 0.3,
        "window": np.repeat(generator.choice([0, 1, 2, 3, 4, 15, 15], cycles // 4)
                            | generator.integers(0, 4, cycles // 4) << 4
                            | SET * (generator.random(cycles // 4) < 0.4), 4),
        "base": generator.integers(0, 5, cycles), "bound": generator.integers(0, 8, cycles),
        "asked": generator.integers(0, 4, cycles) | generator.choice([0, 1, 2, 3, 4, 5, 8, 15], cycles) << 2
        | (generator.random(cycles) < 0.3) << 6,
    }
    free = np.logical_not(inputs["busy"])
    if config.has_signals:
        inputs["link_reset"] = generator.random(cycles) < 0.4
        free &= inputs["link_reset"]
    trace = unit.run(inputs)
    kept = {(tenant, space.number): (0, 0) for tenant in (1, 2) for space in spaces}
    everything = {(0, space.number): (0, space.words // GROUP) for space in spaces}
    running, true, walked = 0, [], []  # running tenant; all windows in each cycle; idle cycles
    followed = 0
    for cycle in range(cycles):
        now = {name: int(values[cycle]) for name, values in inputs.items()}
        tenancy = from_int(tenancy_layout(config), int(trace["tenancy"][cycle]))
        assert tenancy["tenant"] == running, f"{cycle=}"
        asked = from_int(asked_layout(), now["asked"])
        if asked["valid"]:
            answer = from_int(found_layout(), int(trace["found"][cycle]))
            base, size = (0, 0) if asked["space"] == FAR_SPACE else (everything | kept).get(
                (asked["tenant"], asked["space"]), (0, 0))
            assert (answer["size"], answer["base"] if size else 0) == (size, base if size else 0), f"{cycle=}"
        assert trace["changed"][cycle] == (free[cycle] and now["tenant"] != running), f"{cycle=}"
        # The windows at the output are the stored windows of some cycle since the start of the last ``latency`` idle
        # cycles.
        latest = walked[-WindowTable(config=config).latency:]
        if len(latest) == WindowTable(config=config).latency:
            followed += 1
            for name, shown in tenancy["windows"].items():
                assert any((shown["size"], shown["base"] if shown["size"] else 0) == windows[name]
                           for windows in true[latest[0]:]), f"{cycle=} {name}"
        true.append({space.name: (size, base if size else 0) for space in spaces
                     for base, size in [(everything | kept).get((running, space.number), (0, 0))]})
        if not asked["valid"]:
            walked.append(cycle)
        if free[cycle]:
            running = now["tenant"]
        if not now["busy"]:
            key = now["window"] >> 4 & 3, now["window"] & 15
            if now["window"] & SET and key in kept:
                space = next(space for space in spaces if space.number == key[1])
                kept[key] = groups(now["base"], now["bound"], space)
    assert followed > cycles // 2


def test_follow_in_time():
    """The output windows follow changes of the tenant and of a window within the stated latency."""
    unit, latency = unit_of(CONFIG), WindowTable(config=CONFIG).latency
    cycles = np.arange(2 * latency + 2)
    later = cycles > latency
    weights = 1 | 1 << 4 | SET
    trace = unit.run({"tenant": np.ones(len(cycles)), "window": np.where(later, weights, 0),
                      "base": np.ones(len(cycles)), "bound": np.full(len(cycles), 2)})
    for shown, size in ((latency, 0), (2 * latency + 1, 1)):
        tenancy = from_int(tenancy_layout(CONFIG), int(trace["tenancy"][shown]))
        assert tenancy["tenant"] == 1
        assert tenancy["windows"]["weights"]["size"] == size
        assert tenancy["windows"]["gradients"]["size"] == 0


def test_no_windows_after_a_reset():
    """A reset removes all windows, so lookups find none immediately after the reset."""
    unit = unit_of(CONFIG)
    window = np.array([space << 0 | tenant << 4 | SET for tenant in (1, 2) for space in (0, 1, 2, 3, 15)])
    asked = np.array([tenant | space << 2 | 1 << 6 for tenant in (0, 1, 2, 3) for space in (0, 1, 2, 3)])
    sizes = from_int(found_layout(), 0)
    assert sizes == {"base": 0, "size": 0}

    def found():
        return [from_int(found_layout(), int(answer))["size"] for answer in unit.run({"asked": asked})["found"]]

    unit.run({"window": window, "base": np.zeros(len(window)), "bound": np.ones(len(window))})
    whole = [space.words // GROUP for space in windowed(CONFIG)[:4]]
    assert found() == whole + 8 * [1] + 4 * [0]
    unit.reset()
    assert found() == whole + 12 * [0]
    unit.run({"busy": np.ones(64)})
    assert found() == whole + 12 * [0]
    trace = unit.run({"tenant": np.ones(64)})
    assert from_int(tenancy_layout(CONFIG), int(trace["tenancy"][-1]))["windows"]["far"]["size"] == 0


def is_in(window, space):
    """Whether a window is either empty or inside its memory."""
    return (window.size == 0) | (window.base + window.size <= space.words // GROUP)


def is_same(left, right):
    """Whether two windows are equal; all empty windows are equal, regardless of their base."""
    return (left.size == right.size) & ((left.base == right.base) | (left.size == 0))


class Rows(wiring.Component):
    """Memory made of registers that a specification can inspect, with a combinational read port and a write port."""

    def __init__(self, *, shape, depth, init):
        self.rows = Array(Signal(shape, name=f"row_{n}", init=init[n] if n < len(init) else None)
                          for n in range(depth))
        address = range(depth)
        self.read = types.SimpleNamespace(addr=Signal(address), data=Signal(shape))
        self.write = types.SimpleNamespace(addr=Signal(address), data=Signal(shape), en=Signal())
        super().__init__({})

    def read_port(self, *, domain):
        assert domain == "comb"
        return self.read

    def write_port(self):
        return self.write

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.read.data.eq(self.rows[self.read.addr])
        with m.If(self.write.en):
            m.d.sync += self.rows[self.write.addr].eq(self.write.data)
        return m


class Stands(wiring.Component):
    """Specification: windows are inside their memories, and neither windows nor tenant change while a command runs.
    With control words, the tenant changes only during a link reset."""

    def __init__(self, config):
        self._config = config
        members = WindowTable(config=config).signature.members
        super().__init__({name: In(member.shape) for name, member in members.items() if member.flow is In})

    def elaborate(self, platform):
        m = Module()
        spaces, table = windowed(self._config), WindowTable(config=self._config)
        m.submodules.unit = inner = table.elaborate(platform)
        rows, turn, clearing = inner.submodules.memory.rows, table.turn, table.clearing
        m.d.comb += [getattr(table, name).eq(getattr(self, name)) for name in self.signature.members]
        windows, tenant, places = table.tenancy.windows, table.tenancy.tenant, len(rows) // 4
        before, was_busy = Signal.like(table.tenancy), Signal()
        walked = Signal(range(table.latency + 1))  # number of windows read since the node became busy
        reset = Signal(init=1)  # whether links were in reset one cycle ago
        m.d.sync += [before.eq(table.tenancy), was_busy.eq(self.busy),
                     reset.eq(self.link_reset if self._config.has_signals else 1)]
        with m.If(~self.busy | clearing):
            m.d.sync += walked.eq(0)
        with m.Elif(~self.asked.valid & (walked != table.latency)):
            m.d.sync += walked.eq(walked + 1)
        m.d.comb += [
            Assume(~ResetSignal()),
            # Once all windows have been read, the output reflects any change made just before the node became busy.
            Assert((walked != table.latency) | (before == table.tenancy)),
            Assert((~was_busy & reset) | (before.tenant == tenant)),
            *(Assert(is_in(window, space)) for n, space in enumerate(spaces)
              for window in (windows[space.name], *(rows[n + places * owner] for owner in range(4)))),
            *(Assert(rows[n + places * 3].size == 0) for n in range(places)),
            *(Assert((rows[n].base == 0) & (rows[n].size == space.words // GROUP)) for n, space in enumerate(spaces)),
            *(Assert(is_in(table.found, space) | ~self.asked.valid | (self.asked.space != space.number))
              for space in spaces),
            # Windows that have been read since the node became busy are equal to the windows in memory.
            *(Assert(((turn - 1 - n)[:len(turn) - 2] >= walked) | (windows[space.name].as_value() == Cat(
                getattr(rows[n + places * tenant], name)[:len(getattr(windows[space.name], name))]
                for name in ("base", "size")))) for n, space in enumerate(spaces)),
        ]
        # A lookup for the running tenant returns that tenant's window.
        for space in spaces:
            ours = windows[space.name]
            if space.number == FAR_SPACE:  # lookups never find a window for far memory
                m.d.comb += Assert((self.asked.space != FAR_SPACE) | (table.found.size == 0))
                continue
            with m.If((walked == table.latency) & self.asked.valid & (self.asked.tenant == tenant)
                      & (self.asked.space == space.number)):
                m.d.comb += Assert(is_same(table.found, ours))
        # Tenant 3 means no tenant and never has a window. After a reset, tenants 1 and 2 have none until all windows
        # have been cleared.
        with m.If(self.asked.valid & ((self.asked.tenant == 3) | ((self.asked.tenant != 0) & clearing))):
            m.d.comb += Assert(table.found.size == 0)
        return m


@pytest.mark.parametrize("config", [CONFIG, SIGNALS])
def test_nothing_changes_while_a_command_runs(config, monkeypatch):
    monkeypatch.setattr(windows_module, "Memory", Rows)
    formal.prove(Stands(config), depth=4)


def test_windows_in_no_memory_are_empty():
    assert window(64, 128, 256) == (64, 64)
    assert window(64, 64, 64) == (64, 0)
    assert window(128, 64, 256) == (0, 0)
    assert window(64, 288, 256) == (0, 0)
