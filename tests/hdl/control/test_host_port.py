"""The host port against a model of the wire protocol: good packets, malformed ones, stalls on all sides."""

import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge, with_timeout

from hdl.config import NodeConfig
from hdl.control.host_port import HostPort
from hdl.control.protocol import (
    DESCRIPTOR_WORDS,
    EVENT_WORDS,
    PING_WORDS,
    Opcode,
    Status,
    access_layout,
    descriptor_layout,
)
from hdl.control.registers import REGISTERS
from hdl.streams.stream import word_layout
from sim import regression, streams
from sim.streams import Monitor, Sink, Source, cycles, stalls, start

CONFIG = NodeConfig(lanes=2, gradient_words=320, weight_words=64, state_words=32, state_planes=2)
CAPACITIES = {0: 320, 1: 64, 2: 32, 3: 32}
QUEUE_ROOM = 5
EVENTS = 6


def pattern(seed):
    """Initial content of a register or memory word."""
    return seed * 0x9E3779B1 % (1 << 32)


class State:
    """State of a node behind its host port: registers, memories and queues."""

    def __init__(self, generator):
        self.registers = {entry.address: pattern(entry.address) for entry in REGISTERS}
        self.memory = {space: [pattern(space << 16 | n) for n in range(size)] for space, size in CAPACITIES.items()}
        self.commands = []
        self.events = [generator.getrandbits(128) for _ in range(EVENTS)]


class Model(State):
    """Model of the wire protocol of docs/protocol.md: the response to each packet, and its changes of state."""

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
                return Status.OK, []
            case Opcode.POP_EVENT:
                if count != EVENT_WORDS or len(body) != 1:
                    return Status.BAD_LENGTH, []
                if not self.events:
                    return Status.EMPTY, []
                event = self.events.pop(0)
                return Status.OK, [event >> 32 * n & 0xFFFFFFFF for n in range(EVENT_WORDS)]
        return Status.UNKNOWN_OPCODE, []

    def _place(self, registers, address):
        if registers:
            return self.registers, address
        return self.memory.get(address >> 28, []), address & (1 << 28) - 1

    def _write(self, registers, count, body):
        if count == 0 or len(body) < 2:
            return Status.BAD_LENGTH, [0]
        target, first = self._place(registers, body[0])
        if first + count > len(target):
            return Status.BAD_ADDRESS, [0]
        written = 0
        for value in body[1:count + 1]:
            if registers and not REGISTERS[first + written].access.writable:
                return Status.READ_ONLY, [written]
            target[first + written] = value
            written += 1
        return (Status.OK if len(body) == count + 1 else Status.BAD_LENGTH), [written]


class Node(State):
    """Node around the host port, which serves its buses cycle by cycle, with stalls."""

    def __init__(self, dut, generator, kind, seed):
        super().__init__(generator)
        self.dut = dut
        # Some buses stay unused for long, so that only the limit on the wait for a response detects a hang.
        streams.PATIENCE = 10_000_000

        def some(n):
            return stalls(kind, seed=100 * seed + n)
        self.reads = Sink(dut, "memory_read__request", access_layout(), stalls=some(1))
        self.read_data = Source(dut, "memory_read__data", word_layout(), stalls=some(2))
        self.writes = Sink(dut, "memory_write__request", access_layout(), stalls=some(3))
        self.write_data = Sink(dut, "memory_write__data", word_layout(), stalls=some(4))
        self.command_sink = Sink(dut, "commands", descriptor_layout(), stalls=some(5))
        self.bus_stalls = some(6)
        self.noise = random.Random(seed)
        self.event_source = Source(dut, "events", 32)
        self.monitors = {
            name: Monitor(dut, name, layout) for name, layout in (
                ("i", word_layout()), ("o", word_layout()), ("memory_read__request", access_layout()),
                ("memory_read__data", word_layout()), ("memory_write__request", access_layout()),
                ("memory_write__data", word_layout()), ("commands", descriptor_layout()), ("events", 32),
            )
        }
        for task in (self._serve_registers, self._serve_reads, self._serve_writes, self._serve_commands):
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
        assert access["address"] + access["count"] <= CAPACITIES[access["space"]]
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


