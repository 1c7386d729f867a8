"""Plans of sums with late ranks, and checks of the output lines that name the late ranks."""

import dataclasses
import random
import re
from collections.abc import Iterable

KINDS = ("asleep", "busy", "stopped")

#: Delays of ranks that must be named as late, and of all other ranks, as multiples of the naming time limit.
_LATE, _IN_TIME = 2.0, 0.25

#: Number of elements in the first sum. Sums have distinct lengths, which identify them in the server's messages.
_FIRST = 33

_LINE = re.compile(r"ha(?:s|ve) waited \S+ s for ranks? ([\d, and]+), for a sum of ([\d,]+) elements$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A sum with some late ranks."""

    how: str  # one of :data:`KINDS`
    late: list[int]  # ranks that are late
    named: bool  # whether they are late enough that the report must name them
    seconds: float
    elements: int


def plan(cases: int, *, ranks: int, slow: float, seed: int) -> list[Case]:
    """Cases with one or two late ranks; every fourth one is followed by a case that must name no rank."""
    generator = random.Random(seed)
    planned: list[Case] = []
    for number in range(cases):
        for named in (True, False) if number % 4 == 3 else (True,):
            late = sorted(generator.sample(range(ranks), generator.choice([1, 1, min(2, ranks - 1)])))
            planned.append(Case(how=generator.choice(KINDS), late=late, named=named, elements=_FIRST + len(planned),
                                seconds=slow * (_LATE if named else _IN_TIME)))
    return planned


def judge(cases: Iterable[Case], lines: Iterable[str]) -> list[bool]:
    """For each case, whether the late ranks were named exactly once and no other rank was named."""
    named: dict[int, list[list[int]]] = {}
    for line in lines:
        if (match := _LINE.search(line)) is not None:
            ranks = [int(number) for number in re.findall(r"\d+", match[1])]
            named.setdefault(int(match[2].replace(",", "")), []).append(ranks)
    return [named.get(case.elements, []) == ([case.late] if case.named else []) for case in cases]
