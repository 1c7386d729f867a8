"""Table of the cycle counts in timing models that are measured or assumed.

Latencies of units are read from the gateware. All other times, such as the cycles between two commands, are recorded
here: a model registers each of its constants with a meaning and the source of the measurement or assumption. The
table is in docs/predict.md.
"""

from typing import NamedTuple

__all__ = ["TABLE", "Constant", "constant"]


class Constant(NamedTuple):
    """Cycle count in a model, its meaning, and the source of the number."""

    model: str
    cycles: int
    meaning: str
    source: str


#: Constants of the models that have been imported.
TABLE: list[Constant] = []


def constant(model: str, cycles: int, meaning: str, source: str) -> int:
    """Add a constant to the table, and return its number of cycles.

    Raises
    ------
    ValueError
        ``cycles`` is not an integer of at least 0, or the table lists different cycles with the same meaning.
    """
    if type(cycles) is not int or cycles < 0:
        raise ValueError(f"Cycles of {meaning} must be an integer from 0 on, not {cycles!r}")
    if any(row[:3:2] == (model, meaning) and row.cycles != cycles for row in TABLE):
        raise ValueError(f"Cycles of {meaning} must be stated once for {model}")
    TABLE.append(Constant(model, cycles, meaning, source))
    return cycles