def random_packet(generator):
    """Random request, half of the time malformed."""
    opcode = generator.choice(list(Opcode))
    space = generator.randrange(4)
    count = 1
    body = []
    match opcode:
        case Opcode.PING:
            count = generator.choice([0, 1, 2, generator.randint(3, PING_WORDS + 1)])
            body = words(generator, count)
        case Opcode.READ_REGISTER:
            first = generator.randrange(len(REGISTERS))
            count = up_to(generator, len(REGISTERS) - first)
            body = [first]
        case Opcode.WRITE_REGISTER:
            first = generator.randrange(len(REGISTERS))
            count = generator.randint(1, min(4, len(REGISTERS) - first))
            body = [first, *words(generator, count)]
        case Opcode.READ_MEMORY | Opcode.WRITE_MEMORY:
            first = generator.randrange(CAPACITIES[space])
            count = up_to(generator, CAPACITIES[space] - first)
            body = [space << 28 | first]
            if opcode == Opcode.WRITE_MEMORY:
                body += words(generator, count)
        case Opcode.PUSH_COMMAND:
            count = DESCRIPTOR_WORDS
            body = words(generator, count)
        case Opcode.POP_EVENT:
            count = EVENT_WORDS
            body = [generator.randint(0, 40)]
    if generator.random() < 0.5:
        match generator.randrange(6):
            case 0:
                body = body[:generator.randrange(len(body) + 1)]
            case 1:
                body = [*body, *words(generator, generator.randint(1, 9))]
            case 2:
                count = generator.choice([0, count + 1, max(0, count - 1), 0xFFFF, generator.randrange(1 << 16)])
            case 3:
                opcode = generator.randrange(256)
            case 4 if body:
                body[0] = generator.choice([body[0] ^ 1 << generator.randrange(32), generator.getrandbits(32)])
            case 5:
                return words(generator, generator.randint(1, 20))
    if opcode == Opcode.POP_EVENT:
        body[:1] = [word & 63 for word in body[:1]]
    return [opcode << 24 | generator.randrange(256) << 16 | count, *body]


def up_to(generator, room):
    """Random count, often all of the room, and sometimes one more."""
    return generator.choice([generator.randint(1, room)] * 4 + [room] * 2 + [room + 1])


def words(generator, count):
    return [generator.getrandbits(32) for _ in range(count)]


