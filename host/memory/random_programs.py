"""Random programs and chains, and overlaps put into plans on purpose."""

import itertools
from collections.abc import Mapping

import numpy as np

from host.memory.chain import Chain, Map
from host.memory.profile import Operation, Profile

__all__ = ["injected", "random_chain", "random_profile"]


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
