"""Both ends of the return line, in lockstep with their models: hdl/features/replay/line.py."""

import random

import numpy as np

from hdl.features.replay.line import Listener, Speaker
from sim.verilated.vectors import Unit
from tests.features.replay import line_model as replay_line
from tests.features.replay.line_model import Message


def random_line(generator, cycles):
    """Draw random message fields and start cycles; return them with the bits that they put on the line."""
    speaker = replay_line.Speaker()
    rows = []
    fields = Message()
    for _ in range(cycles):
        if generator.random() < .05:
            fields = Message(generator.randrange(1024), generator.randrange(16), generator.randrange(4),
                             generator.randrange(2))
        start = int(generator.random() < .003)
        rows.append((fields, start, speaker.line))
        speaker.step(fields, bool(start))
    return rows


def test_speaker():
    rows = random_line(random.Random(1), 5000)
    now = [m.expect | m.given << 10 | m.id << 14 | m.recover << 16 for m, _, _ in rows]
    outputs = Unit(Speaker()).run({"now": np.array(now), "start": np.array([start for _, start, _ in rows])})
    assert outputs["line"].tolist() == [line for _, _, line in rows]
    assert outputs["line"].sum() > 1000


def test_listener():
    """The listener matches its model for messages, gaps, bit errors and loss of alignment."""
    generator = random.Random(2)
    line = [bit ^ (generator.random() < .002) for _, _, bit in random_line(generator, 20_000)]
    model = replay_line.Listener()
    lost, due = [], []
    for bit in line:
        message = None if model.complete is None else Message.parse(model.complete)
        due.append((model.complete is not None, model.marked, message))
        lost.append(int(model.complete is not None and (message is None or generator.random() < .05)))
        model.step(bit, bool(lost[-1]))
    outputs = Unit(Listener()).run({"line": np.array(line), "lost": np.array(lost)})
    assert outputs["complete"].tolist() == [complete for complete, _, _ in due]
    assert outputs["marked"].tolist() == [marked for _, marked, _ in due]
    messages = [message for complete, _, message in due if complete]
    complete = outputs["complete"] == 1
    assert outputs["good"][complete].tolist() == [message is not None for message in messages]
    assert 100 < outputs["good"][complete].sum() < complete.sum()
    values = [m.expect | m.given << 10 | m.id << 14 | m.recover << 16 for m in messages if m]
    assert outputs["message"][complete & (outputs["good"] == 1)].tolist() == values
