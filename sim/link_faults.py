"""Numbering of a link's wires, and random wire faults for the Verilated ring and Amaranth's simulator.

Faults are a function of seed, link and cycle. They therefore do not depend on threads, quantum, simulator or the
values on the wires.
"""

import dataclasses
from typing import SupportsIndex

__all__ = ["RandomFaults", "splitmix64", "wire_number", "wires"]

_MASK = (1 << 64) - 1


def wires(*, replay: bool) -> tuple[str, ...]:
    """Names of a link's wires in numerical order; the last wire runs in the opposite direction."""
    data = tuple(f"data[{bit}]" for bit in range(32))
    if not replay:
        return *data, "last", "valid", "credit"
    return *data, "last", "valid", "kind", *(f"check[{bit}]" for bit in range(8)), "line"


def wire_number(wire: str | SupportsIndex, *, replay: bool) -> int:
    """Number of a wire given by name or number; raises ``ValueError`` if the wire does not exist."""
    names = wires(replay=replay)
    if isinstance(wire, str):
        if wire not in names:
            raise ValueError(f"Wire must be data[0] to data[31], {', '.join(_short(names))}, not {wire!r}")
        return names.index(wire)
    number = int(wire)
    if not 0 <= number < len(names):
        raise ValueError(f"Wire must be between 0 and {len(names) - 1}, not {wire!r}")
    return number


def _short(names: tuple[str, ...]) -> list[str]:
    return [*(name for name in names[32:] if "[" not in name),
            *(["check[0] to check[7]"] if "check[0]" in names else [])]


def splitmix64(value: int) -> int:
    """One step of SplitMix64 from the given state; returns 64 uniformly distributed bits."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomFaults:
    """Random link faults: in every cycle, the bit on at most one wire of each link is inverted.

    Parameters
    ----------
    rate : float
        Probability of a fault per link and cycle, 0 to 1. All wires are equally likely. A fault on the wires for
        data, ``last``, ``kind`` and ``check`` has an effect only in a cycle with a word.
    seed : int
        Seed, from 0 to 2^64 - 1.
    """

    rate: float
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.rate, bool) or not isinstance(self.rate, int | float) or not 0 <= self.rate <= 1:
            raise ValueError(f"Fault rate must be between 0 and 1, not {self.rate!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed <= _MASK:
            raise ValueError(f"Seed of faults must be between 0 and 2^64 - 1, not {self.seed!r}")

    @property
    def threshold(self) -> int:
        """Bound for 64-bit random numbers: a number below it causes a fault."""
        return min(int(self.rate * (1 << 64)), _MASK)

    def wire(self, link: int, cycle: int, *, replay: bool) -> int | None:
        """Number of the link's wire that is faulty in this cycle, or None if there is no fault."""
        drawn = splitmix64(splitmix64(splitmix64(self.seed) ^ link) ^ cycle)
        return splitmix64(drawn) % len(wires(replay=replay)) if drawn < self.threshold else None
