# amaranth: UnusedElaboratable=no
"""Compare program memory with a model, for complete, truncated and excess loads, and for nonexistent queues."""

import random

import cocotb
import pytest

from hdl.control.program_layouts import check_queues, program_word_layout
from hdl.control.protocol import DESCRIPTOR_WORDS
from hdl.features.programs.program_memory import ProgramMemory
from sim import regression
from sim.streams import Source, cycles, stalls, start
from tests.hdl.control.units import PROGRAM_DEPTH, QUEUES, simulate
from tests.refusals import refused_values, refuses


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def keeps_what_is_whole(dut):
    generator = random.Random(regression.parameters()["seed"])
    await start(dut)
    source = Source(dut, "programs__program", program_word_layout(), stalls=stalls("geometric", seed=3))
    lengths, memory = [0] * QUEUES, {}
    for _ in range(60):
        queue = generator.choice([0, 0, 1, 1, QUEUES, 255])
        slot = generator.choice([0, 0, generator.randrange(PROGRAM_DEPTH + 1), 999])
        count = generator.randrange((PROGRAM_DEPTH + 1) * DESCRIPTOR_WORDS)
        words = [generator.getrandbits(32) for _ in range(count)]
        model = generator.getrandbits(8)
        await source.send([{"data": slot | queue << 16 | model << 24, "first": 1},
                           *[{"data": word, "first": 0} for word in words]])
        if queue < QUEUES:
            slot = min(slot, PROGRAM_DEPTH)
            for n, word in enumerate(words):
                if slot + n // DESCRIPTOR_WORDS < PROGRAM_DEPTH:
                    memory[queue, slot + n // DESCRIPTOR_WORDS, n % DESCRIPTOR_WORDS] = word
            lengths[queue] = min(slot + len(words) // DESCRIPTOR_WORDS, PROGRAM_DEPTH)
        await cycles(dut, 1)
        assert int(dut.programs__model.value) == model
        assert int(dut.programs__lengths.value) == sum(length << 16 * n for n, length in enumerate(lengths))
        for (queue, slot, word), value in generator.sample(sorted(memory.items()), min(20, len(memory))):
            dut.programs__serving.value, dut.programs__slot.value, dut.programs__word.value = queue, slot, word
            await cycles(dut, 2)
            assert int(dut.programs__data.value) == value, (queue, slot, word)


def test_program_memory():
    simulate(__name__, "keeps_what_is_whole", seed=4)


test_depth_is_checked = refused_values(ProgramMemory, {"queues": 2}, "depth", [0, 1025, "8"],
                                       "Program depth must be between 1 and 1024")


@pytest.mark.parametrize("queues", [0, 4, "2"])
def test_queues_are_checked(queues):
    refuses(f"Queue count must be between 1 and 3, not {queues!r}", check_queues, queues)
