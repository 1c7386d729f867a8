import numpy as np
import pytest

from hdl.features.compute.program_sequencer import ProgramSequencer
from hdl.features.compute.vector_program import EXPONENTIAL, LOGARITHM, STEPS, SUM, THREADS
from sim.golden.features.compute.vector_cycles import BRIEF, ONCE
from sim.golden.features.compute.vector_cycles import EXPONENTIAL as FRAMES
from sim.verilated.vectors import Unit

IDLE = len(STEPS) - 1


def _frames(groups, columns, *, brief=False):
    """Yield the frames of a program: (step, first element) or, while adding totals, (step, column)."""
    total = groups * columns
    for first in range(0, total, THREADS):
        yield from ((step, first) for step in range(len(EXPONENTIAL)))
    yield len(EXPONENTIAL), 0
    yield from ((len(EXPONENTIAL) + 1, column) for column in range(columns))
    yield from ((len(EXPONENTIAL) + len(SUM) + step, 0) for step in range(1 if brief else len(LOGARITHM)))


def test_brief_programs():
    """Brief programs, which end with the totals, alternate with full ones; each runs exactly its own steps."""
    unit = Unit(ProgramSequencer(columns=8, sequences=True))
    for groups, count in ((1, 1), (3, 8), (16, 5)):
        for brief in (True, False):
            steps = np.array([step for step, _ in _frames(groups, count, brief=brief)]).repeat(THREADS)
            frames = FRAMES * -(-groups * count // THREADS) + count + (BRIEF if brief else ONCE)
            assert len(steps) == THREADS * frames
            cycles = 1 + len(steps) + 20
            ports = unit.run({"start": (np.arange(cycles) == 0).astype(np.uint8), "columns": count,
                              "size": groups * count, "brief": brief})
            assert ports["step"][1:len(steps) + 1].tolist() == steps.tolist()
            assert (ports["step"][len(steps) + 1:] == IDLE).all()
            assert np.flatnonzero(ports["done"][1:]).tolist() == [len(steps) - 1]


@pytest.mark.parametrize("columns", [2, 8])
def test_programs(columns):
    """Programs of every size output the right step, element and row in each cycle, even after a restart."""
    unit = Unit(ProgramSequencer(columns=columns))
    for groups in (1, 2, 5, 15, 16):
        for count in range(1, columns + 1):
            frames = list(_frames(groups, count))
            assert len(frames) == FRAMES * -(-groups * count // THREADS) + count + ONCE
            cycles = 1 + THREADS * len(frames) + 20
            start = np.zeros(cycles, np.uint8)
            start[0] = 1
            short = THREADS * 14 + 5
            unit.run({"start": start[:short], "columns": count, "size": groups * count})
            ports = unit.run({"start": start, "columns": count, "size": groups * count})
            ports = {name: values[1:] for name, values in ports.items()}
            now = np.arange(cycles - 1)
            assert ports["slot"].tolist() == (now % THREADS).tolist()
            steps = np.array([step for step, _ in frames]).repeat(THREADS)
            assert ports["step"][:len(steps)].tolist() == steps.tolist()
            assert (ports["step"][len(steps):] == IDLE).all()
            assert np.flatnonzero(ports["done"]).tolist() == [len(steps) - 1]
            starts = np.array([first for _, first in frames]).repeat(THREADS)
            slots = now[:len(steps)] % THREADS
            walks, sums = steps == 0, steps == len(EXPONENTIAL) + 1
            element = np.where(walks, starts + slots, 0)
            whole = {name: values[:len(steps)] for name, values in ports.items()}
            real = walks & (element < groups * count)
            assert (whole["address"][real] == element[real]).all()
            assert (whole["group"][real] == element[real] // count).all()
            assert (whole["column"][real] == element[real] % count).all()
            rows = sums & (slots < groups)
            assert (whole["address"][rows] == slots[rows] * count + starts[rows]).all()
            assert (whole["group"][~walks] == slots[~walks]).all()
            assert (whole["opens"] == (sums & (starts == 0))).all()
            assert (whole["again"][walks] == (starts[walks] > 0)).all()
            assert whole["again"][steps == len(EXPONENTIAL)].all()
