"""Random programs on memory buffers, as lists of products; buffers may overlap in the memory plan."""

import dataclasses

import numpy as np

from hdl.features.compute.layer_list import INSTRUCTION_WORDS, MAX_INSTRUCTIONS, Initial, Kind, Place, gemm_layout
from host.features.compute.memory.checker import dead_reads, injected, overlaps, random_profile
from host.features.compute.memory.plan import Operation, Profile, make_plan
from sim.golden.features.compute.compute import Engine, pack

#: Number of elements in a memory row; one row stores one word of a random program's buffers.
LANES = 4


def engine(**options):
    """Golden compute engine with a one-row array, which can run every product."""
    return Engine(rows=1, lanes=LANES, **options)


@dataclasses.dataclass(frozen=True)
class Program:
    """A program's instructions for whole buffers, and the rows of the buffer that the host writes first."""

    words: np.ndarray
    given: range  # rows of the buffer that the host writes
    profile: Profile

    def give(self, generator, activations, owners, base):
        """Write the list, and random numbers to the host's buffer; return the addresses of this buffer."""
        rows = np.arange(self.given.start, self.given.stop)
        places = (LANES * rows[:, None] + np.arange(LANES)).ravel()
        activations[places] = generator.random(len(places)).astype(np.float32).view(np.uint32)
        activations[base:base + len(self.words)] = self.words
        owners.write(rows)
        owners.write(np.arange(base, base + len(self.words)) // LANES)
        return places


def _operand(profile, places, name):
    return {"place": Place.ACTIVATIONS, "base": LANES * places[name], "owner": [*profile.words].index(name) + 1}


def _products(profile, places, operation):
    """Return products C = ONES · B or C = C + ONES · B for an operation, over all rows of its buffers."""
    written, = operation.writes
    c, rows = _operand(profile, places, written), profile.words[written]
    sources = [name for name in operation.reads if name != written]
    same = {"start": c, "stride_start": LANES, "initial": Initial.MATRIX}
    for number, name in enumerate(sources or [None]):
        b = {"place": Place.WEIGHTS} if name is None else _operand(profile, places, name)
        yield pack(gemm_layout(), {
            "kind": Kind.GEMM, "m": rows, "n": LANES, "k": 1 if name is None else profile.words[name],
            "tile": 2, "row_tiles": 1, "column_tiles": 1, "rounds": 3,
            "a": {"place": Place.ONES}, "b": b, "stride_b": LANES, "c": c, "stride_c": LANES,
            **(same if number or written in operation.reads else {})})


def _program(profile, places):
    """Return the program with its buffers placed at the rows ``places``, or None if its list would be too long."""
    first = profile.operations[0].writes[0]
    listed = [words for operation in profile.operations[1:] for words in _products(profile, places, operation)]
    if len(listed) >= MAX_INSTRUCTIONS:
        return None
    words = np.concatenate([*listed, np.zeros(INSTRUCTION_WORDS, np.uint32)])
    return Program(words, range(places[first], places[first] + profile.words[first]), profile)


def draw(generator, *, rows, most, shrink=1):
    """Draw a program, and a copy with an overlap in its memory plan that both checks of the plan detect.

    The program has at most ``most`` operations and ``rows`` memory rows. Buffer sizes are divided by ``shrink``. The
    second program is None if no overlap is possible, or if its list would be rejected because a target overlaps an
    operand of the same instruction.
    """
    while True:
        drawn = random_profile(generator, most=most)
        profile = Profile({name: -(-words // shrink) for name, words in drawn.words.items()},
                          [Operation(op.name, op.reads, op.writes) for op in drawn.operations])
        plan = make_plan(profile, rounds=20)
        good = _program(profile, plan.places)
        if good is None or plan.peak > rows:
            continue
        places = injected(profile, plan.places, generator)
        if places is None:
            return good, None
        assert overlaps(profile, places)
        assert dead_reads(profile, places)
        wrong = _program(profile, places)
        top = max(places[name] + words for name, words in profile.words.items())
        memory = np.zeros(LANES * rows + len(wrong.words), np.uint32)
        memory[LANES * rows:] = wrong.words
        memories = {Place.ACTIVATIONS: memory, Place.WEIGHTS: memory, Place.GRADIENTS: memory}
        refused = engine().check(memories, base=LANES * rows, length=1)[1] is not None
        return good, None if refused or top > rows else wrong
