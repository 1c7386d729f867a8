# amaranth: UnusedElaboratable=no
"""Rights of tenants at the host port, compared with a model and proven to be limited to their windows."""

import itertools

import numpy as np
from amaranth.hdl import Assert, Assume, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.config import Memories, NodeConfig
from hdl.control.protocol import EVENT_WORDS, Opcode, Status
from hdl.control.registers import PRIVILEGED, REGISTERS, TENANT_REGISTERS, register
from hdl.control.requester import PATIENCE, Requester, capacities
from hdl.features.programs.feature import Programs
from hdl.features.streaming.feature import ServerConfig, ServerMemories
from hdl.features.tenants.feature import Tenants
from hdl.group import GROUP
from sim import formal
from sim.verilated.vectors import Unit
from tests.hdl import pysim

CONFIG = NodeConfig(
    memories=Memories(gradient=160, weight=64, state=32, planes=1), programs=Programs(), features=(Tenants(),))
SERVER = ServerConfig(memories=ServerMemories(gradient=32, weight=32, planes=0, far=64), features=(Tenants(),))
MEMORY = (Opcode.READ_MEMORY, Opcode.WRITE_MEMORY)
REGISTER = (Opcode.READ_REGISTER, Opcode.WRITE_REGISTER)


def test_capacities():
    sizes = capacities(CONFIG)
    assert sizes[:4] == [160, 64, 32, 512]
    assert sizes[16:] == [len(REGISTERS) + len(TENANT_REGISTERS), 16 * CONFIG.programs.depth]


def test_rights():
    """Requests with every opcode from every tenant are permitted or denied correctly, whichever tenant is running."""
    unit = Unit(Requester(config=CONFIG))
    generator = np.random.default_rng(1)
    for who in (0, 1, 2, 3, 4, 1 << 16, (1 << 32) - 1):
        unit.reset()
        unit.run({"word": np.array([who]), "take": np.array([1])})
        rows = list(itertools.product(range(12), range(4), range(2)))
        opcode, running, busy = (np.array(column) for column in zip(*rows, strict=True))
        count = len(rows)
        offset = generator.integers(0, 1 << 32, count)
        address = generator.integers(0, len(REGISTERS) + len(TENANT_REGISTERS), count)
        address[::7] = register("CONTROL").address
        end = (EVENT_WORDS - PATIENCE + 1) % 65536  # cycles left when a tenant has waited almost too long
        left = end + generator.integers(-1, 2, count)
        base, size = generator.integers(0, 1 << 19, count), generator.integers(0, 1 << 19, count)
        trace = unit.run({"word": np.zeros(count, np.uint32), "opcode": opcode, "running": running, "busy": busy,
                          "place": offset, "address": address, "found": base | size << 20,
                          "asks": np.ones(count, np.uint8), "left": left,
                          "request": np.arange(count) % 3 < 2})
        is_tenant = who != 0
        number = who if who < 3 else 3
        memory, registers = np.isin(opcode, MEMORY), np.isin(opcode, REGISTER)
        assert (trace["asked"] == (number | offset >> 28 << 2 | 1 << 6)).all()
        assert (trace["foreign"] == (is_tenant & (running != number) & ~memory & (opcode != Opcode.PING))).all(), who
        bounded = is_tenant & (memory | registers)
        assert (trace["bounded"] == bounded).all()
        room = GROUP * size
        if not is_tenant:  # the tenant reads the trace, which is outside all windows
            room[offset >> 28 == CONFIG.memory_map["trace"].number] = CONFIG.memory_map["trace"].words
        assert (trace["room"][memory] == room[memory]).all()
        assert (trace["room"][registers] == len(REGISTERS) + (0 if is_tenant else len(TENANT_REGISTERS))).all()
        assert (trace["beyond"] == np.where(memory, Status.OUT_OF_WINDOW, Status.FOREIGN_TENANT)).all()
        moved = (offset & 0xFFFFFFF) // GROUP * GROUP + GROUP * base
        assert (trace["moved"][1:] == (moved[:-1] & 0xFFFFFFF) + offset[1:] % GROUP).all(), who
        late = address >= len(REGISTERS)
        named = np.isin(address, [register(name).address for name in PRIVILEGED])
        may = np.logical_not(late | named if is_tenant else late & (busy == 1))
        # Every third row starts a request of two cycles; the verdict of its first cycle holds for both cycles.
        assert (trace["permits"] == np.where(np.arange(count) % 3, np.repeat(may[::3], 3)[:count], 0)).all(), who
        assert (trace["over"] == (is_tenant & (np.append(0, left[:-1]) == end))).all()
        assert (trace["reason"] == (Status.FOREIGN_TENANT if is_tenant else Status.BUSY)).all()


