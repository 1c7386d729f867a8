"""Messages that determine the free space of the nodes of two jobs, compared with their golden model."""

import random

import pytest

from hdl.features.slots.job_rooms import RoomLaps
from sim.golden.features.replay.control_words import Message
from sim.verilated.vectors import Unit
from tests.features.replay.columns import Columns
from tests.features.slots import jobs_model as golden


@pytest.mark.parametrize("rank", range(3))
def test_rooms(rank):
    """All ports match the model in every cycle, for words of all kinds, windows opening at any time, and resets."""
    unit = Unit(RoomLaps())
    generator = random.Random(rank)
    model, columns, granted, offered = golden.RoomLaps(), Columns(), 0, 0
    word, number, window, size = None, 0, 0, 4
    for _ in range(20_000):
        if word is None and generator.random() < .3:
            kind = generator.choice([11, 12, 11, 12, 6])
            data = kind | (number if generator.random() < .8 else generator.getrandbits(6)) << 12
            data |= generator.getrandbits(10) << 18 | generator.choice([0] * 9 + [16, 1 << 29])
            word = Message(data, int(generator.random() < .95), int(generator.random() < .95))
        opens = int(generator.random() < .02)
        if opens:
            number, window, size = generator.getrandbits(6), 1, generator.choice([4] * 9 + [0])
        elif generator.random() < .01:
            window = 0
        ready, room, reset = generator.random() < .6, generator.getrandbits(5), generator.random() < .002
        columns.stream("i", word, model.ready(ready))
        columns.stream("o", model.o, ready)
        columns.note(place=rank | size << 4, room=room, window=window, opens=opens, number=number,
                     granted=model.granted, reset_link=reset)
        columns.value("allowed", model.allowed if model.granted else None)
        granted, offered, takes = granted + model.granted, offered + (model.o is not None), model.ready(ready)
        model.step(word=word, ready=int(ready), rank=rank, size=size, room=room, window=window, opens=opens,
                   number=number, reset_link=int(reset))
        word = None if takes else word
    assert granted > 200
    assert offered > 200
    columns.compare(unit)
