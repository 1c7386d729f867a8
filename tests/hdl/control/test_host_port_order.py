# amaranth: UnusedElaboratable=no
"""Prove for a node with tenants that no host request reaches the node before it has been checked."""

import pytest
from amaranth.hdl import Array, Assert, Assume, Cat, Module, Mux, ResetSignal, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In

from hdl.config import Memories, NodeConfig
from hdl.control import host_port
from hdl.control.host_port import HostPort
from hdl.control.program_layouts import program_status_layout
from hdl.control.protocol import Opcode, Status
from hdl.control.registers import PRIVILEGED, REGISTERS, register
from hdl.control.requester import capacities
from hdl.control.tenancy import MAX_TENANTS, found_layout
from hdl.features.programs.feature import Programs
from hdl.features.tenants.feature import Tenants
from hdl.group import GROUP
from hdl.streams.stream import word_layout
from sim import formal

CONFIG = NodeConfig(
    memories=Memories(gradient=160, weight=64, state=32, planes=1), programs=Programs(depth=4, banks=2),
    features=(Tenants(),))

#: States that follow the last request to the node, except states that send the payload of the answer.
ANSWER = "Drain", "Header", "Status", "Payload"
#: States that access memory after the address check, each with the host request that it serves.
MEMORY = {"Read-Memory": Opcode.READ_MEMORY, "Write-Memory": Opcode.WRITE_MEMORY, "Write-Words": Opcode.WRITE_MEMORY}
#: Requests that have an address.
PLACED = (Opcode.READ_REGISTER, Opcode.WRITE_REGISTER, Opcode.READ_MEMORY, Opcode.WRITE_MEMORY, Opcode.POP_EVENT,
          Opcode.LOAD_PROGRAM, Opcode.RUN, Opcode.EDIT)
#: Other states that serve a request, with the opcodes allowed in each.
OTHERS = {"Ping": [Opcode.PING], "Write-Registers": [Opcode.WRITE_REGISTER], "Event": [Opcode.POP_EVENT],
          "Descriptor": [Opcode.PUSH_COMMAND],
          "Load-Header": [Opcode.LOAD_PROGRAM], "Load-Words": [Opcode.LOAD_PROGRAM], "Run": [Opcode.RUN, Opcode.EDIT],
          "Judge": [Opcode.RUN, Opcode.EDIT], "Start": [Opcode.RUN]}


