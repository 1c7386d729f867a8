"""Table of the cycles that models of time have from measurements.

Latencies of units are read from the gateware. The other times, such as the cycles between two commands, are here:
a model states each of its constants with its meaning and with the place where it was measured or assumed.
docs/predict.md has the table.
"""

from typing import NamedTuple

__all__ = ["TABLE", "Constant", "constant"]


class Constant(NamedTuple):
    """Cycles of a model, what takes them, and the source of the number."""

    model: str
    cycles: int
    meaning: str
    source: str


#: Constants of the models that have been imported.
TABLE: list[Constant] = []


def constant(model: str, cycles: int, meaning: str, source: str) -> int:
    """Enter a constant into the table, and return its cycles.

    Raises
    ------
    ValueError
        Cycles are no integer from 0 on, or the table has other cycles with the same meaning.
    """
    if type(cycles) is not int or cycles < 0:
        raise ValueError(f"Cycles of {meaning} must be an integer from 0 on, not {cycles!r}")
    if any(row[:3:2] == (model, meaning) and row.cycles != cycles for row in TABLE):
        raise ValueError(f"Cycles of {meaning} must be stated once for {model}")
    TABLE.append(Constant(model, cycles, meaning, source))
    return cycles
