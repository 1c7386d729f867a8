import numpy as np
import pytest

from hdl.features.compute.vector_sequence import VectorSequence
from sim.verilated.vectors import Unit


def _places(units, rows, columns):
    """Return the expected positions: unit, group, column, address, and whether each ends a row and a block."""
    return [(row % units, row // units, column, row // units * columns + column, column == columns - 1,
             column == columns - 1 and row == rows - 1) for row in range(rows) for column in range(columns)]


@pytest.mark.parametrize("units", [2, 4])
def test_places(units):
    """Positions are correct in blocks of all sizes, with pauses, and after an early restart."""
    generator = np.random.default_rng(units)
    unit = Unit(VectorSequence(units=units, columns=8))
    names = ("unit", "group", "column", "address", "last", "ends")
    for rows, columns in ((1, 1), (1, 8), (16 * units, 1), (16 * units, 8), (5, 3), (7, 4), (2, 2)):
        want = _places(units, rows, columns)
        cut = len(want) // 2
        for count in (cut, len(want)):
            cycles = 1 + 3 * count + 8
            step = np.zeros(cycles, np.uint8)
            step[1 + np.sort(generator.choice(3 * count + 4, count, replace=False))] = 1
            start = np.zeros(cycles, np.uint8)
            start[0] = 1
            ports = unit.run({"start": start, "step": step, "rows": rows, "columns": columns})
            done = np.cumsum(step) - step
            left = ports["left"][1:] == 1
            assert left.tolist() == (done[1:] < len(want)).tolist()
            got = list(zip(*(ports[name][1:][left].tolist() for name in names if name in ports), strict=True))
            listed = [want[number] for number in done[1:][left]]
            if "unit" not in ports:
                listed = [position[1:] for position in listed]
            assert got == [tuple(map(int, position)) for position in listed], (rows, columns)
