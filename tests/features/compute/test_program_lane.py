# amaranth: UnusedElaboratable=no
import dataclasses

import numpy as np
import pytest

from hdl.features.compute.program_lane import ProgramLane, control_layout, row_values_layout, step_layout
from hdl.features.compute.vector_program import STEPS, THREADS, Addend, Count, Factor, Step, Take
from sim.payload import pack
from sim.verilated.vectors import Unit
from tests.features.compute.program import Threads
from tests.features.compute.terms import draw
from tests.refusals import refuses

_SIGN = np.uint32(0x8000_0000)


def test_parameters():
    refuses("DSP block count must be 4, 2 or 1, not 3", ProgramLane, dsps=3)


def _step(generator):
    """Draw a step of the vector unit's program, or a random step."""
    if generator.random() < 0.5:
        return dataclasses.replace(STEPS[generator.integers(len(STEPS))], take=Take.NOTHING)
    keep = bool(generator.random() < 0.4)
    return Step(
        a=Factor(int(generator.integers(len(Factor)))), c=Addend(int(generator.integers(len(Addend)))), keep=keep,
        b=int(draw(generator, "ordinary", 1)[0]) if keep or generator.random() < 0.5 else None,
        constant=int(draw(generator, "ordinary", 1)[0]), count=Count(int(generator.integers(len(Count)))))


class _Model:
    """Model of a lane of the vector unit: its threads and the values of its rows."""

    def __init__(self):
        self.threads = Threads(THREADS)
        self.largest, self.chosen, self.total = (np.zeros(THREADS, np.uint32) for _ in range(3))

    def run(self, step, take, *, element, groups, places, matches):
        result = self.threads.result
        total, chosen = self.total[groups].copy(), self.chosen[places].copy()
        for slot in range(THREADS):  # process threads in slot order, since several may update the same row
            total[slot], chosen[slot] = self.total[groups[slot]], self.chosen[places[slot]]
            if take == Take.TOTAL:
                self.total[groups[slot]] = result[slot]
            if take == Take.LOSS or (take == Take.CHOSEN and matches[slot]):
                self.chosen[places[slot]] = result[slot]
        self.threads.run(step, element=element, largest=self.largest[groups], chosen=chosen ^ _SIGN)
        return result, total, chosen


@pytest.mark.parametrize("dsps", [4, 2])
def test_steps(dsps):
    """Random steps, rows and elements give the expected result, total and difference in every cycle."""
    unit = Unit(ProgramLane(dsps=dsps))
    generator = np.random.default_rng(dsps)
    model = _Model()
    frames = 1500
    control = {name: np.zeros((frames, THREADS), np.uint64) for name in control_layout().members}
    element = draw(generator, "ordinary", frames, THREADS)
    element[::7] = draw(generator, "corners", *element[::7].shape)
    matches = generator.integers(2, size=(frames, THREADS))
    row = {name: np.zeros((frames, THREADS), np.uint64) for name in row_values_layout().members}
    want = {name: np.zeros((frames, THREADS), np.uint32) for name in ("result", "total", "chosen")}
    control["slot"][:] = np.arange(THREADS)
    for name in ("group", "chosen"):
        control[name][:] = generator.integers(THREADS, size=(frames, THREADS))
    # The opening steps initialize all memories: largest elements, stored numbers, counts and rows.
    opening = (Step(a=Factor.ELEMENT, b=0x3F80_0000, keep=True), Step(count=Count.POWER, a=Factor.COUNT),
               Step(), Step())
    for frame in range(frames):
        step = opening[frame] if frame < len(opening) else _step(generator)
        take = Take(int(generator.integers(len(Take)))) if frame >= len(opening) else Take.NOTHING
        if frame in (2, 3):
            take = (Take.TOTAL, Take.LOSS)[frame - 2]
        if frame < len(opening):
            element[frame] = draw(generator, "ordinary", THREADS)
            for name in ("group", "chosen"):
                control[name][frame] = np.arange(THREADS)
        for name in step_layout().members:
            value = {"kept": step.b is None, "b": step.b or 0, "take": take}.get(name, getattr(step, name, 0))
            control[name][frame] = int(value)
        if frame % 10 == 0:
            # Rows must be stored after their last use in one frame and before their first use in the next.
            slot = THREADS - 1
            group = int(generator.integers(THREADS))
            row["enable"][frame, slot], row["group"][frame, slot] = 1, group
            row["largest"][frame, slot] = int(draw(generator, "ordinary", 1)[0])
        groups, places = (control[name][frame].astype(int) for name in ("group", "chosen"))
        outputs = model.run(step, take, element=element[frame], groups=groups, places=places, matches=matches[frame])
        for name, values in zip(want, outputs, strict=True):
            want[name][frame] = values
        if frame % 10 == 0:
            model.largest[group] = row["largest"][frame, THREADS - 1]
    ports = unit.run({
        "control": pack(control_layout(), {name: values.ravel() for name, values in control.items()}),
        "element": element.ravel(), "labelled": matches.ravel(),
        "row": pack(row_values_layout(), {name: values.ravel() for name, values in row.items()})})
    begins = len(opening)
    for name, values in want.items():
        got = ports[name].reshape(frames, THREADS)
        np.testing.assert_array_equal(got[begins:], values[begins:], f"{name}, seed {dsps}")
