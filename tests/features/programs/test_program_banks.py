# amaranth: UnusedElaboratable=no
"""Two program banks at a host port, compared with the model for valid and invalid requests."""

import random

import cocotb
import pytest
from amaranth.hdl import Module, Mux
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import FallingEdge, with_timeout

from hdl.config import Memories, NodeConfig
from hdl.control.command_queue import CommandQueue
from hdl.control.host_port import HostPort
from hdl.control.immediate import ImmediateRunner
from hdl.control.protocol import DESCRIPTOR_WORDS, EVENT_WORDS, EventStatus, Opcode, Operation, Status, command_layout
from hdl.engines import operations
from hdl.features.programs.feature import Programs
from hdl.features.programs.program_banks import bank_layout, set_layout
from hdl.features.programs.program_memory import ProgramMemory
from hdl.streams.stream import connect_stream, word_layout
from sim import regression
from sim.payload import from_int, to_int
from sim.streams import Monitor, Sink, Source, cycles, stalls, start
from tests.features.programs.program_banks_model import ProgramBanks, digest_of
from tests.hdl.control.commands import random_command
from tests.hdl.ring.packets import framed
from tests.refusals import refuses

QUEUES, DEPTH = 3, 3
CONFIG = NodeConfig(
    lanes=2, memories=Memories(gradient=320, weight=64, state=32),
    programs=Programs(depth=DEPTH, banks=2, move_queue=True))
IDLE = 1 << 23
#: Latency in cycles from the first word of an EDIT to the last word of its response; see docs/program.md.
EDIT_CYCLES = 11


class Banked(wiring.Component):
    """Host port with a command queue; commands end while ``hold`` is low, with an error if ``fail`` is high."""

    i: In(stream.Signature(word_layout()))
    o: Out(stream.Signature(word_layout()))
    hold: In(1)
    fail: In(1)
    running: Out(1)
    program_bank: Out(bank_layout())
    program_set: Out(set_layout())

    def elaborate(self, platform):
        m = Module()
        quiesce = tuple(item for item in operations(CONFIG) if item.code == Operation.QUIESCE)
        m.submodules.port = port = HostPort(config=CONFIG)
        m.submodules.queue = queue = CommandQueue(
            config=CONFIG, operations=quiesce)
        connect_stream(m, wiring.flipped(self.i), port.i)
        connect_stream(m, port.o, wiring.flipped(self.o))
        for item, other in ((port.commands, queue.commands), (queue.events, port.events),
                            (port.program, queue.program), (port.run, queue.run)):
            connect_stream(m, item, other)
        wiring.connect(m, port=port.banks, queue=queue.banks)
        m.d.comb += [
            port.commands_full.eq(queue.full),
            port.program_status.eq(queue.program_status),
            queue.timeout.eq(0xFFFF),
            self.running.eq(queue.program_status.running),
            self.program_bank.eq(queue.program_bank),
            self.program_set.eq(queue.program_set),
        ]
        for n in range(QUEUES):
            m.submodules[f"runner_{n}"] = runner = ImmediateRunner()
            connect_stream(m, queue.start[n], runner.command)
            ended = queue.completions[n]
            m.d.comb += [
                ended.valid.eq(runner.event.valid & ~self.hold),
                ended.payload.eq(runner.event.payload),
                ended.payload.status.eq(Mux(self.fail, EventStatus.BAD_LENGTH, EventStatus.OK)),
                runner.event.ready.eq(ended.ready & ~self.hold),
            ]
        return m