def test_a_server_is_the_model_owners():
    """On a server, all tenants, even the one that is running, may only send PING."""
    dut, foreign = Requester(config=SERVER), {}

    async def ask(ctx):
        for who in (0, 1, 2, 3):
            ctx.set(dut.word, who)
            ctx.set(dut.take, 1)
            await ctx.tick()
            ctx.set(dut.take, 0)
            for opcode, running in itertools.product(range(12), range(4)):
                ctx.set(dut.opcode, opcode)
                ctx.set(dut.running, running)
                await ctx.delay(1e-9)
                foreign[who, opcode, running] = ctx.get(dut.foreign)

    pysim.simulate(dut, ask)
    assert foreign == {(who, opcode, running): who != 0 and opcode != Opcode.PING for who, opcode, running in foreign}
    assert len(foreign) == 4 * 12 * 4


def test_nobody_asks_before_the_first_word():
    trace = Unit(Requester(config=CONFIG)).run({"opcode": np.full(3, Opcode.PUSH_COMMAND), "running": np.arange(3)})
    assert trace["foreign"].all()


class Bounded(wiring.Component):
    """Specification: a range that passes the port's bounds check is inside the window of the requesting tenant, for
    any address, count and window in a memory."""

    def __init__(self):
        members = Requester(config=CONFIG).signature.members.items()
        super().__init__({
            **{name: In(member.shape) for name, member in members if member.flow is In}, "count": In(16)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = Requester(config=CONFIG)
        m.d.comb += [getattr(unit, name).eq(getattr(self, name))
                     for name in self.signature.members if name != "count"]
        first, asked = self.place[:28], Signal(32)
        stands, window = Signal(), Signal.like(self.found)  # whether the address is valid, and its window
        m.d.sync += stands.eq(self.asks | (stands & (self.place == asked)))
        with m.If(self.asks):
            m.d.sync += [asked.eq(self.place), window.eq(self.found)]
        memory = (self.opcode == Opcode.READ_MEMORY) | (self.opcode == Opcode.WRITE_MEMORY)
        m.d.comb += [
            Assume(~ResetSignal()), Assume(self.found.base + self.found.size <= 1 << 19),
            Assert(window.base + window.size <= 1 << 19),
            Assert(~stands | (self.place != asked) | (unit.moved == (first + window.base * GROUP)[:28])),
            Assert(unit.bounded | ~memory | (unit.asked.tenant == 0)),
            Assert((unit.asked.tenant == 0) | unit.foreign | memory | (unit.asked.tenant == self.running)
                   | (self.opcode == Opcode.PING)),
        ]
        # The base is added in the same cycle in which the address is compared.
        trace = (unit.asked.tenant == 0) & (unit.asked.space == CONFIG.memory_map["trace"].number)
        with m.If(self.asks & memory & ~trace):
            m.d.comb += Assert(unit.room == self.found.size * GROUP)
        with m.If(stands & (self.place == asked) & (first + self.count <= window.size * GROUP)):
            m.d.comb += [
                Assert(unit.moved >= window.base * GROUP),
                Assert(unit.moved + self.count <= (window.base + window.size) * GROUP),
            ]
        return m


def test_accesses_are_in_the_window():
    formal.prove(Bounded(), depth=2)
