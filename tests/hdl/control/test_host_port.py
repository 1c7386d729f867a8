"""Compare the host port with a model of the wire protocol: valid and malformed packets, with stalls."""

import random

import cocotb
import pytest
from cocotb.triggers import with_timeout

from hdl.control.host_port import HostPort
from hdl.control.protocol import DESCRIPTOR_WORDS, EVENT_WORDS, PING_WORDS, RUN_WORDS, Opcode, Status
from hdl.control.registers import REGISTERS
from hdl.memory_map import TRACE_WORDS
from hdl.streams.stream import word_layout
from sim import regression
from sim.streams import Sink, Source, cycles, stalls, start
from tests.hdl.control.host_node import CAPACITIES, CONFIG, EVENTS, PROGRAMS, TRACE, Model, Node
from tests.hdl.ring.packets import framed


def random_packet(generator, programs):
    """Draw a request, which is malformed half of the time."""
    opcode = generator.choice(list(Opcode))
    space = generator.randrange(4)
    count = 1
    if programs and opcode in (Opcode.READ_MEMORY, Opcode.WRITE_MEMORY) and generator.random() < 0.1:
        space = TRACE
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
            capacity = CAPACITIES.get(space, TRACE_WORDS)
            first = generator.randrange(capacity)
            count = up_to(generator, capacity - first)
            body = [space << 28 | first]
            if opcode == Opcode.WRITE_MEMORY:
                body += words(generator, count)
        case Opcode.PUSH_COMMAND:
            count = DESCRIPTOR_WORDS
            body = words(generator, count)
        case Opcode.POP_EVENT:
            count = EVENT_WORDS
            body = [generator.randint(0, 40)]
        case Opcode.LOAD_PROGRAM:
            commands = generator.randrange(4)
            count = DESCRIPTOR_WORDS * commands
            slot, queue = generator.randrange(6), generator.choice([0, 1, 0, 1, 0, 1, 2, 255])
            body = [slot | queue << 16 | generator.randrange(2) << 24, *words(generator, count)]
        case Opcode.RUN:
            count = RUN_WORDS
            body = [generator.randrange(3) | generator.randrange(2) << 16, *words(generator, 2)]
        case Opcode.EDIT:
            body = words(generator, 2)
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
    """Draw a count of at most ``room``, often ``room`` itself, or sometimes one more than that."""
    return generator.choice([generator.randint(1, room)] * 4 + [room] * 2 + [room + 1])


def words(generator, count):
    return [generator.getrandbits(32) for _ in range(count)]


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def answers_as_the_model_does(dut):
    p = regression.parameters()
    generator = random.Random(p["seed"])
    await start(dut)
    config = PROGRAMS if p["programs"] else CONFIG
    node = Node(dut, random.Random(p["seed"]), p["bus"], p["seed"], programs=p["programs"])
    model = Model(random.Random(p["seed"]), config)
    source = Source(dut, "i", word_layout(), stalls=stalls(p["source"], seed=p["seed"]))
    sink = Sink(dut, "o", word_layout(), stalls=stalls(p["sink"], seed=p["seed"] + 1))
    # A count that is invalid for the opcode, followed by this number of words.
    packets = [[opcode << 24 | count, *words(generator, count)]
               for opcode in (Opcode.PUSH_COMMAND, Opcode.POP_EVENT) for count in (1, 3, 4, 5, 15, 17)]
    packets += [random_packet(generator, p["programs"]) for _ in range(p["packets"])]

    async def feed():
        for packet in packets:
            await source.send(framed(packet))

    cocotb.start_soon(feed())
    cocotb.start_soon(node.event_source.send(event >> 32 * n & 0xFFFFFFFF for event in node.events for n in range(4)))
    statuses, registers_read = set(), []
    for n, packet in enumerate(packets):
        response = [beat["data"] for beat in await with_timeout(sink.packet(), 40, "us")]
        expected = model.answer(packet)
        assert response == expected, f"packet {n} of seed {p['seed']}: {[hex(word) for word in packet]}"
        statuses.add((packet[0] >> 24, response[1]))
        if packet[0] >> 24 == Opcode.READ_REGISTER and response[1] == Status.OK:
            registers_read += range(packet[1], packet[1] + len(response) - 2)
    await cycles(dut, 20)
    assert node.registers == model.registers
    assert node.registers_read == registers_read
    assert {space: node.memory[space] for space in model.memory} == model.memory
    assert node.commands == model.commands
    assert (node.loaded, node.runs, node.lengths) == (model.loaded, model.runs, model.lengths)
    assert bool(model.runs) == p["programs"]
    assert len(node.monitors["events"].beats) == 4 * (EVENTS - len(model.events))
    absent = {Status.WRONG_SET, Status.OLD_EDIT, Status.WRONG_PROGRAM, Status.OUT_OF_WINDOW, Status.FOREIGN_TENANT}
    for status in set(Status) - absent - (
            set() if p["programs"] else {Status.TOO_LONG, Status.BUSY, Status.NOT_LOADED}):
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
    cocotb.start_soon(source.send([*framed(write), *framed([Opcode.READ_MEMORY << 24 | count, 0])]))
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
        cocotb.start_soon(source.send(framed([Opcode.POP_EVENT << 24 | EVENT_WORDS, wait])))
        assert [beat["data"] for beat in await sink.packet()][1] == Status.EMPTY
        took.append(node.monitors["o"].cycles[-1] - node.monitors["i"].cycles[-1])
    assert [cycles - took[0] for cycles in took] == [0, 1, 100]
    cocotb.start_soon(source.send(framed([Opcode.POP_EVENT << 24 | EVENT_WORDS, 0xFFFFFFFF])))
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
            await source.send(framed(request)[:length])
            await cycles(dut, length)
            dut.rst.value = 1
            await cycles(dut, 2)
            dut.rst.value = 0
            sink = Sink(dut, "o", word_layout())
            sending = cocotb.start_soon(source.send(framed(ping)))
            response = [beat["data"] for beat in await sink.packet()]
            await sending
            assert response == [(Opcode.PING | 0x80) << 24 | 0x770003, Status.OK, 5, 6, 7], (request, length)
            dut.o__ready.value = 1


@pytest.mark.parametrize(("source", "sink", "bus", "seed", "programs"), [
    ("none", "none", "none", 1, True),
    ("geometric", "geometric", "geometric", 2, False),
    ("none", "freeze", "alternating", 3, False),
    ("alternating", "none", "geometric", 4, True),
    ("freeze", "alternating", "none", 5, False),
])
def test_against_the_model(source, sink, bus, seed, programs):
    port = HostPort(config=PROGRAMS if programs else CONFIG)
    regression.run(port, module=__name__, testcase="answers_as_the_model_does", parameters={
        "source": source, "sink": sink, "bus": bus, "seed": seed, "programs": programs, "packets": 400})


def test_timing_and_reset():
    regression.run(HostPort(config=CONFIG), module=__name__, testcase=[
        "memory_bursts_have_no_bubble", "waits_for_events", "reset_at_any_word_of_a_packet"])
