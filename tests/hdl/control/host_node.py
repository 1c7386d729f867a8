"""Test bench with a host port and a model of the node around it, and a model of the wire protocol."""

import random

import cocotb
from cocotb.triggers import FallingEdge, RisingEdge

from hdl.config import Memories, NodeConfig
from hdl.control.program_layouts import program_status_layout, program_word_layout
from hdl.control.protocol import (
    DESCRIPTOR_WORDS,
    EVENT_WORDS,
    PING_WORDS,
    RUN_WORDS,
    Opcode,
    Status,
    access_layout,
    descriptor_layout,
)
from hdl.control.registers import REGISTERS
from hdl.features.programs.feature import Programs
from hdl.memory_map import TRACE_WORDS
from hdl.streams.stream import word_layout
from sim import streams
from sim.payload import from_int, to_int
from sim.streams import Monitor, Sink, Source, stalls

CONFIG = NodeConfig(lanes=2, memories=Memories(gradient=320, weight=64, state=32, planes=2))
PROGRAMS = CONFIG.replace(programs=Programs(depth=6))
CAPACITIES = {0: 320, 1: 64, 2: 32, 3: 32}
TRACE = 4  # number of the trace's address space, in nodes with programs
QUEUE_ROOM = 5
EVENTS = 6


def pattern(seed):
    """Initial value of a register or a memory word, derived from its address."""
    return seed * 0x9E3779B1 % (1 << 32)


class State:
    """The node's state that the host port accesses: registers, memories and queues."""

    def __init__(self, generator):
        self.registers = {entry.address: pattern(entry.address) for entry in REGISTERS}
        self.memory = {space: [pattern(space << 16 | n) for n in range(size)] for space, size in CAPACITIES.items()}
        self.commands = []
        self.loaded = []  # words of the programs that have been loaded
        self.runs = []
        self.lengths, self.model, self.running = [0, 0], 0, False
        self.events = [generator.getrandbits(128) for _ in range(EVENTS)]


    def load(self, word, *, first=False):
        """Accept a program word. The program length is counted in whole commands."""
        self.loaded.append((word, first))
        if first:
            self.queue, self.words, self.model = word >> 16 & 0xFF, 0, word >> 24
            self.lengths[self.queue] = word & 0xFFFF
        else:
            self.words += 1
            self.lengths[self.queue] += self.words % DESCRIPTOR_WORDS == 0

    def run(self, bits):
        """Record the start of a run; the run lasts until the next command is pushed."""
        self.runs.append(bits)
        self.running = bits & 0xFFFF != 0


