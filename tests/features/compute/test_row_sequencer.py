# amaranth: UnusedElaboratable=no
"""Tests of the row unit's sequencer: hdl/features/compute/row_sequencer.py."""

import numpy as np
import pytest

from hdl.features.compute.layer_list import RowFunction
from hdl.features.compute.row_lane import control_layout
from hdl.features.compute.row_pass import LOADS, PASSES, A, B, C, D, Load, Result
from hdl.features.compute.row_sequencer import RowSequencer
from sim.payload import unpack
from sim.streams import stall_array
from sim.verilated.vectors import Unit

ROWS, GROUPS, LATENCY, SUMS, FRAME = 16, 8, 23, 7, 16
SEQUENCER = RowSequencer(rows=ROWS, groups=GROUPS, latency=LATENCY, sums=SUMS, frame=FRAME)


@pytest.fixture(scope="module")
def unit():
    return Unit(SEQUENCER)


def _elements(function, started, rows, groups):
    """Yield the elements of all passes in order, as (pass, row, column block, half)."""
    if function == RowFunction.GATHER and not started:
        return
    for step in PASSES[function]:
        for group in range(1 if step.result in (Result.SCALAR, Result.ROOT) else groups):
            for half in range(1 + step.twice):
                for row in range(rows):
                    yield step, row, group, half


def _check(elements, cycles, note):
    """Check that an element is issued only when the results, sums and scalars it uses are available."""
    kept, summed, scalars = {}, {}, {}
    for (step, row, group, half), cycle in zip(elements, cycles, strict=True):
        needs = []
        if step.a == A.WORK or step.d == D.WORK:
            needs.append(kept[row, group] + LATENCY + 1)
        if step.a == A.SUM or step.b == B.SUM:
            needs.append(summed[row, half] + LATENCY + SUMS + 1)
        if step.b == B.SCALAR or step.c == C.SECOND_SCALAR:
            needs.append(scalars[row, int(step.c == C.SECOND_SCALAR)] + LATENCY + 1)
        if step.summed and group:
            needs.append(summed[row, half] + FRAME)
        assert all(cycle >= need for need in needs), f"{step}, {row}, {group}, {half}, {note}"
        if step.kept:
            kept[row, group] = cycle
        if step.summed:
            summed[row, half] = cycle
        if step.result == Result.SCALAR:
            scalars[row, half] = cycle


@pytest.mark.parametrize("function", RowFunction)
def test_order(unit, function):
    """For all sizes, all passes issue their elements in order, even if results, roots and loads are slow."""
    for seed in range(12):
        generator = np.random.default_rng(seed)
        rows, groups = int(generator.integers(1, ROWS + 1)), int(generator.integers(1, GROUPS + 1))
        started, kind = seed % 2, ("none", "geometric", "freeze", "alternating")[seed % 4]
        cycles = 8000
        free, comes, turn = (stall_array(kind, cycles, seed=seed + index, rate=0.4) for index in range(3))
        turn = turn if seed % 4 else np.arange(cycles) % 2 == 0
        # Loads arrive word by word, one load after another; the roots follow some time later.
        total = np.cumsum(comes) if seed > 3 else np.full(cycles, 1 << 20)
        size, loads = rows * groups, len(LOADS[function])
        step, words = np.minimum(total // size, loads), np.where(total // size < loads, total % size, 0)
        roots = np.clip((np.arange(cycles) - 3000) // 3, 0, rows)
        unit.reset()
        outputs = unit.run({
            "starts": np.arange(cycles) == 0, "kind": int(function), "started": started, "rows": rows,
            "last_group": groups - 1, "step": step, "words": words, "roots": roots, "room": free, "turn": turn})
        note = f"{seed=}, {function.name}, {rows} rows, {groups} column blocks"
        issued = np.flatnonzero(outputs["valid"])
        controls = unpack(control_layout(ROWS, GROUPS), outputs["control"][issued])
        elements = list(_elements(function, started, rows, groups))
        assert len(issued) == len(elements), note
        for name, index in (("row", 1), ("group", 2), ("half", 3)):
            assert controls[name].tolist() == [entry[index] for entry in elements], note
        for name in "abcd":
            assert controls[name].tolist() == [getattr(entry[0], name) for entry in elements], note
        stored = {Result.STORED: 1, Result.STORED_IF_STARTED: started}
        assert controls["stored"].tolist() == [stored.get(entry[0].result, 0) for entry in elements], note
        assert controls["edge"].tolist() == [int(entry[2] == groups - 1) for entry in elements], note
        _check(elements, issued.tolist(), note)
        if elements and seed == 0:
            assert issued[0] == SEQUENCER.latency
        # The decision to issue an element is made one stage before the element's control signals.
        for number, ((entry, row, group, half), cycle) in enumerate(zip(elements, issued.tolist(), strict=True)):
            if entry.result == Result.STORED:
                assert free[cycle - 1], note
            if entry.result == Result.ROOT:
                assert turn[cycle - 1], note
            if entry.c == C.DEVIATION and function == RowFunction.NORM:
                assert roots[cycle - 1] > row, note
            if entry.needs != Load.END and not entry.twice:
                index = LOADS[function].index(entry.needs) * size + group * rows + row
                assert total[cycle - 1] > index, f"{number=}, {half=}, {note}"
