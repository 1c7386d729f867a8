"""Checks of a plan that know nothing of how it was made, and random programs, chains and overlaps to be checked.

:func:`overlaps` looks at the words of the buffers that are alive at each operation. :func:`dead_reads` carries the
program out, word by word, with the owner of each word in place of its value: a modelled memory whose rows carry the
number of the buffer that wrote them.
"""

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np

from host.features.compute.memory.chain import Chain, Map
from host.features.compute.memory.plan import Operation, Profile

__all__ = ["DeadRead", "Overlap", "dead_reads", "injected", "overlaps", "random_chain", "random_profile"]


@dataclasses.dataclass(frozen=True)
class Overlap:
    """Two buffers that are alive at the same time, and have words in common."""

    #: The first operation at which they do.
    operation: int
    #: Buffers, the one that begins at the lower word first.
    one: str
    other: str
    #: Words that both have.
    begin: int
    end: int


@dataclasses.dataclass(frozen=True)
class DeadRead:
    """Operation that reads words as a buffer's which another one has written over."""

    operation: int
    #: Buffer that is read, and the one that the first wrong word belongs to.
    buffer: str
    owner: str
    #: Address of this word.
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


def random_profile(generator: np.random.Generator, *, most: int = 30) -> Profile:
    """Program of up to ``most`` operations, each of which writes a buffer and reads up to three earlier ones.

    A quarter of the operations write a buffer again that they read. Words are those of rows, from few to many.
    """
    words: dict[str, int] = {}
    operations: list[Operation] = []
    for number in range(int(generator.integers(3, most + 1))):
        names = [*words]
        reads = tuple(str(name) for name in generator.choice(
            names, min(len(names), int(generator.integers(1, 4))), replace=False)) if names else ()
        if reads and generator.random() < 0.25:
            written = reads[0]
        else:
            written = f"buffer {len(words)}"
            words[written] = int(generator.integers(1, 9)) * int(2 ** generator.integers(0, 7))
        operations.append(Operation(f"operation {number}", reads, (written,)))
    return Profile(words, operations)


def injected(profile: Profile, places: Mapping[str, int], generator: np.random.Generator) -> dict[str, int] | None:
    """Places of which one is moved so that its buffer overlaps another, in words that are read again afterwards.

    Returns
    -------
    dict or None
        None if no two buffers are alive like that.
    """
    writes: dict[str, list[int]] = {}
    reads: dict[str, list[int]] = {}
    for number, operation in enumerate(profile.operations):
        for name in operation.reads:
            reads.setdefault(name, []).append(number)
        for name in operation.writes:
            writes.setdefault(name, []).append(number)
    pairs = [(kept, moved) for kept in profile.words for moved in profile.words if kept != moved and any(
        before < over < read and not any(over < again < read for again in writes[kept])
        for before in writes[kept][:1] for over in writes[moved] for read in reads.get(kept, []))]
    if not pairs:
        return None
    kept, moved = pairs[int(generator.integers(len(pairs)))]
    lowest = max(0, places[kept] - profile.words[moved] + 1)
    return {**places, moved: int(generator.integers(lowest, places[kept] + profile.words[kept]))}


def random_chain(generator: np.random.Generator, *, most: int = 8) -> tuple[Chain, int, float]:
    """Chain of three to ``most`` maps, a budget that does not hold them all, and the rate of far memory.

    Forward takes 1 to 8 cycles a word, backward about twice as long.
    """
    maps = []
    for _ in range(int(generator.integers(3, most + 1))):
        words = 32 * int(generator.integers(1, 33))
        forward = int(words * generator.uniform(1, 8))
        maps.append(Map(words, forward, int(forward * generator.uniform(1.5, 2.5))))
    chain = Chain("random", tuple(maps), loss=int(generator.integers(0, 2000)))
    pairs = [one.words + other.words for one, other in itertools.pairwise(maps)]
    least = max(pairs)
    budget = int(max(least, chain.words * generator.uniform(0.4, 0.9)))
    return chain, budget, float(generator.choice([1 / 8, 1 / 4, 1 / 2, 1]))