class Model(State):
    """Model of the wire protocol (docs/protocol.md): responses to packets, and resulting state changes."""

    def __init__(self, generator, config):
        super().__init__(generator)
        self._config = config

    def answer(self, packet):
        header, *body = packet
        opcode, count = header >> 24, header & 0xFFFF
        status, payload = self._serve(opcode, count, body)
        return [(opcode | 0x80) << 24 | header & 0xFF0000 | len(payload), status, *payload]

    def _serve(self, opcode, count, body):
        match opcode:
            case Opcode.PING:
                if count > PING_WORDS or len(body) != count:
                    return Status.BAD_LENGTH, []
                return Status.OK, body
            case Opcode.READ_REGISTER | Opcode.READ_MEMORY:
                if count == 0 or len(body) != 1:
                    return Status.BAD_LENGTH, []
                source, first = self._place(opcode == Opcode.READ_REGISTER, body[0])
                if first + count > len(source):
                    return Status.BAD_ADDRESS, []
                return Status.OK, [source[n] for n in range(first, first + count)]
            case Opcode.WRITE_REGISTER | Opcode.WRITE_MEMORY:
                return self._write(opcode == Opcode.WRITE_REGISTER, count, body)
            case Opcode.PUSH_COMMAND:
                if count != DESCRIPTOR_WORDS or len(body) != count:
                    return Status.BAD_LENGTH, []
                if len(self.commands) == QUEUE_ROOM:
                    return Status.QUEUE_FULL, []
                self.commands.append(sum(word << 32 * n for n, word in enumerate(body)))
                self.running = False
                return Status.OK, []
            case Opcode.POP_EVENT:
                if count != EVENT_WORDS or len(body) != 1:
                    return Status.BAD_LENGTH, []
                if not self.events:
                    return Status.EMPTY, []
                event = self.events.pop(0)
                return Status.OK, [event >> 32 * n & 0xFFFFFFFF for n in range(EVENT_WORDS)]
            case Opcode.LOAD_PROGRAM if self._config.queues > 1:
                return self._load(count, body)
            case Opcode.RUN if self._config.queues > 1:
                return self._run(count, body), []
        return Status.UNKNOWN_OPCODE, []

    def _load(self, count, body):
        if count % DESCRIPTOR_WORDS or not body or (len(body) == 1) != (count == 0):
            return Status.BAD_LENGTH, [0]
        slot, queue = body[0] & 0xFFFF, body[0] >> 16 & 0xFF
        if queue >= self._config.queues:
            return Status.BAD_ADDRESS, [0]
        if slot + count // DESCRIPTOR_WORDS > self._config.programs.depth:
            return Status.TOO_LONG, [0]
        if self.running:
            return Status.BUSY, [0]
        self.load(body[0], first=True)
        for word in body[1:count + 1]:
            self.load(word)
        return Status.OK if len(body) == count + 1 else Status.BAD_LENGTH, [len(body[1:count + 1])]

    def _run(self, count, body):
        if count != RUN_WORDS or len(body) < 2:
            return Status.BAD_LENGTH
        if self.running:
            return Status.BUSY
        if not any(self.lengths) or self.model != body[0] >> 16 & 0xFF:
            return Status.NOT_LOADED
        if len(body) != RUN_WORDS:
            return Status.BAD_LENGTH
        self.run(body[0] | body[1] << 32 | body[2] << 64)
        return Status.OK

    def _place(self, registers, address):
        if registers:
            return self.registers, address
        if address >> 28 == TRACE and self._config.queues > 1:
            return [pattern(TRACE << 16 | n) for n in range(TRACE_WORDS)], address & (1 << 28) - 1
        return self.memory.get(address >> 28, []), address & (1 << 28) - 1

    def _write(self, registers, count, body):
        if count == 0 or len(body) < 2:
            return Status.BAD_LENGTH, [0]
        target, first = self._place(registers, body[0])
        if first + count > len(target):
            return Status.BAD_ADDRESS, [0]
        if not registers and body[0] >> 28 == TRACE:
            return Status.READ_ONLY, [0]
        written = 0
        for value in body[1:count + 1]:
            if registers and not REGISTERS[first + written].access.writable:
                return Status.READ_ONLY, [written]
            target[first + written] = value
            written += 1
        return (Status.OK if len(body) == count + 1 else Status.BAD_LENGTH), [written]