class Order(wiring.Component):
    """Specification: requests to the node result from a single packet and are permitted for the tenant named in its
    first word.

    Packets, node responses and stalls are arbitrary. A tenant's window and the executed tenant are constant during a
    request, since only the privileged host can change them, in requests of its own.
    """

    def __init__(self):
        super().__init__({
            "i": In(stream.Signature(word_layout())), "answers": In(1), "memory_ready": In(2), "written": In(1),
            "running": In(2), "busy": In(1), "found": In(found_layout()), "commands_full": In(1),
            "commands_ready": In(1), "events": In(stream.Signature(32)), "data": In(stream.Signature(word_layout())),
            "done": In(1), "writable": In(1), "program_status": In(program_status_layout()), "verdict": In(Status),
            "loaded": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        port = HostPort(config=CONFIG)
        m.submodules.port = inner = port.elaborate(platform)
        requester, word = inner.submodules.requester, inner.submodules.requests.o
        state, size = port.states.ongoing, port.size
        for name in ("running", "busy", "found", "commands_full", "program_status"):
            m.d.comb += getattr(port, name).eq(getattr(self, name))
        m.d.comb += [
            Assume(~ResetSignal()),
            Assume(formal.holds(m, "i", self.i)), Assume(formal.holds(m, "events", self.events)),
            port.i.valid.eq(self.i.valid), port.i.payload.eq(self.i.payload), self.i.ready.eq(port.i.ready),
            port.o.ready.eq(self.answers), port.commands.ready.eq(self.commands_ready),
            port.memory_read.request.ready.eq(self.memory_ready[0]),
            port.memory_write.request.ready.eq(self.memory_ready[1]), port.memory_write.data.ready.eq(self.written),
            port.memory_read.data.valid.eq(self.data.valid), port.memory_read.data.payload.eq(self.data.payload),
            port.events.valid.eq(self.events.valid), port.events.payload.eq(self.events.payload),
            self.events.ready.eq(port.events.ready),
            port.bus.done.eq(self.done), port.bus.writable.eq(self.writable),
            port.program.ready.eq(1), port.run.ready.eq(1),
            port.banks.verdict.eq(self.verdict), port.banks.loaded.eq(self.loaded),
        ]

        # Words of the packet, stored as they are accepted.
        take = word.valid & word.ready
        index = Signal(3)  # index of the next word in the packet, saturating at 4
        who, head, base = Signal(2, init=MAX_TENANTS), Signal(32), Signal(32)
        with m.If(take):
            m.d.sync += index.eq(Mux(word.payload.last, 0, Mux(index == 4, 4, index + 1)))
            with m.Switch(index):
                with m.Case(0):
                    m.d.sync += [who.eq(Mux(word.payload.data < MAX_TENANTS, word.payload.data, MAX_TENANTS)),
                                 head.eq(word.payload.data), base.eq(0)]
                with m.Case(1):
                    m.d.sync += head.eq(word.payload.data)
                with m.Case(2):
                    m.d.sync += base.eq(word.payload.data)
        opcode, count = head[24:], head[:16]
        stands, asked = Signal(), Signal()  # a request is being served; a register access is pending
        now = Cat(self.running, self.found.as_value())
        before = Signal.like(now)
        m.d.comb += stands.eq(~state("Tenant") & ~state("Opcode") & (who != 0))
        m.d.sync += [asked.eq(port.bus.request), before.eq(now)]
        was_busy, place_before = Signal(), Signal.like(port.bus.address)  # state in the first request cycle
        with m.If(~asked):
            m.d.sync += [was_busy.eq(self.busy), place_before.eq(port.bus.address)]
        m.d.comb += [
            Assume(~stands | (before == now)),
            Assume(self.found.base + self.found.size <= 1 << 19), Assume(~self.done | asked),
        ]

        # Memory range of the request.
        is_tenant = who != 0
        memory = (opcode == Opcode.READ_MEMORY) | (opcode == Opcode.WRITE_MEMORY)
        may = ~is_tenant | (who == self.running)
        rooms = Array([*capacities(CONFIG)[:16]])
        first, space = base[:28], base[28:]
        trace = ~is_tenant & (space == CONFIG.memory_map["trace"].number)
        room = Mux(is_tenant, self.found.size * GROUP, rooms[space])
        # The privileged host's window is the whole memory, except for the trace.
        m.d.comb += Assume(is_tenant | ((self.found.base == 0) & (trace | (self.found.size * GROUP == room))))
        inside = first + count <= room
        moved = (first + self.found.base * GROUP)[:28]
        access = port.memory_read.request.payload
        is_right = memory & inside & (access.address == moved) & (access.space == space) & (access.count == count)

        # Requests that the port makes to the node.
        asks_memory = port.memory_read.request.valid | port.memory_write.request.valid | port.memory_write.data.valid
        asks_node = Cat(port.commands.valid, port.program.valid, port.run.valid, port.banks.ask, port.banks.turn,
                        port.events.ready, port.bus.request).any()
        named = Cat(port.bus.address == register(name).address for name in PRIVILEGED).any()
        late = port.bus.address >= len(REGISTERS)
        m.d.comb += [
            Assert(~asks_memory | is_right),
            Assert(~port.memory_read.request.valid | (opcode == Opcode.READ_MEMORY)),
            Assert(~(port.memory_write.request.valid | port.memory_write.data.valid)
                   | (opcode == Opcode.WRITE_MEMORY)),
            Assert(~asks_node | may),
            Assert(~(port.bus.request & port.bus.write & is_tenant) | (~late & ~named)),
            Assert(~(port.bus.request & port.bus.write & late) | is_tenant | ~was_busy),
            Assert(~(asked & port.bus.request) | (port.bus.address == place_before)),
        ]

        # Relations between packet and state that are needed for the induction.
        known = (requester.opcode == opcode) & (access.count == count)
        written = Cat(opcode == allowed for allowed in (
            Opcode.WRITE_MEMORY, Opcode.WRITE_REGISTER, Opcode.LOAD_PROGRAM)).any()
        counted = written | (opcode == Opcode.PING) | (opcode == Opcode.READ_MEMORY)
        at = {name: state(name) for name in port.states.encoding}
        m.d.comb += [
            Assert(requester.asked.tenant == who), Assert(index <= 4),
            Assert(~at["Tenant"] | (index == 0)), Assert(~at["Opcode"] | (index == 1)),
            Assert(requester.take == (take & (index == 0))),
            Assert(at["Tenant"] | at["Opcode"] | known),
            Assert(~at["Address"] | (index == 2)),
            Assert(at["Tenant"] | (port.ended == (index == 0))),
            *(Assert(~at[name] | port.ended) for name in (*ANSWER[1:], "Event", "Read-Memory", "Judge", "Start")),
            *(Assert(~at[name] | ~port.ended) for name in (
                "Ping", "Descriptor", "Write-Registers", "Write-Memory", "Write-Words", "Load-Words", "Run")),
            *(Assert(~at[name] | (index >= 3)) for name in (
                "Write-Registers", "Write-Memory", "Write-Words", "Load-Words", "Run")),
            Assert(~at["Load-Header"] | (port.ended == (count == 0))),
            Assert(at["Tenant"] | at["Opcode"] | (index != 1)),
            *(Assert(~at[name] | (index == 3) | (index == 0)) for name in ("Range", "Compare", "Access")),
            *(Assert(~at[name] | (requester.place == base)) for name in ("Range", "Compare", "Access", *MEMORY)),
            *(Assert(~at[name] | ~memory | (access.address == moved)) for name in ("Compare", "Access")),
            Assert(requester.asked.valid == at["Range"]),
            *(Assert(~at[name] | is_right & (opcode == code)) for name, code in MEMORY.items()),
            *(Assert(~at[name] | ((may | (name == "Ping")) & Cat(opcode == allowed for allowed in ones).any()))
              for name, ones in OTHERS.items()),
            *(Assert(~at[name] | ((may | memory) & Cat(opcode == allowed for allowed in PLACED).any()))
              for name in ("Address", "Range", "Compare", "Access")),
            *(Assert(~at[name] | (size == 0) | may | counted) for name in ANSWER),
            *(Assert(~at[name] | (size == 0) | ~is_tenant | (opcode != Opcode.READ_REGISTER)
                     | (base + count <= len(REGISTERS))) for name in ANSWER),
            Assert(~at["Payload"] | (size != 0)), Assert(~at["Dispatch"] | (size == 0)),
            *(Assert(~ongoing | (size == 0) | written) for name, ongoing in at.items()
              if name not in ("Tenant", "Opcode", *ANSWER[1:])),
        ]
        return m


@pytest.fixture
def small_echo(monkeypatch):
    """Shrink the PING buffer, since solvers treat memories as registers."""
    monkeypatch.setattr(host_port, "PING_WORDS", 2)


def test_nothing_is_asked_before_its_check(small_echo):
    formal.prove(Order(), depth=6)