def beats(packet):
    return [{"data": word, "last": n == len(packet) - 1} for n, word in enumerate(packet)]


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def answers_as_the_model_does(dut):
    p = regression.parameters()
    generator = random.Random(p["seed"])
    await start(dut)
    node = Node(dut, random.Random(p["seed"]), p["bus"], p["seed"])
    model = Model(random.Random(p["seed"]))
    source = Source(dut, "i", word_layout(), stalls=stalls(p["source"], seed=p["seed"]))
    sink = Sink(dut, "o", word_layout(), stalls=stalls(p["sink"], seed=p["seed"] + 1))
    # A count that is wrong for the operation, followed by as many words.
    packets = [[opcode << 24 | count, *words(generator, count)]
               for opcode in (Opcode.PUSH_COMMAND, Opcode.POP_EVENT) for count in (1, 3, 4, 5, 15, 17)]
    packets += [random_packet(generator) for _ in range(p["packets"])]

    async def feed():
        for packet in packets:
            await source.send(beats(packet))

    cocotb.start_soon(feed())
    cocotb.start_soon(node.event_source.send(event >> 32 * n & 0xFFFFFFFF for event in node.events for n in range(4)))
    statuses = set()
    for n, packet in enumerate(packets):
        response = [beat["data"] for beat in await with_timeout(sink.packet(), 40, "us")]
        expected = model.answer(packet)
        assert response == expected, f"packet {n} of seed {p['seed']}: {[hex(word) for word in packet]}"
        statuses.add((packet[0] >> 24, response[1]))
    await cycles(dut, 20)
    assert node.registers == model.registers
    assert node.memory == model.memory
    assert node.commands == model.commands
    assert len(node.monitors["events"].beats) == 4 * (EVENTS - len(model.events))
    for status in Status:
        assert status in {reached for _, reached in statuses}


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def memory_bursts_have_no_bubble(dut):
    count = CAPACITIES[0]
    await start(dut)
    node = Node(dut, random.Random(1), "none", 1)
    source = Source(dut, "i", word_layout())
    sink = Sink(dut, "o", word_layout())
    payload = words(random.Random(2), count)
    write = [Opcode.WRITE_MEMORY << 24 | count, 0, *payload]
    cocotb.start_soon(source.send([*beats(write), *beats([Opcode.READ_MEMORY << 24 | count, 0])]))
    assert [beat["data"] for beat in await sink.packet()][1:] == [Status.OK, count]
    assert [beat["data"] for beat in await sink.packet()][2:] == payload
    for name in ("memory_write__data", "memory_read__data"):
        times = node.monitors[name].cycles
        assert times == list(range(times[0], times[0] + count))
    asked = node.monitors["i"].cycles
    assert node.monitors["memory_write__request"].cycles == [asked[0] + HostPort.latency]
    assert node.monitors["memory_write__data"].cycles[0] == asked[0] + HostPort.latency + 1
    answered = node.monitors["o"].cycles[-count:]
    assert answered == list(range(answered[0], answered[0] + count))


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def waits_for_events(dut):
    await start(dut)
    node = Node(dut, random.Random(1), "none", 1)
    source = Source(dut, "i", word_layout())
    sink = Sink(dut, "o", word_layout())
    took = []
    for wait in (0, 1, 100):
        cocotb.start_soon(source.send(beats([Opcode.POP_EVENT << 24 | EVENT_WORDS, wait])))
        assert [beat["data"] for beat in await sink.packet()][1] == Status.EMPTY
        took.append(node.monitors["o"].cycles[-1] - node.monitors["i"].cycles[-1])
    assert [cycles - took[0] for cycles in took] == [0, 1, 100]
    cocotb.start_soon(source.send(beats([Opcode.POP_EVENT << 24 | EVENT_WORDS, 0xFFFFFFFF])))
    await cycles(dut, 300)
    cocotb.start_soon(node.event_source.send([0x11111111, 0x22222222, 0x33333333, 0x44444444]))
    assert [beat["data"] for beat in await sink.packet()][1:] == [
        Status.OK, 0x11111111, 0x22222222, 0x33333333, 0x44444444]


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def reset_at_any_word_of_a_packet(dut):
    await start(dut)
    for port in ("memory_read__request", "memory_write__request", "memory_write__data", "commands"):
        getattr(dut, f"{port}__ready").value = 1
    dut.memory_read__data__valid.value = 1
    dut.bus__writable.value = dut.bus__done.value = 1
    source = Source(dut, "i", word_layout())
    ping = [Opcode.PING << 24 | 0x770003, 5, 6, 7]
    requests = [
        ping, [Opcode.WRITE_MEMORY << 24 | 3, 0, 1, 2, 3], [Opcode.READ_MEMORY << 24 | 4, 0],
        [Opcode.READ_REGISTER << 24 | 3, 0], [Opcode.WRITE_REGISTER << 24 | 1, 10, 1],
        [Opcode.PUSH_COMMAND << 24 | DESCRIPTOR_WORDS, *range(DESCRIPTOR_WORDS)], [99 << 24, 1, 2, 3],
    ]
    dut.o__ready.value = 1
    for request in requests:
        for length in range(1, len(request) + 1):
            await source.send(beats(request)[:length])
            await cycles(dut, length)
            dut.rst.value = 1
            await cycles(dut, 2)
            dut.rst.value = 0
            sink = Sink(dut, "o", word_layout())
            sending = cocotb.start_soon(source.send(beats(ping)))
            response = [beat["data"] for beat in await sink.packet()]
            await sending
            assert response == [(Opcode.PING | 0x80) << 24 | 0x770003, Status.OK, 5, 6, 7], (request, length)
            dut.o__ready.value = 1


@pytest.mark.parametrize(("source", "sink", "bus", "seed"), [
    ("none", "none", "none", 1),
    ("geometric", "geometric", "geometric", 2),
    ("none", "freeze", "alternating", 3),
    ("alternating", "none", "geometric", 4),
    ("freeze", "alternating", "none", 5),
])
def test_against_the_model(source, sink, bus, seed):
    regression.run(HostPort(config=CONFIG), module=__name__, testcase="answers_as_the_model_does", parameters={
        "source": source, "sink": sink, "bus": bus, "seed": seed, "packets": 400})


def test_timing_and_reset():
    regression.run(HostPort(config=CONFIG), module=__name__, testcase=[
        "memory_bursts_have_no_bubble", "waits_for_events", "reset_at_any_word_of_a_packet"])