class Node(State):
    """Model of the node around the host port, which serves the port's buses cycle by cycle, with stalls."""

    def __init__(self, dut, generator, kind, seed, *, programs=False):
        super().__init__(generator)
        self.dut = dut
        if programs:
            self.memory[TRACE] = [pattern(TRACE << 16 | n) for n in range(TRACE_WORDS)]
        # Some buses are unused for a long time, so a hang shows only as a response that exceeds the time limit.
        streams.PATIENCE = 10_000_000

        def some(n):
            return stalls(kind, seed=100 * seed + n)
        self.reads = Sink(dut, "memory_read__request", access_layout(), stalls=some(1))
        self.read_data = Source(dut, "memory_read__data", word_layout(), stalls=some(2))
        self.writes = Sink(dut, "memory_write__request", access_layout(), stalls=some(3))
        self.write_data = Sink(dut, "memory_write__data", word_layout(), stalls=some(4))
        self.command_sink = Sink(dut, "commands", descriptor_layout(), stalls=some(5))
        self.bus_stalls = some(6)
        self.registers_read = []  # addresses of the registers that were read, in order
        self.noise = random.Random(seed)
        self.event_source = Source(dut, "events", 32)
        self.monitors = {
            name: Monitor(dut, name, layout) for name, layout in (
                ("i", word_layout()), ("o", word_layout()), ("memory_read__request", access_layout()),
                ("memory_read__data", word_layout()), ("memory_write__request", access_layout()),
                ("memory_write__data", word_layout()), ("commands", descriptor_layout()), ("events", 32),
            )
        }
        tasks = [self._serve_registers, self._serve_reads, self._serve_writes, self._serve_commands]
        for task in [*tasks, *([self._serve_programs] if programs else [])]:
            cocotb.start_soon(task())

    async def _serve_registers(self):
        edge = RisingEdge(self.dut.clk)
        bus = {name: getattr(self.dut, f"bus__{name}") for name in ("address", "write", "write_data")}
        while True:
            await edge
            self.dut.bus__done.value = 0
            self.dut.bus__writable.value = self.noise.getrandbits(1)
            if not self.dut.bus__request.value:
                continue
            request = {name: int(port.value) for name, port in bus.items()}
            while not next(self.bus_stalls):
                await edge
                assert self.dut.bus__request.value
                assert request == {name: int(port.value) for name, port in bus.items()}
            address = request["address"]
            writable = address in self.registers and REGISTERS[address].access.writable
            if request["write"]:
                self.dut.bus__read_data.value = self.noise.getrandbits(32)
                if writable:
                    self.registers[address] = request["write_data"]
            else:
                self.registers_read.append(address)
                self.dut.bus__read_data.value = self.registers.get(address, 0)
            self.dut.bus__done.value = 1
            self.dut.bus__writable.value = writable
            await edge
            assert not self.dut.bus__request.value, "A request that is done must not be made again"
            self.dut.bus__done.value = 0

    async def _serve_reads(self):
        while True:
            access = await self._access(self.reads)
            memory = self.memory[access["space"]]
            await self.read_data.send({"data": memory[access["address"] + n], "last": 0}
                                      for n in range(access["count"]))

    async def _serve_writes(self):
        while True:
            access = await self._access(self.writes)
            beats = await self.write_data.packet()
            assert len(beats) <= access["count"]
            first = access["address"]
            self.memory[access["space"]][first:first + len(beats)] = [beat["data"] for beat in beats]

    @staticmethod
    async def _access(sink):
        (access,) = await sink.receive(1)
        assert access["count"] > 0
        assert access["address"] + access["count"] <= {**CAPACITIES, TRACE: TRACE_WORDS}[access["space"]]
        return access

    async def _serve_commands(self):
        command = []
        while True:
            (beat,) = await self.command_sink.receive(1)
            command = [*([] if beat["first"] else command), beat["data"]]
            if beat["last"]:
                assert len(command) == DESCRIPTOR_WORDS
                self.commands.append(sum(word << 32 * n for n, word in enumerate(command)))
                self.dut.commands_full.value = len(self.commands) == QUEUE_ROOM
                self.running = False

    async def _serve_programs(self):
        self.dut.program__ready.value = self.dut.run__ready.value = 1
        edge = FallingEdge(self.dut.clk)
        while True:
            self.dut.program_status.value = to_int(program_status_layout(), {
                "running": self.running, "stopped": self.noise.getrandbits(1), "loaded": any(self.lengths),
                "reserved": 0, "model": self.model, "passes": self.noise.getrandbits(16)})
            await edge
            if self.dut.program__valid.value:
                word = from_int(program_word_layout(), int(self.dut.program__payload.value))
                self.load(word["data"], first=bool(word["first"]))
            if self.dut.run__valid.value:
                assert not self.running
                self.run(int(self.dut.run__payload.value))
