"""Checks of a plan that know nothing of how it was made.

:func:`overlaps` looks at the words of the buffers that are alive at each operation. :func:`dead_reads` carries the
program out, word by word, with the owner of each word in place of its value: a modelled memory whose rows carry the
number of the buffer that wrote them.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from host.memory.profile import Profile

__all__ = ["DeadRead", "Overlap", "dead_reads", "overlaps"]


@dataclasses.dataclass(frozen=True)
class Overlap:
    """Two buffers that are alive at the same time, and have words in common.

    Members
    -------
    operation : int
        The first operation at which they do.
    one, other : str
        Buffers, the one that begins at the lower word first.
    begin, end : int
        Words that both have.
    """

    operation: int
    one: str
    other: str
    begin: int
    end: int


@dataclasses.dataclass(frozen=True)
class DeadRead:
    """Operation that reads words as a buffer's which another one has written over.

    Members
    -------
    buffer, owner : str
        Buffer that is read, and the one that the first wrong word belongs to.
    word : int
        Address of this word.
    """

    operation: int
    buffer: str
    owner: str
    word: int


def overlaps(profile: Profile, places: Mapping[str, int]) -> list[Overlap]:
    """All pairs of buffers that overlap while both are alive."""
    touched: dict[str, list[int]] = {}
    for number, operation in enumerate(profile.operations):
        for name in (*operation.reads, *operation.writes):
            touched.setdefault(name, []).append(number)
    found: dict[tuple[str, str], Overlap] = {}
    for number in range(len(profile.operations)):
        alive = sorted((places[name], name) for name, mine in touched.items() if min(mine) <= number <= max(mine))
        for index, (base, name) in enumerate(alive):
            end = base + profile.words[name]
            for other_base, other in alive[index + 1:]:
                if other_base >= end:
                    break
                common = min(end, other_base + profile.words[other])
                found.setdefault((name, other), Overlap(number, name, other, other_base, common))
    return list(found.values())


def dead_reads(profile: Profile, places: Mapping[str, int]) -> list[DeadRead]:
    """All reads of words that belong to another buffer. An operation reads before it writes, and writes a buffer as a
    whole."""
    names = [*profile.words]
    numbers = {name: number for number, name in enumerate(names)}
    top = max((places[name] + words for name, words in profile.words.items()), default=0)
    owners = np.full(top, -1)
    found: list[DeadRead] = []
    for number, operation in enumerate(profile.operations):
        for name in operation.reads:
            mine = owners[places[name]:places[name] + profile.words[name]]
            wrong = np.flatnonzero(mine != numbers[name])
            if len(wrong):
                owner = names[mine[wrong[0]]] if mine[wrong[0]] >= 0 else "none"
                found.append(DeadRead(number, name, owner, places[name] + int(wrong[0])))
        for name in operation.writes:
            owners[places[name]:places[name] + profile.words[name]] = numbers[name]
    return found
