# amaranth: UnusedElaboratable=no
"""Compare the memory of pushed commands with a model: queue and words of each command, and free space."""

import collections
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
from tests.hdl.control.programs import OPERATIONS
from tests.hdl.control.units import PUSHED_DEPTH, QUEUES, simulate
from tests.refusals import refused_values


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def queues_by_operation(dut):
    p = regression.parameters()
    generator, count = random.Random(p["seed"]), p["queues"]
    prefix = "pushed" if count == QUEUES else f"pushed_{count}"
    port = {name: getattr(dut, f"{prefix}__{name}") for name in (
        "removed", "levels", "full", "serving", "word", "data", "commands__valid")}
    await start(dut)
    port["removed"].value = 0
    source = Source(dut, f"{prefix}__commands", descriptor_layout(), stalls=stalls("geometric", seed=3, rate=0.8))
    queues = [[] for _ in range(count)]
    # An operation that belongs to no queue, or to a queue that the node lacks, goes to the last queue.
    place_of = collections.defaultdict(lambda: count - 1, {
        operation.code: operation.queue for operation in OPERATIONS if operation.queue is not None})
    bits = PUSHED_DEPTH.bit_length()
    full = 0
    for tag in range(150):
        command = random_command(generator, tag, operation=generator.choice([*Operation, 99, 128 | Operation.MASK]))
        words = [to_int(command_layout(), command) >> 32 * n & 0xFFFFFFFF for n in range(DESCRIPTOR_WORDS)]
        # The words of an incomplete command are dropped.
        parts = [words[:generator.randrange(1, DESCRIPTOR_WORDS)]] if generator.random() < 0.2 else []
        for part in [*parts, words]:
            await source.send([{"data": word, "first": n == 0, "last": n == DESCRIPTOR_WORDS - 1}
                               for n, word in enumerate(part)])
        queues[place_of[command["operation"]]].append(words)
        await cycles(dut, 1)
        while True:
            levels = sum(len(queue) << bits * n for n, queue in enumerate(queues))
            assert int(port["levels"].value) == levels
            assert int(port["full"].value) == any(len(queue) == PUSHED_DEPTH for queue in queues)
            for n, queue in enumerate(queues):
                if queue:
                    word = generator.randrange(DESCRIPTOR_WORDS)
                    port["serving"].value, port["word"].value = n, word
                    await cycles(dut, 2)
                    assert int(port["data"].value) == queue[0][word], (n, word)
            if int(port["full"].value):
                full += 1
                # A command offered while the queue is full has no effect.
                port["commands__valid"].value = 1
                await cycles(dut, 1)
                port["commands__valid"].value = 0
                await cycles(dut, 1)
            if not int(port["full"].value) and generator.random() < 0.6:
                break
            removed = generator.randrange(1, 1 << count) & sum(bool(queue) << n for n, queue in enumerate(queues))
            for n in range(count):
                if removed >> n & 1:
                    queues[n].pop(0)
            port["removed"].value = removed
            await cycles(dut, 1)
            port["removed"].value = 0
            await cycles(dut, 1)
            if not any(queues):
                break
    assert full > 5


@pytest.mark.parametrize("queues", [2, 3])
def test_pushed_commands(queues):
    simulate(__name__, "queues_by_operation", seed=6, queues=queues)


@pytest.mark.parametrize(("queues", "expected"), [(1, (0, 0, 0)), (2, (0, 1, 1)), (3, (0, 1, 2))])
def test_queues_of_operations(queues, expected):
    """A command goes to the queue of its operation, or to the last queue if it has none or the node lacks that queue.
    """
    described = [dataclasses.replace(OPERATIONS[0], queue=queue) for queue in (0, 1, None)]
    assert tuple(queue_of(operation, queues) for operation in described) == expected


test_depth_is_checked = refused_values(PushedCommands, {"operations": OPERATIONS, "queues": 2}, "depth",
                                       [0, 256, "8"], "Queue depth must be between 1 and 255")
