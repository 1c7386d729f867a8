"""Check plans independently of the planner, and generate random programs and chains for tests.

:func:`overlaps` compares the addresses of the buffers that are alive at each operation. :func:`dead_reads` executes
the program on a model of the memory that stores, for each word, which buffer wrote it instead of the value.
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
    """Two buffers that are alive at the same time and share words."""

    operation: int  # first operation at which the buffers overlap
    one: str  # buffer that starts at the lower address
    other: str
    begin: int  # first shared word
    end: int


@dataclasses.dataclass(frozen=True)
class DeadRead:
    """Operation that reads a buffer after some of its words were overwritten by another buffer."""

    operation: int
    buffer: str  # buffer that is read
    owner: str  # buffer that wrote the first wrong word
    word: int  # address of the first wrong word


def overlaps(profile: Profile, places: Mapping[str, int]) -> list[Overlap]:
    """Find all pairs of buffers that overlap while both are alive."""
    touched: dict[str, list[int]] = {}
    for number, operation in enumerate(profile.operations):
        for name in (*operation.reads, *operation.writes):
            touched.setdefault(name, []).append(number)
    pairs: dict[tuple[str, str], Overlap] = {}
    for number in range(len(profile.operations)):
        alive = sorted((places[name], name) for name, at in touched.items() if min(at) <= number <= max(at))
        for (base, name), (other_base, other) in itertools.combinations(alive, 2):
            end = min(base + profile.words[name], other_base + profile.words[other])
            if other_base < end:
                pairs.setdefault((name, other), Overlap(number, name, other, other_base, end))
    return list(pairs.values())


def dead_reads(profile: Profile, places: Mapping[str, int]) -> list[DeadRead]:
    """Find all reads of overwritten words; an operation reads before it writes, and writes whole buffers."""
    names = [*profile.words]
    numbers = {name: number for number, name in enumerate(names)}
    top = max((places[name] + words for name, words in profile.words.items()), default=0)
    owners = np.full(top, -1)
    reads: list[DeadRead] = []
    for number, operation in enumerate(profile.operations):
        for name in operation.reads:
            own = owners[places[name]:places[name] + profile.words[name]]
            wrong = np.flatnonzero(own != numbers[name])
            if len(wrong):
                owner = names[own[wrong[0]]] if own[wrong[0]] >= 0 else "none"
                reads.append(DeadRead(number, name, owner, places[name] + int(wrong[0])))
        for name in operation.writes:
            owners[places[name]:places[name] + profile.words[name]] = numbers[name]
    return reads


def random_profile(generator: np.random.Generator, *, most: int = 30) -> Profile:
    """Generate a program of up to ``most`` operations that each write one buffer and read up to three.

    A quarter of the operations overwrite a buffer that they have read. Buffer sizes vary widely.
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
    """Move one buffer to overlap another in words that are read later.

    Returns None if no two buffers have suitable lifetimes.
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
    """Generate a chain of three to ``most`` maps, a budget for some of them, and a far memory rate.

    Forward takes 1 to 8 cycles per word, and backward takes about twice as long.
    """
    maps = []
    for _ in range(int(generator.integers(3, most + 1))):
        words = 32 * int(generator.integers(1, 33))
        forward = int(words * generator.uniform(1, 8))
        maps.append(Map(words, forward, int(forward * generator.uniform(1.5, 2.5))))
    chain = Chain("random", tuple(maps), loss=int(generator.integers(0, 2000)))
    pairs = [earlier.words + later.words for earlier, later in itertools.pairwise(maps)]
    least = max(pairs)
    budget = int(max(least, chain.words * generator.uniform(0.4, 0.9)))
    return chain, budget, float(generator.choice([1 / 8, 1 / 4, 1 / 2, 1]))
