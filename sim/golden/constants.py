"""Cycle counts in timing models that are measured or assumed, as a table.

Latencies of units are read from the gateware. All other times, such as the cycles between two commands, are recorded
here: a model registers each of its constants, with its meaning and the source of the measurement or assumption. The
table is shown in docs/predict.md.
"""

from typing import NamedTuple

__all__ = ["TABLE", "Constant", "constant"]


class Constant(NamedTuple):
    """Cycle count in a model, its meaning, and its source."""

    model: str
    cycles: int
    meaning: str
    source: str


#: Constants of all models imported so far.
TABLE: list[Constant] = []


def constant(model: str, cycles: int, meaning: str, source: str) -> int:
    """Add a constant to the table, and return its cycle count.

    Raises
    ------
    ValueError
        If ``cycles`` is not an integer of at least 0, or the table has a different count for the same meaning.
    """
    if type(cycles) is not int or cycles < 0:
        raise ValueError(f"Cycles of {meaning} must be an integer from 0 on, not {cycles!r}")
    if any(row[:3:2] == (model, meaning) and row.cycles != cycles for row in TABLE):
        raise ValueError(f"Cycles of {meaning} must be stated once for {model}")
    TABLE.append(Constant(model, cycles, meaning, source))
    return cycles
