"""Lists of the text model taken apart: the buffers that each instruction touches, and its words at other places.

The words of the lists (:mod:`host.compute.text_lists`) alone say what they do. Instructions that touch no buffer, as
that which clears gradients, belong to the next one that does: so both lists of backward have the same operations.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hdl.compute.layer_list import (
    BASE_BITS,
    INSTRUCTION_WORDS,
    OWNER_BITS,
    Kind,
    Place,
    gemm_layout,
    operand_layout,
    row_layout,
    vector_layout,
)
from hdl.group import GROUP
from host.compute.factors import Array
from host.compute.instructions import Words
from host.compute.list_cycles import ListCycles
from host.compute.text_lists import TextLists, engine_of
from host.memory.chain import Chain
from host.memory.lists import rooms_of
from host.memory.saved import AGAIN, Saved
from sim.golden.compute import Gemm, Instruction, Operand, sources

__all__ = ["Operation", "TextOperations"]

#: Number of the word of each operand, by the kind of an instruction.
_OPERANDS = {int(kind): [field.offset // 32 for _, field in layout if field.shape == operand_layout()]
             for kind, layout in ((Kind.GEMM, gemm_layout()), (Kind.VECTOR, vector_layout()),
                                  (Kind.ROWS, row_layout()))}
_PLACE, _RELATIVE = BASE_BITS + OWNER_BITS, 1 << BASE_BITS + OWNER_BITS + 3
_BASE, _OWNER = (1 << BASE_BITS) - 1, (1 << OWNER_BITS) - 1 << BASE_BITS


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """Instruction, with those in front of it that touch no buffer.

    Members
    -------
    reads, writes : tuple of str
        Names of buffers.
    words : tuple of array
        Words of each instruction, at the places of the lists that were taken apart.
    multiplications : int
        Multiply-adds, but for sums of columns.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    words: tuple[Words, ...]
    instructions: tuple[Instruction, ...]
    multiplications: int


class TextOperations:
    """Operations of a sequence.

    Parameters
    ----------
    lists : TextLists
        Lists whose normal rows are scaled again in backward.
    characters : sequence of int
        Characters of the sequence that cycles are modelled for; by default all differ.

    Members
    -------
    saved : Saved
        Maps, and the operations that write and read them.
    """

    def __init__(self, lists: TextLists, array: Array, *, characters: Sequence[int] | None = None):
        self.lists = lists
        self._rooms = rooms_of(lists.plan)
        self._bases = {name: room.base for name, room in self._rooms.items()}
        self._owners: dict[str, int] = {}
        self._model = ListCycles(array, length=lists.context, words=1 << BASE_BITS, characters=characters)
        self._variants = [self._taken_apart(array, number) for number in range(2)]
        touched = [[(one.reads, one.writes) for one in variant] for variant in self._variants]
        assert touched[0] == touched[1]
        self.saved = Saved(self._variants[0], "d output",
                           vectors=[name for name, room in self._rooms.items() if room.words <= GROUP])

    def operations(self, *, further: bool) -> Sequence[Operation]:
        """Operations of the first sequence of a share, or of each other one."""
        return self._variants[further]

    def words(self, name: str) -> int:
        """Words of a buffer."""
        return self._rooms[name].words

    def plain(self, name: str) -> str:
        """Name of a buffer of forward that has the same bits."""
        other = name.removesuffix(AGAIN)
        return other if other in self._rooms else name

    def _taken_apart(self, array: Array, number: int) -> list[Operation]:
        program = self.lists.programs[number]
        raw: list[Words] = []
        for start in program.starts:
            place = start - self.lists.base
            while self.lists.words[place] & 15:
                raw.append(self.lists.words[place:place + INSTRUCTION_WORDS])
                place += INSTRUCTION_WORDS
        found: list[Operation] = []
        waiting: list[tuple[Instruction, Words]] = []
        for instruction, words in zip(program.instructions(engine_of(array)), raw, strict=True):
            waiting.append((instruction, words))
            sides = [self._named(side, len(found) + 1) for side in (sources(instruction), instruction.targets)]
            if any(sides):
                instructions, mine = zip(*waiting, strict=True)
                found.append(Operation(
                    reads=sides[0], writes=sides[1], instructions=instructions, words=mine,
                    multiplications=sum(one.job.m * one.job.n * one.job.k for one in instructions
                                        if isinstance(one, Gemm) and one.a.place is not Place.ONES)))
                waiting = []
        assert not waiting
        return found

    def _named(self, operands: Sequence[Operand], number: int) -> tuple[str, ...]:
        """Names of the buffers among operands of an operation, by its number in the plan."""
        found = []
        for one in operands:
            if one.place is Place.ACTIVATIONS and one.end <= self.lists.plan.peak:
                (name,) = (name for name, room in self._rooms.items() if room.has(one, number))
                self._owners[name] = one.owner
                found.append(name)
        return tuple(sorted(set(found)))

    def relocated(self, operation: Operation, places: Mapping[str, tuple[str, int]], data: int) -> list[Words]:
        """Words of an operation at other places.

        Parameters
        ----------
        places : mapping
            For each of its buffers the name of the one that stands in for it, and the first word of that one's place.
        data : int
            Address of the first sequence's characters.
        """
        rooms = [(self._bases[name], self._rooms[name], name) for name in {*operation.reads, *operation.writes}]
        found = []
        for words in operation.words:
            made = words.copy()
            for word in _OPERANDS[int(words[0]) & 15]:
                bits = int(words[word])
                base = bits & _BASE
                if bits >> _PLACE & 7 != Place.ACTIVATIONS:
                    continue
                if bits & _RELATIVE:
                    made[word] = bits & ~_BASE | base - self.lists.data + data
                    continue
                (begin, name), = ((begin, name) for begin, room, name in rooms
                                  if begin <= base < begin + room.words)
                other, place = places[name]
                made[word] = bits & ~(_BASE | _OWNER) | self._owners[other] << BASE_BITS | place + base - begin
            found.append(made)
        return found

    def cycles(self, numbers: Sequence[int], *, further: bool) -> int:
        """Modelled cycles of a list of operations; of none, 0."""
        operations = [self._variants[further][number] for number in numbers]
        if not operations:
            return 0
        words = [words for operation in operations for words in operation.words]
        return self._model.walks([*words, np.zeros(INSTRUCTION_WORDS, np.uint32)]) + sum(
            self._job(instruction) for operation in operations for instruction in operation.instructions)

    @functools.cached_property
    def _jobs(self) -> dict[int, int]:
        return {}

    def _job(self, instruction: Instruction) -> int:
        if id(instruction) not in self._jobs:
            self._jobs[id(instruction)] = self._model.instruction(instruction)[1]
        return self._jobs[id(instruction)]

    def chain(self, *, further: bool, cycles: Callable[[Sequence[int]], int] | None = None) -> Chain:
        """Chain of the maps; by default with modelled cycles."""
        modelled = functools.partial(self.cycles, further=further)
        return self.saved.chain("lists of text", words=self.words, cycles=cycles or modelled,
                                multiplications=lambda number: self._variants[further][number].multiplications)
