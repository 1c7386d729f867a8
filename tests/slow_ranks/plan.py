"""Plans of sums for which some ranks are late, and checks of the printed lines that name the late ranks."""

import dataclasses
import random
import re
from collections.abc import Iterable

KINDS = ("asleep", "busy", "stopped")

#: Delays of ranks that must be named as late, and of all other ranks, relative to the time after which ranks are
#: named.
_LATE, _IN_TIME = 2.0, 0.25

#: Number of elements in the first sum. All sums have different lengths, which identify them in the printed lines.
_FIRST = 33

_LINE = re.compile(r"ha(?:s|ve) waited \S+ s for ranks? ([\d, and]+), for a sum of ([\d,]+) elements$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A sum for which some ranks are late."""

    how: str  # one of :data:`KINDS`
    late: list[int]  # the late ranks
    named: bool  # whether they are late enough that they must be named
    seconds: float
    elements: int


def plan(cases: int, *, ranks: int, slow: float, seed: int) -> list[Case]:
    """Plan cases with one or two late ranks. After every fourth case, there is one in which no rank must be named."""
    generator = random.Random(seed)
    planned: list[Case] = []
    for number in range(cases):
        for named in (True, False) if number % 4 == 3 else (True,):
            late = sorted(generator.sample(range(ranks), generator.choice([1, 1, min(2, ranks - 1)])))
            planned.append(Case(how=generator.choice(KINDS), late=late, named=named, elements=_FIRST + len(planned),
                                seconds=slow * (_LATE if named else _IN_TIME)))
    return planned


def judge(cases: Iterable[Case], lines: Iterable[str]) -> list[bool]:
    """Return, for each case, whether the late ranks were named exactly once, and no other rank was named."""
    named: dict[int, list[list[int]]] = {}
    for line in lines:
        if (match := _LINE.search(line)) is not None:
            ranks = [int(number) for number in re.findall(r"\d+", match[1])]
            named.setdefault(int(match[2].replace(",", "")), []).append(ranks)
    return [named.get(case.elements, []) == ([case.late] if case.named else []) for case in cases]
