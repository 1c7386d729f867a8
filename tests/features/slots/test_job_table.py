# amaranth: UnusedElaboratable=no
"""Compare the slot table of two jobs with its golden model."""

import random

import pytest

from hdl.config import NodeConfig
from hdl.features.slots.job_table import JobFrame, JobTable
from hdl.ring.header import packet_words
from sim.verilated.vectors import Unit
from tests.features.replay.columns import Columns
from tests.features.slots import jobs_model as golden
from tests.refusals import refuses

FRAMES = (5, 37, 268)


def test_parameters():
    for longest in (1, True):
        refuses(f"Longest packet must be an integer from 2 to 1000 words, not {longest}", JobFrame, longest=longest)
    refuses("Frame must be a JobFrame, not 37", JobTable, frame=37)


@pytest.mark.parametrize("longest", [*FRAMES, 2, 70, 136, 540, 1000])
def test_frames(longest):
    """Dimensions of superframes match the golden model, and some match values computed by hand."""
    frame, model = JobFrame(longest=longest), golden.Frame(longest)
    shape = (frame.slot, frame.cycles, frame.pairs, frame.window, frame.kept)
    assert shape == (model.slot, model.cycles, model.pairs, model.window, model.kept)
    assert shape == {268: (272, 4096, 7, 288, 2), 37: (41, 1024, 9, 286, 4)}.get(longest, shape)
    assert frame.control == (4, frame.window - 8)
    assert longest < 37 or frame.way >= 236
    assert frame.window + 2 * frame.pairs * frame.slot == frame.cycles


def test_frame_of():
    config = NodeConfig(segment=64)
    assert JobFrame.of(config).longest == packet_words(64)


def times(generator, cycles, frame):
    """Draw TIMEs that advance by 0 to 2 per cycle, jump, and wrap around."""
    time = generator.getrandbits(32)
    for cycle in range(cycles):
        yield time
        time += generator.choice([0, 1, 2]) if generator.random() < .01 else 1
        if cycle % 5000 == 0:
            time = generator.choice([generator.getrandbits(32), -600, time + frame.slot])
        time %= 1 << 32


@pytest.mark.parametrize("longest", FRAMES)
@pytest.mark.parametrize("job", range(2))
def test_table(longest, job):
    """Every port matches the model in every cycle, even if TIME jumps or becomes invalid."""
    unit = Unit(JobTable(frame=JobFrame(longest=longest)), name=f"JobTable{longest}")
    generator = random.Random(longest + job)
    model, columns, slots = golden.JobTable(golden.Frame(longest)), Columns(), set()
    shift, valid = 0, 1
    for time in times(generator, 20_000, model._frame):
        if generator.random() < .0005:
            shift, valid = generator.choice([0, 17, 300]), generator.random() < .8
        inputs = {"time": time, "valid": int(valid), "shift": shift}
        columns.note(now=time, valid=valid, shift=shift, job=job, slot=model.slot.bits(job), window=model.window,
                     opens=model.opens, control=model.control, number=model.number)
        slots.add((model.slot.of, model.slot.pair))
        model.step(**inputs)
    assert len(slots) >= 6
    columns.compare(unit)