class Bench:
    """Host that sends every request to both the node and the model."""

    def __init__(self, dut, seed, source, sink):
        self.dut, self.generator = dut, random.Random(seed)
        self.model = ProgramBanks(queues=QUEUES, depth=DEPTH)
        self.source = Source(dut, "i", word_layout(), stalls=stalls(source, seed=seed))
        self.sink = Sink(dut, "o", word_layout(), stalls=stalls(sink, seed=seed + 1))
        self.seen, self.tag, self.name = set(), 0, 0
        self.passes = 0
        self.body = []  # words loaded into the idle bank so far
        cocotb.start_soon(self._watch())

    async def _watch(self):
        """Check that the selected bank never changes while a program runs."""
        before = None
        while True:
            await FallingEdge(self.dut.clk)
            bank = int(self.dut.program_bank.value) & 1
            if self.dut.running.value:
                assert bank == before
            before = bank

    async def ask(self, opcode, count, body):
        sending = cocotb.start_soon(self.source.send(framed([opcode << 24 | 5 << 16 | count, *body])))
        words = [beat["data"] for beat in await with_timeout(self.sink.packet(), 100, "us")]
        await sending
        assert words[0] == (opcode | 0x80) << 24 | 5 << 16 | len(words) - 2
        return words[1], words[2:]

    async def compare(self, opcode, count, body):
        """Send a request; compare its status and the resulting state with the model."""
        model = self.model
        running = model.running
        expected = model.answer(opcode, count, body)
        assert await self.ask(opcode, count, body) == expected, (Opcode(opcode).name, [hex(word) for word in body])
        self.seen.add((Opcode(opcode), Status(expected[0]), running))
        bank = from_int(bank_layout(), int(self.dut.program_bank.value))
        sets = from_int(set_layout(), int(self.dut.program_set.value))
        assert (bank["bank"], bank["pending"], bank["number"], sets["set"], sets["latest"]) == (
            model.bank, model.pending, model.number, model.set, model.latest)
        return expected[0]

    def command(self):
        self.tag += 1
        command = random_command(self.generator, self.tag, operation=Operation.QUIESCE, after_0=0, after_1=0, wait=0,
                                 region=0, remote=0, round=0, signal=0)
        bits = to_int(command_layout(), command)
        return [bits >> 32 * n & 0xFFFFFFFF for n in range(DESCRIPTOR_WORDS)]

    async def load(self, *, idle):
        """Load a random program into most queues; a few of the loads are malformed or too long."""
        generator = self.generator
        self.name = generator.randrange(256)
        self.body = [] if idle else self.body
        for queue in range(QUEUES):
            if generator.random() < 0.05:
                continue
            count = generator.randrange(DEPTH + 1) if generator.random() < 0.97 else DEPTH + 1
            commands = [word for _ in range(count) for word in self.command()]
            body = [self.name << 24 | queue << 16 | IDLE * idle, *commands]
            count *= DESCRIPTOR_WORDS
            if generator.random() < 0.06:
                body = generator.choice([body[:-1], [*body, 1], body[:len(body) // 2], [body[0] | 1, *body[1:]],
                                         [body[0] | 3 << 16, *body[1:]]])
            self.body += body if idle else []
            await self.compare(Opcode.LOAD_PROGRAM, count, body)

    async def edit(self):
        generator, model = self.generator, self.model
        number = max(0, model.latest + generator.choice([1, 1, 1, 2, 9, 0, -1]))
        first = model._next + generator.choice([0, 0, 0, 0, 0, 1, -1, 5]) & 0xFFFF
        body = [number | first << 16, digest_of(self.body) ^ generator.choice([0, 0, 0, 0, 0, 1, 1 << 31])]
        again = 1 + (generator.random() < 0.1)
        if generator.random() < 0.1:
            body = generator.choice([body[:1], [*body, 0], []])
        count = 2 if generator.random() < 0.95 else generator.randrange(4)
        for _ in range(again):
            await self.compare(Opcode.EDIT, count, body)

    async def run(self):
        generator, model = self.generator, self.model
        first = generator.choice([model._next] * 6 + [model.set, model._next + 1]) & 0xFFFF
        turns = model.pending and first == model._due
        name = (model.idle if turns else model.current).model
        if generator.random() < 0.15:
            name = generator.choice([model.idle.model, model.current.model, name ^ 1])
        passes = generator.choice([1, 1, 1, 2, 3, 0])
        body = [passes | name << 16, 0, first << 9]
        count = 3
        if generator.random() < 0.08:
            body = generator.choice([body[:1], body[:2], [*body, 0]])
        self.dut.hold.value = 1
        if await self.compare(Opcode.RUN, count, body) == Status.OK:
            self.passes = passes
        self.dut.hold.value = model.running

    async def finish(self, *, fail):
        """End the run, with an error if ``fail``, and compare the executed commands with the model."""
        wanted = [[command[7] & 0xFFFF for command in queue] * self.passes for queue in self.model.current.programs]
        tags = [[] for _ in range(QUEUES)]
        self.dut.fail.value = fail
        self.dut.hold.value = 0
        for _ in range(sum(map(len, wanted))):
            status, event = await self.ask(Opcode.POP_EVENT, EVENT_WORDS, [300])
            if status == Status.EMPTY and fail:
                break
            assert status == Status.OK
            assert event[0] >> 16 & 0xFF == (EventStatus.BAD_LENGTH if fail else EventStatus.OK)
            tags[event[0] >> 30].append(event[0] & 0xFFFF)
        if fail:
            assert any(tags)
            assert all(actual == all_[:len(actual)] for actual, all_ in zip(tags, wanted, strict=True))
        else:
            assert tags == wanted
        await cycles(self.dut, 40)
        assert not self.dut.running.value
        self.dut.fail.value = 0
        self.model.running = False


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def changes_banks_at_sets(dut):
    p = regression.parameters()
    await start(dut)
    bench = Bench(dut, p["seed"], p["source"], p["sink"])
    generator, model = bench.generator, bench.model
    turned = 0
    for _ in range(p["actions"]):
        running, idle = ("ffffrie", "rrrrcie") if model.pending else ("iiieeerrf", "ciieeerr")
        match generator.choice(running if model.running else idle):
            case "i":
                await bench.load(idle=True)
                if generator.random() < 0.6:
                    await bench.edit()
            case "c":
                await bench.load(idle=False)
            case "e":
                await bench.edit()
            case "r":
                bank = model.bank
                await bench.run()
                turned += model.bank != bank
            case "f":
                await bench.finish(fail=generator.random() < 0.2)
    assert turned > p["actions"] // 30, f"seed {p['seed']}"
    for running in (False, True):
        for status in (Status.OK, Status.OLD_EDIT, Status.WRONG_SET, Status.WRONG_PROGRAM, Status.BAD_LENGTH):
            assert (Opcode.EDIT, status, running) in bench.seen, f"seed {p['seed']}"
        assert (Opcode.LOAD_PROGRAM, Status.OK, running) in bench.seen
    assert {(Opcode.RUN, Status.BUSY, True), (Opcode.RUN, Status.NOT_LOADED, False)} <= bench.seen


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def reset_at_any_word_of_an_edit(dut):
    """Resetting the node during an EDIT selects the first bank and discards the edit and the digest."""
    await start(dut)
    request = [Opcode.EDIT << 24 | 2, 1, 0]
    for length in range(1, len(request) + 1):
        source = Source(dut, "i", word_layout())
        await source.send(framed(request)[:length])
        await cycles(dut, 3 * length)
        dut.rst.value = 1
        await cycles(dut, 2)
        dut.rst.value = 0
        sink = Sink(dut, "o", word_layout())
        sending = cocotb.start_soon(source.send(framed(request)))
        response = [beat["data"] for beat in await sink.packet()]
        await sending
        assert response == [(Opcode.EDIT | 0x80) << 24, Status.WRONG_PROGRAM]
        assert not int(dut.program_bank.value)
        assert not int(dut.program_set.value)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def answers_in_time(dut):
    await start(dut)
    bench = Bench(dut, 1, "none", "none")
    monitors = [Monitor(dut, name, word_layout()) for name in "io"]
    taken = []
    for number in range(3):
        body = [IDLE | number << 24, *bench.command()]
        await bench.compare(Opcode.LOAD_PROGRAM, DESCRIPTOR_WORDS, body)
        count = len(monitors[0].cycles)
        assert await bench.compare(Opcode.EDIT, 2, [number + 1 | number << 16, digest_of(body)]) == Status.OK
        taken.append(monitors[1].cycles[-1] - monitors[0].cycles[count])
        await bench.compare(Opcode.RUN, 3, [1 | number << 16, 0, number << 9])
        bench.passes = 1
        await bench.finish(fail=False)
    assert taken == [EDIT_CYCLES] * 3


@pytest.mark.parametrize(("source", "sink", "seed"), [
    ("none", "none", 1), ("geometric", "geometric", 2), ("alternating", "freeze", 3)])
def test_against_the_model(source, sink, seed):
    regression.run(Banked(), module=__name__, testcase="changes_banks_at_sets", parameters={
        "source": source, "sink": sink, "seed": seed, "actions": 400})


def test_reset_and_timing():
    regression.run(Banked(), module=__name__, testcase=["reset_at_any_word_of_an_edit", "answers_in_time"])


@pytest.mark.parametrize("banks", [0, 3, "2"])
def test_banks_are_checked(banks):
    refuses(f"Bank count must be 1 or 2, not {banks!r}", ProgramMemory, queues=2, depth=8, banks=banks)
    refuses(f"Programs.banks must be 1 or 2, not {banks!r}", Programs, banks=banks)
