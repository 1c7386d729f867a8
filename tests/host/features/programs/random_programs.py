"""Random programs, and their effects on memory, modelled for each element separately."""

from host.features.programs.order import Region
from host.features.programs.program import Program

#: Number of groups in the memory shared by the commands of a random program.
GROUPS = 12


def random_region(generator, *, alternating):
    count, stride = int(generator.integers(1, 4)), int(generator.integers(1, 4))
    span = stride * (count - 1) + 1
    length = 32 * count - (int(generator.integers(0, 31)) if generator.random() < 0.3 else 0)
    alternate = 32 * GROUPS if alternating and generator.random() < 0.3 else 0
    return Region("g", 32 * int(generator.integers(0, GROUPS - span + 1)), length, stride, alternate)


def random_program(generator):
    """Draw a program with one to three queues; in a third of all programs, some regions alternate between passes."""
    queues = int(generator.integers(1, 4))
    program = Program(queues=queues)
    alternating = generator.random() < 1 / 3
    for index in range(int(generator.integers(1, 13))):
        reads, writes = ([random_region(generator, alternating=alternating) for _ in range(generator.integers(0, 3))]
                         for _ in range(2))
        program.add(f"command {index}", operation="COMPUTE", queue=int(generator.integers(0, queues)), reads=reads,
                    writes=writes, duration=int(generator.integers(0, 50)))
    return program


def touched(region, number):
    """List the elements that a region covers in a given pass."""
    base = region.base + (region.alternate if number % 2 else 0)
    return {base + element % 32 + element // 32 * 32 * region.stride for element in range(region.length)}


def conflicting(first, second, number, other):
    """Return whether two commands, each in a given pass, share an element that at least one of them writes."""
    def all_of(regions, turn):
        return set().union(*(touched(region, turn) for region in regions))

    reads, writes = all_of(first.reads, number), all_of(first.writes, number)
    return bool(writes & (all_of(second.reads, other) | all_of(second.writes, other))
                or reads & all_of(second.writes, other))
