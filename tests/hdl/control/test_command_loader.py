# amaranth: UnusedElaboratable=no
"""Command loader, compared with a model: order of queues, words, verdicts and latency."""

import random

import cocotb
import pytest
from cocotb.triggers import FallingEdge

from hdl.config import Peer, RootReduce
from hdl.control.command_checker import CommandChecker
from hdl.control.command_loader import WORDS, CommandLoader, words_loaded
from hdl.control.protocol import EventStatus, Operation, command_layout
from hdl.control.sequencer import pass_layout
from hdl.engines import operations
from hdl.features.programs.feature import Programs
from hdl.features.replay.feature import Replay
from hdl.optimizer.rules import Rule
from sim import regression
from sim.payload import to_int
from sim.streams import cycles, start
from tests.hdl.control.commands import CONFIG, random_command, verdict
from tests.hdl.control.programs import LOCAL
from tests.refusals import refused_values

QUEUES = 2
CONFIG_2 = CONFIG.replace(link=Replay(), programs=Programs())
STRIDE = 0x1234_5678


def refusal(command, queue, position, config):
    """Golden verdict on a command in a queue; ``position`` is given only for commands of a program."""
    foreign = command["operation"] in LOCAL if queue else command["operation"] not in (*LOCAL, Operation.QUIESCE)
    if foreign and command["operation"] in list(Operation):
        return EventStatus.UNKNOWN_OPERATION, command["operation"]
    return verdict(command, config, Rule.MOMENTUM, 0, position)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def loads_in_turn(dut):
    p = regression.parameters()
    config = CONFIG_2.replace(role=RootReduce() if p["root_reduce"] else Peer())
    least, words = p["latency"], p["words"]
    generator = random.Random(p["seed"])
    for port in ("wanted", "deliver", "dismiss", "packed_state"):
        getattr(dut, port).value = 0
    dut.rule.value = Rule.MOMENTUM.value
    dut.weight_stride.value = STRIDE
    await start(dut)
    memory = {"pushed": [None] * QUEUES, "program": [None] * QUEUES}

    async def read():
        """Output the words of both memories at the address of the previous cycle."""
        while True:
            await FallingEdge(dut.clk)
            queue, word = int(dut.serving.value), int(dut.word.value)
            await cycles(dut, 1)
            for name, commands in memory.items():
                value = commands[queue] or 0
                getattr(dut, f"{name}_data").value = value >> 32 * word & 0xFFFFFFFF

    cocotb.start_soon(read())
    last, seen, waited = 0, set(), set()
    for number in range(p["count"]):
        wanted = generator.randrange(1, 1 << QUEUES)
        queue = next(n % QUEUES for n in range(last + 1, last + 1 + QUEUES) if wanted >> n % QUEUES & 1)
        passes = [{"odd": generator.getrandbits(1), "collective": generator.getrandbits(16),
                   "number": generator.getrandbits(16)} for _ in range(QUEUES)]
        program = generator.getrandbits(QUEUES)
        for commands in memory.values():
            commands[:] = [to_int(command_layout(), random_command(
                generator, 2 * number + n, unit=generator.randrange(20), unit_queue=generator.choice([0, 0, 1, 2]),
                after_1=generator.choice([0, 3]))) for n in range(QUEUES)]
        dut.from_program.value = program
        dut.passes.value = sum(to_int(pass_layout(), each) << pass_layout().size * n for n, each in enumerate(passes))
        bits = memory["program" if program >> queue & 1 else "pushed"][queue]
        command = {name: bits >> field.offset & (1 << field.width) - 1 for name, field in command_layout()}
        position = generator.randrange(16), generator.randrange(17)
        dut.place.value = position[0] | position[1] << 4
        if program >> queue & 1:
            odd = command["alternate"] & passes[queue]["odd"]
            command["weight_base"] = (command["weight_base"] + STRIDE * odd) & 0xFFFFFFFF
            ahead = passes[queue]["collective"] if queue == QUEUES - 1 else 0
            command["collective"] = (command["collective"] + ahead) & 0xFFFF
        deliver = generator.getrandbits(1)
        dut.deliver.value = deliver << queue
        dut.wanted.value = wanted
        await FallingEdge(dut.clk)
        assert int(dut.granted.value) == 1 << queue, f"seed {p['seed']}, command {number}"
        last = queue
        await cycles(dut, 1)
        dut.wanted.value = 0
        status, detail = refusal(command, queue, position if program >> queue & 1 else None, config)
        latency, results = 0, {}
        while latency < 80 and not any(results.values()):
            if latency:
                await cycles(dut, 1)
            latency += 1
            await FallingEdge(dut.clk)
            assert int(dut.granted.value) == 0
            results = {name: int(getattr(dut, name).value) for name in ("passed", "refused", "deferred")}
        name = "passed" if status == EventStatus.OK else "refused" if deliver else "deferred"
        assert results == {**dict.fromkeys(results, 0), name: 1 << queue}, f"seed {p['seed']}, command {number}"
        seen.add((status, name))
        if command["operation"] == Operation.QUIESCE:
            assert latency == least
        assert least <= latency <= least + p["checking"] - 1
        waited.add(latency)
        head = int(dut.heads.value) >> command_layout().size * queue
        assert head & (1 << 32 * words) - 1 == to_int(command_layout(), command) & (1 << 32 * words) - 1
        if name == "refused":
            for _ in range(generator.randrange(4)):
                await cycles(dut, 1)
                await FallingEdge(dut.clk)
                assert int(dut.refused.value) == 1 << queue
                assert int(dut.verdict.value) == status | detail << 8
            dut.dismiss.value = 1
        await cycles(dut, 1)
        dut.dismiss.value = 0
    assert {name for _, name in seen} == {"passed", "refused", "deferred"}
    assert {status for status, _ in seen} >= {EventStatus.OK, EventStatus.UNKNOWN_OPERATION, EventStatus.BAD_BASE,
                                              EventStatus.BAD_LENGTH, EventStatus.BAD_RANK, EventStatus.BAD_UNIT}
    assert len(waited) > 8


@pytest.mark.parametrize("root_reduce", [False, True])
def test_loader(root_reduce):
    config = CONFIG_2.replace(role=RootReduce() if root_reduce else Peer())
    checker = CommandChecker(config=config, operations=operations(config), queues=QUEUES)
    loader = CommandLoader(config=config, operations=operations(config), queues=QUEUES)
    assert words_loaded(config) == WORDS + root_reduce
    assert loader.latency == CommandLoader.latency + root_reduce
    regression.run(loader, module=__name__, testcase="loads_in_turn", parameters={
        "seed": 4, "count": 400, "checking": checker.latency, "root_reduce": root_reduce, "latency": loader.latency,
        "words": words_loaded(config)})


test_queues_are_checked = refused_values(CommandLoader, {"config": CONFIG, "operations": operations(CONFIG)},
                                         "queues", [0, 4, "2"], "Queue count must be between 1 and 3")
