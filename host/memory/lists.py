"""Lists of instructions as programs of buffers: what a list touches, read from its words by the golden engine.

The words alone say what a program is: no part of the host that made them is asked. Operands in the activation memory
become buffers by a map of places, so that the same lists at other places are the same program.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hdl.compute.layer_list import BASE_BITS, Place
from host.memory.plan import Operation, Plan, PlanError, Profile
from sim.golden.compute import Engine, Instruction, Operand, sources

__all__ = ["ListProgram", "Room", "rooms_of"]

#: Elements of weights and of gradients: all that an operand can address.
_ELEMENTS = 1 << BASE_BITS


@dataclasses.dataclass(frozen=True)
class Room:
    """Place of a buffer, and the operations in which it is there."""

    base: int
    words: int
    #: Operations as of :class:`~host.memory.plan.Lifetime`; by default all.
    first: int = 0
    end: int | None = None

    def has(self, operand: Operand, number: int) -> bool:
        """Whether an operand of an operation lies in it."""
        return (self.first <= number and (self.end is None or number < self.end)
                and self.base <= operand.base and operand.end <= self.base + self.words)


def rooms_of(plan: Plan) -> dict[str, Room]:
    """Places of a plan's buffers while they are alive, by name."""
    return {one.name: Room(plan.places[one.name], one.words, one.first, one.end) for one in plan.lifetimes}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ListProgram:
    """Lists of a pass, as they are written to the activation memory."""

    #: All lists, one behind the other.
    words: npt.NDArray[np.uint32]
    #: Address of the first one.
    base: int
    #: Address of each list, in the order in which they run.
    starts: Sequence[int]
    #: Most examples of a command.
    examples: int
    #: Buffers that the host writes before the pass, and those that it reads behind it. What it has given is still
    #: there then, so that a pass can be done again.
    given: Sequence[str]
    taken: Sequence[str]
    #: Elements by which what is given lies further on than a map says.
    further: int = 0

    @property
    def end(self) -> int:
        """Address behind the last list."""
        return self.base + len(self.words)

    def instructions(self, engine: Engine) -> list[Instruction]:
        """All instructions, in the order in which they run.

        Raises
        ------
        PlanError
            An instruction is wrong.
        """
        activations = np.zeros(self.base + len(self.words), np.uint32)
        activations[self.base:] = self.words
        elsewhere = np.broadcast_to(np.uint32(0), _ELEMENTS)
        memories = {Place.ACTIVATIONS: activations, Place.WEIGHTS: elsewhere, Place.GRADIENTS: elsewhere}
        found: list[Instruction] = []
        for start in self.starts:
            instructions, wrong = engine.check(memories, base=start, length=self.examples)
            if wrong is not None:
                raise PlanError(f"List at {start:,} must be one that nodes run, and its instruction {wrong} is wrong")
            found += instructions
        return found

    def profile(self, rooms: Mapping[str, Room], engine: Engine) -> Profile:
        """Program of buffers that lie in given rooms; instructions that touch none are left out.

        Raises
        ------
        PlanError
            An instruction is wrong, or touches what is not in one room.
        """
        operations = [Operation("the host gives", writes=tuple(self.given))]
        for instruction in self.instructions(engine):
            sides = [[one for one in side if self._is_buffer(one)]
                     for side in (sources(instruction), instruction.targets)]
            if any(sides):
                number = len(operations)
                operations.append(Operation(f"operation {number}", *(
                    tuple(sorted({self._room(one, number, rooms) for one in side})) for side in sides)))
        operations.append(Operation("the host takes", reads=(*self.given, *self.taken)))
        return Profile({name: room.words for name, room in rooms.items()}, operations)

    def check(self, plan: Plan, engine: Engine) -> None:
        """Check that the lists are the program of a plan, and that its buffers end below them.

        Raises
        ------
        PlanError
            They are another program, or the plan takes the words of the lists.
        """
        plan.check(self.profile(rooms_of(plan), engine), budget=self.base - self.further)

    def _is_buffer(self, operand: Operand) -> bool:
        """Whether an operand is of activations, and not of what lies with the lists, as indices of centroids do."""
        return operand.place is Place.ACTIVATIONS and not (self.base <= operand.base and operand.end <= self.end)

    def _room(self, operand: Operand, number: int, rooms: Mapping[str, Room]) -> str:
        """Name of the buffer that an operand lies in."""
        near = dataclasses.replace(operand, base=operand.base - self.further)
        found = [name for name, room in rooms.items()
                 if room.has(near if name in self.given else operand, number)]
        if len(found) != 1:
            where = " and ".join(found) if found else "none"
            raise PlanError(f"Operation {number} must touch one buffer of the memory plan with words "
                            f"{operand.base:,} to {operand.end:,}, not {where}: plan its memory again")
        return found[0]
