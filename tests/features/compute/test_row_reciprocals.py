# amaranth: UnusedElaboratable=no
"""Reciprocals for the rows of a block: hdl/features/compute/row_reciprocals.py."""

import numpy as np
import pytest

from hdl.features.compute.row_reciprocals import RowReciprocals
from sim.verilated.vectors import Unit

DEPTH, LATENCY = 8, 5


@pytest.mark.parametrize("rows", [1, 5, DEPTH])
def test_blocks(rows):
    """The unit counts rows and keeps quotients in order; a row is ready once its quotient is stored."""
    unit = Unit(RowReciprocals(depth=DEPTH, latency=LATENCY))
    generator = np.random.default_rng(rows)
    cycles = 200
    for block in range(3):
        times = np.sort(generator.choice(np.arange(1, 100), rows, replace=False))
        divide = np.isin(np.arange(cycles), times).astype(np.uint8)
        quotient = generator.integers(1 << 32, size=cycles, dtype=np.uint32)
        wanted, chosen = generator.integers(rows, size=(2, cycles))
        clear = (np.arange(cycles) == 0).astype(np.uint8)
        ports = unit.run({"clear": clear, "divide": divide, "rows": rows, "quotient": quotient, "wanted": wanted,
                          "chosen": chosen})
        now = np.arange(cycles)
        note = f"{rows=} {block=}"
        row = (now[:, None] > times).sum(axis=1)
        stored = (now[:, None] > times + LATENCY).sum(axis=1)
        np.testing.assert_array_equal(ports["row"][1:], row[1:] % DEPTH, note)
        np.testing.assert_array_equal(ports["ends"][1:] == 1, (row[1:] % DEPTH) == rows - 1, note)
        np.testing.assert_array_equal(ports["ready"][1:] == 1, (wanted < stored)[1:], note)
        there = np.flatnonzero(chosen[:-1] < stored[:-1])
        there = there[there > 0]
        assert len(there) > 50, note
        np.testing.assert_array_equal(ports["factor"][there + 1], quotient[times + LATENCY][chosen[there]], note)
