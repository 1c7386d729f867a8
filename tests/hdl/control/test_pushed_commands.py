# amaranth: UnusedElaboratable=no
"""The memory of pushed commands, against a model: the queue of each, its words, and the room that is left."""

import dataclasses
import random

import cocotb
import pytest

from hdl.control.protocol import DESCRIPTOR_WORDS, Operation, command_layout, descriptor_layout
from hdl.control.pushed_commands import PushedCommands, queue_of
from sim import regression
from sim.payload import to_int
from sim.streams import Source, cycles, stalls, start
from tests.hdl.control.commands import random_command
from tests.hdl.control.programs import LOCAL, OPERATIONS
from tests.hdl.control.units import PUSHED_DEPTH, QUEUES, simulate


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def queues_by_operation(dut):
    generator = random.Random(regression.parameters()["seed"])
    await start(dut)
    dut.pushed__removed.value = 0
    source = Source(dut, "pushed__commands", descriptor_layout(), stalls=stalls("geometric", seed=3, rate=0.8))
    queues = [[] for _ in range(QUEUES)]
    bits = PUSHED_DEPTH.bit_length()
    full = 0
    for tag in range(150):
        command = random_command(generator, tag, operation=generator.choice([*Operation, 99, 128 | Operation.MASK]))
        words = [to_int(command_layout(), command) >> 32 * n & 0xFFFFFFFF for n in range(DESCRIPTOR_WORDS)]
        # Words of a command that is broken off are dropped.
        parts = [words[:generator.randrange(1, DESCRIPTOR_WORDS)]] if generator.random() < 0.2 else []
        for part in [*parts, words]:
            await source.send([{"data": word, "first": n == 0, "last": n == DESCRIPTOR_WORDS - 1}
                               for n, word in enumerate(part)])
        queues[0 if command["operation"] in LOCAL else QUEUES - 1].append(words)
        await cycles(dut, 1)
        while True:
            levels = sum(len(queue) << bits * n for n, queue in enumerate(queues))
            assert int(dut.pushed__levels.value) == levels
            assert int(dut.pushed__full.value) == any(len(queue) == PUSHED_DEPTH for queue in queues)
            for n, queue in enumerate(queues):
                if queue:
                    word = generator.randrange(DESCRIPTOR_WORDS)
                    dut.pushed__serving.value, dut.pushed__word.value = n, word
                    await cycles(dut, 2)
                    assert int(dut.pushed__data.value) == queue[0][word], (n, word)
            full += any(len(queue) == PUSHED_DEPTH for queue in queues)
            if not int(dut.pushed__full.value) and generator.random() < 0.6:
                break
            removed = generator.randrange(1, 1 << QUEUES) & sum(bool(queue) << n for n, queue in enumerate(queues))
            for n in range(QUEUES):
                if removed >> n & 1:
                    queues[n].pop(0)
            dut.pushed__removed.value = removed
            await cycles(dut, 1)
            dut.pushed__removed.value = 0
            await cycles(dut, 1)
            if not any(queues):
                break
    assert full > 5


def test_pushed_commands():
    simulate(__name__, "queues_by_operation", seed=6)


@pytest.mark.parametrize(("queues", "expected"), [(1, (0, 0, 0)), (2, (0, 1, 1)), (3, (0, 1, 2))])
def test_queues_of_operations(queues, expected):
    """An operation has the queue that it names, the last one if there are fewer, or if it names none."""
    described = [dataclasses.replace(OPERATIONS[0], queue=queue) for queue in (0, 1, None)]
    assert tuple(queue_of(operation, queues) for operation in described) == expected


@pytest.mark.parametrize("depth", [0, 256, "8"])
def test_depth_is_checked(depth):
    with pytest.raises(ValueError, match=f"^Queue depth must be between 1 and 255, not {depth!r}$"):
        PushedCommands(operations=OPERATIONS, queues=2, depth=depth)
