"""Golden model of COMPUTE: known answers, and its formula compared with its cycle-by-cycle model."""

import numpy as np
import pytest

from hdl.control.protocol import EventStatus
from sim.golden.features.compute_stub.compute_model import ComputeModel, Inputs, compute, compute_cycles


@pytest.mark.parametrize(("length", "duration", "lanes", "cycles"), [
    (0, 0, 4, 5), (0, 5, 4, 5), (0, 900, 4, 900), (1, 0, 4, 8), (4, 8, 4, 8), (5, 8, 4, 9), (224, 700, 4, 700),
    (224, 0, 4, 63), (224, 0, 1, 231), (224, 0, 8, 35),
])
def test_cycles(length, duration, lanes, cycles):
    assert compute_cycles(length, duration, lanes=lanes) == cycles


def test_result():
    memory = np.arange(10, dtype=np.uint32)
    after = compute(memory, gradient_base=1, state_base=6, length=3)
    assert after.tolist() == [0, 6, 7, 8, 4, 5, 6, 7, 8, 9]
    assert memory.tolist() == list(range(10))


@pytest.mark.parametrize(("length", "duration"), [(0, 0), (0, 60), (3, 0), (37, 0), (37, 90), (64, 26)])
def test_cycle_by_cycle(length, duration):
    """The cycle-by-cycle model takes the cycles given by the formula, and writes each row once, evenly spaced."""
    model = ComputeModel(4)
    ready = {"event_ready": True, "read_ready": True, "write_ready": True, "link_reset": False}
    command = {"tag": 7, "length": length, "duration": duration, "gradient_base": 32, "state_base": 128}
    model.step(Inputs(command=command, **ready))
    rows, event = [], None
    for cycle in range(1, 200):
        outputs = model.outputs()
        if outputs.write is not None:
            rows.append((cycle, *outputs.write))
        if outputs.event is not None:
            event = outputs.event
            break
        model.step(Inputs(command=None, **ready))
    count = -(-length // 4)
    assert event == {"tag": 7, "status": EventStatus.OK, "detail": length,
                     "cycles": compute_cycles(length, duration, lanes=4)}
    assert [row[1:] for row in rows] == [(8 + n, 32 + n, min(4, length - 4 * n)) for n in range(count)]
    steps = duration - 4
    if count and steps > count + 7:
        assert [row[0] for row in rows] == [3 - (-n * steps // count) for n in range(1, count + 1)]
